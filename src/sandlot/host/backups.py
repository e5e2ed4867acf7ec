"""All that a host holds, written into one file: the journal, sessions with their turns, templates, volumes, keys, and
what lies beside.

Everything goes on meanwhile. Sessions on storages whose points cost little are held first, all of them, so they are of
one moment; the others each when it is their turn. What uses a volume stands still while that is read: a volume has no
points."""

import asyncio
import contextlib
import os
import time
from collections.abc import AsyncGenerator, Generator, Iterator
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from pathlib import Path

from sandlot.contracts.storage import Shown
from sandlot.host import beside, carrying
from sandlot.host.archives import whole as wholes
from sandlot.host.archives.entries import Entry, Kind
from sandlot.host.archives.finding import find_entries
from sandlot.host.archives.manifest import template_mark
from sandlot.host.archives.whole import SessionPart, TemplatePart, VolumePart, Whole
from sandlot.host.archives.writing import MANIFEST, ArchiveWriter
from sandlot.host.beside import Beside
from sandlot.host.exporting import Exporting, ExportPieces, Held
from sandlot.host.lifecycle import FORKING, Lifecycle
from sandlot.host.lockers import Lockers
from sandlot.host.parts import HostParts
from sandlot.host.session import Session
from sandlot.model import (
    AUDIT_ANCHOR,
    Capability,
    Conflict,
    SandlotError,
    SessionDestroying,
    SessionNotFound,
    SessionState,
    Unavailable,
)

_AT_ONCE = 8
_PIECE_BYTES = 1 << 20
_STATES = (SessionState.ACTIVE, SessionState.PAUSED, SessionState.FAILED)
_COPY = "journal-copy.db"
_Step = Iterator[bytes]


class Backups:
    def __init__(
        self, lifecycle: Lifecycle, parts: HostParts, lockers: Lockers, data: Path, anchor: Path | None
    ) -> None:
        self._lifecycle = lifecycle
        self._parts = parts
        self.exporting = Exporting(lifecycle, parts)
        self._lockers = lockers
        self._data = data
        self._anchor = anchor or data / AUDIT_ANCHOR
        self._is_busy = False

    @asynccontextmanager
    async def backup(self) -> AsyncGenerator[ExportPieces]:
        """One at a time. Raises Conflict, Unavailable, LimitReached."""
        self._lifecycle.check_open()
        if self._is_busy:
            raise Conflict("a backup is being taken", next_step="wait for it, or end it")
        self._is_busy = True
        try:
            async with AsyncExitStack() as stack:
                begun = await self._begin(stack)
                pieces = ExportPieces(self._write(begun), begun.expected_bytes)
                try:
                    yield pieces
                finally:
                    await pieces.close()
        finally:
            self._is_busy = False

    async def _begin(self, stack: AsyncExitStack) -> "_Begun":
        begun = _Begun(time.time())
        sessions = [one for one in self._lifecycle.all() if one.row.state in _STATES and one.row.changing != FORKING]
        slots = asyncio.Semaphore(_AT_ONCE)

        async def hold(session: Session) -> None:
            async with slots:
                await self._hold(session, stack, begun)

        await asyncio.gather(*(hold(one) for one in sessions if self._is_cheap(one)))
        begun.later = [one for one in sessions if not self._is_cheap(one)]
        begun.journal = stack.enter_context(_open(await self._copy_journal()))
        try:
            begun.beside, begun.keys = beside.look(self._data, self._anchor, stack.enter_context(ExitStack()))
        except OSError as error:
            raise Unavailable(f"what lies beside the journal cannot be read: {error.strerror}") from error
        begun.expected_bytes += os.fstat(begun.journal).st_size + begun.beside.size_bytes
        return begun

    def _is_cheap(self, session: Session) -> bool:
        """Where a point needs no copy of all files."""
        storage = self._parts.storages[session.row.storage]
        return Capability.SNAPSHOTS in storage.capabilities and storage.name != "local-disk"

    async def _hold(self, session: Session, stack: AsyncExitStack, begun: "_Begun") -> Held | None:
        """None when there is nothing to be held, and it is said why."""
        async with AsyncExitStack() as own:
            try:
                held = await self.exporting.hold(session.row.session_id, own, for_backup=True)
            except (SessionNotFound, SessionDestroying):
                return None  # it ended meanwhile
            except SandlotError as error:
                if session.volume is not None:
                    raise
                begun.left_out[session.row.session_id] = error.message
                return None
            stack.push_async_exit(own.pop_all())
        begun.held[session.row.session_id] = held
        begun.expected_bytes += held.expected_bytes
        return held

    async def _copy_journal(self) -> Path:
        path = self._data / "run" / _COPY
        await asyncio.to_thread(path.unlink, missing_ok=True)
        await self._parts.journal.copy_to(path)
        return path

    # ---- writing -----------------------------------------------------------------------------------------------

    async def _write(self, begun: "_Begun") -> AsyncGenerator[_Step]:
        writer = ArchiveWriter()
        whole = await self._tell(begun)
        yield writer.document(MANIFEST, wholes.to_document(whole))
        yield writer.section(wholes.STATE, _state(begun))
        for template in whole.templates:
            kept = self._parts.templates.kept_of(template.record.digest)
            if kept is None:
                raise Unavailable("a template was removed while it was to be backed up", next_step="try again")
            async with carrying.closing_in_thread(find_entries(None, _alone(Path(kept.root)))) as entries:
                yield writer.section(template.section, entries)
        for volume in whole.volumes:
            async with self._still(volume.name):
                files = _alone(self._lockers.files_of(volume.name))
                async with carrying.closing_in_thread(find_entries(None, files)) as entries:
                    yield writer.section(volume.section, entries)
        for part in whole.sessions:
            async with AsyncExitStack() as own:
                if (held := await self._held(part.session_id, own, begun)) is not None:
                    async for step in self.exporting.write(writer, held, f"{part.section}/"):
                        yield step
        yield writer.end()

    async def _held(self, session_id: str, own: AsyncExitStack, begun: "_Begun") -> Held | None:
        if session_id in begun.held:
            return begun.held[session_id]
        session = next(one for one in begun.later if one.row.session_id == session_id)
        held = await self._hold(session, own, begun)
        if held is None and session_id in begun.left_out:
            raise Unavailable(
                f"session {session_id} cannot be backed up: {begun.left_out[session_id]}",
                next_step="destroy it, or mend it first",
            )
        return held

    async def _tell(self, begun: "_Begun") -> Whole:
        rows = [*(held.row for held in begun.held.values()), *(one.row for one in begun.later)]
        sessions = [
            SessionPart(
                f"sessions/{number:04d}",
                row.session_id,
                row.state,
                row.template,
                template_mark(row.template_path),
                row.storage,
                row.runtime,
                row.expires,
            )
            for number, row in enumerate(sorted(rows, key=lambda row: row.serial), start=1)
        ]
        templates = [
            TemplatePart(f"templates/{number:04d}", kept.metadata, names)
            for number, (kept, names) in enumerate(self._parts.templates.all_kept(), start=1)
        ]
        volumes = [
            VolumePart(f"volumes/{number:04d}", info.name, info.shared, info.created)
            for number, info in enumerate(await self._lockers.all(), start=1)
        ]
        return Whole(begun.taken, sessions, templates, volumes, begun.left_out)

    @asynccontextmanager
    async def _still(self, volume: str) -> AsyncGenerator[None]:
        """What has the volume stands still."""
        async with AsyncExitStack() as stack:
            for session in self._lifecycle.all():
                if any(plan.source == volume and not plan.is_of_host for plan in session.mounts):
                    await stack.enter_async_context(self.exporting.still(session))
            yield


class _Begun:
    def __init__(self, taken: float) -> None:
        self.taken = taken
        self.held: dict[str, Held] = {}
        self.later: list[Session] = []
        self.left_out: dict[str, str] = {}
        self.journal = -1
        self.keys: bytes | None = None
        self.beside = Beside([], [])
        self.expected_bytes = 0


def _alone(folder: Path) -> Shown:
    return Shown((), (folder,), (folder,))


@contextlib.contextmanager
def _open(path: Path) -> Generator[int]:
    """By its descriptor alone: nothing is left of it, however this ends."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        path.unlink()
        yield fd
    finally:
        os.close(fd)


def _state(begun: _Begun) -> Iterator[Entry]:
    """In the order of their names, as everything in an archive."""
    found = [beside.entry(wholes.JOURNAL, os.fstat(begun.journal).st_size, _pieces(begun.journal))]
    if begun.keys:
        found.append(beside.entry(wholes.KEYS, len(begun.keys), iter((begun.keys,))))
    yield Entry("/", Kind.DIRECTORY, 0o700)
    yield from sorted([*found, *begun.beside.entries()], key=lambda entry: entry.path)


def _pieces(fd: int) -> Iterator[bytes]:
    at = 0
    while piece := os.pread(fd, _PIECE_BYTES, at):
        yield piece
        at += len(piece)
