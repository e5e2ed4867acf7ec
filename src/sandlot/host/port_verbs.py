"""The verbs of ports as the waist has them."""

from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager

from sandlot.contracts.ports import PortStream
from sandlot.contracts.runtime import Runtime
from sandlot.host.port_streams import SocketStream
from sandlot.host.session import Session
from sandlot.model import (
    Capability,
    CapabilityNotSupported,
    ExposedPort,
    ExposeRequest,
    LimitReached,
    NotFound,
    SessionState,
    limits,
)


class PortVerbs:
    def __init__(
        self,
        find: Callable[[str], Session],
        ready: Callable[[Session], Awaitable[None]],
        check_open: Callable[[], None],
        runtimes: Mapping[str, Runtime],
    ) -> None:
        self._find = find
        self._ready = ready  # wakes a session that rests
        self._check_open = check_open
        self._runtimes = runtimes
        self._open: Counter[str] = Counter()

    @asynccontextmanager
    async def connect_port(self, session_id: str, port: int) -> AsyncGenerator[PortStream]:
        limits.within("port", port, 1, 65535)
        session = self._find(session_id)
        if not session.gate.is_open or session.row.state is SessionState.PAUSED:
            await self._ready(session)
        self._check_open()  # while it waited the engine may have left
        if self._open[session_id] >= limits.CONNECTIONS_DIALLED_MAX:
            raise LimitReached(
                f"session {session_id} has {self._open[session_id]} connections already", limit="connections"
            )
        self._open[session_id] += 1
        try:
            with session.in_use():
                stream = await self._dial(session, port)
                try:
                    yield stream
                finally:
                    await stream.leave()
        finally:
            self._open[session_id] -= 1
            if not self._open[session_id]:
                del self._open[session_id]

    async def _dial(self, session: Session, port: int) -> SocketStream:
        guest = session.active_guest("its ports cannot be reached")
        made = await self._runtimes[session.row.runtime].dial(session.row.volume, guest, port)
        if made is None:
            raise _no_ports(session)
        return SocketStream(made)

    async def expose_port(self, request: ExposeRequest) -> ExposedPort:
        raise _no_ports(self._find(request.session_id))

    async def list_ports(self, session_id: str) -> Sequence[ExposedPort]:
        self._find(session_id)
        return ()

    async def unexpose_port(self, session_id: str, port: int) -> None:
        self._find(session_id)
        raise NotFound(f"port {port} of session {session_id} is not exposed", session_id=session_id)


def _no_ports(session: Session) -> CapabilityNotSupported:
    return CapabilityNotSupported(
        f"the runtime {session.row.runtime} exposes no ports",
        capability=Capability.PORTS,
        session_id=session.row.session_id,
    )
