"""A host made again from a backup, in a data directory without anything in it: whole, or not at all."""

import asyncio
import json
import os
import time
from collections.abc import AsyncIterable, Callable, Iterable
from contextlib import suppress
from pathlib import Path

from sandlot.contracts.runtime import MountPlan
from sandlot.contracts.storage import Volume
from sandlot.host import beside, carrying
from sandlot.host import restored_journal as journals
from sandlot.host.archives import whole as wholes
from sandlot.host.archives.applying import apply_entries
from sandlot.host.archives.entries import Entry, Kind
from sandlot.host.archives.manifest import template_mark
from sandlot.host.archives.reading import ArchiveReader, Budget, damaged
from sandlot.host.archives.whole import SessionPart, TemplatePart, VolumePart, Whole
from sandlot.host.choices import Choices
from sandlot.host.feed import Feed
from sandlot.host.importing import Importing
from sandlot.host.lifecycle import Lifecycle
from sandlot.host.lockers import Lockers
from sandlot.host.parts import HostParts
from sandlot.host.pausing import Pausing
from sandlot.host.removal import remove_tree
from sandlot.host.restored_journal import OldJournal
from sandlot.model import (
    AUDIT_ANCHOR,
    BUILTIN,
    KEYS_FILE,
    Capability,
    CapabilityNotSupported,
    ImportRequest,
    InvalidArgument,
    NotFound,
    PauseRequest,
    Restored,
    RestoreRequest,
    SandlotError,
    SessionState,
    TemplateNotFound,
    Unavailable,
    VolumeSpec,
    limits,
    split_name,
)

_SCRATCH = "restoring"
_BESIDE = "beside"
Tell = Callable[[str, int, int], None]  # what is being done, how many are, of how many


class Restoring:
    """Into an engine that has just begun, and has nothing."""

    def __init__(
        self,
        lifecycle: Lifecycle,
        parts: HostParts,
        choices: Choices,
        importing: Importing,
        lockers: Lockers,
        pausing: Pausing,
        anchor: Path | None = None,
    ) -> None:
        self._lifecycle = lifecycle
        self._parts = parts
        self._choices = choices
        self._importing = importing
        self._lockers = lockers
        self._pausing = pausing
        self._anchor = anchor
        self._data = self._scratch = Path()

    async def restore(self, data: Path, request: RestoreRequest, content: AsyncIterable[bytes], tell: Tell) -> Restored:
        """Raises InvalidArgument for what is no whole backup, TemplateNotFound, LimitReached when there is no room,
        Unavailable, and what the content raises. Then what is there is to be removed."""
        self._data, self._scratch = data, data / _SCRATCH
        feed = Feed(content)
        reader = ArchiveReader(feed.read)
        try:
            return await self._restore(request, reader, tell)
        except InvalidArgument as error:
            told = error.message.replace("whole export of a session", "whole backup of a host")
            raise InvalidArgument(told, next_step="take the file that `sandlot backup` wrote, whole") from error
        finally:
            feed.stop()

    async def _restore(self, request: RestoreRequest, reader: ArchiveReader, tell: Tell) -> Restored:
        whole = wholes.from_document(await carrying.in_thread(reader.manifest))
        self._scratch.mkdir(mode=0o700)
        reader.budget = await asyncio.to_thread(_room, self._data)
        keys = await carrying.in_thread(lambda: self._take_state(reader))
        old = await carrying.in_thread(lambda: journals.read(self._scratch / "journal.db"))
        await self._parts.journal.transact(lambda db: journals.write_events(db, old, whole.taken), full=True)
        for number, template in enumerate(whole.templates):
            tell("templates", number, len(whole.templates))
            await self._template(reader, template)
        here = await self._check_templates(request, whole)
        for number, volume in enumerate(whole.volumes):
            tell("volumes", number, len(whole.volumes))
            await self._volume(reader, volume)
        expires: dict[str, float] = {}
        for number, part in enumerate(whole.sessions):
            tell("sessions", number, len(whole.sessions))
            if await carrying.in_thread(lambda part=part: reader.enter(part.section)):  # else it ended meanwhile
                expires[part.session_id] = await self._session(request, reader, part, here, old, whole)
        await carrying.in_thread(reader.end)
        await self._parts.journal.transact(lambda db: journals.write_sessions(db, old, expires), full=True)
        if keys:
            await asyncio.to_thread(_write, self._data / KEYS_FILE, keys)
        anchor = self._anchor or self._data / AUDIT_ANCHOR
        try:
            await asyncio.to_thread(beside.put, self._scratch / _BESIDE, self._data, anchor)
        except OSError as error:
            raise Unavailable(f"the audit log cannot be put into its place: {error}") from error
        await asyncio.to_thread(remove_tree, self._scratch)
        made = tuple(template.record.digest for template in whole.templates)
        volumes = tuple(volume.name for volume in whole.volumes)
        return Restored(whole.taken, tuple(expires), made, volumes, bool(keys), whole.left_out)

    # ---- parts -------------------------------------------------------------------------------------------------

    def _take_state(self, reader: ArchiveReader) -> bytes:
        """The journal into the scratch; gives the keys. Blocking."""
        keys, seen = b"", set[str]()
        for entry in reader.section(wholes.STATE):
            seen.add(entry.path)
            if entry.path == wholes.JOURNAL and entry.kind is Kind.FILE:
                self._take_file(entry, self._scratch / "journal.db")
            elif entry.path == wholes.KEYS and entry.kind is Kind.FILE:
                if entry.content_bytes > limits.BACKUP_KEYS_BYTES_MAX:
                    raise damaged("its keys are too many")
                keys = b"".join(entry.content or ())
                _check_keys(keys)
            elif beside.takes(entry):
                beside.take(entry, self._scratch / _BESIDE)
            elif entry.path != "/":
                raise damaged(f"it has {entry.path[:64]!r} beside its journal")
        if wholes.JOURNAL not in seen:
            raise damaged("it has no journal")
        return keys

    def _take_file(self, entry: Entry, path: Path) -> None:
        with path.open("xb") as file:
            for piece in entry.content or ():
                file.write(piece)

    async def _files(self, reader: ArchiveReader, section: str) -> Path:
        """A directory that is not part of any session, in the scratch."""
        place = self._scratch / section.replace("/", "-")

        def prepare() -> Volume:
            for name in ("u", "w", "below"):
                (place / name).mkdir(mode=0o755, parents=True)
            return Volume(place.name, place)

        volume = await carrying.in_thread(prepare)
        below = place / "below" if os.geteuid() == 0 else None
        entries: Iterable[Entry] = reader.section(section)
        await carrying.step_by_step(apply_entries(volume, below, entries), lambda _told: None)
        return place / "u"

    async def _template(self, reader: ArchiveReader, part: TemplatePart) -> None:
        root = await self._files(reader, part.section)
        await carrying.in_thread(lambda: self._parts.templates.put_back(root, part.record, part.names))

    async def _volume(self, reader: ArchiveReader, part: VolumePart) -> None:
        files = await self._files(reader, part.section)
        await self._lockers.put_back(VolumeSpec(part.name, part.shared), part.created, files)

    async def _check_templates(self, request: RestoreRequest, whole: Whole) -> set[str]:
        """Before a session is made: those of which another build is here, and is to be taken. Raises
        TemplateNotFound."""
        here: set[str] = set()
        for name, wanted in sorted({(part.template, part.template_mark) for part in whole.sessions}):
            if not wanted:
                continue  # of a runtime without a root
            with suppress(TemplateNotFound):
                if template_mark((await self._parts.templates.find(name)).path) == wanted:
                    continue
                if request.templates_here:
                    here.add(name)
                    continue
            what = "the built-in template of this machine" if split_name(name)[0] == BUILTIN else f"the template {name}"
            raise TemplateNotFound(
                f"sessions began with {name} as {wanted}, and {what} is another",
                next_step="restore on a machine with the same packages, or take it as it is here: --templates-here",
                template=name,
            )
        return here

    async def _session(
        self,
        request: RestoreRequest,
        reader: ArchiveReader,
        part: SessionPart,
        here: set[str],
        old: OldJournal,
        whole: Whole,
    ) -> float:
        """Gives when its time is up: what was left of it then is left now."""
        budget = reader.budget
        left_s = min(max(part.expires - whole.taken, 1.0), limits.SESSION_LIFETIME_S_MAX)
        told = old.sessions.get(part.session_id)
        mounts: list[MountPlan] = []
        for mount in told.mounts if told else ():
            with suppress(NotFound):
                mounts.append(await self._lockers.plan(mount))
        storage = request.storage or await self._storage(part)
        template = part.template if part.template in here else None
        asked = ImportRequest(part.session_id, storage, part.runtime, template, left_s)
        await self._importing.import_from(asked, reader, tuple(mounts))
        reader.budget = budget
        if part.state is SessionState.PAUSED:
            with suppress(CapabilityNotSupported):
                await self._pausing.pause(PauseRequest(part.session_id))
        return time.time() + left_s

    async def _storage(self, part: SessionPart) -> str:
        """The one that it had, or what a new session would get."""
        try:
            storage = await self._choices.storage(part.storage)
        except SandlotError:
            return "auto"
        return storage.name if Capability.SNAPSHOTS in storage.capabilities else part.storage


def _room(data: Path) -> Budget:
    found = os.statvfs(data)
    return Budget(int(found.f_bavail * found.f_frsize * limits.IMPORT_ROOM), limits.IMPORT_ENTRIES_MAX)


def _check_keys(keys: bytes) -> None:
    try:
        told = json.loads(keys)
        is_good = isinstance(told["keys"], list) and isinstance(told["limits"], dict)
    except (ValueError, KeyError, TypeError, RecursionError):
        is_good = False
    if not is_good:
        raise damaged("its keys cannot be read")


def _write(path: Path, content: bytes) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(fd, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(fd)
