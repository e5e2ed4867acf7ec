"""A session written into one file, with all of its turns. The session stays as it is, and goes on meanwhile."""

import itertools
import time
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from sandlot.contracts.storage import Storage
from sandlot.host import carrying
from sandlot.host.archives import manifest as manifests
from sandlot.host.archives.manifest import Manifest
from sandlot.host.archives.writing import CALLS, MANIFEST, ArchiveWriter
from sandlot.host.history import History
from sandlot.host.journal import CallRow, SessionRow
from sandlot.host.lifecycle import Lifecycle
from sandlot.host.parts import HostParts
from sandlot.host.session import Session
from sandlot.model import CallState, Capability, ExportRequest, SandlotError, SessionState, Unavailable, refusal

_STATES = (SessionState.ACTIVE, SessionState.PAUSED, SessionState.FAILED)
_AHEAD = 8  # pieces that are ready before anyone asked


class Exporting:
    def __init__(self, lifecycle: Lifecycle, parts: HostParts) -> None:
        self._lifecycle = lifecycle
        self._parts = parts
        self._history = History(parts.journal)

    @asynccontextmanager
    async def export(self, request: ExportRequest) -> AsyncGenerator["ExportPieces"]:
        async with AsyncExitStack() as stack:
            held = await self.hold(request.session_id, stack)
            pieces = ExportPieces(self._whole(held), held.expected_bytes)
            try:
                yield pieces
            finally:
                await pieces.close()

    async def hold(self, session_id: str, stack: AsyncExitStack, *, for_backup: bool = False) -> "Held":
        """A session as it is now, until the stack is left. For a backup it waits for its turn."""
        session = self._lifecycle.find(session_id)
        storage = self._parts.storages[session.row.storage]
        async with AsyncExitStack() as still:
            gate = session.gate
            await still.enter_async_context(gate.shut_for_backup() if for_backup else gate.shut("an export"))
            self._check(session)
            now = await self._hold_now(session, storage, still, stack)
            rows = tuple(session.snapshots.values())
            stack.enter_context(storage.holding(*(row.point for row in rows), now))
            turns = await self._history.turns(session_id)
            mark = manifests.template_mark(session.row.template_path)
            told = manifests.of_session(session.row, mark, rows, turns)
            newest = await self._parts.journal.last_process_id(session_id)
            under_way = frozenset(live.ticket.process_id for live in session.running())
            expected = await self._measure(storage, told, now)
            if now == (session.volume.state if session.volume else ""):
                stack.push_async_exit(still.pop_all())  # it stands still until all was read
        template = Path(session.row.template_path) if session.row.template_path else None
        return Held(session.row, storage, template, told, newest, under_way, now, expected)

    def _check(self, session: Session) -> None:
        row = session.row
        if row.state not in _STATES:
            raise refusal(row.session_id, row.state, "it cannot be exported", row.reason)
        if session.volume is None:
            raise Unavailable(f"the files of session {row.session_id} are not there", session_id=row.session_id)

    async def _hold_now(self, session: Session, storage: Storage, still: AsyncExitStack, stack: AsyncExitStack) -> str:
        """A point of the files as they are, which nobody else knows; where the storage has none, the files themselves,
        while everything in the session stands still."""
        volume = session.volume
        assert volume is not None
        has_points = Capability.SNAPSHOTS in storage.capabilities
        if not (has_points and storage.is_in_place):
            await still.enter_async_context(self._frozen(session))
        if not has_points:
            return volume.state
        async with AsyncExitStack() as moment:
            if storage.is_in_place and not storage.is_atomic:
                await moment.enter_async_context(self._frozen(session))
            taken = await storage.snapshot(volume, alone=False)
        if taken.volume != volume:
            raise Unavailable(f"the storage {storage.name} cannot show files that are in use")
        stack.push_async_callback(self._release, storage, taken.point)
        return taken.point

    @asynccontextmanager
    async def still(self, session: Session) -> AsyncGenerator[None]:
        """Nothing runs in it, and nobody changes what it is."""
        async with session.gate.shut_for_backup(), self._frozen(session):
            yield

    @asynccontextmanager
    async def _frozen(self, session: Session) -> AsyncGenerator[None]:
        if session.row.state is not SessionState.ACTIVE:
            yield
            return
        group = self._parts.runtimes[session.row.runtime].group(session.row.volume)
        began = time.time()
        session.hold_calls()
        try:
            try:
                await group.pause()
                yield
            finally:
                await group.resume()
        finally:
            session.release_calls(max(0.0, time.time() - began))

    async def _release(self, storage: Storage, point: str) -> None:
        with suppress(SandlotError):
            await storage.release(point)
        self._lifecycle.sweep()

    async def _measure(self, storage: Storage, told: Manifest, now: str) -> int:
        total = 0
        for _section, row in told.sections():
            base = carrying.base_of(row, told.snapshots, told.head)
            total += await storage.usage(row.point if row else now, base.point if base else "")
        return total

    async def _whole(self, held: "Held") -> AsyncGenerator[Iterator[bytes]]:
        writer = ArchiveWriter()
        async for part in self.write(writer, held):
            yield part
        yield writer.end()

    async def write(self, writer: ArchiveWriter, held: "Held", below: str = "") -> AsyncGenerator[Iterator[bytes]]:
        """The file, part by part; each is read in a thread. `below`: what its names begin with."""
        told = held.told
        yield writer.document(f"{below}{MANIFEST}", manifests.to_document(told, time.time()))
        calls = await self._parts.journal.whole_calls(told.session_id)
        calls = [_as_then(call, held) for call in calls if call.process_id <= held.newest]
        for number, document in enumerate(manifests.calls_to_documents(calls), start=1):
            yield writer.document(f"{below}{CALLS}/{number:04d}.json", document)
        for section, row in told.sections():
            base = carrying.base_of(row, told.snapshots, told.head)
            point = row.point if row else held.now
            async with carrying.showing(held.storage, held.template, base, point) as entries:
                yield writer.section(f"{below}{section}", entries)


def _as_then(call: CallRow, held: "Held") -> CallRow:
    """What ran at that moment had not ended, and will not, elsewhere."""
    if call.process_id not in held.under_way:
        return call
    return replace(call, record=replace(call.record, state=CallState.LOST, result=None), output=None)


@dataclass(frozen=True, slots=True)
class Held:
    """One moment of a session."""

    row: SessionRow
    storage: Storage
    template: Path | None
    told: Manifest
    newest: int  # the last call that there was
    under_way: frozenset[int]  # calls that ran
    now: str
    expected_bytes: int


class ExportPieces:
    """The bytes of the file. Whoever leaves early closes it."""

    def __init__(self, parts: AsyncGenerator[Iterator[bytes]], expected_bytes: int) -> None:
        self._parts = parts
        self.expected_bytes = expected_bytes  # about, before they are packed

    async def close(self) -> None:
        await self._parts.aclose()

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for part in self._parts:
            while batch := await carrying.in_thread(lambda part=part: list(itertools.islice(part, _AHEAD))):
                for piece in batch:
                    yield piece
