"""How the engine itself reaches ports of sessions: counted, and in use as long as they are there."""

from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractContextManager

from sandlot.contracts.runtime import Runtime
from sandlot.host.guest_streams import GuestStream, connect_by_guest
from sandlot.host.port_streams import Connection, SocketStream
from sandlot.host.session import Session
from sandlot.model import Capability, LimitReached, SessionState, limits
from sandlot.model.capability import need


class Line:
    """A connection to a program of a session. Whoever has it ends its stream, and then releases it."""

    def __init__(self, stream: Connection, use: AbstractContextManager[None], uncount: Callable[[], None]) -> None:
        self.stream = stream
        self._use = use
        self._uncount = uncount
        self._is_released = False

    def release(self) -> None:
        if not self._is_released:
            self._is_released = True
            self._use.__exit__(None, None, None)
            self._uncount()

    async def leave(self) -> None:
        try:
            await self.stream.leave()
        finally:
            self.release()


class Lines:
    def __init__(
        self,
        find: Callable[[str], Session],
        ready: Callable[[Session], Awaitable[None]],
        check_open: Callable[[], None],
        runtimes: Mapping[str, Runtime],
    ) -> None:
        self.find = find
        self._ready = ready  # wakes a session that rests
        self._check_open = check_open
        self._runtimes = runtimes
        self._open: Counter[str] = Counter()

    async def open(self, session_id: str, port: int) -> Line:
        """Raises what `Ports.connect_port` raises."""
        limits.within("port", port, 1, 65535)
        session = self.find(session_id)
        need(session.capabilities, Capability.PORTS, f"the runtime {session.row.runtime}")
        if not session.gate.is_open or session.row.state is SessionState.PAUSED:
            await self._ready(session)
        self._check_open()  # while it waited the engine may have left
        guest = session.active_guest("its ports cannot be reached")
        if self._open[session_id] >= limits.CONNECTIONS_DIALLED_MAX:
            raise LimitReached(
                f"session {session_id} has {self._open[session_id]} connections already", limit="connections"
            )
        self._open[session_id] += 1
        use = session.in_use()
        use.__enter__()
        try:
            made = await self._runtimes[session.row.runtime].dial(session.row.volume, guest, port)
            stream = SocketStream(made) if made is not None else await connect_by_guest(guest, port)
            uncount = self._count(session, stream)
        except BaseException:  # undone, then raised again
            use.__exit__(None, None, None)
            self._uncount(session_id)
            raise
        return Line(stream, use, uncount)

    def _count(self, session: Session, stream: Connection) -> Callable[[], None]:
        """Gives what is done at its end."""
        if isinstance(stream, GuestStream):
            session.connections.add(stream)

        def uncount() -> None:
            if isinstance(stream, GuestStream):
                session.connections.discard(stream)
            self._uncount(session.row.session_id)

        return uncount

    def _uncount(self, session_id: str) -> None:
        self._open[session_id] -= 1
        if not self._open[session_id]:
            del self._open[session_id]
