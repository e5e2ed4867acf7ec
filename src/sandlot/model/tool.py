"""Tools: what a model may call in a session, what it asks with, and what it is told.

A tool that could not do what it was asked is a result marked as an error, in words that a model can act on. What fails
below a tool (no session, no guest, a full host) is an error of the error tree.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from sandlot.model import limits
from sandlot.model.call import Stream, check_text
from sandlot.model.errors import InvalidArgument
from sandlot.model.ids import check_id, check_session_id
from sandlot.model.resources import NO_LIMITS, Resources

Json = Mapping[str, Any]


class ToolProblem(Exception):
    """Raised by a tool: it cannot do this, and its words tell the model why and what to do instead. The result is
    marked as an error."""


class ToolTier(StrEnum):
    """Where a tool does its work."""

    DIRECT = "direct"  # the host's own hands in the session's files, confined and as the session's user
    CONTAINED = "contained"  # a program in the session


class ToolFormat(StrEnum):
    """For whom a catalogue is written."""

    OPENAI = "openai"
    ANTHROPIC = "anthropic"
    MCP = "mcp"


@dataclass(frozen=True, slots=True)
class Tool:
    """One entry of the catalogue: what a model is told of a tool."""

    name: str
    description: str
    parameters: Json  # JSON schema of an object
    tier: ToolTier
    changes: bool = True  # whether it may change something

    def __post_init__(self) -> None:
        check_id("tool", self.name)
        limits.at_most("characters of a tool's name", len(self.name), limits.TOOL_NAME_CHARS_MAX)
        if self.parameters.get("type") != "object":
            raise InvalidArgument(f"the parameters of {self.name} are no object", next_step='give "type": "object"')

    def to_data(self, wanted: ToolFormat = ToolFormat.MCP) -> dict[str, Any]:
        """As the model's vendor wants it, or as an MCP server lists it."""
        told = {"name": self.name, "description": self.description}
        match wanted:
            case ToolFormat.OPENAI:
                return {"type": "function", "function": {**told, "parameters": self.parameters}}
            case ToolFormat.ANTHROPIC:
                return {**told, "input_schema": self.parameters}
            case ToolFormat.MCP:
                return {**told, "inputSchema": self.parameters, "annotations": {"readOnlyHint": not self.changes}}


@dataclass(frozen=True, slots=True)
class ToolRequest:
    """Call one tool. A call id that came before gives what the first call gave, or waits for it: nothing is done twice.
    A rollback forgets the calls that came after the point it goes to."""

    session_id: str
    tool: str
    arguments: Json = field(default_factory=dict[str, Any])
    call_id: str | None = None
    user: str | None = None  # None: the session's user
    timeout_s: float | None = None  # None: as long as the tool's own arguments say
    resources: Resources = NO_LIMITS  # of what a contained tool runs, below those of the session

    def __post_init__(self) -> None:
        check_session_id(self.session_id)
        check_id("tool", self.tool)
        if self.call_id is not None:
            check_id("call", self.call_id)
        check_text("user", self.user or "")
        if self.user == "":
            raise InvalidArgument("user is empty", next_step="leave it out for the session's own user")
        if self.timeout_s is not None:
            limits.within("timeout_s", self.timeout_s, 0.001, limits.CALL_TIMEOUT_S_MAX)


@dataclass(frozen=True, slots=True)
class TextBlock:
    text: str


@dataclass(frozen=True, slots=True)
class ImageBlock:
    data: bytes
    mime: str


Block = TextBlock | ImageBlock


@dataclass(frozen=True, slots=True)
class ToolProgress:
    """Something that a tool says while it works."""

    stream: Stream
    text: str


@dataclass(frozen=True, slots=True)
class ToolResult:
    call_id: str
    tool: str
    tier: ToolTier
    blocks: tuple[Block, ...]
    is_error: bool = False
    exit_code: int | None = None  # of the program; None where none was run
    duration_s: float = 0.0
    truncated: bool = False  # there was more than is told
    snapshot: str | None = None  # of the files as it left them, where the session takes them

    @property
    def text(self) -> str:
        """All of its text."""
        return "\n".join(block.text for block in self.blocks if isinstance(block, TextBlock))


ToolEvent = ToolProgress | ToolResult
