"""An engine that is closed in the middle of work."""

import asyncio
from dataclasses import replace
from typing import Any, cast

import pytest

from sandlot.config.settings import Settings
from sandlot.host.service import SandboxHostService
from sandlot.model import (
    CallRequest,
    CallState,
    ForkRequest,
    SandlotError,
    SessionFilter,
    SessionInfo,
    SessionSpec,
    SessionState,
    Turn,
    TurnRequest,
    Unavailable,
)
from sandlot.wiring.embedded import build
from tests.conftest import Ran, clean_up, collect, run
from tests.e2e.test_recover import guests

pytestmark = [pytest.mark.root, pytest.mark.timeout(150)]

WAIT_S = 40
PATIENT = 60.0


async def wait_until_running(host: SandboxHostService, session_id: str) -> None:
    async with asyncio.timeout(WAIT_S):
        while not any(call.state is CallState.RUNNING for call in await host.calls(session_id)):  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def test_what_someone_waits_for_ends_and_new_work_is_refused(settings: Settings) -> None:
    host = build(replace(settings, shutdown_timeout_s=PATIENT))
    await host.start()
    await host.create(SessionSpec(session_id="s"))
    waiting = asyncio.create_task(run(host, CallRequest("s", ("sh", "-c", "cat go 2>/dev/null; sleep 1; echo done"))))
    await wait_until_running(host, "s")
    closing = asyncio.create_task(host.close())
    await asyncio.sleep(0)
    for refused in (
        host.create(SessionSpec(session_id="t")),
        host.get("s"),
        host.list(SessionFilter()),
        host.destroy("s"),
        host.turn_complete(TurnRequest("s")),
        host.fork(ForkRequest("s")),
        host.recover("s"),
        run(host, CallRequest("s", ("true",))),
    ):
        with pytest.raises(Unavailable, match="closing") as caught:
            await refused
        assert caught.value.retryable
        assert caught.value.next_step
    ran = await waiting
    assert (ran.exit_code, ran.stdout) == (0, b"done\n")
    await closing
    async with build(settings) as host:
        assert (await host.get("s")).state is SessionState.ACTIVE
        await clean_up(host)


async def test_a_call_that_takes_too_long_runs_on_and_its_caller_is_told(settings: Settings) -> None:
    host = build(replace(settings, shutdown_timeout_s=0.2))
    await host.start()
    await host.create(SessionSpec(session_id="s"))
    program = "while [ ! -e go ]; do sleep 0.05; done; echo done"
    waiting = asyncio.create_task(run(host, CallRequest("s", ("sh", "-c", program), call_id="long")))
    await wait_until_running(host, "s")
    await host.close()
    with pytest.raises(Unavailable, match="runs on"):
        await waiting
    async with build(settings) as host:
        (record,) = await host.calls("s")
        assert record.state is CallState.RUNNING
        await run(host, CallRequest("s", ("touch", "go")))
        async with host.attach("s", "long") as events:
            ran = await collect(events)
        assert (ran.exit_code, ran.stdout) == (0, b"done\n")
        await clean_up(host)


@pytest.mark.parametrize("patience_s", [0.0, PATIENT])
async def test_the_next_engine_finds_a_world_that_fits(settings: Settings, patience_s: float) -> None:
    for delay_s in (0.0, 0.004, 0.02, 0.08):
        await one_round(replace(settings, shutdown_timeout_s=patience_s), delay_s)


async def one_round(settings: Settings, delay_s: float) -> None:
    host = build(settings)
    await host.start()
    for name in ("a", "b", "c"):
        await host.create(SessionSpec(session_id=name))
    tasks: list[asyncio.Task[Any]] = []
    tasks += [asyncio.create_task(host.create(SessionSpec(session_id=f"new-{number}"))) for number in range(5)]
    turn = asyncio.create_task(host.turn_complete(TurnRequest("a")))
    fork = asyncio.create_task(host.fork(ForkRequest("b", count=4)))
    destroy = asyncio.create_task(host.destroy("c"))
    call = asyncio.create_task(run(host, CallRequest("a", ("sh", "-c", "echo ran > file"), call_id="call")))
    tasks += [turn, fork, destroy, call]
    await asyncio.sleep(delay_s)
    await host.close()
    done = await asyncio.gather(*tasks, return_exceptions=True)
    for each in done:
        assert not isinstance(each, BaseException) or isinstance(each, SandlotError), repr(each)
    async with build(settings) as host:
        found = {session.session_id: session for session in (await host.list(SessionFilter())).sessions}
        for each in done:
            if isinstance(each, SessionInfo):
                assert found[each.session_id].state is SessionState.ACTIVE
            elif isinstance(each, Turn):
                assert each.number in [known.number for known in await host.turns("a")]
            elif isinstance(each, list):
                assert {child.session_id for child in cast("list[SessionInfo]", each)} <= set(found)
            elif isinstance(each, Ran):
                assert (await run(host, CallRequest("a", ("cat", "file")))).stdout == b"ran\n"
        if destroy.exception() is None:
            assert "c" not in found
        if fork.exception() is not None:
            assert not [session for session in found.values() if session.origin], "some of a fork that was refused"
        assert {"a", "b"} <= set(found)
        alive = [name for name, session in found.items() if session.state is SessionState.ACTIVE]
        for name in alive:
            assert (await run(host, CallRequest(name, ("echo", name)))).stdout == f"{name}\n".encode()
        assert len(guests(host)) == len(alive)
        await clean_up(host)
    assert list((settings.data / "volumes").iterdir()) == []
    assert list((settings.data / "outputs").iterdir()) == []
