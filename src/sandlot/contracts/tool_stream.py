"""A call of a tool, as whoever calls it sees it."""

from collections.abc import AsyncIterator
from typing import Protocol

from sandlot.model import ToolEvent, ToolResult


class ToolStream(Protocol):
    """One call of a tool, live or finished. Given out by a context manager: when all who read it have left before its
    end, it is cancelled."""

    @property
    def call_id(self) -> str: ...

    def __aiter__(self) -> AsyncIterator[ToolEvent]:
        """What it says while it works, and last its result. Raises what `result` raises."""
        ...

    async def result(self) -> ToolResult:
        """Raises SandlotError for what failed below the tool."""
        ...
