"""Code that is run in a context: a program of the session that remembers variables from one run to the next."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from sandlot.model import limits
from sandlot.model.call import CallRequest, Stream, check_text
from sandlot.model.errors import InvalidArgument
from sandlot.model.ids import check_id, check_session_id

PYTHON = "python"
BASH = "bash"
JAVASCRIPT = "javascript"
LANGUAGES = (PYTHON, BASH, JAVASCRIPT)
CHART = "application/vnd.sandlot.chart+json"  # what a figure shows, as data
TABLE = "application/vnd.sandlot.table+json"  # a table, as lists by the names of its columns
_OTHER_NAMES = {"python3": PYTHON, "py": PYTHON, "sh": BASH, "shell": BASH, "js": JAVASCRIPT, "node": JAVASCRIPT}


_TEXT_MEDIA = frozenset({"image/svg+xml", "application/javascript"})
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)


def is_json_media(media: str) -> bool:
    return media == "application/json" or media.endswith("+json")


def is_text_media(media: str) -> bool:
    """Whether it travels as it is; JSON does not count, although it is text, too."""
    return media.startswith("text/") or media in _TEXT_MEDIA


def is_variable_name(name: str) -> bool:
    """Whether a shell takes it."""
    return _VARIABLE.fullmatch(name) is not None


def check_language(name: str) -> str:
    """The language as it is called here. Raises InvalidArgument, which names those that there are."""
    known = _OTHER_NAMES.get(name.lower(), name.lower())
    if known not in LANGUAGES:
        raise InvalidArgument(
            f"there are no contexts of the language {name[:64]!r}", next_step=f"use one of: {', '.join(LANGUAGES)}"
        )
    return known


@dataclass(frozen=True, slots=True)
class ContextRequest:
    """Make a context. A repeated id gives the one that is there."""

    session_id: str
    language: str = PYTHON
    cwd: str | None = None
    envs: Mapping[str, str] = field(default_factory=dict[str, str])
    user: str | None = None
    context_id: str | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "language", check_language(self.language))
        CallRequest(self.session_id, ("true",), cwd=self.cwd, envs=self.envs, user=self.user, call_id=self.context_id)


class ContextState(StrEnum):
    IDLE = "idle"
    BUSY = "busy"
    LOST = "lost"  # its program has ended, and what it remembered with it; it can be restarted


@dataclass(frozen=True, slots=True)
class CodeContext:
    session_id: str
    context_id: str
    language: str
    cwd: str
    state: ContextState
    started: float
    execution_count: int = 0
    reason: str = ""  # why it is lost


@dataclass(frozen=True, slots=True)
class CodeRequest:
    """Run code. Without a context it is the default one of the language, which is made when it is first used."""

    session_id: str
    code: str
    language: str | None = None  # None: Python, or that of the context
    context_id: str | None = None
    envs: Mapping[str, str] = field(default_factory=dict[str, str])  # for this run; they are taken away behind it
    timeout_s: float | None = limits.CALL_TIMEOUT_S  # then it is interrupted; None: as long as the session lives
    output_bytes_max: int = limits.CODE_OUTPUT_BYTES  # printed text that is told; what comes after is counted
    detach: bool = False  # leaving the stream does not interrupt it
    execution_id: str | None = None  # a repeated id reads the first run, and runs nothing

    def __post_init__(self) -> None:
        if self.language is not None and self.context_id is not None:
            raise InvalidArgument("a context has a language of its own", next_step="leave the language out")
        if self.language is not None:
            object.__setattr__(self, "language", check_language(self.language))
        for kind, value in (("context", self.context_id), ("execution", self.execution_id)):
            if value is not None:
                check_id(kind, value)
        check_session_id(self.session_id)
        check_text("the code", self.code)
        limits.at_most("code_bytes", len(self.code.encode(errors="surrogateescape")), limits.CODE_BYTES_MAX)
        limits.within("output_bytes_max", self.output_bytes_max, 0, limits.CODE_OUTPUT_BYTES_MAX)
        CallRequest(self.session_id, ("true",), envs=self.envs, timeout_s=self.timeout_s)


@dataclass(frozen=True, slots=True)
class CodeStarted:
    execution_id: str
    context_id: str
    count: int  # which run of its context it is


@dataclass(frozen=True, slots=True)
class CodeOutput:
    """What was printed."""

    stream: Stream
    text: str


@dataclass(frozen=True, slots=True)
class CodeValue:
    """Something to show, by media type: text as it is, JSON as its text, anything else in base64."""

    data: Mapping[str, str]
    is_main: bool = False  # the value of the last expression; else it was displayed on the way


@dataclass(frozen=True, slots=True)
class CodeError:
    """The code failed: a result, as an exit code is."""

    name: str
    value: str
    traceback: str


class CodeStatus(StrEnum):
    OK = "ok"
    ERROR = "error"
    INTERRUPTED = "interrupted"
    TIMEOUT = "timeout"
    LOST = "lost"  # its context ended with it


@dataclass(frozen=True, slots=True)
class CodeResult:
    """How a run ended: the last of its events."""

    execution_id: str
    context_id: str
    count: int
    status: CodeStatus
    duration_s: float = 0.0
    truncated: bool = False  # something that it printed or showed was too large, and is not told
    reason: str = ""  # why it was lost


CodeEvent = CodeStarted | CodeOutput | CodeValue | CodeError | CodeResult
