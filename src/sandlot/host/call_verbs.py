"""The verbs of calls as the waist has them: each finds its session, wakes it where it must, and gives out a stream."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial

from sandlot.contracts.host import CallStream
from sandlot.host.call_snapshots import CallSnapshot, SnapshottedStream, TakenSnapshot
from sandlot.host.call_streams import LiveStream, RecordedStream
from sandlot.host.journal import CallRow, Journal
from sandlot.host.output import OutputLog
from sandlot.host.session import Session
from sandlot.host.terminal_log import WindowLog, find_window_log
from sandlot.host.turns import Turns
from sandlot.model import (
    CallNotFound,
    CallRecord,
    CallRequest,
    CallState,
    SandlotError,
    SessionState,
    limits,
    refusal,
)


class CallVerbs:
    def __init__(
        self,
        find: Callable[[str], Session],
        ready: Callable[[Session], Awaitable[None]],
        check_open: Callable[[], None],
        journal: Journal,
        turns: Turns,
    ) -> None:
        self._find = find
        self._ready = ready  # wakes a session that rests
        self._check_open = check_open
        self._journal = journal
        self._turns = turns

    @asynccontextmanager
    async def call(self, request: CallRequest) -> AsyncGenerator[CallStream]:
        session = self._find(request.session_id)
        known = await self._known_call(session, request.call_id)
        if known is not None:
            yield known
            return
        if not session.gate.is_open or session.row.state is SessionState.PAUSED:
            await self._ready(session)
            if request.call_id in session.live:  # another request with the same id was there first
                yield await self._attach(session, request.call_id)
                return
        self._check_open()  # while it waited the engine may have left; nobody would hear of its end
        live = session.start_call(request)
        live.is_attended = not request.detach
        try:
            stream = LiveStream(live)
            if session.call_snapshots and not request.detach:
                call_id = live.ticket.call_id
                take = partial(self._turns.snapshot_call, session, call_id)
                taking = CallSnapshot(session.call_takes, call_id, take)
                try:
                    yield SnapshottedStream(stream, taking)
                finally:
                    taking.give_up()
            else:
                yield stream
        finally:
            live.is_attended = False
            if not request.detach and live.result is None and live.lost is None and not live.is_left:
                live.kill()
                # In a paused session it ends when that is resumed.
                with suppress(SandlotError, TimeoutError):
                    async with asyncio.timeout(0 if live.is_held else limits.KILL_DEADLINE_S):
                        await live.wait()

    @asynccontextmanager
    async def attach(self, session_id: str, call_id: str) -> AsyncGenerator[CallStream]:
        yield await self._attach(self._find(session_id), call_id)

    async def calls(self, session_id: str) -> Sequence[CallRecord]:
        session = self._find(session_id)
        return await session.calls()

    async def _known_call(self, session: Session, call_id: str | None) -> CallStream | None:
        if call_id is None:
            return None
        await session.call_ids.load(partial(self._journal.call_ids, session.row.session_id))
        if not session.call_ids.may_hold(call_id):
            return None
        with suppress(CallNotFound):
            return await self._attach(session, call_id)
        # While we looked, another request with the same id may have begun it: one of them runs it, all attach.
        live = session.live.get(call_id)
        return self._with_snapshot(session, LiveStream(live)) if live else None

    async def _attach(self, session: Session, call_id: str) -> CallStream:
        return self._with_snapshot(session, await self._find_call(session, call_id))

    def _with_snapshot(self, session: Session, stream: CallStream) -> CallStream:
        """A call that is read again is told with its snapshot, too."""
        if not session.call_snapshots:
            return stream
        taking = session.call_takes.get(stream.call_id)
        return SnapshottedStream(stream, taking or TakenSnapshot(session.snapshots, stream.call_id))

    async def _find_call(self, session: Session, call_id: str) -> CallStream:
        live = session.live.get(call_id)
        if live is not None:
            return LiveStream(live)
        row = await self._journal.find_call(session.row.session_id, call_id)
        if row is not None and row.record.state is CallState.RUNNING and not session.is_heard:
            raise refusal(session.row.session_id, SessionState.PAUSED, "what runs in it cannot be read yet")
        if row is None:
            raise CallNotFound(f"session {session.row.session_id} has no call {call_id}", call_id=call_id)
        return RecordedStream(row.record.result, await self._recorded_log(session, row), call_id)

    async def _recorded_log(self, session: Session, row: CallRow) -> OutputLog | WindowLog:
        path = session.output_path(row.process_id)
        if row.output is None and (terminal := await asyncio.to_thread(find_window_log, path)):
            return terminal
        log = OutputLog(partial(session.output_path, row.process_id))
        if row.output is not None:
            log.restore(row.output)
        elif row.record.state is not CallState.RUNNING:
            await asyncio.to_thread(log.restore)
            log.close()
        return log
