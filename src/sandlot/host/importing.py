"""A session made from one file, whoever wrote it: whole, or not at all."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterable, Iterable
from contextlib import asynccontextmanager, closing, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

from sandlot.contracts.runtime import MountPlan, Runtime
from sandlot.contracts.storage import Storage
from sandlot.host import carrying, failpoints
from sandlot.host.archives import manifest as manifests
from sandlot.host.archives.entries import Entry
from sandlot.host.archives.manifest import Manifest
from sandlot.host.archives.reading import ArchiveReader, Budget, damaged
from sandlot.host.choices import Choices, check_wishes, session_capabilities
from sandlot.host.feed import Feed
from sandlot.host.history import History, SnapshotRow
from sandlot.host.journal import CallRow
from sandlot.host.lifecycle import Lifecycle
from sandlot.host.parts import HostParts
from sandlot.host.session import Session
from sandlot.host.starting import serve
from sandlot.host.under_way import UnderWay
from sandlot.host.vessels import Vessel
from sandlot.model import (
    Capability,
    CapabilityNotSupported,
    ImportRequest,
    SandlotError,
    SessionInfo,
    SessionSpec,
    SnapshotsNotAvailable,
    Template,
    TemplateNotFound,
    limits,
)


class Importing:
    def __init__(self, lifecycle: Lifecycle, parts: HostParts, choices: Choices) -> None:
        self._lifecycle = lifecycle
        self._parts = parts
        self._choices = choices
        self._history = History(parts.journal)
        self._under_way = UnderWay()
        self._feeds: set[Feed] = set()

    async def settle(self) -> None:
        """What is not done by now is undone."""
        for feed in tuple(self._feeds):
            feed.stop()
        await self._under_way.give_up()

    async def import_session(self, request: ImportRequest, content: AsyncIterable[bytes]) -> SessionInfo:
        """A caller who gives up undoes it."""
        feed = Feed(content)
        self._feeds.add(feed)
        work = self._under_way.begin(self.import_from(request, ArchiveReader(feed.read)))
        try:
            return await asyncio.shield(work)
        except asyncio.CancelledError:
            feed.stop()
            work.cancel()
            await asyncio.wait([work])
            raise
        finally:
            self._feeds.discard(feed)

    async def import_from(
        self, request: ImportRequest, reader: ArchiveReader, mounts: tuple[MountPlan, ...] = ()
    ) -> SessionInfo:
        """`mounts`: volumes that it is to have. Raises as `import_session` does."""
        told = manifests.from_document(await carrying.in_thread(reader.manifest))
        session_id = request.session_id or told.session_id
        calls = await carrying.in_thread(partial(_calls, reader, session_id))
        storage, runtime, template = place = await self._choose(request, told)
        del runtime
        wishes = replace(told.wishes.below(template), mounts=mounts)
        reader.budget = await room_for(storage)
        filling = _Filling(reader, told)
        session: Session | None = None
        try:
            session = await self._lifecycle.arrive(session_id, wishes, place, request.timeout_s, filling.fill)
            await self._finish(session, told, filling, calls)
            await serve(session)
        except BaseException:  # undone, then raised again
            await asyncio.shield(self._undo(storage, session, filling))
            raise
        return session.info()

    async def _choose(self, request: ImportRequest, told: Manifest) -> tuple[Storage, Runtime, Template]:
        runtime = await self._choices.runtime(request.runtime)
        storage = await self._choices.storage(request.storage)
        have = session_capabilities(runtime, storage)
        if (Capability.OWN_ROOT in runtime.capabilities) is not (told.template_mark != ""):
            raise CapabilityNotSupported(
                f"the session was on the runtime {told.runtime}, whose files are not those of {runtime.name}",
                next_step=f"choose the runtime {told.runtime}",
            )
        wishes = told.wishes
        wanted = SessionSpec(
            user=(wishes.user or None),
            resources=wishes.resources,
            call_snapshots=wishes.call_snapshots,
            on_expiry=wishes.on_expiry,  # pyright: ignore[reportArgumentType] - its text
            idle_timeout_s=wishes.idle_timeout_s,
        )
        check_wishes(wanted, have)
        if told.snapshots and Capability.SNAPSHOTS not in have:
            raise SnapshotsNotAvailable(
                f"the export has snapshots, and {storage.name} on {runtime.name} has none",
                next_step="choose another storage or runtime",
            )
        return storage, runtime, await self._template(request, told)

    async def _template(self, request: ImportRequest, told: Manifest) -> Template:
        if not told.template_mark:
            return Template(told.template, "", "")
        try:
            found = await self._parts.templates.find(request.template or told.template)
        except TemplateNotFound as error:
            raise TemplateNotFound(
                error.message, next_step="import the template first, or name another one", template=told.template
            ) from None
        if request.template is None and manifests.template_mark(found.path) != told.template_mark:
            raise TemplateNotFound(
                f"the session began with {told.template} as {told.template_mark}, which is not here",
                next_step=f"to take {told.template} as it is here, name it: --template {told.template}",
                template=told.template,
            )
        return found

    async def _finish(self, session: Session, told: Manifest, filling: "_Filling", calls: list[CallRow]) -> None:
        await failpoints.reach("import: recorded")
        session_id = session.row.session_id
        rows = [replace(row, session_id=session_id, point=filling.points[row.name]) for row in told.snapshots]
        turns = [replace(turn, session_id=session_id) for turn in told.turns]
        newest = max([told.forgotten, *(call.process_id for call in calls)])
        row = replace(session.row, head=told.head, last_turn=told.last_turn, forgotten=told.forgotten, changing="")
        await self._history.arrive(row, rows, turns, calls)
        session.row = row
        session.last_process_id = max(session.last_process_id, newest)
        for shot in rows:
            session.add_snapshot(shot)
        self._lifecycle.notes.remember(session)

    async def _undo(self, storage: Storage, session: Session | None, filling: "_Filling") -> None:
        with suppress(SandlotError):
            if session is not None:
                await self._lifecycle.destroy(session.row.session_id)
        with suppress(SandlotError):
            await storage.release(*filling.points.values())
        self._lifecycle.sweep()


class _Filling:
    """Puts what a file holds onto the volume of a session to be."""

    def __init__(self, reader: ArchiveReader, told: Manifest) -> None:
        self._reader = reader
        self._told = told
        self._sections = {row.name if row else None: section for section, row in told.sections()}
        self.points: dict[str, str] = {}

    async def fill(self, vessel: Vessel) -> None:
        template = Path(vessel.template.path) if vessel.template.path else None
        carrier = carrying.Carrier(vessel.storage, template, vessel.volume)
        self.points = carrier.points
        carrier.on_point = self._on_point
        try:
            await carrier.carry(self._told.snapshots, self._told.head, self._section)
            await carrying.in_thread(self._reader.end)
        finally:
            vessel.volume = carrier.volume
        await failpoints.reach("import: filled")

    async def _on_point(self) -> None:
        await failpoints.reach("import: point made")

    @asynccontextmanager
    async def _section(self, base: SnapshotRow | None, row: SnapshotRow | None) -> AsyncGenerator[Iterable[Entry]]:
        del base  # what wrote the file began with the same
        with closing(self._reader.section(self._sections[row.name if row else None])) as entries:
            yield entries


def _calls(reader: ArchiveReader, session_id: str) -> list[CallRow]:
    """Raises InvalidArgument."""
    found = [manifests.call_from_document(session_id, told) for told in reader.calls()]
    numbers, names = {call.process_id for call in found}, {call.record.call_id for call in found}
    if len(numbers) != len(found) or len(names) != len(found):
        raise damaged("a call of it comes twice")
    return found


async def room_for(storage: Storage) -> Budget:
    health = await storage.health()
    free = health.inodes.total - health.inodes.used if health.inodes.total > 0 else limits.IMPORT_ENTRIES_MAX
    return Budget(int(health.space.free_bytes * limits.IMPORT_ROOM), min(limits.IMPORT_ENTRIES_MAX, free))
