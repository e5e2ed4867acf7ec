"""Tools of one's own, as whoever brings one sees them."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sandlot.contracts.host import Host
from sandlot.model import Block, Tool


@dataclass(frozen=True, slots=True)
class ToolSetting:
    """Where a tool of one's own is called: all verbs of the host are its hands."""

    host: Host
    session_id: str
    user: str | None
    call_id: str
    say: Callable[[str], None]  # progress, to whoever listens


@dataclass(frozen=True, slots=True)
class CustomTool:
    """A tool of one's own. It runs in the process of the engine, on its loop, and must not block it. Text or blocks are
    its result; raising ToolProblem makes one that is marked as an error."""

    tool: Tool
    run: Callable[[ToolSetting, Mapping[str, Any]], Awaitable[str | Sequence[Block]]]
