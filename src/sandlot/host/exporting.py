"""A session written into one file, with all of its turns. The session stays as it is, and goes on meanwhile."""

import itertools
import time
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path

from sandlot.contracts.storage import Storage
from sandlot.host import carrying
from sandlot.host.archives import manifest as manifests
from sandlot.host.archives.manifest import Manifest
from sandlot.host.archives.writing import CALLS, MANIFEST, ArchiveWriter
from sandlot.host.history import History
from sandlot.host.journal import CallRow
from sandlot.host.lifecycle import Lifecycle
from sandlot.host.parts import HostParts
from sandlot.host.session import Session
from sandlot.model import Capability, ExportRequest, SandlotError, SessionState, Unavailable, refusal

_STATES = (SessionState.ACTIVE, SessionState.PAUSED, SessionState.FAILED)
_AHEAD = 8  # pieces that are ready before anyone asked


class Exporting:
    def __init__(self, lifecycle: Lifecycle, parts: HostParts) -> None:
        self._lifecycle = lifecycle
        self._parts = parts
        self._history = History(parts.journal)

    @asynccontextmanager
    async def export(self, request: ExportRequest) -> AsyncGenerator["ExportPieces"]:
        session = self._lifecycle.find(request.session_id)
        storage = self._parts.storages[session.row.storage]
        async with AsyncExitStack() as stack:
            async with AsyncExitStack() as still:
                await still.enter_async_context(session.gate.shut("an export"))
                self._check(session)
                now = await self._hold_now(session, storage, still, stack)
                rows = tuple(session.snapshots.values())
                stack.enter_context(storage.holding(*(row.point for row in rows), now))
                turns = await self._history.turns(request.session_id)
                mark = manifests.template_mark(session.row.template_path)
                told = manifests.of_session(session.row, mark, rows, turns)
                calls = await self._parts.journal.whole_calls(request.session_id)
                expected = await self._measure(storage, told, now)
                if now == (session.volume.state if session.volume else ""):
                    stack.push_async_exit(still.pop_all())  # it stands still until all was read
            template = Path(session.row.template_path) if session.row.template_path else None
            pieces = ExportPieces(self._write(storage, template, told, calls, now), expected)
            try:
                yield pieces
            finally:
                await pieces.close()

    def _check(self, session: Session) -> None:
        row = session.row
        if row.state not in _STATES:
            raise refusal(row.session_id, row.state, "it cannot be exported", row.reason)
        if session.volume is None:
            raise Unavailable(f"the files of session {row.session_id} are not there", session_id=row.session_id)

    async def _hold_now(self, session: Session, storage: Storage, still: AsyncExitStack, stack: AsyncExitStack) -> str:
        """A point of the files as they are, which nobody else knows; where the storage has none, the files themselves,
        while everything in the session stands still."""
        volume, row = session.volume, session.row
        assert volume is not None
        has_points = Capability.SNAPSHOTS in storage.capabilities
        if row.state is SessionState.ACTIVE and not (has_points and storage.is_atomic):
            group = self._parts.runtimes[row.runtime].group(row.volume)
            began = time.time()
            session.hold_calls()
            still.callback(lambda: session.release_calls(max(0.0, time.time() - began)))
            still.push_async_callback(group.resume)
            await group.pause()
        if not has_points:
            return volume.state
        taken = await storage.snapshot(volume, alone=False)
        if taken.volume != volume:
            raise Unavailable(f"the storage {storage.name} cannot show files that are in use")
        stack.push_async_callback(self._release, storage, taken.point)
        return taken.point

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

    async def _write(
        self, storage: Storage, template: Path | None, told: Manifest, calls: Sequence[CallRow], now: str
    ) -> AsyncGenerator[Iterator[bytes]]:
        """The file, part by part; each is read in a thread."""
        writer = ArchiveWriter()
        yield writer.document(MANIFEST, manifests.to_document(told, time.time()))
        for number, document in enumerate(manifests.calls_to_documents(calls), start=1):
            yield writer.document(f"{CALLS}/{number:04d}.json", document)
        for section, row in told.sections():
            base = carrying.base_of(row, told.snapshots, told.head)
            async with carrying.showing(storage, template, base, row.point if row else now) as entries:
                yield writer.section(section, entries)
        yield writer.end()


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
