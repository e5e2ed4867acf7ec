"""`launch`, `ps`, `logs`, `stop`, `expose` and `forward` on a real session."""

import asyncio
import json
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest

from sandlot.cli import forward, verbs
from sandlot.cli.context import Context
from sandlot.cli.interruption import Interruption
from sandlot.cli.parser import parse
from sandlot.conformance.port_stage import ECHO, a_port, dialled, echoed
from sandlot.contracts import Host
from sandlot.host.service import SandboxHostService
from sandlot.model import Conflict, InvalidArgument, NotFound, SessionSpec
from tests.waiting import until

Run = Callable[..., Awaitable[str]]


class Here(Context):
    """With an engine that runs already, so that not every verb has to start one."""

    there: SandboxHostService

    @asynccontextmanager
    async def host(self) -> AsyncGenerator[Host]:
        yield self.there


@pytest.fixture
async def run(host: SandboxHostService, capfd: pytest.CaptureFixture[str]) -> Run:
    await host.create(SessionSpec(session_id="one", runtime="none", storage="local-disk"))

    async def run_one(verb: str, *words: str) -> str:
        context = Here.of(parse([verb, *words]), Interruption())
        Here.there = host
        assert await verbs.load(verb).run(context) == 0
        return capfd.readouterr().out

    return run_one


async def told(run: Run, verb: str, *words: str) -> Any:
    return json.loads(await run(verb, "--json", *words))


async def test_a_process_is_launched_listed_read_and_stopped(run: Run) -> None:
    script = "echo out; echo err >&2; exec sleep 600"
    process = (await run("launch", "--name", "web", "--ready", "log out", "one", "--", "sh", "-c", script)).strip()
    assert "web" in await run("ps", "one")
    (listed,) = (await told(run, "ps", "one"))["processes"]
    assert (listed["process_id"], listed["state"], listed["name"]) == (process, "running", "web")
    assert (await told(run, "ps", "one", "web"))["process_id"] == process
    assert await run("logs", "--stdout", "one", "web") == "out\n"
    assert json.loads(await run("logs", "--json", "--stdout", "one", "web"))["data"] == "out\n"
    assert (await told(run, "stop", "one", "web"))["state"] == "exited"
    assert "exited" in await run("ps", "one")
    assert await run("logs", "-f", "--stdout", "--tail", "2", "one", "web") == "t\n"
    with pytest.raises(InvalidArgument):
        await run("stop", "--signal", "nonsense", "one", "web")
    with pytest.raises(InvalidArgument):
        await run("launch", "--restart", "always", "one", "--", "true")


async def test_a_port_is_exposed_listed_and_taken_back(run: Run) -> None:
    address = (await run("expose", "one", "7300")).strip()
    ports = (await told(run, "expose", "--list", "one"))["ports"]
    assert [(each["port"], each["address"]) for each in ports] == [(7300, address)]
    assert (await told(run, "expose", "--off", "one", "7300")) == {"removed": 7300}
    with pytest.raises(NotFound):
        await run("expose", "--off", "one", "7300")
    with pytest.raises(InvalidArgument):
        await run("expose", "one")


async def test_forward_brings_a_port_here(host: SandboxHostService, run: Run) -> None:
    port = a_port()
    await run("launch", "--ready", f"port {port}", "one", "--", "python3", "-c", ECHO, str(port), "127.0.0.1")
    told_lines: list[str] = []
    context = Here.of(parse(["forward", "one", f"{port}:0"]), Interruption())
    Here.there = host
    context.screen.line = told_lines.append  # pyright: ignore[reportAttributeAccessIssue] - what it says is not printed
    forwarding = asyncio.create_task(forward.run(context))
    try:
        assert await until(lambda: bool(told_lines) or forwarding.done())
        async with dialled(told_lines[0]) as line:
            assert await echoed(line, b"x" * 100_000) == b"x" * 100_000
        taken = Here.of(parse(["forward", "one", f"{port}:{told_lines[0].rpartition(':')[2]}"]), Interruption())
        with pytest.raises(Conflict):
            await forward.run(taken)
    finally:
        forwarding.cancel()
        with suppress(asyncio.CancelledError):
            await forwarding
