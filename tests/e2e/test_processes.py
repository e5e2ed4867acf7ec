"""Managed processes outlive engines, and what is printed without end costs little."""

import asyncio
import random
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from sandlot.config.settings import Settings
from sandlot.host.service import SandboxHostService
from sandlot.model import (
    CallRequest,
    Conflict,
    LimitReached,
    ProcessLogs,
    ProcessSpec,
    ProcessState,
    Restart,
    SandlotError,
    SessionSpec,
    StartFailed,
    Stream,
    limits,
)
from sandlot.wiring.embedded import build
from tests.conftest import clean_up, run
from tests.e2e.process_engine import SESSION, expected, spec
from tests.e2e.test_recover import let_fail

ENGINE = [sys.executable, "-m", "tests.e2e.process_engine"]


def kill_an_engine(data: Path, after_s: float) -> list[str]:
    """What it said that it had launched."""
    engine = subprocess.Popen([*ENGINE, str(data)], stdout=subprocess.PIPE, cwd=Path(__file__).parents[2], text=True)
    assert engine.stdout
    told = [engine.stdout.readline().strip()]
    assert told == ["failing"]
    with pytest.raises(subprocess.TimeoutExpired):
        engine.wait(after_s)
    engine.kill()
    engine.wait(10)
    told += engine.stdout.read().split()
    engine.stdout.close()
    return [name for name in told if name.startswith("p")]


async def printed(
    host: SandboxHostService, session_id: str, process: str, *, follow: bool = False
) -> tuple[bytes, bytes]:
    """Both streams, whole: a hole would be told."""
    streams = {Stream.STDOUT: b"", Stream.STDERR: b""}
    async with host.process_logs(ProcessLogs(session_id, process, follow=follow)) as logs:
        async for piece in logs:
            assert (piece.lost, piece.offset) == (0, len(streams[piece.stream]))
            streams[piece.stream] += piece.data
    return streams[Stream.STDOUT], streams[Stream.STDERR]


@pytest.mark.root
@pytest.mark.timeout(180)
@pytest.mark.parametrize("seed", range(3))
async def test_processes_outlive_an_engine_that_is_killed(settings: Settings, seed: int) -> None:
    told = await asyncio.to_thread(kill_an_engine, settings.data, random.Random(seed).uniform(0, 0.6))
    async with build(settings) as host:
        known = {each.process_id: each for each in await host.list_processes(SESSION)}
        assert set(told) <= set(known)
        for name in told:  # also asked for again: it is the same one
            assert (await host.launch_process(spec(name))).process_id == name
            assert await printed(host, SESSION, name, follow=True) == expected()
            assert (await host.wait_process(SESSION, name, timeout_s=60)).exit_code == 0
        ran = await run(host, _request("cat /workspace/begun"))
        begun = ran.stdout.decode().split()
        assert len(begun) == len(set(begun))
        assert set(told) <= set(begun)
        before = (await host.process_status(SESSION, "failing")).restarts
        async with asyncio.timeout(60):
            while (await host.process_status(SESSION, "failing")).restarts < before + 3:  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        ended = await host.kill_process(SESSION, "failing")
        out, _err = await printed(host, SESSION, "failing")
        runs = len((await run(host, _request("cat /workspace/runs"))).stdout.split())
        assert out == b"run\n" * (len(out) // 4)
        assert runs - 1 <= len(out) // 4 <= runs
        assert ended.state is ProcessState.EXITED
    async with build(settings) as host:  # and the next one knows what it left
        assert await host.process_status(SESSION, "failing") == ended
        for name in told:
            assert await printed(host, SESSION, name) == expected()
            assert (await host.process_status(SESSION, name)).stdout_bytes == len(expected()[0])
        await clean_up(host)


def _request(script: str) -> CallRequest:
    return CallRequest(SESSION, ("sh", "-c", script))


@pytest.mark.root
async def test_a_start_is_never_told_before_it_failed(host: SandboxHostService) -> None:
    """Many at once: each program that is not there is an error with 127, and none is said to run."""
    session = await host.create(SessionSpec())

    async def launch(number: int) -> tuple[bool, int | None]:
        try:
            await host.launch_process(ProcessSpec(session.session_id, (f"missing-{number}",), name=f"m{number}"))
        except StartFailed:
            return True, (await host.process_status(session.session_id, f"m{number}")).exit_code
        return False, None

    assert set(await asyncio.gather(*(launch(number) for number in range(100)))) == {(True, 127)}


@pytest.mark.root
@pytest.mark.timeout(240)
async def test_a_flood_is_kept_short_and_takes_no_memory(host: SandboxHostService) -> None:
    session = await host.create(SessionSpec())
    size, kept = 150 << 20, 1 << 20
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    argv = ("sh", "-c", f"head -c {size} /dev/zero; echo end")
    process = await host.launch_process(ProcessSpec(session.session_id, argv, log_bytes_max=kept))
    request = ProcessLogs(session.session_id, process.process_id, follow=True)
    async with host.process_logs(request) as unread:
        ended = await host.wait_process(session.session_id, process.process_id, timeout_s=200)
        assert (ended.exit_code, ended.stdout_bytes) == (0, size + 4)
        heard = lost = 0
        async for piece in unread:
            heard, lost = heard + len(piece.data), lost + piece.lost
        assert heard + lost == size + 4
        assert kept // 2 <= heard <= kept
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown < 60 * 1024, f"{grown} KiB more"


async def test_processes_of_a_session_have_a_limit(host: SandboxHostService, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "PROCESSES_MAX", 2)
    monkeypatch.setattr(limits, "PROCESSES_KEPT", 3)
    session_id = (await host.create(SessionSpec(runtime="none"))).session_id
    sleep = ("sleep", "600")
    for name in ("a", "b"):
        await host.launch_process(ProcessSpec(session_id, sleep, name=name))
    with pytest.raises(LimitReached):
        await host.launch_process(ProcessSpec(session_id, sleep))
    await host.kill_process(session_id, "a")
    await host.launch_process(ProcessSpec(session_id, sleep, name="a"))
    with pytest.raises(Conflict):
        await host.launch_process(ProcessSpec(session_id, ("true",), name="a"))
    await host.kill_process(session_id, "a")
    for number in range(5):
        ended = await host.launch_process(ProcessSpec(session_id, ("echo", str(number)), name=f"e{number}"))
        await host.wait_process(session_id, ended.process_id, timeout_s=30)
    names = [each.name for each in await host.list_processes(session_id)]
    assert names == ["b", "e2", "e3", "e4"]


@pytest.mark.root
async def test_a_process_of_a_session_that_failed_comes_back_with_it(host: SandboxHostService) -> None:
    session_id = (await host.create(SessionSpec(session_id="s"))).session_id
    plain = await host.launch_process(ProcessSpec(session_id, ("sh", "-c", "echo plain; sleep 600")))
    kept = await host.launch_process(
        ProcessSpec(session_id, ("sh", "-c", "echo kept; sleep 600"), restart=Restart.ON_FAILURE)
    )
    for process in (plain, kept):
        async with host.process_logs(ProcessLogs(session_id, process.process_id, follow=True)) as logs:
            await anext(aiter(logs))
    await let_fail(host)
    with pytest.raises(SandlotError):
        await host.launch_process(ProcessSpec(session_id, ("true",)))
    told = await host.wait_process(session_id, plain.process_id, timeout_s=30)
    assert (told.state, told.exit_code) == (ProcessState.EXITED, 137)
    assert (await host.process_status(session_id, kept.process_id)).state is ProcessState.STARTING
    await host.recover(session_id)
    await host.wait_process(session_id, kept.process_id, until=ProcessState.RUNNING, timeout_s=30)
    async with host.process_logs(ProcessLogs(session_id, kept.process_id, follow=True)) as logs:
        heard = b""
        async for piece in logs:
            heard += piece.data
            if heard == b"kept\nkept\n":
                break
    assert await printed(host, session_id, plain.process_id) == (b"plain\n", b"")
