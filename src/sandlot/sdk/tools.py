"""Tools of a sandbox: what a model calls."""

import builtins
from collections.abc import Callable, Mapping
from typing import Any

from sandlot.model import (
    NO_LIMITS,
    InvalidArgument,
    Resources,
    Tool,
    ToolFormat,
    ToolProgress,
    ToolRequest,
    ToolResult,
)
from sandlot.sdk.caller import call_back
from sandlot.sdk.client import Client, in_portal

OnProgress = Callable[[ToolProgress], object]


class AsyncTools:
    """`sandbox.tools`: a catalogue to hand to a model, and a way to do what it asks for."""

    def __init__(self, client: Client, sandbox_id: str) -> None:
        self.client = client
        self._sandbox_id = sandbox_id

    @in_portal
    async def list(self) -> builtins.list[Tool]:
        """The catalogue."""
        return [*await (await self.client.host()).tools()]

    async def catalogue(self, format: str = ToolFormat.OPENAI) -> builtins.list[dict[str, Any]]:
        """The same as a vendor of models wants it: `openai`, `anthropic`, or `mcp`."""
        if format not in tuple(ToolFormat):
            raise InvalidArgument(f"format {format!r} is not known", next_step=f"use {', '.join(ToolFormat)}")
        return [tool.to_data(ToolFormat(format)) for tool in await self.list()]

    @in_portal
    async def call(
        self,
        tool: str,
        arguments: Mapping[str, Any] | None = None,
        *,
        call_id: str | None = None,
        user: str | None = None,
        timeout: float | None = None,
        resources: Resources = NO_LIMITS,
        on_progress: OnProgress | None = None,
    ) -> ToolResult:
        """Call a tool. What it cannot do, wrong arguments included, is a result with `is_error`, in words for a model.

        With a `call_id` that came before, nothing is done again: the first result is told, or waited for. `timeout` and
        `resources` are below what the tool and the sandbox have. Raises InvalidArgument for a tool that nobody knows.
        """
        request = ToolRequest(self._sandbox_id, tool, arguments or {}, call_id, user, timeout, resources)
        async with (await self.client.host()).execute_tool(request) as stream:
            if on_progress is None:
                return await stream.result()
            result: ToolResult | None = None
            async for event in stream:
                if isinstance(event, ToolResult):
                    result = event
                else:
                    await call_back(on_progress, event)
        assert result is not None, "a stream ends with its result"
        return result

    @in_portal
    async def cancel(self, call_id: str) -> bool:
        """End a call; its result says so. False when it has ended already. Raises CallNotFound."""
        return await (await self.client.host()).cancel_tool(self._sandbox_id, call_id)
