"""What a node does beside what the suite asks: hosts that do something else than they were asked, or do not answer."""

import asyncio
from dataclasses import replace
from typing import Any, cast

import pytest

from sandlot.contracts import Host
from sandlot.control.node import NodeConfig, NodeSandboxControl
from sandlot.fakes.host import FakeHost
from sandlot.model import (
    Capability,
    CapabilityNotSupported,
    CreateSandboxRequest,
    DeadlineExceeded,
    Health,
    InvalidArgument,
    InvalidState,
    LaunchProcessRequest,
    LimitReached,
    Process,
    ProcessSpec,
    ProcessState,
    Resources,
    SandboxCapabilities,
    SessionFilter,
    SessionInfo,
    SessionSpec,
    Unavailable,
    limits,
)


class Through:
    """A host behind something that is not as it should be; each test says in what."""

    def __init__(self, host: FakeHost | None = None) -> None:
        self.host = host or FakeHost()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.host, name)


def control(host: object, config: NodeConfig | None = None) -> NodeSandboxControl:
    return NodeSandboxControl(cast("Host", host), config)


async def sessions(host: FakeHost) -> list[SessionInfo]:
    return list((await host.list(SessionFilter())).sessions)


async def test_labels_and_time_arrive_at_the_session() -> None:
    host = FakeHost()
    made = await control(host).create_sandbox(CreateSandboxRequest(labels={"agent": "7"}, timeout_s=60))
    (session,) = (await host.list(SessionFilter(labels={"agent": "7"}))).sessions
    assert session.session_id == made.sandbox_id
    assert session.expires - session.created == pytest.approx(60, abs=1)


async def test_an_address_is_that_of_the_server_and_never_a_path() -> None:
    assert (await control(FakeHost()).create_sandbox(CreateSandboxRequest())).address == ""
    node = control(FakeHost(), NodeConfig(address="10.0.0.7:8700"))
    assert (await node.create_sandbox(CreateSandboxRequest())).address == "10.0.0.7:8700"
    with pytest.raises(InvalidArgument, match="is no address"):
        NodeConfig(address="/workspace")


async def test_capabilities_are_those_of_the_host() -> None:
    host = FakeHost(sessions_max=7)
    told = await control(host, NodeConfig(timeout_s=60, timeout_s_max=600)).capabilities()
    assert told == SandboxCapabilities(
        snapshots=True,
        rollback=True,
        pause=True,
        pause_keeps_processes=True,
        launch_process=True,
        concurrent_sandboxes=7,
        sandbox_duration_s_max=600,
    )


async def test_capabilities_of_a_sandbox_are_those_of_its_session() -> None:
    class Tells(Through):
        async def create(self, spec: SessionSpec) -> SessionInfo:
            return replace(await self.host.create(spec), capabilities=(Capability.PORTS,))

    made = await control(Tells()).create_sandbox(CreateSandboxRequest())
    assert (made.capabilities.expose_port, made.capabilities.pause) == (True, False)


async def test_what_a_chosen_kind_can_do_is_known_when_one_was_made() -> None:
    node = control(FakeHost(), NodeConfig(runtime="memory"))
    with pytest.raises(InvalidState, match="is known when one was made"):
        await node.capabilities()
    made = await node.create_sandbox(CreateSandboxRequest())
    assert await node.capabilities() == made.capabilities


async def test_a_host_that_gives_something_else_leaves_nothing_behind() -> None:
    class Downgrades(Through):
        async def create(self, spec: SessionSpec) -> SessionInfo:
            return await self.host.create(replace(spec, runtime="auto", storage="auto"))

    host = FakeHost()
    with pytest.raises(CapabilityNotSupported, match="runtime memory, and this node insists on gvisor"):
        await control(Downgrades(host), NodeConfig(runtime="gvisor")).create_sandbox(CreateSandboxRequest())
    assert await sessions(host) == []


async def test_a_host_that_does_not_hold_a_limit_leaves_nothing_behind() -> None:
    class Ignores(Through):
        async def create(self, spec: SessionSpec) -> SessionInfo:
            return await self.host.create(replace(spec, resources=Resources()))

    host, asked = FakeHost(), CreateSandboxRequest(resources=Resources(cpus=0.5))
    with pytest.raises(CapabilityNotSupported, match="not held to the cpus asked for"):
        await control(Ignores(host)).create_sandbox(asked)
    with pytest.raises(CapabilityNotSupported, match="limit_cpus"):
        await control(host).create_sandbox(asked)
    assert await sessions(host) == []


async def test_a_bound_of_the_node_is_held() -> None:
    host = FakeHost()
    node = control(host, NodeConfig(timeout_s=60, timeout_s_max=60))
    with pytest.raises(LimitReached, match="at most 60 s here, not 61"):
        await node.create_sandbox(CreateSandboxRequest(timeout_s=61))
    assert await sessions(host) == []
    with pytest.raises(InvalidArgument, match="timeout_s"):
        NodeConfig(timeout_s=61, timeout_s_max=60)


async def test_whoever_gives_up_a_create_leaves_no_sandbox() -> None:
    entered, host = asyncio.Event(), FakeHost()

    class MakesAndWaits(Through):
        async def create(self, spec: SessionSpec) -> SessionInfo:
            await self.host.create(spec)
            entered.set()
            return await asyncio.Future[SessionInfo]()

    task = asyncio.create_task(control(MakesAndWaits(host)).create_sandbox(CreateSandboxRequest()))
    async with asyncio.timeout(30):
        await entered.wait()
        assert len(await sessions(host)) == 1
        task.cancel()
        await asyncio.wait([task])
    assert task.cancelled()
    assert await sessions(host) == []


async def test_with_a_request_id_a_lost_answer_is_asked_for_again() -> None:
    host = FakeHost()

    class LosesTheFirst(Through):
        lost = False

        async def create(self, spec: SessionSpec) -> SessionInfo:
            made = await self.host.create(spec)
            if not self.lost:
                self.lost = True
                raise Unavailable("the line is cut")
            return made

    node, request = control(LosesTheFirst(host)), CreateSandboxRequest(request_id="r")
    with pytest.raises(Unavailable):
        await node.create_sandbox(request)
    made = await node.create_sandbox(request)
    assert [one.session_id for one in await sessions(host)] == [made.sandbox_id]


async def test_whoever_gives_up_a_launch_leaves_no_process() -> None:
    entered, killed = asyncio.Event(), list[str]()

    class LaunchesAndWaits(Through):
        async def launch_process(self, spec: ProcessSpec) -> Process:
            self.spec = spec
            entered.set()
            return await asyncio.Future[Process]()

        async def kill_process(self, session_id: str, process_id: str, signal: int | None = None) -> Process:
            killed.append(process_id)
            return Process(session_id, process_id, ("x",), ProcessState.EXITED)

    host = LaunchesAndWaits()
    task = asyncio.create_task(control(host).launch_process(LaunchProcessRequest("s", "sleep", ("9",))))
    async with asyncio.timeout(30):
        await entered.wait()
        task.cancel()
        await asyncio.wait([task])
    assert killed == [host.spec.process_id]
    assert host.spec.argv == ("sleep", "9")


async def test_a_host_that_does_not_answer_is_told_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    class IsMute(Through):
        async def health(self) -> Health:
            return await asyncio.Future[Health]()

    monkeypatch.setattr(limits, "STATE_DEADLINE_S", 0.05)
    with pytest.raises(DeadlineExceeded, match="did not tell its health within"):
        await control(IsMute()).capabilities()
