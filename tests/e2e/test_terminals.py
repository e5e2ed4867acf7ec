"""Terminals outlive engines, and a flood of one costs the engine little."""

import asyncio
import random
import re
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from sandlot.config.settings import Settings
from sandlot.host.service import SandboxHostService
from sandlot.model import (
    CallState,
    LimitReached,
    PauseRequest,
    SessionPaused,
    SessionSpec,
    TerminalAttach,
    TerminalEnded,
    TerminalEvent,
    TerminalInput,
    TerminalKill,
    TerminalOutput,
    TerminalRequest,
    TerminalSize,
    limits,
)
from sandlot.wiring.embedded import build
from tests.conftest import clean_up
from tests.e2e.terminal_process import PROGRAM, SESSION, TERMINAL, WINDOW

ENGINE = [sys.executable, "-m", "tests.e2e.terminal_process"]


def kill_an_engine(data: Path, after_s: float) -> None:
    engine = subprocess.Popen([*ENGINE, str(data)], stdout=subprocess.PIPE, cwd=Path(__file__).parents[2])
    assert engine.stdout
    assert engine.stdout.readline() == b"open\n"
    with pytest.raises(subprocess.TimeoutExpired):
        engine.wait(after_s)
    engine.kill()
    engine.wait(10)
    engine.stdout.close()


def check_row(offset: int, data: bytes) -> None:
    """Numbers in a row, each at its own place."""
    start = -offset % 10
    for at in range(start, len(data) - 9, 10):
        assert data[at : at + 10] == b"%09d " % ((offset + at) // 10)


async def heard(host: SandboxHostService, offset: int | None, wanted: int) -> tuple[int, bytes]:
    """Until so many bytes have come without a hole."""
    first, data = 0, b""
    async with host.attach_terminal(TerminalAttach(SESSION, TERMINAL, offset)) as stream:
        async for event in stream:
            if isinstance(event, TerminalOutput):
                if event.offset != first + len(data):
                    first, data = event.offset, b""
                data += event.data
                if len(data) >= wanted:
                    break
    return first, data


@pytest.mark.root
@pytest.mark.timeout(120)
@pytest.mark.parametrize("seed", range(3))
async def test_a_terminal_outlives_an_engine_that_is_killed(settings: Settings, seed: int) -> None:
    await asyncio.to_thread(kill_an_engine, settings.data, random.Random(seed).uniform(0, 0.4))
    async with build(settings) as host:
        told = await host.get_terminal(SESSION, TERMINAL)
        assert (told.state, told.size, told.window_bytes) == (CallState.RUNNING, TerminalSize(33, 44), WINDOW)
        assert [one.terminal_id for one in await host.terminals(SESSION)] == [TERMINAL]
        first, data = await heard(host, 0, 2 * WINDOW)
        check_row(first, data)
        await host.write_terminal(TerminalInput(SESSION, TERMINAL, b"q"))
        last: TerminalEvent | None = None
        async with host.attach_terminal(TerminalAttach(SESSION, TERMINAL)) as stream:
            async for event in stream:
                last = event
                if isinstance(event, TerminalOutput):
                    check_row(event.offset, event.data)
        assert isinstance(last, TerminalEnded)
        assert (last.result.exit_code, last.result.truncated) == (9, False)
        told = await host.get_terminal(SESSION, TERMINAL)
        assert told.end == last.result.stdout_bytes
    async with build(settings) as host:  # and the next one knows what it left
        assert (await host.get_terminal(SESSION, TERMINAL)) == told
        async with host.attach_terminal(TerminalAttach(SESSION, TERMINAL)) as stream:
            events = [event async for event in stream]
        assert events[-1] == last
        kept = b"".join(event.data for event in events if isinstance(event, TerminalOutput))
        assert len(kept) == WINDOW
        check_row(told.kept_from, kept)
        await clean_up(host)


@pytest.mark.root
@pytest.mark.timeout(120)
async def test_a_paused_session_of_an_earlier_engine_tells_its_terminals(settings: Settings) -> None:
    async with build(settings) as host:
        await host.create(SessionSpec(session_id=SESSION))
        opened = await host.open_terminal(
            TerminalRequest(SESSION, ("cat",), terminal_id=TERMINAL, size=TerminalSize(5, 6))
        )
        await host.write_terminal(TerminalInput(SESSION, TERMINAL, b"before\r"))
        await heard(host, 0, len(b"before\r\nbefore\r\n"))
        await host.pause(PauseRequest(SESSION))
    async with build(settings) as host:
        (told,) = await host.terminals(SESSION)
        assert (told.terminal_id, told.state, told.size, told.argv) == (
            TERMINAL,
            CallState.RUNNING,
            opened.size,
            ("cat",),
        )
        with pytest.raises(SessionPaused):
            async with host.attach_terminal(TerminalAttach(SESSION, TERMINAL)):
                pass
        await host.resume(SESSION)
        await host.write_terminal(TerminalInput(SESSION, TERMINAL, b"after\r"))
        _first, data = await heard(host, 0, len(b"before\r\nbefore\r\nafter\r\nafter\r\n"))
        assert data == b"before\r\nbefore\r\nafter\r\nafter\r\n"
        await clean_up(host)


@pytest.mark.timeout(120)
async def test_a_flood_is_read_at_a_pace_and_takes_no_memory(host: SandboxHostService) -> None:
    """The program waits for the engine, which keeps the window and no more."""
    session = await host.create(SessionSpec(runtime="none", storage="local-disk"))
    opened = await host.open_terminal(TerminalRequest(session.session_id, ("yes", "0123456789" * 100)))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    loop = asyncio.get_running_loop()
    began, first = loop.time(), (await host.get_terminal(session.session_id, opened.terminal_id)).end
    while (told := await host.get_terminal(session.session_id, opened.terminal_id)).end < first + (32 << 20):  # noqa: ASYNC110 - it tells nobody
        await asyncio.sleep(0.05)
    took = loop.time() - began
    assert (told.end - first) / took < 3 * limits.TERMINAL_BYTES_PER_S
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64 << 10  # KiB
    async with host.attach_terminal(TerminalAttach(session.session_id, opened.terminal_id)) as stream:
        async for event in stream:
            assert isinstance(event, TerminalOutput)
            assert re.fullmatch(rb"[0-9\r\n]+", event.data)
            break
    await host.kill_terminal(TerminalKill(session.session_id, opened.terminal_id))
    told = await host.get_terminal(session.session_id, opened.terminal_id)
    assert (told.state, told.end - told.kept_from) == (CallState.ENDED, limits.TERMINAL_WINDOW_BYTES)


async def test_a_terminal_has_so_many_readers_and_no_more(host: SandboxHostService) -> None:
    session = await host.create(SessionSpec(runtime="none", storage="local-disk"))
    opened = await host.open_terminal(TerminalRequest(session.session_id, ("sleep", "600")))
    request = TerminalAttach(session.session_id, opened.terminal_id)
    readers = [host.attach_terminal(request) for _ in range(limits.TERMINAL_READERS_MAX)]
    for reader in readers:
        await reader.__aenter__()
    with pytest.raises(LimitReached, match="readers"):
        await host.attach_terminal(request).__aenter__()
    await readers[0].__aexit__(None, None, None)
    async with host.attach_terminal(request):
        pass
    for reader in readers[1:]:
        await reader.__aexit__(None, None, None)
    assert (await host.get_terminal(session.session_id, opened.terminal_id)).readers == 0


def test_the_program_of_these_tests_is_python() -> None:
    compile(PROGRAM, "program", "exec")
