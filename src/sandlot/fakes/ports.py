"""The verbs of ports in memory. Nobody listens on a port there."""

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager

from sandlot.contracts.ports import PortStream
from sandlot.fakes.session import FakeSession
from sandlot.model import (
    CapabilityNotSupported,
    ExposedPort,
    ExposeRequest,
    InvalidState,
    NotFound,
    Preview,
    PreviewRequest,
    limits,
)


class FakePorts:
    def __init__(self, find: Callable[[str], FakeSession]) -> None:
        self._find = find

    @asynccontextmanager
    async def connect_port(self, session_id: str, port: int) -> AsyncGenerator[PortStream]:
        limits.within("port", port, 1, 65535)
        self._find(session_id).check_use()
        raise NotFound(f"nobody listens on port {port} of the session", port=port)
        yield

    async def expose_port(self, request: ExposeRequest) -> ExposedPort:
        self._find(request.session_id)
        raise no_ports()

    async def list_ports(self, session_id: str) -> Sequence[ExposedPort]:
        self._find(session_id)
        return []

    async def unexpose_port(self, session_id: str, port: int) -> None:
        self._find(session_id)
        raise NotFound(f"port {port} is not exposed", session_id=session_id)

    async def preview_port(self, request: PreviewRequest) -> Preview:
        self._find(request.session_id)
        raise InvalidState("no server shows ports of the fake", next_step="use a real host")


def no_ports() -> CapabilityNotSupported:
    return CapabilityNotSupported("nobody listens in the fake", next_step="use a real host", capability="ports")
