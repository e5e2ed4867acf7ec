"""`sandbox.processes` and `sandbox.ports`: servers from Python, in both faces."""

import asyncio
from collections.abc import Generator
from pathlib import Path
from urllib.request import urlopen

import pytest

from sandlot import (
    AsyncSandbox,
    Client,
    Conflict,
    InvalidArgument,
    NotFound,
    ProcessState,
    Sandbox,
    StartFailed,
)
from sandlot.conformance.port_stage import ECHO, a_port
from sandlot.model import InvalidState, ProcessNotFound
from tests.unit.sdk.stage import RUNTIMES, directory, opened


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


@pytest.fixture
def port() -> int:
    return a_port()


def test_a_server_is_launched_fetched_read_and_ended(sandbox: Sandbox, port: int) -> None:
    sandbox.files.write("index.html", "hello")
    web = sandbox.processes.launch(f"exec python3 -u -m http.server {port}", name="web", port=port)
    assert urlopen(f"{web.url()}/index.html").read() == b"hello"
    told = web.info()
    assert (told.state, told.name, told.port) == (ProcessState.RUNNING, "web", port)
    assert sandbox.processes.get("web").id == web.id
    assert told in sandbox.processes.list()
    assert sandbox.url(port) == web.url()
    with pytest.raises(Conflict):
        sandbox.processes.launch(["sleep", "60"], name="web")
    assert web.kill().state is ProcessState.EXITED
    printed = b"".join(piece.data for piece in web.logs())
    assert b"GET /index.html" in printed
    with pytest.raises(InvalidState):
        web.url()
    with pytest.raises(ProcessNotFound):
        sandbox.processes.get("none")


def test_what_is_not_ready_and_what_is_wrong_is_told(sandbox: Sandbox) -> None:
    with pytest.raises(StartFailed, match="last words"):
        sandbox.processes.launch("echo last words; exit 3", ready="log never")
    with pytest.raises(InvalidArgument):
        sandbox.processes.launch("true", ready="soon")
    with pytest.raises(InvalidArgument):
        sandbox.processes.launch("true", restart="always")


def test_a_process_is_talked_to(sandbox: Sandbox) -> None:
    cat = sandbox.processes.launch(["cat"], stdin=True)
    cat.send_stdin("one\n")
    cat.close_stdin()
    assert cat.wait(30).exit_code == 0
    assert b"".join(piece.data for piece in cat.logs(follow=True)) == b"one\n"


def test_ports_are_exposed_and_connected_to(sandbox: Sandbox, port: int) -> None:
    with pytest.raises(NotFound):
        sandbox.ports.connect(port)
    echo = sandbox.processes.launch(["python3", "-c", ECHO, str(port), "127.0.0.1"], ready=f"port {port}")
    with sandbox.ports.connect(port) as connection:
        connection.write("hello")
        assert connection.read() == b"hello"
        connection.close_write()
        assert connection.read() == b"<end>"
        assert connection.read() == b""
    exposed = sandbox.ports.expose(port)
    assert exposed in sandbox.ports.list()
    sandbox.ports.unexpose(port)
    assert sandbox.ports.list() == []
    echo.kill()


async def test_the_async_face_does_the_same(face: AsyncSandbox, port: int) -> None:
    echo = await face.processes.launch(["python3", "-c", ECHO, str(port), "127.0.0.1"], port=port)
    assert (await echo.ready(30)).state is ProcessState.RUNNING
    async with await face.ports.connect(port) as connection:
        await connection.write(b"a")
        assert await connection.read(10) == b"a"
        reading = asyncio.create_task(connection.read())
        await asyncio.sleep(0.05)
        await connection.write(b"b")
        assert await reading == b"b"
    assert (await face.url(port)).startswith("http://127.0.0.1:")
    assert (await echo.kill()).signal == 15
