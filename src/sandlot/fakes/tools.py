"""Three tools of a fake host: what a model needs at least."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from sandlot.fakes.calls import FakeCall
from sandlot.fakes.session import FakeSession
from sandlot.model import (
    CallOutput,
    Stream,
    TextBlock,
    Tool,
    ToolEvent,
    ToolProgress,
    ToolRequest,
    ToolResult,
    ToolTier,
    Unavailable,
)


def _tool(name: str, description: str, tier: ToolTier, *parameters: str, changes: bool = True) -> Tool:
    fields = {one: {"type": "string"} for one in parameters}
    schema = {"type": "object", "properties": fields, "required": list(parameters), "additionalProperties": False}
    return Tool(name, description, schema, tier, changes)


CATALOGUE: Mapping[str, Tool] = {
    tool.name: tool
    for tool in (
        _tool("read_file", "Read a text file.", ToolTier.DIRECT, "path", changes=False),
        _tool("write_file", "Write a text file, whole.", ToolTier.DIRECT, "path", "content"),
        _tool("bash", "Run a command in a shell.", ToolTier.CONTAINED, "cmd"),
    )
}


@dataclass(slots=True)
class FakeToolCall:
    """One call of a tool, live or finished."""

    call_id: str
    tool: Tool
    call: FakeCall | None = None  # of a tool that runs a command
    readers: int = 0
    done: "asyncio.Future[ToolResult]" = field(default_factory=lambda: asyncio.get_running_loop().create_future())

    def finish(self, text: str, *, is_error: bool = False, exit_code: int | None = None) -> None:
        if not self.done.done():
            blocks = (TextBlock(text),)
            self.done.set_result(ToolResult(self.call_id, self.tool.name, self.tool.tier, blocks, is_error, exit_code))

    def cancel(self) -> bool:
        if self.done.done():
            return False
        self.finish("it was cancelled", is_error=True)
        if self.call is not None:
            self.call.kill(9)
        return True

    async def watch(self, call: FakeCall) -> None:
        """Until the command has ended; then its words are the result."""
        await call.ended()
        if call.result is None:
            if not self.done.done():
                self.done.set_exception(call.lost or Unavailable("the command was lost"))
                self.done.exception()  # whoever reads it raises it
            return
        told = dict.fromkeys(Stream, b"")
        for event in call.events:
            if isinstance(event, CallOutput):
                told[event.stream] += event.data
        out, err = (told[stream].decode(errors="replace") for stream in Stream)
        words = out + (f"STDERR:\n{err}" if err else "")
        code = call.result.exit_code
        text = words.rstrip("\n") + (f"\nexit code {code}" if code else "")
        self.finish(text, is_error=call.result.limit is not None, exit_code=code)


class FakeToolStream:
    def __init__(self, doing: FakeToolCall) -> None:
        self._doing = doing

    @property
    def call_id(self) -> str:
        return self._doing.call_id

    async def __aiter__(self) -> AsyncIterator[ToolEvent]:
        if self._doing.call is not None:
            async for event in self._doing.call.follow():
                if isinstance(event, CallOutput):
                    yield ToolProgress(event.stream, event.data.decode(errors="replace"))
        yield await self.result()

    async def result(self) -> ToolResult:
        return await asyncio.shield(self._doing.done)


def do_direct(session: FakeSession, request: ToolRequest, doing: FakeToolCall) -> None:
    """What needs no command; what cannot be done is a result that is marked."""
    wrong = wrong_arguments(doing.tool, request.arguments)
    if wrong:
        return doing.finish(wrong, is_error=True)
    path = request.arguments["path"]
    try:
        if doing.tool.name == "write_file":
            data = request.arguments["content"].encode()
            session.tree.write(path, data)
            return doing.finish(f"wrote {len(data)} bytes to {path}")
        text = session.tree.read(path).decode(errors="replace")
    except (OSError, ValueError) as error:
        return doing.finish(str(error), is_error=True)
    lines = text.removesuffix("\n").split("\n")
    return doing.finish("\n".join(f"{number:6}\t{line}" for number, line in enumerate(lines, 1)))


def wrong_arguments(tool: Tool, arguments: Mapping[str, Any]) -> str:
    """In words for a model; empty when they are as the schema says."""
    known = tool.parameters["properties"]
    if missing := [name for name in tool.parameters["required"] if name not in arguments]:
        return f"{missing[0]} is missing"
    if unknown := [name for name in arguments if name not in known]:
        return f"{unknown[0]} is no parameter of {tool.name}"
    if wrong := [name for name, value in arguments.items() if not isinstance(value, str)]:
        return f"{wrong[0]} must be text"
    return ""
