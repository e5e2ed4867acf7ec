"""The sync face and a server: asked from the thread of the caller, with the same errors and the same ends."""

import asyncio
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest

from sandlot import Client, CommandFailed, Sandbox
from sandlot.fakes.host import FakeHost
from sandlot.model import (
    CallRequest,
    CallState,
    DeadlineExceeded,
    FileNotFound,
    InvalidArgument,
    InvalidState,
    SandlotError,
    SessionNotFound,
    SessionState,
    Unavailable,
)
from sandlot.rpc.client import HostClient
from sandlot.rpc.messages import PROCEDURES
from sandlot.sdk.lane import Lane
from tests.unit.rpc.serving import serving
from tests.unit.rpc.test_strange_servers import STRANGE, listening
from tests.waiting import until

THREADS = 8


async def beside(work: Callable[..., Any], *arguments: object) -> Any:
    """The server is on the loop of the test, and must go on."""
    async with asyncio.timeout(60):
        return await asyncio.to_thread(work, *arguments)


@pytest.fixture(params=["unix", "tcp"])
def path(request: pytest.FixtureRequest, tmp_path: Path) -> Path | None:
    return tmp_path / "s" if request.param == "unix" else None


async def test_what_only_asks_is_asked_from_the_thread_of_the_caller(path: Path | None) -> None:
    def work(url: str) -> None:
        with Client(url=url) as client, Sandbox.create(client=client) as sandbox:
            assert sandbox.commands.run(["echo", "a"]).stdout == "a\n"
            assert sandbox.commands.run(["echo", "b"], background=True).wait().stdout == "b\n"
            with pytest.raises(CommandFailed):
                sandbox.commands.run(["false"], check=True)
            assert len(sandbox.commands.list()) == 3
            sandbox.files.write("f", "x" * 300_000)
            assert sandbox.files.read("f") == "x" * 300_000
            assert sandbox.files.stat("f").size_bytes == 300_000
            assert not sandbox.files.exists("g")
            with pytest.raises(FileNotFound):
                sandbox.files.read("g")
            assert sandbox.turn().number == 1
            sandbox.files.write("f", b"y")
            sandbox.rollback(1)
            assert sandbox.files.read("f", format="bytes") == b"x" * 300_000
            for child in sandbox.fork(1, count=2):
                assert child.kill()
            assert sandbox.pause().state is SessionState.PAUSED
            assert sandbox.resume().state is SessionState.ACTIVE
            assert sandbox.relabel({"a": "b"}).labels == {"a": "b"}
            assert [turn.number for turn in sandbox.turns()] == [1]
            made = client
        with pytest.raises(InvalidState, match="closed"):
            sandbox.info()
        with Client(url=url) as other:
            with pytest.raises(SessionNotFound):
                Sandbox(sandbox.id, client=other).info()
            assert opened(other) is None, "the portal was not asked"
            assert opened(made) is None

    async with serving(FakeHost(), path) as server:
        await beside(work, server.url)


def opened(client: Client) -> object:
    """The host that a client has in the portal."""
    return cast("Any", client)._host


async def test_output_that_is_heard_comes_through_the_portal() -> None:
    def work(url: str) -> None:
        with Client(url=url) as client, Sandbox.create(client=client) as sandbox:
            heard: list[tuple[str, threading.Thread]] = []
            sandbox.commands.run(["echo", "a"], on_stdout=lambda text: heard.append((text, threading.current_thread())))
            assert heard == [("a\n", threading.current_thread())]
            assert sandbox.commands.run(["cat"], stdin="in").stdout == "in"
            assert opened(client) is not None

    async with serving(FakeHost()) as server:
        await beside(work, server.url)


async def test_a_server_that_was_restarted_is_asked_on(path: Path | None) -> None:
    async with serving(FakeHost(), path) as server:
        client = Client(url=server.url)
        sandbox: Sandbox = await beside(lambda: Sandbox.create(client=client))
        for _ in range(3):
            await server.stop()
            await server.start()
            assert await beside(lambda: sandbox.commands.run(["echo", "a"]).stdout) == "a\n"
            assert await beside(lambda: sandbox.rollback(sandbox.turn().number).session_id) == sandbox.id
        await beside(client.close)


async def test_an_answer_that_is_cut_off_is_asked_for_again_where_it_may(path: Path | None) -> None:
    host = FakeHost({"sleep": slow})
    async with serving(host, path) as server:
        client = Client(url=server.url)
        sandbox: Sandbox = await beside(lambda: Sandbox.create(client=client))
        running = asyncio.ensure_future(beside(lambda: sandbox.commands.run(["sleep"]).stdout))
        assert await until(lambda: bool(server.waiting()))
        await until_runs(host, sandbox.id)
        server.cut()
        assert await running == "done\n"
        assert len(await host.calls(sandbox.id)) == 1
        await beside(client.close)


async def slow(running: Any) -> int:
    await asyncio.sleep(0.5)
    await running.out("done\n")
    return 0


async def for_ever(running: Any) -> int:
    del running
    await asyncio.Event().wait()
    return 0


async def until_runs(host: FakeHost, session_id: str) -> None:
    async with asyncio.timeout(60):
        while not any(call.state is CallState.RUNNING for call in await host.calls(session_id)):  # noqa: ASYNC110 - it tells nobody
            await asyncio.sleep(0.01)


async def test_closing_breaks_off_what_other_threads_wait_for(path: Path | None) -> None:
    host = FakeHost({"wait": for_ever})
    async with serving(host, path) as server:
        client = Client(url=server.url)
        sandbox: Sandbox = await beside(lambda: Sandbox.create(client=client))
        running = asyncio.ensure_future(beside(lambda: sandbox.commands.run(["wait"])))
        await until_runs(host, sandbox.id)
        began = time.monotonic()
        await beside(client.close)
        with pytest.raises(InvalidState, match="closed meanwhile"):
            await running
        assert time.monotonic() - began < 30
        (call,) = await host.calls(sandbox.id)
        assert call.state is not CallState.RUNNING, "nobody waits for it any more"


async def test_many_threads_share_the_connections(path: Path | None) -> None:
    async with serving(FakeHost(), path) as server:
        client = Client(url=server.url)
        sandbox: Sandbox = await beside(lambda: Sandbox.create(client=client))

        def work(number: int) -> list[str]:
            return [sandbox.commands.run(["echo", f"{number} {turn}"]).stdout for turn in range(20)]

        told = await asyncio.gather(*(beside(work, number) for number in range(THREADS)))
        assert told == [[f"{number} {turn}\n" for turn in range(20)] for number in range(THREADS)]
        assert len(server.waiting()) <= THREADS
        await beside(client.close)
        assert await until(lambda: not server.waiting()), "no connection is left"


@pytest.mark.parametrize("answer", STRANGE.values(), ids=STRANGE.keys())
async def test_what_strange_servers_say_is_an_error_of_ours(answer: bytes) -> None:
    def work(url: str) -> None:
        host = HostClient(url, reconnect_s=0.0, is_straight=True)
        lane = Lane(host)

        async def call() -> None:
            async with host.call(CallRequest("s", ("true",))) as stream:
                await stream.result()

        for asked in (host.get("s"), call()):
            with pytest.raises(SandlotError):
                lane.run(asked)
        lane.close()

    async with listening(answer) as url:
        await beside(work, url)


async def test_who_does_not_answer_is_not_waited_for(tmp_path: Path) -> None:
    def work(url: str) -> None:
        host: Any = HostClient(url, reconnect_s=0.0, is_straight=True)
        lane, asked = Lane(host), PROCEDURES["HealthCheck"].request()
        began = time.monotonic()
        with pytest.raises(DeadlineExceeded):
            lane.run(host._link.ask("HealthCheck", asked, 0.3))
        assert 0.2 < time.monotonic() - began < 30
        lane.close()

    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(str(tmp_path / "s"))
        silent.listen()
        await beside(work, f"unix://{tmp_path}/s")
    with pytest.raises(Unavailable):
        await beside(lambda: Sandbox("s", client=Client(url=f"unix://{tmp_path}/s")).info())


def test_what_waits_for_a_loop_is_refused() -> None:
    lane = Lane(FakeHost())
    with pytest.raises(SandlotError, match="waited for a loop"):
        lane.run(sleeping())
    with pytest.raises(InvalidArgument, match="TLS"):
        HostClient("https://127.0.0.1:1", is_straight=True)


async def sleeping() -> None:
    await asyncio.sleep(0)
