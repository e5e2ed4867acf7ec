"""Ports that break a promise are told by the check of that promise."""

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any, cast

import pytest

from sandlot.conformance import PORT_CHECKS, conform_ports
from sandlot.contracts import Host, PortStream
from sandlot.host.service import SandboxHostService
from sandlot.model import ExposedPort, ExposeRequest, Process, ProcessSpec


class Behind:
    """As the host, but for what a mutation says otherwise."""

    def __init__(self, host: SandboxHostService) -> None:
        self.host = host

    def __getattr__(self, name: str) -> Any:
        return getattr(self.host, name)


class TellsNoPorts(Behind):
    async def list_ports(self, session_id: str) -> Sequence[ExposedPort]:
        del session_id
        return []


class KeepsWhatIsUnexposed(Behind):
    async def unexpose_port(self, session_id: str, port: int) -> None:
        assert any(each.port == port for each in await self.host.list_ports(session_id))


class TakesAnyPortOfTheHost(Behind):
    async def expose_port(self, request: ExposeRequest) -> ExposedPort:
        return await self.host.expose_port(replace(request, host_port=None))


class GivesProcessesNoAddress(Behind):
    async def launch_process(self, spec: ProcessSpec) -> Process:
        return await self.host.launch_process(replace(spec, port=None))


class _Torn:
    def __init__(self, stream: PortStream) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    async def read(self, size_max: int = 65536) -> bytes:
        return (await self._stream.read(size_max)).replace(b"\0", b"\1")


class ChangesBytes(Behind):
    @asynccontextmanager
    async def connect_port(self, session_id: str, port: int) -> AsyncGenerator[Any]:
        async with self.host.connect_port(session_id, port) as stream:
            yield _Torn(stream)


class ReachesNobodyQuietly(Behind):
    @asynccontextmanager
    async def connect_port(self, session_id: str, port: int) -> AsyncGenerator[Any]:
        del session_id, port
        yield None


MUTATIONS = (
    (TellsNoPorts, "an_exposed_port_is_reached"),
    (TellsNoPorts, "a_session_is_made_with_ports"),
    (KeepsWhatIsUnexposed, "what_is_unexposed_is_reached_no_more"),
    (TakesAnyPortOfTheHost, "a_port_of_the_host_can_be_chosen"),
    (GivesProcessesNoAddress, "a_process_has_an_address"),
    (GivesProcessesNoAddress, "a_port_is_of_one_process"),
    (ChangesBytes, "who_listens_inside_is_reached"),
    (ReachesNobodyQuietly, "where_nobody_listens_is_told"),
)


@pytest.mark.parametrize(("broken", "told_by"), MUTATIONS)
async def test_ports_that_break_a_promise_are_told(
    host: SandboxHostService, broken: type[Behind], told_by: str
) -> None:
    checks = [check for check in PORT_CHECKS if check.name == told_by]
    have = await host.capabilities_of("none", "local-disk")
    outcomes = [
        one async for one in conform_ports(cast("Host", broken(host)), "none", "local-disk", have, checks=checks)
    ]
    assert [(one.check, one.is_good) for one in outcomes] == [(told_by, False)]
