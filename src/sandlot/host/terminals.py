"""The verbs of terminals as the waist has them. A terminal is a call whose output has a window; who reads it, and who
may write, is known here, for as long as the engine runs."""

import asyncio
import secrets
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from weakref import WeakKeyDictionary

from sandlot.contracts.terminals import TerminalStream
from sandlot.host.calls import LiveCall
from sandlot.host.journal import CallRow, Journal
from sandlot.host.session import Session
from sandlot.host.terminal_log import Window, WindowLog, find_window_log
from sandlot.model import (
    CallNotFound,
    CallOutput,
    CallRecord,
    CallState,
    Capability,
    Conflict,
    InputMode,
    InvalidState,
    LimitReached,
    SandlotError,
    SessionState,
    Terminal,
    TerminalAttach,
    TerminalEnded,
    TerminalEvent,
    TerminalInput,
    TerminalKill,
    TerminalOutput,
    TerminalRequest,
    TerminalResize,
    TerminalResized,
    TerminalTaken,
    Unavailable,
    check_id,
    limits,
    refusal,
)
from sandlot.model.capability import need

_LOGIN_SHELL = ("sh", "-c", 'exec "$(command -v bash || echo sh)" -l')


class _Clients:
    """Of one terminal."""

    def __init__(self) -> None:
        self.streams: set[_LiveTerminal] = set()
        self.holding: set[_LiveTerminal] = set()  # all of one client, which may come again before it was missed
        self.holder = ""

    def enter(self, stream: "_LiveTerminal", mode: InputMode) -> None:
        """Raises Conflict, LimitReached."""
        if len(self.streams) >= limits.TERMINAL_READERS_MAX:
            raise LimitReached(f"a terminal has {limits.TERMINAL_READERS_MAX} readers at most", limit="readers")
        if mode is not InputMode.WATCH and self.holder not in ("", stream.client_id):
            if mode is InputMode.HOLD:
                raise _held(self.holder)
            for one in self.holding:
                one.taken_by = stream.client_id
            self.holding.clear()
        if mode is not InputMode.WATCH:
            self.holding.add(stream)
            self.holder = stream.client_id
        self.streams.add(stream)

    def leave(self, stream: "_LiveTerminal") -> None:
        self.streams.discard(stream)
        if stream in self.holding:
            self.holding.discard(stream)
            self.holder = self.holder if self.holding else ""

    def check(self, client_id: str) -> None:
        """Raises Conflict."""
        if self.holder not in ("", client_id):
            raise _held(self.holder)


class _LiveTerminal:
    """One client of a terminal that lives, or lived when it came."""

    def __init__(self, live: LiveCall, log: WindowLog, position: int, client_id: str, terminal: Terminal) -> None:
        self.client_id = client_id
        self.terminal = terminal
        self.taken_by = ""
        self._live = live
        self._log = log
        self._position = position
        self._size = log.size

    def _notice(self) -> TerminalEvent | None:
        """What it was not told yet, beside output. A size that was gone again is not worth a word."""
        if self.taken_by:
            taken, self.taken_by = TerminalTaken(self.taken_by), ""
            return taken
        if self._size != self._log.size:
            self._size = self._log.size
            return TerminalResized(self._size)
        return None

    async def __aiter__(self) -> AsyncIterator[TerminalEvent]:
        live, log, position = self._live, self._log, self._position
        while True:
            if notice := self._notice():
                yield notice
                continue
            try:
                found = log.read(position) if log.is_near(position) else await asyncio.to_thread(log.read, position)
            except OSError as error:
                raise _unreadable(live.ticket.call_id, error) from error
            if found:
                position = found.position
                yield _output(found.event)
            elif live.result is not None:
                live.check()
                yield TerminalEnded(live.result)
                return
            else:
                live.check()
                await live.changed()


class _EndedTerminal:
    """One client of a terminal whose story is recorded."""

    def __init__(self, record: CallRecord, log: WindowLog, position: int, client_id: str, terminal: Terminal) -> None:
        self.client_id = client_id
        self.terminal = terminal
        self._record = record
        self._log = log
        self._position = position

    async def __aiter__(self) -> AsyncIterator[TerminalEvent]:
        position, call_id = self._position, self._record.call_id
        try:
            while found := await asyncio.to_thread(self._log.read, position):
                position = found.position
                yield _output(found.event)
        except OSError as error:
            raise _unreadable(call_id, error) from error
        if self._record.result is None:
            raise Unavailable(f"terminal {call_id} was lost with its guest", call_id=call_id)
        yield TerminalEnded(self._record.result)


class TerminalVerbs:
    def __init__(
        self,
        find: Callable[[str], Session],
        ready: Callable[[Session], Awaitable[None]],
        check_open: Callable[[], None],
        journal: Journal,
    ) -> None:
        self._find = find
        self._ready = ready  # wakes a session that rests
        self._check_open = check_open
        self._journal = journal
        self._clients: WeakKeyDictionary[LiveCall, _Clients] = WeakKeyDictionary()

    async def open(self, request: TerminalRequest) -> Terminal:
        session, name = self._find(request.session_id), request.terminal_id or ""
        if name and name not in session.live:
            with suppress(CallNotFound):
                return _told_of_record(*await self._recorded(session, name))
        if name not in session.live:
            need(session.runtime_capabilities, Capability.TERMINALS, f"the runtime {session.row.runtime}")
            if not session.gate.is_open or session.row.state is SessionState.PAUSED:
                await self._ready(session)
            self._check_open()
        if (live := session.live.get(name)) is None:  # else another request was quicker
            window = Window(request.window_bytes, request.size)
            live = session.start_call(request.call(request.argv or _LOGIN_SHELL), window)
        log = _window_of(live)
        try:
            await self._begun(live, log)
        except asyncio.CancelledError:
            if not name:
                live.kill()  # nobody can ask for it
            raise
        return self._told(live, log)

    async def _begun(self, live: LiveCall, log: WindowLog) -> None:
        """It runs, or has ended, and the next engine would know all of it."""
        try:
            await asyncio.to_thread(log.prepare)
        except OSError as error:
            live.kill()
            raise Unavailable(f"there is no room for what a terminal prints: {error.strerror}") from error
        try:
            async with asyncio.timeout(limits.GUEST_DEADLINE_S):
                while live.pid is None and live.result is None:
                    live.check()
                    await live.changed()
        except TimeoutError:
            live.kill()
            raise Unavailable("the session did not start the terminal in time", next_step="try again") from None
        if live.result is not None:
            live.check()

    async def get(self, session_id: str, terminal_id: str) -> Terminal:
        return await self._get(self._find(session_id), check_id("terminal", terminal_id))

    async def _get(self, session: Session, terminal_id: str) -> Terminal:
        if (live := session.live.get(terminal_id)) is not None:
            return self._told(live, _window_of(live))
        record, log = await self._recorded(session, terminal_id)
        return _told_of_record(record, log)

    async def all(self, session_id: str) -> Sequence[Terminal]:
        session = self._find(session_id)
        if not session.is_heard:
            return await self._unheard(session)
        alive = [live for live in session.live.values() if live.result is None and live.lost is None]
        return [self._told(live, live.log) for live in alive if isinstance(live.log, WindowLog)]

    async def _unheard(self, session: Session) -> list[Terminal]:
        """Of a session that was paused when this engine came: what is known without its guest."""
        rows = await self._journal.calls(session.row.session_id)
        running = [row for row in rows if row.record.state is CallState.RUNNING]
        logs = [await asyncio.to_thread(find_window_log, session.output_path(row.process_id)) for row in running]
        return [_told_of_record(row.record, log) for row, log in zip(running, logs, strict=True) if log is not None]

    @asynccontextmanager
    async def attach(self, request: TerminalAttach) -> AsyncGenerator[TerminalStream]:
        session = self._find(request.session_id)
        client_id = request.client_id or f"c-{secrets.token_hex(8)}"
        live = session.live.get(request.terminal_id)
        if live is None:
            record, log = await self._recorded(session, request.terminal_id)
            if record.state is CallState.RUNNING:
                raise refusal(session.row.session_id, SessionState.PAUSED, "its terminals cannot be read yet")
            position = log.end if request.offset is None else request.offset
            yield _EndedTerminal(record, log, position, client_id, _told_of_record(record, log))
            return
        log, clients = _window_of(live), self._of(live)
        position = log.end if request.offset is None else request.offset
        stream = _LiveTerminal(live, log, position, client_id, self._told(live, log))
        clients.enter(stream, request.input)
        live.wake()  # someone may have lost the input
        stream.terminal = self._told(live, log)
        try:
            yield stream
        finally:
            clients.leave(stream)

    async def write(self, request: TerminalInput) -> None:
        session = self._find(request.session_id)
        live = session.live.get(request.terminal_id)
        if live is None:
            await self._recorded(session, request.terminal_id)
            return
        _window_of(live)
        self._of(live).check(request.client_id)
        await live.write_stdin(request.data)

    async def resize(self, request: TerminalResize) -> None:
        session = self._find(request.session_id)
        live = session.live.get(request.terminal_id)
        if live is None:
            await self._recorded(session, request.terminal_id)
            return
        _window_of(live)
        self._of(live).check(request.client_id)
        live.resize(request.size.rows, request.size.columns)
        live.wake()

    async def kill(self, request: TerminalKill) -> None:
        session = self._find(request.session_id)
        live = session.live.get(request.terminal_id)
        if live is None:
            await self._recorded(session, request.terminal_id)
            return
        _window_of(live)
        if request.signal is not None:
            live.signal(request.signal)
        elif live.result is None and live.lost is None:
            live.kill()
            # In a paused session it ends when that is resumed.
            with suppress(SandlotError, TimeoutError):
                async with asyncio.timeout(0 if live.is_held else limits.KILL_DEADLINE_S):
                    await live.wait()

    def _of(self, live: LiveCall) -> _Clients:
        return self._clients.setdefault(live, _Clients())

    def _told(self, live: LiveCall, log: WindowLog) -> Terminal:
        clients = self._of(live)
        return replace(_told_of_record(live.told(), log), holder=clients.holder, readers=len(clients.streams))

    async def _recorded(self, session: Session, terminal_id: str) -> tuple[CallRecord, WindowLog]:
        """Raises CallNotFound, InvalidState when it is another call."""
        row: CallRow | None = await self._journal.find_call(session.row.session_id, terminal_id)
        if row is None:
            raise CallNotFound(f"session {session.row.session_id} has no terminal {terminal_id}", call_id=terminal_id)
        log = await asyncio.to_thread(find_window_log, session.output_path(row.process_id))
        if log is None:
            raise _no_terminal(terminal_id)
        return row.record, log


def _window_of(live: LiveCall) -> WindowLog:
    """Raises InvalidState."""
    if not isinstance(live.log, WindowLog):
        raise _no_terminal(live.ticket.call_id)
    return live.log


def _told_of_record(record: CallRecord, log: WindowLog) -> Terminal:
    return Terminal(
        record.session_id,
        record.call_id,
        record.argv,
        record.state,
        record.started,
        log.size if record.state is CallState.RUNNING else None,
        log.window_bytes,
        log.kept_from,
        log.end,
        result=record.result,
    )


def _output(event: CallOutput) -> TerminalOutput:
    return TerminalOutput(event.offset, event.data)


def _held(holder: str) -> Conflict:
    return Conflict(
        f"the client {holder} has the input of this terminal",
        next_step="watch it without its input, or take the input over",
        holder=holder,
    )


def _no_terminal(call_id: str) -> InvalidState:
    return InvalidState(
        f"call {call_id} was not opened as a terminal, or its output is kept no longer",
        next_step="open a terminal, or read the call as one",
        call_id=call_id,
    )


def _unreadable(call_id: str, error: OSError) -> Unavailable:
    return Unavailable(f"what terminal {call_id} printed is kept no longer: {error.strerror}", call_id=call_id)
