"""What a command says while it runs. The server writes bare JSON objects with a blank line behind each, or real
server-sent events with `data:`; and one of two sets of names. All of that is read here, wherever the bytes are cut.
"""

import base64
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

from sandlot.model import LimitReached, Unavailable
from sandlot.opensandbox.values import CommandResult

FRAME_BYTES_MAX = 1 << 20
OUTPUT_BYTES_MAX = 16 << 20
_ENDS = frozenset(["error", "execution_complete"])


@dataclass(frozen=True, slots=True)
class Event:
    """One thing that happened. Kinds that are not known here are passed on."""

    kind: str  # init, ping, stdout, stderr, result, error, execution_complete, status, …
    text: str = ""  # exactly what was printed, as far as the server tells it
    data: bytes = b""  # the same as bytes; others than those of the text where the server tells such
    exit_code: int | None = None
    error: str = ""
    duration_s: float | None = None
    raw: Mapping[str, Any] = field(default_factory=dict[str, Any], repr=False)

    @property
    def is_end(self) -> bool:
        return self.kind in _ENDS


class EventReader:
    """Bytes in, events out. Holds at most one frame."""

    def __init__(self, frame_bytes_max: int = FRAME_BYTES_MAX) -> None:
        self._frame_bytes_max = frame_bytes_max
        self._rest = bytearray()
        self._seen = 0  # of the rest, without the end of a frame in it
        self._data: list[bytes] = []
        self._size = 0

    def feed(self, data: bytes | bytearray | memoryview) -> Iterator[Event]:
        """Raises LimitReached for a frame that is too long, Unavailable for one that is no JSON object."""
        self._rest += data
        begin = 0
        while (end := self._rest.find(b"\n", max(begin, self._seen))) >= 0:
            line = bytes(self._rest[begin:end]).removesuffix(b"\r")
            begin = end + 1
            yield from self._line(line)
        del self._rest[:begin]
        self._seen = len(self._rest)
        self._check(len(self._rest))

    def close(self) -> Iterator[Event]:
        """What came last and has no blank line behind it."""
        line = bytes(self._rest).removesuffix(b"\r")
        self._rest.clear()
        self._seen = 0
        yield from self._line(line)
        yield from self._line(b"")

    def _line(self, line: bytes) -> Iterator[Event]:
        if not line.strip():
            if self._data:
                frame, self._data, self._size = b"\n".join(self._data), [], 0
                yield read_event(frame)
            return
        if line.startswith(b":") or line.split(b":", 1)[0] in (b"event", b"id", b"retry"):
            return  # a comment or a field of server-sent events that nothing is made of
        if line.startswith(b"data:"):
            line = line[5:].removeprefix(b" ")
        elif line.startswith(b"{") and self._data:
            # Bare objects, a line each, without blank lines between them.
            yield from self._line(b"")
        self._data.append(line)
        self._size += len(line)
        self._check(self._size)

    def _check(self, size: int) -> None:
        if size > self._frame_bytes_max:
            raise LimitReached(f"an event of the server is longer than {self._frame_bytes_max} bytes")


def read_event(frame: bytes) -> Event:
    """Raises Unavailable when it is none."""
    try:
        found: object = json.loads(frame)
    except (ValueError, RecursionError) as error:
        raise Unavailable(f"the server sent an event that is no JSON: {frame[:100]!r}") from error
    if not isinstance(found, dict):
        raise Unavailable(f"the server sent an event that is no object: {frame[:100]!r}")
    told = cast("dict[str, Any]", found)
    if "type" not in told and "code" in told and "message" in told:
        # A refusal that came too late for a status.
        return Event("error", error=f"{told['code']}: {told['message']}", raw=told)
    kind = str(told.get("type", ""))
    text = _printed(kind, told)
    return Event(
        kind,
        text=text,
        data=_bytes(told) or text.encode(errors="surrogateescape"),
        exit_code=_exit_code(kind, told),
        error=_error(kind, told),
        duration_s=_duration(told),
        raw=told,
    )


def _printed(kind: str, told: Mapping[str, Any]) -> str:
    """`data` is what was printed; `text` is a line of it without its end."""
    if "data" in told and kind in ("stdout", "stderr"):
        return str(told["data"])
    text = str(told.get("text") or "")
    if kind in ("stdout", "stderr") and not text.endswith("\n"):
        return f"{text}\n"
    return text


def _bytes(told: Mapping[str, Any]) -> bytes:
    """Of a line that is no text. Servers that do not tell it replace what they cannot say."""
    try:
        return base64.b64decode(str(told.get("bytes") or ""), validate=True)
    except ValueError:
        return b""


def _exit_code(kind: str, told: Mapping[str, Any]) -> int | None:
    code: object = told.get("exitCode")
    if isinstance(code, int):
        return code
    if kind == "execution_complete":
        return 0
    problem: object = told.get("error")
    if kind == "error" and isinstance(problem, dict):
        value = str(cast("dict[str, Any]", problem).get("evalue", "")).strip()
        return int(value) if value.removeprefix("-").isdecimal() and len(value) < 10 else None
    return None


def _error(kind: str, told: Mapping[str, Any]) -> str:
    """Why it did not run to its own end. An exit code alone is no such reason."""
    if kind != "error":
        return ""
    problem: object = told.get("error")
    if not isinstance(problem, dict):
        return str(problem or told.get("data") or told.get("text") or "")
    named = cast("dict[str, Any]", problem)
    name, value = str(named.get("ename", "")), str(named.get("evalue", ""))
    if name == "CommandExecError" and _exit_code(kind, told) not in (None, -1):
        return ""
    return f"{name}: {value}" if name else value


def _duration(told: Mapping[str, Any]) -> float | None:
    for name in ("execution_time", "durationMs"):
        value: object = told.get(name)
        if isinstance(value, int | float) and value >= 0:
            return value / 1000
    return None


class Collector:
    """The events of one command, as one result."""

    def __init__(self, output_bytes_max: int = OUTPUT_BYTES_MAX) -> None:
        self._max = output_bytes_max
        self._kept = {"stdout": list[str](), "stderr": list[str]()}
        self._size = 0
        self._truncated = False
        self._id = ""
        self._end: Event | None = None

    def take(self, event: Event) -> None:
        if event.kind == "init":
            self._id = event.text
        elif event.kind in self._kept:
            self._keep(event)
        elif event.is_end and (self._end is None or event.kind == "error"):
            self._end = event

    def _keep(self, event: Event) -> None:
        size = len(event.text)
        if self._size + size > self._max:
            self._truncated = True
            return
        self._size += size
        self._kept[event.kind].append(event.text)

    def result(self, measured_s: float) -> CommandResult:
        """Raises Unavailable when the stream ended before the command did."""
        end = self._end
        if end is None:
            raise Unavailable(
                "the stream ended before the command did",
                next_step="whether it ran is not known: look at what it was to change",
                command=self._id,
            )
        return CommandResult(
            stdout="".join(self._kept["stdout"]),
            stderr="".join(self._kept["stderr"]),
            exit_code=end.exit_code,
            error=end.error,
            duration_s=measured_s if end.duration_s is None else end.duration_s,
            truncated=self._truncated,
            command_id=self._id,
        )
