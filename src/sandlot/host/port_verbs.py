"""The verbs of ports as the waist has them."""

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager

from sandlot.contracts.ports import PortStream
from sandlot.host.exposing import Exposures
from sandlot.host.lines import Lines
from sandlot.model import Capability, ExposedPort, ExposeRequest, SessionState, limits, refusal
from sandlot.model.capability import need


class PortVerbs:
    def __init__(self, lines: Lines, exposures: Exposures) -> None:
        self._lines = lines
        self._exposures = exposures

    @asynccontextmanager
    async def connect_port(self, session_id: str, port: int) -> AsyncGenerator[PortStream]:
        line = await self._lines.open(session_id, port)
        try:
            yield line.stream
        finally:
            await line.leave()

    async def expose_port(self, request: ExposeRequest) -> ExposedPort:
        session = self._lines.find(request.session_id)
        need(session.capabilities, Capability.PORTS, f"the runtime {session.row.runtime}")
        state = session.row.state
        if state in (SessionState.DESTROYING, SessionState.FAILED):
            raise refusal(request.session_id, state, "it exposes no ports", session.row.reason)
        exposed = await self._exposures.expose(request.session_id, request.port, request.host_port or 0)
        return self._exposures.one(exposed)

    async def list_ports(self, session_id: str) -> Sequence[ExposedPort]:
        self._lines.find(session_id)
        return self._exposures.told(session_id)

    async def unexpose_port(self, session_id: str, port: int) -> None:
        limits.within("port", port, 1, 65535)
        self._lines.find(session_id)
        await self._exposures.unexpose(session_id, port)
