"""Paused sessions: nothing in them moves, nothing of them is lost, and they go on where they stood."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import AsyncIterator, Awaitable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sandlot import Client, Sandbox
from sandlot.config.settings import Settings
from sandlot.host.service import SandboxHostService
from sandlot.model import (
    CallOutput,
    CallRequest,
    CallState,
    DiffRequest,
    EventFilter,
    FileRead,
    FileWrite,
    ForkRequest,
    InvalidArgument,
    LimitHit,
    PauseRequest,
    RollbackRequest,
    SandlotError,
    SessionInfo,
    SessionPaused,
    SessionSpec,
    SessionState,
    SnapshotRequest,
    ToolsInFlight,
    TurnRequest,
)
from sandlot.wiring.embedded import build
from tests.conftest import clean_up, collect, run

pytestmark = pytest.mark.root
SOON_S = 40
BUSY = "n=0; while :; do n=$((n+1)); echo $n; done; : {}"


class Marked:
    """Processes of a session, found from outside by a word in their command line."""

    def __init__(self) -> None:
        self.word = uuid.uuid4().hex

    def pids(self) -> list[int]:
        found: list[int] = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                try:
                    if self.word.encode() in (entry / "cmdline").read_bytes():
                        found.append(int(entry.name))
                except OSError:
                    continue
        return found

    def ticks(self) -> int:
        """All processor time that they have used."""
        return sum(sum(map(int, self._stat(pid)[11:13])) for pid in self.pids())

    def _stat(self, pid: int) -> list[str]:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()

    async def until_busy(self) -> None:
        async with asyncio.timeout(SOON_S):
            while not self.ticks():  # noqa: ASYNC110 - another process sets no event
                await asyncio.sleep(0.01)

    async def until_moving(self) -> None:
        before = self.ticks()
        async with asyncio.timeout(SOON_S):
            while self.ticks() == before:  # noqa: ASYNC110
                await asyncio.sleep(0.01)

    async def is_still(self) -> bool:
        before = self.ticks()
        await asyncio.sleep(0.3)
        return bool(self.pids()) and self.ticks() == before


async def busy(host: SandboxHostService, session_id: str) -> Marked:
    """Something that uses all the processor it can get, left running."""
    marked = Marked()
    argv = ("sh", "-c", BUSY.format(marked.word))
    async with host.call(CallRequest(session_id, argv, call_id="busy", detach=True, timeout_s=None)):
        await marked.until_busy()
    return marked


async def make(host: SandboxHostService, session_id: str | None = None, **wishes: str) -> str:
    return (await host.create(SessionSpec(session_id=session_id, **wishes))).session_id  # pyright: ignore[reportArgumentType]


async def state(host: SandboxHostService, session_id: str) -> SessionState:
    return (await host.get(session_id)).state


@pytest.mark.parametrize("runtime", ["namespaces", "none"])
async def test_a_paused_session_uses_no_processor_and_goes_on(host: SandboxHostService, runtime: str) -> None:
    session_id = await make(host, runtime=runtime)
    marked = await busy(host, session_id)
    told = await host.pause(PauseRequest(session_id))
    assert (told.state, told.reason) == (SessionState.PAUSED, "")
    assert await marked.is_still()
    told = await host.resume(session_id)
    assert told.state is SessionState.ACTIVE
    await marked.until_moving()
    await host.pause(PauseRequest(session_id))
    await host.destroy(session_id)
    assert marked.pids() == [], "a frozen session is destroyed like any other"


async def test_both_can_be_repeated(host: SandboxHostService) -> None:
    session_id = await make(host)
    for _again in range(2):
        assert (await host.pause(PauseRequest(session_id))).state is SessionState.PAUSED
    for _again in range(2):
        assert (await host.resume(session_id)).state is SessionState.ACTIVE
    async with host.events(EventFilter(session_id=session_id)) as events:
        assert [event.kind async for event in events] == ["created", "active", "paused", "resumed"]


async def refused(work: Awaitable[object]) -> None:
    with pytest.raises(SessionPaused, match="paused"):
        await work


async def test_what_a_paused_session_does_and_refuses(host: SandboxHostService) -> None:
    session_id = await make(host)
    await run(host, CallRequest(session_id, ("sh", "-c", "echo one > a")))
    await host.turn_complete(TurnRequest(session_id))
    await run(host, CallRequest(session_id, ("sh", "-c", "echo two > a; sync")))
    await host.pause(PauseRequest(session_id))

    async def content() -> AsyncIterator[bytes]:
        yield b"three"

    async def read() -> None:
        async with host.read_file(FileRead(session_id, "a")):
            pass

    await refused(run(host, CallRequest(session_id, ("true",))))
    await refused(host.write_file(FileWrite(session_id, "a"), content()))
    await refused(read())
    await refused(host.rollback(RollbackRequest(session_id, "1")))
    assert (await host.turn_complete(TurnRequest(session_id))).number == 2
    assert (await host.create_snapshot(SnapshotRequest(session_id, "still"))).name == "still"
    async with host.diff(DiffRequest(session_id, "1", "2")) as batches:
        assert [change.path async for batch in batches for change in batch] == ["/workspace/a"]
    (child,) = await host.fork(ForkRequest(session_id))
    assert child.state is SessionState.ACTIVE
    assert (await run(host, CallRequest(child.session_id, ("cat", "a")))).stdout == b"two\n"
    assert await state(host, session_id) is SessionState.PAUSED
    await host.resume(session_id)
    assert (
        await run(host, CallRequest(session_id, ("sh", "-c", "cat a; echo four > a; cat a")))
    ).stdout == b"two\nfour\n"
    await host.rollback(RollbackRequest(session_id, "1"))
    assert (await run(host, CallRequest(session_id, ("cat", "a")))).stdout == b"one\n"


async def test_a_snapshot_of_what_is_frozen_leaves_it_frozen(host: SandboxHostService) -> None:
    session_id = await make(host)
    marked = await busy(host, session_id)
    await host.pause(PauseRequest(session_id))
    await host.turn_complete(TurnRequest(session_id))
    assert await marked.is_still()


async def test_time_stands_still_for_calls_too(host: SandboxHostService) -> None:
    """Both would be over by their timeout, had it gone on; the one that does not end then is ended by it."""
    session_id = await make(host)
    ask = CallRequest(session_id, ("sh", "-c", "read line; echo got $line"), stdin=True, timeout_s=3.0)
    async with host.call(ask) as first, host.call(ask) as second, asyncio.timeout(SOON_S):
        await host.pause(PauseRequest(session_id))
        await asyncio.sleep(3.5)
        await host.resume(session_id)
        await first.write_stdin(b"it\n")
        ran = await collect(first)
        assert (ran.exit_code, ran.stdout) == (0, b"got it\n")
        assert (await second.result()).limit is LimitHit.TIMEOUT


async def test_calls_may_end_before_the_pause(host: SandboxHostService) -> None:
    session_id = await make(host)
    async with host.call(CallRequest(session_id, ("sh", "-c", "read line; echo done"), stdin=True)) as call:
        pausing = asyncio.create_task(host.pause(PauseRequest(session_id, drain_s=SOON_S)))
        await asyncio.sleep(0.05)
        await refused(run(host, CallRequest(session_id, ("true",))))
        assert not pausing.done()
        await call.close_stdin()
        assert (await collect(call)).stdout == b"done\n"
        assert (await pausing).state is SessionState.PAUSED


async def test_a_host_lets_calls_end_first_when_it_is_set_to(settings: Settings) -> None:
    async with build(replace(settings, pause_drain_s=SOON_S)) as host:
        session_id = (await host.create(SessionSpec())).session_id
        async with host.call(CallRequest(session_id, ("sh", "-c", "echo begun; sleep 0.3; exit 3"))) as stream:
            async for event in stream:
                if isinstance(event, CallOutput):
                    break
            await host.pause(PauseRequest(session_id, freeze=False))
            assert (await stream.result()).exit_code == 3
        await host.destroy(session_id)


async def test_a_pause_that_must_not_freeze_calls_is_refused(host: SandboxHostService) -> None:
    session_id = await make(host)
    marked = await busy(host, session_id)
    with pytest.raises(ToolsInFlight, match="runs 1 call"):
        await host.pause(PauseRequest(session_id, drain_s=0.05, freeze=False))
    with pytest.raises(InvalidArgument):
        PauseRequest(session_id, drain_s=-1)

    assert await state(host, session_id) is SessionState.ACTIVE
    await marked.until_moving()


async def test_who_leaves_a_frozen_call_does_not_wait_and_ends_it_later(host: SandboxHostService) -> None:
    session_id = await make(host)
    marked = Marked()
    async with host.call(CallRequest(session_id, ("sh", "-c", BUSY.format(marked.word)))):
        await marked.until_busy()
        await host.pause(PauseRequest(session_id))
    assert len(marked.pids()) == 1
    await host.resume(session_id)
    async with asyncio.timeout(SOON_S):
        while marked.pids():  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    assert (await run(host, CallRequest(session_id, ("echo", "fine")))).stdout == b"fine\n"


async def test_a_pause_outlives_its_engine(settings: Settings) -> None:
    async with build(settings) as host:
        session_id = await make(host)
        marked = await busy(host, session_id)
        quiet = CallRequest(session_id, ("sh", "-c", "read line; echo got $line; exit 5"), call_id="q", stdin=True)
        async with host.call(replace(quiet, detach=True, timeout_s=None)):
            pass
        await host.pause(PauseRequest(session_id))
    assert await marked.is_still()
    async with build(settings) as host:
        assert await state(host, session_id) is SessionState.PAUSED
        assert await marked.is_still()
        assert {call.call_id: call.state for call in await host.calls(session_id)} == {
            "busy": CallState.RUNNING,
            "q": CallState.RUNNING,
        }
        with pytest.raises(SessionPaused):
            async with host.attach(session_id, "busy"):
                pass
        assert (await host.turn_complete(TurnRequest(session_id))).number == 1
        await host.resume(session_id)
        async with host.attach(session_id, "q") as call, asyncio.timeout(SOON_S):
            await call.write_stdin(b"it\n")
            ran = await collect(call)
            assert (ran.exit_code, ran.stdout) == (5, b"got it\n")
        await marked.until_moving()
        await clean_up(host)
    assert marked.pids() == []


async def test_what_is_frozen_when_engine_and_keeper_die_is_ended_by_the_next_engine(settings: Settings) -> None:
    async with build(settings) as host:
        session_id = await make(host)
        marked = await busy(host, session_id)
        await host.pause(PauseRequest(session_id))
        keeper = host.keeper_pid
    os.kill(keeper, signal.SIGKILL)
    assert await marked.is_still()  # it cannot notice
    async with build(settings) as host:
        assert await state(host, session_id) is SessionState.FAILED
        async with asyncio.timeout(SOON_S):
            while marked.pids():  # noqa: ASYNC110 - the kernel tells nobody
                await asyncio.sleep(0.02)
        await host.recover(session_id)
        assert (await run(host, CallRequest(session_id, ("echo", "fine")))).stdout == b"fine\n"
        await clean_up(host)


async def test_what_is_frozen_of_a_data_directory_that_is_gone_is_ended_by_any_engine(
    settings: Settings, tmp_path: Path
) -> None:
    other = replace(settings, data=tmp_path / "other")
    other.data.mkdir(mode=0o700)
    async with build(settings) as host:
        session_id = await make(host)
        marked = await busy(host, session_id)
        await host.pause(PauseRequest(session_id))
        keeper = host.keeper_pid
    os.kill(keeper, signal.SIGKILL)
    async with build(other):
        assert await marked.is_still(), "its own engine may come"
        assert marked.pids()
    settings.data.rename(tmp_path / "gone")
    try:
        async with build(other), asyncio.timeout(SOON_S):
            while marked.pids():  # noqa: ASYNC110 - the kernel tells nobody
                await asyncio.sleep(0.02)
    finally:
        (tmp_path / "gone").rename(settings.data)


DYING = """
import asyncio, os, signal, sys
from sandlot.config.settings import load
from sandlot.host import failpoints
from sandlot.model import CallOutput, CallRequest, PauseRequest, SessionSpec
from sandlot.wiring.embedded import build

async def die():
    os.kill(os.getpid(), signal.SIGKILL)

async def main(place, word):
    async with build(load()) as host:
        await host.create(SessionSpec(session_id="dying"))
        argv = ("sh", "-c", "echo up; while :; do :; done; : " + word)
        async with host.call(CallRequest("dying", argv, call_id="busy", detach=True, timeout_s=None)) as call:
            async for event in call:
                if isinstance(event, CallOutput):
                    break
        if place.startswith("pause"):
            failpoints.arm(place, die)
        await host.pause(PauseRequest("dying"))
        failpoints.arm(place, die)
        await host.resume("dying")

asyncio.run(main(*sys.argv[1:]))
"""


@pytest.mark.parametrize("place", ["pause: freezing", "pause: recorded", "resume: thawed", "resume: recorded"])
async def test_the_next_engine_makes_the_kernel_do_what_the_journal_says(settings: Settings, place: str) -> None:
    marked = Marked()
    environment = {**os.environ, "SANDLOT_DATA_DIR": str(settings.data)}
    words = [sys.executable, "-c", DYING, place, marked.word]
    ended = await asyncio.to_thread(subprocess.run, words, env=environment, timeout=SOON_S, check=False)
    assert ended.returncode == -signal.SIGKILL
    async with build(settings) as host:
        found = await state(host, "dying")
        assert found in (SessionState.ACTIVE, SessionState.PAUSED)
        if place == "pause: recorded":
            assert found is SessionState.PAUSED
        if place == "resume: recorded":
            assert found is SessionState.ACTIVE
        if found is SessionState.PAUSED:
            assert await marked.is_still()
        else:
            await marked.until_moving()
        await host.resume("dying")
        assert (await run(host, CallRequest("dying", ("echo", "alive")))).stdout == b"alive\n"
        await clean_up(host)


async def test_many_at_once_leave_it_in_one_piece(host: SandboxHostService) -> None:
    session_id = await make(host)

    async def pause() -> SessionInfo:
        return await host.pause(PauseRequest(session_id))

    async def turn() -> None:
        await host.turn_complete(TurnRequest(session_id))

    async def call() -> None:
        await run(host, CallRequest(session_id, ("sh", "-c", "echo x >> a")))

    work = [f() for _ in range(12) for f in (pause, call, lambda: host.resume(session_id), turn)]
    told = await asyncio.gather(*work, return_exceptions=True)
    assert all(not isinstance(one, BaseException) or isinstance(one, SandlotError) for one in told), told
    await host.resume(session_id)
    before = sum(1 for one in told[1::4] if one is None)
    ran = await run(host, CallRequest(session_id, ("sh", "-c", "cat a 2>/dev/null | wc -l")))
    assert int(ran.stdout) == before, "a call that was answered ran once; one that was refused did not"


async def test_a_caller_who_gives_up_leaves_no_half_pause(host: SandboxHostService) -> None:
    session_id = await make(host)
    for wait in range(12):
        task = asyncio.create_task(host.pause(PauseRequest(session_id)))
        for _ in range(wait):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        if await state(host, session_id) is SessionState.PAUSED:
            await host.resume(session_id)
        assert (await run(host, CallRequest(session_id, ("echo", "on")))).stdout == b"on\n"


def test_both_faces_and_the_command_line(data_dir: Path) -> None:
    words = [sys.executable, "-m", "sandlot", "--data-dir", str(data_dir), "--json"]

    def ask(*more: str) -> Any:
        return json.loads(subprocess.run([*words, *more], stdout=subprocess.PIPE, timeout=SOON_S, check=False).stdout)

    with Client(data_dir=data_dir) as client:
        sandbox = Sandbox.create(client=client, detach=True)
        assert sandbox.pause(drain=1).state is SessionState.PAUSED
        with pytest.raises(SessionPaused):
            sandbox.commands.run("true")
        assert sandbox.resume().state is SessionState.ACTIVE
        assert sandbox.commands.run("echo on").stdout == "on\n"
    assert ask("pause", sandbox.id, "--drain", "1s", "--no-freeze")["state"] == "paused"
    assert ask("exec", sandbox.id, "--", "true")["error"]["code"] == "session_paused"
    assert [session["state"] for session in ask("ls", "--state", "paused")["sessions"]] == ["paused"]
    assert ask("resume", sandbox.id)["state"] == "active"
    ask("kill", sandbox.id)
