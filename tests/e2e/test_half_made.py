"""What is not whole yet, or not any more, is not told of: forks under way, destroys that were killed, pools of a host
that is not well, and time that stood still."""

import asyncio
import os
import time
from dataclasses import replace
from pathlib import Path

import pytest

from sandlot.config.settings import Settings
from sandlot.host import failpoints
from sandlot.host.service import SandboxHostService
from sandlot.model import (
    CallRequest,
    ForkRequest,
    HealthStatus,
    HostUnhealthy,
    PauseRequest,
    SessionFilter,
    SessionNotFound,
    SessionSpec,
    TurnRequest,
)
from sandlot.wiring.embedded import build
from tests.conftest import collect
from tests.e2e.standstill import settled, standstill

pytestmark = pytest.mark.root
KILLED = 9
PAUSED_S = 1.5


async def test_children_are_seen_when_all_of_them_are_there(host: SandboxHostService, data_dir: Path) -> None:
    """Before, a fork may still be undone; who had one of them would lose it."""
    await host.create(SessionSpec(session_id="s"))
    with standstill("fork: all made") as waiting:
        asked = asyncio.create_task(host.fork(ForkRequest("s", count=3)))
        await waiting.reached()
        made = [session.row.session_id for session in host._lifecycle.all()]  # pyright: ignore[reportPrivateUsage] - hidden
        assert len(made) == 4
        assert [session.session_id for session in (await host.list(SessionFilter())).sessions] == ["s"]
        for session_id in set(made) - {"s"}:
            with pytest.raises(SessionNotFound):
                await host.turn_complete(TurnRequest(session_id))
        waiting.go()
        await asked
    assert {session.session_id for session in (await host.list(SessionFilter())).sessions} == set(made)
    await settled(host, data_dir)


def die_in_a_destroy(settings: Settings) -> int:
    """In a process of its own."""

    async def live() -> None:
        async with build(settings) as host:
            await host.create(SessionSpec(session_id="s"))
            failpoints.arm("destroy: volume released", lambda: os._exit(KILLED))
            await host.destroy("s")

    if child := os.fork():
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    try:
        asyncio.run(live())
    finally:
        os._exit(1)


def test_a_destroy_that_was_killed_is_finished_without_alarm(
    settings: Settings, caplog: pytest.LogCaptureFixture
) -> None:
    assert die_in_a_destroy(settings) == KILLED

    async def finish() -> None:
        async with build(settings) as host:
            assert (await host.list(SessionFilter())).sessions == ()

    asyncio.run(finish())
    assert [record.getMessage() for record in caplog.records if record.name == "sandlot.host"] == []


async def test_a_host_that_is_not_well_fills_no_pool(settings: Settings) -> None:
    """What makes no sessions makes none in advance."""
    async with build(replace(settings, warm_pool=2, space_warn=0.01, space_critical=0.01)) as host:
        assert (await host.health()).status is HealthStatus.UNHEALTHY
        with pytest.raises(HostUnhealthy):
            await host.create(SessionSpec())
        pool = host._lifecycle.pool  # pyright: ignore[reportPrivateUsage] - nobody else has it
        async with asyncio.timeout(20):
            while pool.is_filling:  # noqa: ASYNC110 - it has no event for others
                await asyncio.sleep(0.01)
        assert pool.templates() == []
        assert not list((settings.data / "volumes").glob("*"))


async def test_a_call_does_not_live_while_it_stands_still(host: SandboxHostService) -> None:
    await host.create(SessionSpec(session_id="s"))
    began = time.perf_counter()
    async with host.call(CallRequest("s", ("cat",), stdin=True)) as call:
        await host.pause(PauseRequest("s"))
        await asyncio.sleep(PAUSED_S)
        await host.resume("s")
        await call.close_stdin()
        lived_s = (await collect(call)).result.duration_s
    assert lived_s <= time.perf_counter() - began - PAUSED_S
