"""A program that a tool runs in the session, and what came of it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from sandlot.model import CallResult, LimitHit, Stream, Tool, limits
from sandlot.tools.outcome import Outcome


@dataclass(frozen=True, slots=True)
class Command:
    argv: tuple[str, ...]
    envs: Mapping[str, str] = field(default_factory=dict[str, str])
    timeout_s: float = limits.TOOL_TIMEOUT_S
    bytes_max: int = limits.TOOL_OUTPUT_BYTES  # that are told, of each stream


@dataclass(frozen=True, slots=True)
class Ended:
    """The end of a command, and what of its output is told."""

    result: CallResult
    stdout: str
    stderr: str
    truncated: bool


@dataclass(frozen=True, slots=True)
class ContainedTool:
    """`plan` says what is run, and raises ToolProblem; `tell` makes words of what came of it. Both are pure: a call
    that is read a second time is told in the same words."""

    tool: Tool
    plan: Callable[[Mapping[str, Any]], Command]
    tell: Callable[[Ended], Outcome]


class Kept:
    """Of one stream: its beginning and its end, and between them what was left out. What matters in a long output is
    mostly at its end."""

    def __init__(self, bytes_max: int) -> None:
        self._half = bytes_max // 2
        self._head = bytearray()
        self._tail = bytearray()
        self._seen = 0

    def add(self, data: bytes) -> None:
        self._seen += len(data)
        room = self._half - len(self._head)
        if room > 0:
            self._head += data[:room]
            data = data[room:]
        self._tail += data
        if len(self._tail) > 2 * self._half:
            del self._tail[: -self._half]

    @property
    def is_cut(self) -> bool:
        return self._seen > len(self._head) + min(len(self._tail), self._half)

    def text(self) -> str:
        if not self.is_cut:
            return bytes(self._head + self._tail).decode(errors="replace")
        tail = bytes(self._tail[-self._half :])
        left_out = self._seen - len(self._head) - len(tail)
        head = bytes(self._head).decode(errors="replace")
        return f"{head}\n[{left_out} bytes left out]\n{tail.decode(errors='replace')}"


class Listening:
    """Both streams of a command while it runs."""

    def __init__(self, bytes_max: int) -> None:
        self._kept = {stream: Kept(bytes_max) for stream in Stream}

    def add(self, stream: Stream, data: bytes) -> None:
        self._kept[stream].add(data)

    def end(self, result: CallResult) -> Ended:
        out, err = self._kept[Stream.STDOUT], self._kept[Stream.STDERR]
        return Ended(result, out.text(), err.text(), result.truncated or out.is_cut or err.is_cut)


def why_ended(result: CallResult) -> str:
    """In words, when it did not end by itself; else nothing."""
    match result.limit:
        case LimitHit.TIMEOUT:
            return f"it was ended after {result.duration_s:.1f} s, its time limit"
        case LimitHit.OOM:
            return "a process of it was ended: the session had no memory left"
        case LimitHit.PIDS:
            return "the session may have no more processes"
        case LimitHit.DISK:
            return "the session has no space left"
        case LimitHit.OUTPUT | None:
            return result.reason
