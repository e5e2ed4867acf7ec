"""Tools of one's own."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from sandlot.contracts import CustomTool, ToolSetting
from sandlot.model import Block, Tool, ToolTier
from sandlot.sdk.client import Client
from sandlot.sdk.sandbox import AsyncSandbox


def tool(
    name: str, description: str, parameters: Mapping[str, Any], *, changes: bool = True
) -> Callable[[Callable[..., Awaitable[str | Sequence[Block]]]], CustomTool]:
    """Makes a tool of one's own from an async function; `Client(tools=[...])` brings it into the catalogue.

    The function is called with an `AsyncSandbox` and the arguments by name, which are as `parameters` says, a JSON
    schema of an object. It gives text or blocks, or raises ToolProblem. It runs beside the engine and must not block.
    """

    def make(function: Callable[..., Awaitable[str | Sequence[Block]]]) -> CustomTool:
        async def run(setting: ToolSetting, arguments: Mapping[str, Any]) -> str | Sequence[Block]:
            sandbox = AsyncSandbox(setting.session_id, client=Client(host=setting.host))
            return await function(sandbox, **arguments)

        return CustomTool(Tool(name, description, parameters, ToolTier.DIRECT, changes=changes), run)

    return make
