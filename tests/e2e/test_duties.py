"""What an engine does without being asked: idle sessions rest, sessions whose time is up end or rest."""

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from sandlot import Client, OnExpiry, Sandbox
from sandlot.config.settings import Settings
from sandlot.host.service import SandboxHostService
from sandlot.model import (
    CallRequest,
    EventFilter,
    EventKind,
    FileRead,
    FileWrite,
    InvalidArgument,
    InvalidState,
    PauseReason,
    PauseRequest,
    RollbackRequest,
    SessionFilter,
    SessionInfo,
    SessionNotFound,
    SessionPaused,
    SessionSpec,
    SessionState,
    TurnRequest,
)
from sandlot.wiring.embedded import build
from tests.conftest import clean_up, run

pytestmark = pytest.mark.root
SOON_S = 40
IDLE_S = 0.1


async def after(host: SandboxHostService, session_id: str, kind: EventKind, count: int = 1) -> None:
    """Wait until this has happened so many times."""
    async with asyncio.timeout(SOON_S), host.events(EventFilter(session_id=session_id, follow=True)) as events:
        async for event in events:
            count -= event.kind is kind
            if not count:
                return


async def kinds(host: SandboxHostService, session_id: str) -> list[str]:
    async with host.events(EventFilter(session_id=session_id)) as events:
        return [event.kind async for event in events]


async def asleep(host: SandboxHostService, times: int = 1, session_id: str = "lazy") -> None:
    await after(host, session_id, EventKind.PAUSED, times)
    async with asyncio.timeout(SOON_S):
        while (await host.get(session_id)).reason != PauseReason.IDLE:  # noqa: ASYNC110 - it is told when it is durable
            await asyncio.sleep(0.005)


async def content() -> AsyncIterator[bytes]:
    yield b"written"


async def test_an_idle_session_rests_and_whoever_needs_it_wakes_it(host: SandboxHostService) -> None:
    await host.create(SessionSpec(session_id="lazy", idle_timeout_s=IDLE_S))
    await asleep(host, 1)
    assert (await run(host, CallRequest("lazy", ("echo", "up")))).stdout == b"up\n"
    await asleep(host, 2)
    await host.write_file(FileWrite("lazy", "a"), content())
    await asleep(host, 3)
    async with host.read_file(FileRead("lazy", "a")) as stream:
        assert [piece async for piece in stream] == [b"written"]
        before = (await kinds(host, "lazy")).count("paused")
        await asyncio.sleep(3 * IDLE_S)
        assert (await kinds(host, "lazy")).count("paused") == before, "someone still reads"
    await host.turn_complete(TurnRequest("lazy"))
    await asleep(host, 4)
    assert (await host.rollback(RollbackRequest("lazy", "1"))).head == "turn-0001"


async def test_what_runs_keeps_its_session_awake(host: SandboxHostService) -> None:
    await host.create(SessionSpec(session_id="lazy", idle_timeout_s=IDLE_S))
    async with host.call(CallRequest("lazy", ("cat",), stdin=True)) as call:
        slept = (await kinds(host, "lazy")).count("paused")  # it may have been asleep before the call
        await asyncio.sleep(5 * IDLE_S)
        assert (await kinds(host, "lazy")).count("paused") == slept
        await call.close_stdin()
        await call.result()
    await after(host, "lazy", EventKind.PAUSED, slept + 1)


async def test_a_session_that_a_user_paused_is_not_woken(host: SandboxHostService) -> None:
    await host.create(SessionSpec(session_id="lazy", idle_timeout_s=IDLE_S))
    await asleep(host)
    assert (await host.pause(PauseRequest("lazy"))).reason == ""
    with pytest.raises(SessionPaused):
        await run(host, CallRequest("lazy", ("true",)))
    assert (await host.resume("lazy")).state is SessionState.ACTIVE


async def test_many_calls_that_wake_it_all_run(host: SandboxHostService) -> None:
    await host.create(SessionSpec(session_id="lazy", idle_timeout_s=0.001))
    for _ in range(10):
        ran = await asyncio.gather(*(run(host, CallRequest("lazy", ("echo", "up"))) for _ in range(4)))
        assert [one.stdout for one in ran] == [b"up\n"] * 4


async def test_time_that_is_up_can_pause(host: SandboxHostService) -> None:
    await host.create(SessionSpec(session_id="kept", timeout_s=0.05, on_expiry=OnExpiry.PAUSE))
    await after(host, "kept", EventKind.PAUSED)
    async with asyncio.timeout(SOON_S):
        while (await host.get("kept")).state is not SessionState.PAUSED:  # noqa: ASYNC110
            await asyncio.sleep(0.005)
    assert (await host.get("kept")).reason == PauseReason.EXPIRED
    with pytest.raises(InvalidState, match="time of session kept is up"):
        await host.resume("kept")
    with pytest.raises(SessionPaused):
        await run(host, CallRequest("kept", ("true",)))
    assert (await host.extend("kept", 3600)).state is SessionState.PAUSED
    await host.resume("kept")
    assert (await run(host, CallRequest("kept", ("echo", "on")))).stdout == b"on\n"
    assert await kinds(host, "kept") == ["created", "active", "expired", "paused", "extended", "resumed"]


async def test_time_can_be_extended_and_shortened(host: SandboxHostService) -> None:
    made = await host.create(SessionSpec(session_id="more", timeout_s=3600))
    assert (await host.extend("more", 7200)).expires > made.expires + 3000
    for wrong in (0, -1, float("nan"), float("inf")):
        with pytest.raises(InvalidArgument):
            await host.extend("more", wrong)
    with pytest.raises(SessionNotFound):
        await host.extend("nobody", 10)
    await host.extend("more", 0.05)
    await after(host, "more", EventKind.DESTROYED)
    assert await kinds(host, "more") == ["created", "active", "extended", "extended", "expired", "destroyed"]


async def test_what_became_due_without_an_engine_is_done_by_the_next(settings: Settings) -> None:
    async with build(settings) as host:
        await host.create(SessionSpec(session_id="gone", timeout_s=2))
        await host.create(SessionSpec(session_id="kept", timeout_s=2, on_expiry=OnExpiry.PAUSE))
        await host.create(SessionSpec(session_id="lazy", idle_timeout_s=2))
        assert len((await host.list(SessionFilter(states=frozenset({SessionState.ACTIVE})))).sessions) == 3
    await asyncio.sleep(2.2)
    async with build(settings) as host:
        await after(host, "gone", EventKind.DESTROYED)
        await after(host, "kept", EventKind.PAUSED)
        await asleep(host)
        assert await kinds(host, "gone") == ["created", "active", "expired", "destroyed"]
        await clean_up(host)


def test_both_faces_and_the_command_line(data_dir: Path) -> None:
    words = [sys.executable, "-m", "sandlot", "--data-dir", str(data_dir), "--json"]

    def ask(*more: str) -> Any:
        return json.loads(subprocess.run([*words, *more], stdout=subprocess.PIPE, timeout=SOON_S, check=False).stdout)

    made = ask("create", "--idle", "10m", "--on-expiry", "pause", "--timeout", "1h")
    assert (made["idle_timeout_s"], made["on_expiry"]) == (600, "pause")
    assert ask("extend", made["session_id"], "2h")["expires"] > made["expires"] + 3000
    assert ask("create", "--on-expiry", "nothing")["error"]["code"] == "invalid_argument"
    ask("kill", made["session_id"])
    with Client(data_dir=data_dir) as client, Sandbox.create(idle_timeout=600, on_expiry="pause", client=client) as one:
        info: SessionInfo = one.info()
        assert (info.idle_timeout_s, info.on_expiry) == (600, OnExpiry.PAUSE)
        assert one.extend(7200).expires < info.expires
