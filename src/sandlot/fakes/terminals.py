"""The verbs of terminals, of the fake."""

import secrets
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from weakref import WeakKeyDictionary

from sandlot.fakes.calls import FakeCall, check_signal
from sandlot.fakes.session import FakeSession
from sandlot.fakes.tty import FakeTty
from sandlot.model import (
    CallNotFound,
    CallRequest,
    Conflict,
    InputMode,
    InvalidState,
    LimitReached,
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
    limits,
)

_KILL = 9


class _Client:
    def __init__(self, tty: FakeTty, client_id: str, position: int) -> None:
        self.client_id = client_id
        self.holds = False
        self.taken_by = ""
        self._tty = tty
        self._position = position
        self._size = tty.size
        self.terminal = _told(tty)

    async def __aiter__(self) -> AsyncIterator[TerminalEvent]:
        tty, position = self._tty, self._position
        while True:
            if self.taken_by:
                taken, self.taken_by = TerminalTaken(self.taken_by), ""
                yield taken
            elif self._size != tty.size:
                self._size = tty.size
                yield TerminalResized(self._size)
            elif max(position, tty.kept_from) < tty.end:
                start = max(position, tty.kept_from)
                position = tty.end
                yield TerminalOutput(start, bytes(tty.kept[start - tty.kept_from :]))
            elif tty.call.lost is not None:
                raise tty.call.lost
            elif tty.call.result is not None:
                yield TerminalEnded(tty.call.result)
                return
            else:
                await tty.call.changed()


class FakeTerminals:
    def __init__(
        self, find: Callable[[str], FakeSession], start: Callable[[FakeSession, CallRequest, int], FakeCall]
    ) -> None:
        self._find = find
        self._start = start
        self._clients: WeakKeyDictionary[FakeTty, list[_Client]] = WeakKeyDictionary()

    async def open(self, request: TerminalRequest) -> Terminal:
        session = self._find(request.session_id)
        if request.terminal_id in session.calls:
            return self._told(self._tty(session.session_id, request.terminal_id))
        call = self._start(session, request.call(request.argv or ("sh",)), request.window_bytes)
        return self._told(session.ttys[call.call_id])

    async def all(self, session_id: str) -> Sequence[Terminal]:
        return [self._told(tty) for tty in self._find(session_id).ttys.values() if not tty.call.is_over]

    async def get(self, session_id: str, terminal_id: str) -> Terminal:
        return self._told(self._tty(session_id, terminal_id))

    @asynccontextmanager
    async def attach(self, request: TerminalAttach) -> AsyncGenerator[_Client]:
        tty = self._tty(request.session_id, request.terminal_id)
        clients = self._clients.setdefault(tty, [])
        position = tty.end if request.offset is None else request.offset
        client = _Client(tty, request.client_id or f"c-{secrets.token_hex(8)}", position)
        if len(clients) >= limits.TERMINAL_READERS_MAX:
            raise LimitReached(f"a terminal has {limits.TERMINAL_READERS_MAX} readers at most", limit="readers")
        if request.input is not InputMode.WATCH:
            if request.input is InputMode.HOLD:
                self._check(tty, client.client_id)
            for other in clients:
                if other.holds and other.client_id != client.client_id:
                    other.holds, other.taken_by = False, client.client_id
            client.holds = True
        clients.append(client)
        client.terminal = self._told(tty)
        tty.call.tell()
        try:
            yield client
        finally:
            clients.remove(client)

    async def write(self, request: TerminalInput) -> None:
        tty = self._tty(request.session_id, request.terminal_id)
        self._check(tty, request.client_id)
        await tty.type(request.data)

    async def resize(self, request: TerminalResize) -> None:
        tty = self._tty(request.session_id, request.terminal_id)
        self._check(tty, request.client_id)
        if not tty.call.is_over:
            tty.size = request.size
            tty.call.tell()

    async def kill(self, request: TerminalKill) -> None:
        tty = self._tty(request.session_id, request.terminal_id)
        if request.signal is not None:
            check_signal(request.signal)
        if not tty.call.is_over:
            tty.call.kill(_KILL if request.signal is None else request.signal)
            await tty.call.ended()

    def _check(self, tty: FakeTty, client_id: str) -> None:
        if (holder := self._holder(tty)) not in ("", client_id):
            raise Conflict(f"the client {holder} has the input of this terminal", next_step="take it over, or watch")

    def _holder(self, tty: FakeTty) -> str:
        return next((client.client_id for client in self._clients.get(tty, []) if client.holds), "")

    def _tty(self, session_id: str, terminal_id: str | None) -> FakeTty:
        session = self._find(session_id)
        if terminal_id in session.ttys:
            return session.ttys[terminal_id]
        if terminal_id in session.calls:
            raise InvalidState(f"call {terminal_id} has no terminal", next_step="open a terminal")
        raise CallNotFound(f"session {session_id} has no terminal {terminal_id}")

    def _told(self, tty: FakeTty) -> Terminal:
        return _told(tty, self._holder(tty), len(self._clients.get(tty, [])))


def _told(tty: FakeTty, holder: str = "", readers: int = 0) -> Terminal:
    record = tty.call.record
    return Terminal(
        record.session_id,
        record.call_id,
        record.argv,
        record.state,
        record.started,
        None if tty.call.is_over else tty.size,
        tty.window_bytes,
        tty.kept_from,
        tty.end,
        holder,
        readers,
        record.result,
    )
