"""A host that makes no sessions because someone said so, and how it is emptied."""

import asyncio
import json
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import cast

import pytest

from sandlot import AsyncSandbox, Client
from sandlot.config.settings import Settings
from sandlot.contracts import Host
from sandlot.fakes.host import FakeHost
from sandlot.host.service import SandboxHostService
from sandlot.model import (
    CallRequest,
    CordonRequest,
    Drained,
    ForkRequest,
    HealthStatus,
    HostUnhealthy,
    InvalidArgument,
    PauseRequest,
    SessionNotFound,
    SessionSpec,
    SessionState,
    TurnRequest,
    limits,
)
from sandlot.rpc.client import HostClient
from sandlot.sdk.draining import drain
from sandlot.wiring.embedded import build
from tests.conftest import clean_up, run
from tests.e2e.test_cli import Program
from tests.serving import environment, server
from tests.unit.rpc.serving import over_the_wire

SPEC = SessionSpec(runtime="none", storage="local-disk")
WHY = "a new kernel"


@pytest.fixture
def sandlot(data_dir: Path) -> Program:
    return Program(data_dir)


@asynccontextmanager
async def around(kind: str, settings: Settings) -> AsyncGenerator[Host]:
    if kind == "fake":
        yield cast("Host", FakeHost())
    elif kind == "fake over the wire":
        async with over_the_wire(FakeHost()) as client:
            yield cast("Host", client)
    else:
        async with build(settings) as engine:
            yield engine
            await clean_up(engine)


async def drained(host: Host, timeout_s: float = 60, *, pause: bool = False, to: Host | None = None) -> Drained:
    told = [one async for one in drain(host, WHY, timeout_s, pause=pause, to=to)]
    return told[-1]


@pytest.mark.parametrize("kind", ["engine", "fake", "fake over the wire"])
async def test_a_cordoned_host_makes_no_sessions_and_keeps_those_that_are_there(kind: str, settings: Settings) -> None:
    spec = SPEC if kind == "engine" else SessionSpec()
    async with around(kind, settings) as host:
        made = await host.create(SessionSpec(runtime=spec.runtime, storage=spec.storage, request_id="again"))
        assert (await host.health()).cordoned_at == 0
        health = await host.cordon(CordonRequest(WHY))
        assert health.cordoned_at > 0
        assert (health.status, [one.what for one in health.reasons][:1]) == (HealthStatus.UNHEALTHY, ["cordon"])
        with pytest.raises(HostUnhealthy, match=WHY) as refused:
            await host.create(spec)
        assert refused.value.retryable
        known = await host.create(SessionSpec(runtime=spec.runtime, storage=spec.storage, request_id="again"))
        assert known.session_id == made.session_id
        async with host.call(CallRequest(made.session_id, ("sh", "-c", "echo on"))) as stream:
            assert (await stream.result()).exit_code == 0
        assert (await host.cordon(CordonRequest("another"))).cordoned_at == health.cordoned_at
        with pytest.raises(HostUnhealthy, match="another"):
            await host.create(spec)
        assert (await host.uncordon()).cordoned_at == 0
        assert (await host.uncordon()).cordoned_at == 0
        await host.create(spec)


def test_a_reason_is_one_line() -> None:
    for reason in ("x" * (limits.CORDON_REASON_CHARS_MAX + 1), "two\nlines", "\x1b[31m"):
        with pytest.raises(InvalidArgument):
            CordonRequest(reason)


async def test_a_cordon_outlives_its_engine(settings: Settings) -> None:
    async with build(settings) as host:
        before = await host.cordon(CordonRequest(WHY))
    async with build(settings) as host:
        assert (await host.health()).cordoned_at == pytest.approx(before.cordoned_at)
        with pytest.raises(HostUnhealthy, match=WHY):
            await host.create(SPEC)
        await host.uncordon()
    async with build(settings) as host:
        assert (await host.health()).cordoned_at == 0
        await host.create(SPEC)
        await clean_up(host)


@pytest.mark.root
async def test_forks_are_refused_too(host: SandboxHostService) -> None:
    made = await host.create(SessionSpec())
    await host.cordon(CordonRequest(WHY))
    with pytest.raises(HostUnhealthy, match=WHY):
        await host.fork(ForkRequest(made.session_id))
    await host.uncordon()


def test_a_cordon_is_told_by_a_server_and_the_command_line(data_dir: Path, sandlot: Program) -> None:
    with server(data_dir) as served:
        assert "\nsandlot_cordoned 0.0\n" in served.ask("/metrics").body.decode()
        told = sandlot.json("cordon", "--reason", WHY)  # through the one that has the data directory
        assert told["cordoned_at"] > 0
        ready = served.ask("/readyz")
        while ready.status == 200:  # what it looked at is up to a second old
            ready = served.ask("/readyz")
        assert (ready.status, ready.document["cordoned"]) == (503, True)
        assert ready.document["reasons"] == [f"it is cordoned: {WHY}"]
        assert "\nsandlot_cordoned 1.0\n" in served.ask("/metrics").body.decode()
        assert served.ask("/healthz").status == 200
        ran = sandlot("create", "--runtime", "none", "--storage", "local-disk")
        assert ran.returncode == 125
        assert WHY in ran.stderr.decode()
        ran = sandlot("health")
        assert ran.returncode == 1
        assert f"it is cordoned: {WHY}" in ran.stdout.decode()
        assert sandlot.json("uncordon")["cordoned_at"] == 0


# ---- emptying ------------------------------------------------------------------------------------------------------


async def test_it_is_waited_for_sessions_to_end(settings: Settings) -> None:
    async with build(settings) as host:
        one, two = await host.create(SPEC), await host.create(SPEC)
        told: list[Drained] = []
        async for step in drain(host, WHY, 60):
            if not told:
                assert {left.session_id for left in step.left} == {one.session_id, two.session_id}
                await host.destroy(one.session_id)
            elif len(step.left) == 1 and one.session_id in step.ended:
                await asyncio.shield(host.destroy(two.session_id))
            told.append(step)
        assert told[-1].is_empty
        assert (told[-1].sessions, set(told[-1].ended)) == (2, {one.session_id, two.session_id})
        assert (await host.health()).cordoned_at > 0


async def test_what_is_left_when_the_time_is_up_is_told(settings: Settings) -> None:
    async with build(settings) as host:
        made = await host.create(SPEC)
        told = await drained(host, 0.2)
        assert not told.is_empty
        assert [(one.session_id, one.state) for one in told.left] == [(made.session_id, "active")]
        assert told.left[0].why
        with pytest.raises(InvalidArgument):
            await drained(host, -1)
        await clean_up(host)


@pytest.mark.root
async def test_sessions_are_paused_and_their_commands_may_end_first(host: SandboxHostService) -> None:
    one, two = await host.create(SessionSpec()), await host.create(SessionSpec())
    stuck = CallRequest(two.session_id, ("sleep", "600"), detach=True)
    async with host.call(stuck):
        pass
    async with host.call(CallRequest(one.session_id, ("sh", "-c", "sleep 1; echo done"))) as stream:
        told = await drained(host, 4, pause=True)
        assert (await stream.result()).exit_code == 0
    assert told.is_empty
    assert set(told.paused) == {one.session_id, two.session_id}
    for session_id in told.paused:
        assert (await host.get(session_id)).state is SessionState.PAUSED
    assert (await drained(host, 4, pause=True)).is_empty  # again
    await host.uncordon()


@pytest.mark.root
async def test_sessions_are_moved_to_another_host_with_their_turns(
    host: SandboxHostService, settings: Settings, tmp_path: Path
) -> None:
    made = await host.create(SessionSpec(timeout_s=5000))
    await run(host, CallRequest(made.session_id, ("sh", "-c", "echo kept > kept")))
    turn = await host.turn_complete(TurnRequest(made.session_id))
    resting = await host.create(SessionSpec())
    await host.pause(PauseRequest(resting.session_id))
    taken = await host.create(SessionSpec())
    other_data = tmp_path / "other"
    other_data.mkdir(mode=0o700)
    (other_data / "templates").symlink_to((settings.data / "templates").resolve())
    with server(other_data) as there:
        async with HostClient(f"http://127.0.0.1:{there.port}") as to:
            await to.create(SessionSpec(session_id=taken.session_id))  # its id is taken there
            told = await drained(host, 120, to=cast("Host", to))
            assert set(told.moved) == {made.session_id, resting.session_id}
            assert [one.session_id for one in told.left] == [taken.session_id]
            assert (await host.get(taken.session_id)).state is SessionState.ACTIVE  # it goes on here
            for session_id in told.moved:
                with pytest.raises(SessionNotFound):
                    await host.get(session_id)
            assert (
                await run(cast("SandboxHostService", to), CallRequest(made.session_id, ("cat", "kept")))
            ).stdout == b"kept\n"
            assert [one.number for one in await to.turns(made.session_id)] == [turn.number]
            assert abs((await to.get(made.session_id)).expires - made.expires) < 60
            assert (await to.get(resting.session_id)).state is SessionState.PAUSED
            for info in (made, resting, taken):
                await to.destroy(info.session_id)
    await host.uncordon()


async def test_python_empties_a_host_in_both_faces(data_dir: Path) -> None:
    def wait() -> Drained:
        with Client(data_dir=data_dir) as client:
            assert client.cordon(WHY).cordoned_at > 0
            assert client.drain(WHY, timeout=1, on_progress=steps.append).is_empty
            assert client.uncordon().cordoned_at == 0
            return client.drain(timeout=1)

    steps: list[Drained] = []
    assert (await asyncio.to_thread(wait)).is_empty
    assert steps
    async with Client(data_dir=data_dir) as client:
        await client.auncordon()
        sandbox = await AsyncSandbox.create(runtime="none", storage="local-disk", client=client)
        assert not (await client.adrain(timeout=0)).is_empty
        await sandbox.kill()
        assert (await client.adrain(timeout=30)).is_empty


async def test_the_command_line_tells_what_is_left(sandlot: Program) -> None:
    session = sandlot.json("create", "--runtime", "none", "--storage", "local-disk")["session_id"]
    ran = sandlot("drain", "--timeout", "0.1s", "--reason", WHY)
    assert ran.returncode == 1
    assert f"{session}  active" in ran.stdout.decode()
    words = [sys.executable, "-m", "sandlot", "--json", "--data-dir", str(sandlot.data), "drain", "--timeout", "40s"]
    pipe = asyncio.subprocess.PIPE
    draining = await asyncio.create_subprocess_exec(*words, stdout=pipe, stderr=pipe, env=environment())
    await asyncio.to_thread(sandlot, "kill", session)
    out, errors = await asyncio.wait_for(draining.communicate(), 60)
    assert (draining.returncode, errors) == (0, b"")
    document = json.loads(out)
    assert (document["empty"], document["left"]) == (True, [])
    for wrong in (("--pause", "--to", "http://127.0.0.1:1"), ("--with-memory",), ("--to-key", "/dev/null")):
        assert (await asyncio.to_thread(sandlot, "drain", *wrong)).returncode == 2
    sandlot("uncordon")
