"""What tools promise, in both tiers: each is done once, in the session and nowhere else, and says what came of it."""

import asyncio
import base64
import os
import pickle
import signal
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from sandlot.config.settings import Settings
from sandlot.contracts import CustomTool, ToolSetting
from sandlot.host.service import SandboxHostService
from sandlot.model import (
    Block,
    CallNotFound,
    Conflict,
    DeadlineExceeded,
    FileRead,
    ImageBlock,
    InvalidArgument,
    PauseRequest,
    SessionExists,
    SessionPaused,
    SessionSpec,
    Stream,
    TextBlock,
    Tool,
    ToolFormat,
    ToolProblem,
    ToolProgress,
    ToolRequest,
    ToolResult,
    ToolTier,
    TurnRequest,
    Unavailable,
)
from sandlot.wiring.embedded import build
from tests.conftest import clean_up

RUNTIMES = [pytest.param("namespaces", marks=pytest.mark.root), "none"]
PICTURE = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)


@dataclass(frozen=True)
class Tools:
    host: SandboxHostService
    session: str

    async def call(
        self, tool: str, call_id: str | None = None, timeout_s: float | None = None, **arguments: Any
    ) -> ToolResult:
        request = ToolRequest(self.session, tool, arguments, call_id, timeout_s=timeout_s)
        async with self.host.execute_tool(request) as stream:
            return await stream.result()

    async def text(self, tool: str, **arguments: Any) -> str:
        result = await self.call(tool, **arguments)
        assert not result.is_error, result.text
        return result.text

    async def problem(self, tool: str, **arguments: Any) -> str:
        result = await self.call(tool, **arguments)
        assert result.is_error, result.text
        return result.text

    async def content(self, path: str) -> bytes:
        async with self.host.read_file(FileRead(self.session, path)) as stream:
            return b"".join([piece async for piece in stream])

    async def shell(self, cmd: str) -> str:
        """What a command prints, without what the tool adds."""
        return (await self.text("bash", cmd=cmd)).rpartition("\nexit code ")[0]


@pytest.fixture(params=RUNTIMES)
async def tools(host: SandboxHostService, request: pytest.FixtureRequest) -> Tools:
    return Tools(host, (await host.create(SessionSpec(runtime=request.param))).session_id)


@pytest.fixture
async def walled(host: SandboxHostService) -> Tools:
    return Tools(host, (await host.create(SessionSpec(runtime="namespaces"))).session_id)


# ---- the catalogue ---------------------------------------------------------------------------------------------


async def test_the_catalogue_can_be_handed_to_a_model(host: SandboxHostService) -> None:
    tools = await host.tools()
    names = [tool.name for tool in tools]
    files = ["read_file", "write_file", "edit_file", "list_dir", "bash"]
    git = [
        f"git_{verb}" for verb in ("status", "diff", "log", "show", "add", "commit", "clone", "fetch", "pull", "push")
    ]
    assert set(names) >= {*files, *git}
    assert {tool.tier for tool in tools if tool.name.startswith("git_")} == {ToolTier.CONTAINED}
    for tool in tools:
        assert set(tool.parameters["required"]) <= set(tool.parameters["properties"])
        assert tool.to_data(ToolFormat.OPENAI)["function"]["parameters"] == tool.parameters
        assert tool.to_data(ToolFormat.ANTHROPIC)["input_schema"] == tool.parameters
        assert tool.to_data(ToolFormat.MCP)["annotations"] == {"readOnlyHint": not tool.changes}


async def test_what_nobody_knows_is_an_error_and_wrong_arguments_are_a_result(tools: Tools) -> None:
    with pytest.raises(InvalidArgument, match="no tool 'read_flie'"):
        await tools.call("read_flie", path="x")
    told = await tools.problem("write_file", path=7, contents="x")
    assert "content is missing" in told
    assert "path must be a string, not 7" in told
    assert "'contents' is no parameter of it (it has path, content, create_dirs)" in told
    assert "must lie between 1 and" in await tools.problem("read_file", path="x", limit=0)
    assert "must be a whole number, not 1.5" in await tools.problem("read_file", path="x", offset=1.5)
    assert "cmd is blank" in await tools.problem("bash", cmd="  ")
    assert "NUL" in await tools.problem("bash", cmd="echo \0")
    assert await tools.text("list_dir") == "(the directory is empty)"


# ---- files -----------------------------------------------------------------------------------------------------


async def test_a_file_that_is_no_text(tools: Tools) -> None:
    await tools.shell(f"echo {base64.b64encode(PICTURE).decode()} | base64 -d >dot.png; head -c 99 /dev/zero >zero")
    shown = await tools.call("read_file", path="dot.png")
    assert [type(block) for block in shown.blocks] == [TextBlock, ImageBlock]
    assert shown.blocks[1] == ImageBlock(PICTURE, "image/png")
    assert "is binary (99 bytes)" in await tools.problem("read_file", path="zero")
    await tools.shell("truncate -s 20M holes; head -c 3000 /dev/zero | tr '\\0' x >long")
    assert "more than the 10485760 that read_file takes" in await tools.problem("read_file", path="holes")
    long = await tools.call("read_file", path="long")
    assert long.text.endswith("… (1000 bytes more)")
    assert long.truncated


async def test_an_edit_that_does_not_fit_says_what_is_there(tools: Tools) -> None:
    await tools.call("write_file", path="f", content="a\nb\na\n")
    assert "is in f 2 times" in await tools.problem("edit_file", path="f", old_string="a", new_string="c")
    assert "The file is:\na\nb\na\n" in await tools.problem("edit_file", path="f", old_string="x", new_string="c")
    text = await tools.text("edit_file", path="f", old_string="a", new_string="c", replace_all=True)
    assert text == "edited f: 2 replacements made"
    await tools.call("write_file", path="g", content="".join(f"def name_{n}(self):\n    pass\n" for n in range(40)))
    told = await tools.problem("edit_file", path="g", old_string="def name_17(other):\n", new_string="")
    assert "Line 35 is like its first line:\n" in told
    assert "    35\tdef name_17(self):" in told
    assert told.count("\n") == 7  # two lines before it, four after it
    assert "nothing would change" in await tools.problem("edit_file", path="f", old_string="c", new_string="c")


@pytest.mark.root
async def test_nothing_leads_out(walled: Tools) -> None:
    await walled.shell("ln -s /etc/passwd out; ln -s / root; ln -s /proc/1/root/etc up; mkfifo pipe")
    outside = await walled.text("read_file", path="out")
    assert "user" in outside  # the session's own list
    assert await walled.text("read_file", path="root/etc/passwd") == outside
    for path in ("../../../../proc/self/environ", "up/passwd", "pipe", "/proc/1/mem"):
        assert (await walled.call("read_file", path=path, timeout_s=5)).is_error, path
    assert (await walled.call("write_file", path="pipe/x", content="", timeout_s=5)).is_error


# ---- commands --------------------------------------------------------------------------------------------------


async def test_of_a_flood_beginning_and_end_are_told(tools: Tools) -> None:
    result = await tools.call("bash", cmd="echo first; head -c 3000000 /dev/zero | tr '\\0' x; echo; echo last")
    assert result.truncated
    assert result.text.startswith("first\nxxx")
    assert "xxx\nlast\nexit code 0" in result.text
    assert len(result.text) < 300_000
    assert "bytes left out]" in result.text


# ---- once ------------------------------------------------------------------------------------------------------


async def test_the_id_of_a_command_is_not_that_of_a_direct_tool(tools: Tools) -> None:
    await tools.shell("echo kept >f")
    first = await tools.call("bash", call_id="b", cmd="echo x >>ran; cat ran")
    with pytest.raises(Conflict, match="is a command"):
        await tools.call("write_file", call_id="b", path="f", content="lost")
    with pytest.raises(Conflict, match="is a command"):
        await tools.call("read_file", call_id="b", path="f")
    assert await tools.content("f") == b"kept\n"
    assert await tools.call("bash", call_id="b", cmd="true") == first
    assert not (await tools.call("write_file", call_id="w", path="f", content="x" * 100_000)).is_error


async def test_a_deadline_below_a_tool_is_no_answer_of_the_tool(tools: Tools) -> None:
    async def run(_setting: ToolSetting, _arguments: Mapping[str, Any]) -> str:
        raise DeadlineExceeded("the disk does not answer")

    tools.host.add_tools([CustomTool(Tool("slow", "Is slow.", {"type": "object"}, ToolTier.DIRECT), run)])
    with pytest.raises(DeadlineExceeded):
        await tools.call("slow", call_id="s")
    with pytest.raises(Unavailable, match="not known"):
        await tools.call("slow", call_id="s")


async def test_a_large_result_is_told_again(tools: Tools) -> None:
    await tools.shell("seq 100000 >numbers")
    first = await tools.call("read_file", call_id="n", path="numbers")
    await tools.shell("rm numbers")
    assert await tools.call("read_file", call_id="n", path="numbers") == first
    assert len(first.text) > 16 * 1024


async def test_an_engine_that_comes_later_knows_what_was_done(settings: Settings) -> None:
    arguments: dict[str, Any] = {"path": "f", "content": "x"}
    async with build(settings) as host:
        tools = Tools(host, (await host.create(SessionSpec(runtime="none"))).session_id)
        first = await tools.call("write_file", call_id="w", **arguments)
        counted = await tools.call("bash", call_id="c", cmd="echo x >>ran; wc -l <ran")
    async with build(settings) as host:
        tools = Tools(host, tools.session)
        assert await tools.call("write_file", call_id="w", **arguments) == first
        assert (await tools.call("bash", call_id="c", cmd="echo x >>ran; wc -l <ran")).blocks == counted.blocks
        assert await tools.content("ran") == b"x\n"
        await clean_up(host)


def told_before_a_kill(settings: Settings, call_id: str) -> ToolResult:
    """What a tool gave in an engine of its own process, which was killed when it had said so."""
    read, write = os.pipe()
    if child := os.fork():
        os.close(write)
        with os.fdopen(read, "rb") as file:
            told = file.read()
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
        result = pickle.loads(told)
        assert isinstance(result, ToolResult)
        return result

    async def live() -> None:
        async with build(settings) as host:
            with suppress(SessionExists):
                await host.create(SessionSpec(session_id="s", runtime="none"))
            result = await Tools(host, "s").call("bash", call_id=call_id, cmd="echo x >>ran; sleep 0.05")
            os.write(write, pickle.dumps(result))
            os.kill(os.getpid(), signal.SIGKILL)

    try:
        asyncio.run(live())
    finally:
        os._exit(1)


def test_what_was_told_is_told_again_after_a_kill(settings: Settings) -> None:
    """Its duration too."""
    told = {call_id: told_before_a_kill(settings, call_id) for call_id in ("a", "b", "c")}

    async def look() -> None:
        async with build(settings) as host:
            tools = Tools(host, "s")
            assert {call_id: await tools.call("bash", call_id=call_id, cmd="never") for call_id in told} == told
            assert await tools.content("ran") == b"x\n" * 3
            await clean_up(host)

    asyncio.run(look())


@pytest.mark.root
async def test_whoever_joins_is_told_the_same(settings: Settings) -> None:
    """Its duration and its snapshot too: while it runs, while its snapshot is taken, afterwards, and of a later
    engine."""
    async with build(settings) as host:
        made = await host.create(SessionSpec(runtime="namespaces", call_snapshots=True))
        tools = Tools(host, made.session_id)
        told = await asyncio.gather(*(tools.call("bash", call_id="c", cmd="sleep 0.1; echo x >>ran") for _ in range(5)))
        told.append(await tools.call("bash", call_id="c", cmd="never"))
        assert told[0].snapshot == "call-c"
        wrote = await tools.call("write_file", call_id="w", path="f", content="x")
        assert await tools.call("write_file", call_id="w", path="f", content="y") == wrote
    async with build(settings) as host:
        tools = Tools(host, made.session_id)
        told.append(await tools.call("bash", call_id="c", cmd="never"))
        assert told == [told[0]] * 7
        assert await tools.call("write_file", call_id="w", path="f", content="y") == wrote
        assert await tools.content("ran") == b"x\n"
        await clean_up(host)


@pytest.mark.root
async def test_a_call_that_was_refused_may_come_again(walled: Tools) -> None:
    await walled.host.pause(PauseRequest(walled.session))
    with pytest.raises(SessionPaused):
        await walled.call("write_file", call_id="w", path="f", content="x")
    await walled.host.resume(walled.session)
    assert not (await walled.call("write_file", call_id="w", path="f", content="x")).is_error


@pytest.mark.root
async def test_tools_are_told_in_turns_and_have_snapshots(host: SandboxHostService) -> None:
    made = await host.create(SessionSpec(runtime="namespaces", call_snapshots=True))
    tools = Tools(host, made.session_id)
    wrote = await tools.call("write_file", path="f", content="x")
    ran = await tools.call("bash", cmd="true")
    read = await tools.call("read_file", path="f")
    assert wrote.snapshot
    assert ran.snapshot
    assert read.snapshot is None
    turn = await host.turn_complete(TurnRequest(tools.session))
    assert [call.argv[0] for call in turn.calls] == ["tool:write_file", "/bin/sh", "tool:read_file"]


# ---- tools of one's own ----------------------------------------------------------------------------------------


@dataclass
class Own:
    """Tools that a user of the library brings."""

    begun: asyncio.Event = field(default_factory=asyncio.Event)
    ended: list[str] = field(default_factory=list[str])

    def all(self) -> Sequence[CustomTool]:
        schema = {"type": "object", "properties": {"how": {"type": "string"}}, "required": ["how"]}
        return [CustomTool(Tool("own", "Does as it is told.", schema, ToolTier.DIRECT), self.run)]

    async def run(self, setting: ToolSetting, arguments: Mapping[str, Any]) -> str | Sequence[Block]:
        how = arguments["how"]
        if how == "fail":
            raise ToolProblem("it cannot be done")
        if how == "blocks":
            return [TextBlock("a"), ImageBlock(PICTURE, "image/png")]
        if how == "wait":
            setting.say("waiting")
            self.begun.set()
            try:
                await asyncio.sleep(60)
            finally:
                self.ended.append(setting.call_id)
        return f"{how} {setting.session_id}"


async def test_tools_of_ones_own(tools: Tools) -> None:
    own = Own()
    tools.host.add_tools(own.all())
    assert "own" in [tool.name for tool in await tools.host.tools()]
    assert await tools.text("own", how="well") == f"well {tools.session}"
    assert await tools.problem("own", how="fail") == "it cannot be done"
    assert "how is missing" in await tools.problem("own")
    blocks = await tools.call("own", call_id="again", how="blocks")
    assert await tools.call("own", call_id="again", how="blocks") == blocks
    assert blocks.blocks[1] == ImageBlock(PICTURE, "image/png")
    with pytest.raises(InvalidArgument, match="two tools 'own'"):
        tools.host.add_tools(Own().all())


async def test_cancelling(tools: Tools) -> None:
    own = Own()
    tools.host.add_tools(own.all())
    direct = asyncio.create_task(tools.call("own", call_id="d", how="wait"))
    await asyncio.wait_for(own.begun.wait(), 5)
    assert await tools.host.cancel_tool(tools.session, "d")
    told = await asyncio.wait_for(direct, 5)
    assert (told.is_error, told.text, own.ended) == (True, "it was cancelled", ["d"])
    request = ToolRequest(tools.session, "bash", {"cmd": "echo on; sleep 60"}, call_id="c")
    async with tools.host.execute_tool(request) as stream:
        assert await anext(aiter(stream)) == ToolProgress(Stream.STDOUT, "on\n")
        assert await tools.host.cancel_tool(tools.session, "c")
        ended = await asyncio.wait_for(stream.result(), 10)
    assert ended.exit_code == 143
    assert not await tools.host.cancel_tool(tools.session, "c")
    assert not await tools.host.cancel_tool(tools.session, "d")
    with pytest.raises(CallNotFound):
        await tools.host.cancel_tool(tools.session, "nobody")


async def test_who_leaves_early_cancels_and_what_became_of_it_is_not_guessed(tools: Tools) -> None:
    own = Own()
    tools.host.add_tools(own.all())
    async with tools.host.execute_tool(ToolRequest(tools.session, "own", {"how": "wait"}, call_id="left")):
        await asyncio.wait_for(own.begun.wait(), 5)
    assert own.ended == ["left"]
    with pytest.raises(Unavailable, match="not known"):
        await tools.call("own", call_id="left", how="well")


async def test_a_host_bounds_what_a_tool_may_take(settings: Settings) -> None:
    async with build(replace(settings, tool_timeout_s=0.5)) as host:
        session = await host.create(SessionSpec(runtime="none"))
        tools = Tools(host, session.session_id)
        for result in (
            await tools.call("bash", cmd="sleep 60", timeout_ms=60_000),
            await tools.call("bash", timeout_s=60, cmd="sleep 60"),
        ):
            assert result.is_error
            assert "0.5 s" in result.text
        await clean_up(host)
