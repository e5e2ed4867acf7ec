"""What a native environment does beside what the suite asks: what it insists on, and hosts that fail."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any, cast

import pytest

from sandlot.contracts import Host, ToolStream
from sandlot.environments.native import NativeSandboxConfig, NativeSandboxEnvironment
from sandlot.host.service import SandboxHostService
from sandlot.model import (
    Capability,
    CapabilityNotSupported,
    DeadlineExceeded,
    EnvironmentCapabilities,
    EnvironmentState,
    InvalidArgument,
    InvalidState,
    SessionFilter,
    SessionInfo,
    SessionSpec,
    Stream,
    ToolEvent,
    ToolProgress,
    ToolRequest,
    ToolResult,
    Unavailable,
    limits,
)

PLAIN = NativeSandboxConfig("local-disk", "none")


class Through:
    """A host behind something that is not as it should be; each test says in what."""

    def __init__(self, host: Host) -> None:
        self.host = host

    def __getattr__(self, name: str) -> Any:
        return getattr(self.host, name)


def through(one: Through) -> Host:
    return cast("Host", one)


async def sessions(host: Host) -> list[str]:
    return [session.session_id for session in (await host.list(SessionFilter())).sessions]


def test_the_default_insists_on_nothing() -> None:
    assert NativeSandboxConfig.default_config() == NativeSandboxConfig("auto", "auto")


async def test_two_wishes_that_differ_are_refused(host: SandboxHostService) -> None:
    environment = NativeSandboxEnvironment(host, PLAIN)
    with pytest.raises(InvalidArgument, match="insists on 'local-disk'"):
        await environment.create(SessionSpec(storage="layers"))
    assert await sessions(host) == []
    assert await environment.create(SessionSpec(storage="local-disk")) in await sessions(host)


async def test_a_host_that_gives_something_else_leaves_nothing_behind(host: SandboxHostService) -> None:
    class Downgrades(Through):
        async def create(self, spec: SessionSpec) -> SessionInfo:
            return await self.host.create(replace(spec, storage="local-disk", runtime="none"))

    environment = NativeSandboxEnvironment(through(Downgrades(host)), NativeSandboxConfig("zfs", "none"))
    with pytest.raises(CapabilityNotSupported, match="has the storage local-disk, and this environment insists on zfs"):
        await environment.create(SessionSpec())
    assert await sessions(host) == []
    assert (environment.session_id, await environment.state()) == (None, EnvironmentState.CREATING)


async def test_what_the_host_does_not_have_is_refused_before_anything_is_made(host: SandboxHostService) -> None:
    with pytest.raises(InvalidArgument, match="there is no storage"):
        await NativeSandboxEnvironment(host, NativeSandboxConfig("punch-cards")).create(SessionSpec())
    assert await sessions(host) == []


async def test_a_session_of_another_kind_is_not_attached_and_stays(host: SandboxHostService) -> None:
    made = await host.create(SessionSpec(storage="local-disk", runtime="none"))
    environment = NativeSandboxEnvironment(host, NativeSandboxConfig("layers"))
    with pytest.raises(CapabilityNotSupported, match="has the storage local-disk"):
        await environment.attach_session(made.session_id)
    assert environment.session_id is None
    assert await sessions(host) == [made.session_id]


async def test_whoever_gives_up_a_create_leaves_no_session(host: SandboxHostService) -> None:
    entered = asyncio.Event()

    class MakesAndWaits(Through):
        async def create(self, spec: SessionSpec) -> SessionInfo:
            await self.host.create(spec)
            entered.set()
            return await asyncio.Future[SessionInfo]()

    environment = NativeSandboxEnvironment(through(MakesAndWaits(host)), PLAIN)
    task = asyncio.create_task(environment.create(SessionSpec()))
    async with asyncio.timeout(30):
        await entered.wait()
        assert len(await sessions(host)) == 1
        task.cancel()
        await asyncio.wait([task])
    assert task.cancelled()
    assert (await sessions(host), environment.session_id) == ([], None)


async def test_an_id_that_the_caller_chose_is_never_removed_after_a_failure(host: SandboxHostService) -> None:
    """It may be someone else's session."""
    await host.create(SessionSpec(session_id="theirs", storage="local-disk", runtime="none"))

    class LosesTheAnswer(Through):
        async def create(self, spec: SessionSpec) -> SessionInfo:
            raise Unavailable("the line is cut")

    environment = NativeSandboxEnvironment(through(LosesTheAnswer(host)), PLAIN)
    with pytest.raises(Unavailable):
        await environment.create(SessionSpec(session_id="theirs"))
    assert await sessions(host) == ["theirs"]


async def test_capabilities_are_those_of_the_session(host: SandboxHostService) -> None:
    environment = NativeSandboxEnvironment(host, PLAIN)
    with pytest.raises(InvalidState, match="is known when it is made"):
        await environment.capabilities()
    await environment.create(SessionSpec())
    told = await environment.capabilities()
    have = await host.capabilities_of("none", "local-disk")
    assert told == EnvironmentCapabilities(
        snapshots=Capability.SNAPSHOTS in have,
        rollback=Capability.SNAPSHOTS in have,
        pause=Capability.PAUSE in have,
        tier_routing=False,
        streaming_progress=True,
        max_session_duration_s=limits.SESSION_LIFETIME_S_MAX,
        concurrent_sessions=(await host.health()).sessions_max,
    )
    assert told.concurrent_sessions > 0


@pytest.mark.root
async def test_capabilities_differ_with_storage_and_runtime(host: SandboxHostService) -> None:
    found: dict[NativeSandboxConfig, EnvironmentCapabilities] = {}
    for config in (NativeSandboxConfig("layers", "namespaces"), NativeSandboxConfig("local-disk", "namespaces")):
        environment = NativeSandboxEnvironment(host, config)
        await environment.create(SessionSpec())
        found[config] = await environment.capabilities()
    one, other = found.values()
    assert (one.snapshots, one.rollback, one.pause, one.tier_routing) == (True, True, True, True)
    assert (other.snapshots, other.rollback, other.pause, other.tier_routing) == (False, False, True, True)
    default = await NativeSandboxEnvironment(host).capabilities()
    assert default.snapshots is (Capability.SNAPSHOTS in await host.capabilities())


async def test_a_destroyed_session_is_known_without_asking(host: SandboxHostService) -> None:
    class GoesAway(Through):
        gone = False

        def __getattr__(self, name: str) -> Any:
            if self.gone:
                raise Unavailable("nobody is there")
            return super().__getattr__(name)

    far = GoesAway(host)
    environment = NativeSandboxEnvironment(through(far), PLAIN)
    await environment.create(SessionSpec())
    far.gone = True
    with pytest.raises(Unavailable):
        await environment.state()
    far.gone = False
    await environment.destroy()
    far.gone = True
    assert await environment.state() is EnvironmentState.DESTROYED
    await environment.destroy()


async def test_a_host_that_does_not_answer_is_no_state(
    host: SandboxHostService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "STATE_DEADLINE_S", 0.05)

    class Silent(Through):
        async def get(self, session_id: str) -> SessionInfo:
            if session_id == environment.session_id:
                await asyncio.Future[None]()
            return await self.host.get(session_id)

    environment = NativeSandboxEnvironment(through(Silent(host)), PLAIN)
    await environment.create(SessionSpec())
    with pytest.raises(DeadlineExceeded, match="did not tell of session"):
        await environment.state()


async def test_a_stream_that_is_cut_is_an_error(host: SandboxHostService) -> None:
    class CutStream:
        call_id = "c1"

        async def __aiter__(self) -> AsyncIterator[ToolEvent]:
            yield ToolProgress(Stream.STDOUT, "half")

        async def result(self) -> ToolResult:
            raise Unavailable("the line is cut")

    class Cuts(Through):
        @asynccontextmanager
        async def execute_tool(self, request: ToolRequest) -> AsyncGenerator[ToolStream]:
            yield CutStream()

    environment = NativeSandboxEnvironment(through(Cuts(host)), PLAIN)
    request = ToolRequest(await environment.create(SessionSpec()), "bash", {"cmd": "exit 0"})
    heard: list[ToolProgress] = []
    for listener in (None, heard.append):
        with pytest.raises(Unavailable):
            await environment.execute_tool(request, listener)
    assert [said.text for said in heard] == ["half"]
