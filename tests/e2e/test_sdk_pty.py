"""`sandbox.pty`: terminals from Python, in both faces."""

import asyncio
import threading
from collections.abc import Generator
from pathlib import Path

import pytest

from sandlot import (
    AsyncSandbox,
    CallNotFound,
    CallState,
    Client,
    Conflict,
    InvalidArgument,
    Sandbox,
    TerminalEnded,
    TerminalOutput,
    TerminalResized,
    TerminalSize,
    TerminalTaken,
)
from sandlot.model import limits
from tests.unit.sdk.stage import RUNTIMES, directory, opened

SMALL = limits.TERMINAL_WINDOW_BYTES_MIN


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory, shared_templates: Path) -> Generator[Client]:
    with directory(tmp_path_factory.mktemp("sdk") / "data", shared_templates) as data, opened(data) as made:
        yield made


@pytest.fixture(scope="module", params=RUNTIMES)
def sandbox(client: Client, request: pytest.FixtureRequest) -> Sandbox:
    return Sandbox.create(runtime=request.param, client=client)


@pytest.fixture
def face(client: Client, sandbox: Sandbox) -> AsyncSandbox:
    return AsyncSandbox(sandbox.id, client=client)


def test_a_shell_is_opened_typed_into_and_read(sandbox: Sandbox) -> None:
    pty = sandbox.pty.open(rows=31, columns=97)
    pty.write('stty size; echo do""ne; exit 4\r')
    heard = b"".join(pty.output())
    assert b"31 97\r\ndone\r\n" in heard
    assert pty.wait().exit_code == 4
    told = pty.info()
    assert (told.state, told.end) == (CallState.ENDED, len(heard))
    assert sandbox.pty.get(pty.id).read() == TerminalOutput(0, heard)
    assert sandbox.pty.list() == []
    pty.kill()
    pty.write("nobody reads this")


def test_what_is_kept_is_read_without_waiting(sandbox: Sandbox) -> None:
    pty = sandbox.pty.open("echo begins; cat", id="kept")
    assert next(pty.output()) == b"begins\r\n"
    assert pty.read(offset=3) == TerminalOutput(3, b"ins\r\n")
    assert pty.read(offset=8) == TerminalOutput(8, b"")
    assert pty.read(offset=900) == TerminalOutput(900, b"")
    assert sandbox.pty.open("echo never", id="kept").id == pty.id
    assert [one.terminal_id for one in sandbox.pty.list()] == ["kept"]
    pty.kill()
    assert pty.wait().signal == 9


def test_a_read_that_comes_too_late_begins_where_the_window_does(sandbox: Sandbox) -> None:
    pty = sandbox.pty.open(["head", "-c", "300000", "/dev/zero"], window=SMALL)
    pty.wait()
    assert pty.read(offset=5) == TerminalOutput(300000 - SMALL, bytes(SMALL))


def test_leaving_the_loop_ends_the_reading_and_not_the_program(sandbox: Sandbox) -> None:
    pty = sandbox.pty.open(["cat"])
    pty.write("one\r")
    heard = b""
    for event in pty.attach():
        assert isinstance(event, TerminalOutput)
        heard += event.data
        if heard == b"one\r\none\r\n":
            break
    assert pty.info().state is CallState.RUNNING
    pty.write(b"two\r")
    heard = b""
    for piece in pty.output(offset=0):
        heard += piece
        if heard.endswith(b"two\r\ntwo\r\n"):
            break
    assert heard == b"one\r\none\r\ntwo\r\ntwo\r\n"
    pty.kill()


async def test_what_happens_to_it_is_told(face: AsyncSandbox) -> None:
    pty = await face.pty.open(["cat"])
    other = await face.pty.get(pty.id)
    events = await pty.attach(offset=None, input="hold")
    with pytest.raises(Conflict, match="has the input"):
        await other.write("stolen\r")
    with pytest.raises(Conflict, match="has the input"):
        await other.attach(input="hold")
    await pty.resize(9, 99)
    assert await anext(events) == TerminalResized(TerminalSize(9, 99))
    taken = await other.attach(offset=None, input="take")
    assert isinstance(await anext(events), TerminalTaken)
    with pytest.raises(Conflict, match="has the input"):
        await pty.write("late\r")
    await other.write("mine\r")
    heard = b""
    while heard != b"mine\r\nmine\r\n":
        event = await anext(taken)
        heard += event.data if isinstance(event, TerminalOutput) else b""
    await other.kill()
    told = [event async for event in events]
    assert isinstance(told[-1], TerminalEnded)
    assert b"".join(one.data for one in told if isinstance(one, TerminalOutput)) == b"mine\r\nmine\r\n"
    await taken.aclose()


async def test_who_waits_can_give_up(face: AsyncSandbox) -> None:
    pty = await face.pty.open(["sleep", "600"])
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.3):
            await pty.wait()
    assert (await pty.info()).readers == 0
    await pty.kill()


def test_a_thread_waits_for_the_end(sandbox: Sandbox) -> None:
    pty = sandbox.pty.open(["cat"])
    results: list[int] = []
    waiting = threading.Thread(target=lambda: results.append(pty.wait().exit_code))
    waiting.start()
    pty.write("\r\x04")
    waiting.join(60)
    assert results == [0]


def test_wrong_requests(sandbox: Sandbox) -> None:
    with pytest.raises(CallNotFound):
        sandbox.pty.get("missing")
    with pytest.raises(InvalidArgument, match="rows"):
        sandbox.pty.open(rows=0)
    with pytest.raises(InvalidArgument, match="window_bytes"):
        sandbox.pty.open(window=1)
    pty = sandbox.pty.open(["sleep", "600"])
    with pytest.raises(InvalidArgument, match="input must be one of"):
        pty.attach(input="steal")
    with pytest.raises(InvalidArgument, match="not a signal"):
        pty.kill(9999)
    pty.kill(15)
    assert pty.wait().exit_code == 143
