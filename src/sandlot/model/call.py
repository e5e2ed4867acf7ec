"""One call in a session: a request in, events out, one result."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from sandlot.model import limits
from sandlot.model.errors import InvalidArgument
from sandlot.model.ids import check_id, check_session_id
from sandlot.model.resources import NO_LIMITS, Resources


class Stream(StrEnum):
    STDOUT = "stdout"
    STDERR = "stderr"


class LimitHit(StrEnum):
    """Which limit a call met."""

    TIMEOUT = "timeout"
    OOM = "oom"  # a process was ended because the session had no memory left
    PIDS = "pids"  # it failed while the session had no process left
    OUTPUT = "output"  # it printed more than was kept; that alone ends nothing
    DISK = "disk"  # it failed while the session had no space left


@dataclass(frozen=True, slots=True)
class TerminalSize:
    rows: int = 24
    columns: int = 80

    def __post_init__(self) -> None:
        limits.within("rows", self.rows, 1, 65535)
        limits.within("columns", self.columns, 1, 65535)


@dataclass(frozen=True, slots=True)
class CallRequest:
    """Run one program. Text that is not UTF-8 travels as surrogate escapes, as `os.fsdecode` makes them."""

    session_id: str
    argv: tuple[str, ...]
    cwd: str | None = None  # None: the workspace; relative paths start there
    envs: Mapping[str, str] = field(default_factory=dict[str, str])
    user: str | None = None  # a name, a uid or uid:gid; None: the session's user
    timeout_s: float | None = limits.CALL_TIMEOUT_S  # None: as long as the session lives
    stdin: bool = False  # False: an empty standard input
    terminal: TerminalSize | None = None
    output_bytes_max: int = limits.CALL_OUTPUT_BYTES
    detach: bool = False  # leaving the stream does not end the command
    call_id: str | None = None  # a repeated id attaches to the first call and runs nothing
    resources: Resources = NO_LIMITS  # limits of its own, below those of the session

    def __post_init__(self) -> None:
        check_session_id(self.session_id)
        if self.call_id is not None:
            check_id("call", self.call_id)
        if not self.argv or not self.argv[0]:
            raise InvalidArgument("a call needs a program to run", next_step="give at least one non-empty argument")
        limits.at_most("arguments", len(self.argv), limits.ARGUMENTS_MAX)
        limits.at_most("environment variables", len(self.envs), limits.ARGUMENTS_MAX)
        check_envs(self.envs)
        check_text("an argument", *self.argv)
        check_text("cwd or user", self.cwd or "", self.user or "")
        if self.user == "":
            raise InvalidArgument("user is empty", next_step="leave it out for the session's own user")
        if self.timeout_s is not None:
            limits.within("timeout_s", self.timeout_s, 0.001, limits.CALL_TIMEOUT_S_MAX)
        limits.within("output_bytes_max", self.output_bytes_max, 0, limits.CALL_OUTPUT_BYTES_MAX)


def check_text(what: str, *values: str) -> None:
    """No NUL, and nothing that the system cannot take. Raises InvalidArgument."""
    together = "".join(values)
    if together.isascii() and "\0" not in together:
        return
    for value in values:
        if "\0" in value:
            raise InvalidArgument(f"{what} holds a NUL byte")
        try:
            os.fsencode(value)
        except UnicodeEncodeError:
            raise InvalidArgument(f"{what} cannot be encoded: {value[:32]!r}") from None


def check_envs(envs: Mapping[str, str]) -> None:
    for name, value in envs.items():
        if not name or "=" in name:
            raise InvalidArgument(f"environment variable name {name[:64]!r} is empty or holds '='")
        check_text("an environment variable", name, value)


@dataclass(frozen=True, slots=True)
class CallStarted:
    call_id: str
    pid: int  # inside the session


@dataclass(frozen=True, slots=True)
class CallOutput:
    stream: Stream
    offset: int  # of the first byte, in its stream
    data: bytes


@dataclass(frozen=True, slots=True)
class CallResult:
    """How a call ended. Never an error: a command that fails is a result."""

    call_id: str
    exit_code: int  # 128 + n after signal n, 124 after the timeout, 126 and 127 when it could not be run
    signal: int | None = None
    limit: LimitHit | None = None
    reason: str = ""  # why it could not be run
    duration_s: float = 0.0
    user_s: float = 0.0
    system_s: float = 0.0
    rss_bytes_max: int = 0
    stdout_bytes: int = 0  # all that was written, kept or not
    stderr_bytes: int = 0
    truncated: bool = False
    snapshot: str | None = None  # of the files that it left; only for the caller, where the session takes them


CallEvent = CallStarted | CallOutput | CallResult


class CallState(StrEnum):
    RUNNING = "running"
    ENDED = "ended"
    LOST = "lost"  # its guest died with it


@dataclass(frozen=True, slots=True)
class CallRecord:
    """What the host remembers of a call."""

    session_id: str
    call_id: str
    argv: tuple[str, ...]
    state: CallState
    started: float
    result: CallResult | None = None
