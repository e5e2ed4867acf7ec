"""What a new session begins with, when that is a snapshot of another one."""

from collections.abc import Callable

from sandlot.contracts.runtime import Runtime
from sandlot.host.history import SnapshotRow
from sandlot.host.session import Session
from sandlot.host.templates.store import TemplateStore
from sandlot.model import AUTO, BUILTIN, Capability, InvalidArgument, SessionSpec, SnapshotNotFound, Template


async def find_template(templates: TemplateStore, name: str, runtime: Runtime) -> Template:
    """Raises TemplateNotFound, Unavailable. A runtime without a root of its own has no use for one."""
    if Capability.OWN_ROOT in runtime.capabilities:
        return await templates.find(name)
    return Template(name, "", "")


def find_source(find: Callable[[str], Session], spec: SessionSpec) -> tuple[Session, SnapshotRow] | tuple[None, None]:
    """Raises SessionNotFound, SnapshotNotFound, InvalidArgument."""
    if spec.snapshot is None:
        return None, None
    session_id, _, name = spec.snapshot.partition("/")
    source = find(session_id)
    start = source.find_snapshot(name)
    if start is None:
        raise SnapshotNotFound(f"there is no snapshot {spec.snapshot}", next_step="`sandlot log` shows a history")
    if spec.storage not in (AUTO, source.row.storage) or spec.template not in (BUILTIN, source.row.template):
        raise InvalidArgument(
            f"a session that begins with {spec.snapshot} has its storage and its template",
            next_step="leave storage and template out",
        )
    return source, start
