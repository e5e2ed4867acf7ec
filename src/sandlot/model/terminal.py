"""A terminal in a session: a program that goes on while clients come and go."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from sandlot.model import limits
from sandlot.model.call import CallRequest, CallResult, CallState, TerminalSize
from sandlot.model.ids import check_id, check_session_id


class InputMode(StrEnum):
    """What a client that attaches wants with the input of a terminal."""

    WATCH = "watch"  # nothing: it reads
    HOLD = "hold"  # it alone may write; refused while another one holds it
    TAKE = "take"  # the same, and whoever held it is told that it was taken


@dataclass(frozen=True, slots=True)
class TerminalRequest:
    """Open a terminal. A repeated id gives the one that is there, and starts nothing."""

    session_id: str
    argv: tuple[str, ...] = ()  # empty: a login shell, bash where the session has it
    cwd: str | None = None
    envs: Mapping[str, str] = field(default_factory=dict[str, str])
    user: str | None = None
    size: TerminalSize = field(default_factory=TerminalSize)
    timeout_s: float | None = None  # None: as long as the session lives
    window_bytes: int = limits.TERMINAL_WINDOW_BYTES  # of its output that can be read again: the newest
    terminal_id: str | None = None

    def __post_init__(self) -> None:
        limits.within("window_bytes", self.window_bytes, limits.TERMINAL_WINDOW_BYTES_MIN, limits.WINDOW_BYTES_MAX)
        self.call(self.argv or ("sh",))

    def call(self, argv: tuple[str, ...]) -> CallRequest:
        """The call that a terminal is. Raises InvalidArgument, LimitReached."""
        return CallRequest(
            self.session_id,
            argv,
            cwd=self.cwd,
            envs=self.envs,
            user=self.user,
            timeout_s=self.timeout_s,
            stdin=True,
            terminal=self.size,
            detach=True,
            output_bytes_max=limits.CALL_OUTPUT_BYTES_MAX,
            call_id=self.terminal_id,
        )


@dataclass(frozen=True, slots=True)
class Terminal:
    """One terminal, as it is now. Its id is that of its call."""

    session_id: str
    terminal_id: str
    argv: tuple[str, ...]
    state: CallState
    started: float
    size: TerminalSize | None = None  # None: it has ended
    window_bytes: int = 0
    kept_from: int = 0  # offset of the oldest byte that can be read again
    end: int = 0  # offset behind the newest byte
    holder: str = ""  # the client that alone may write; empty: whoever reaches the session may
    readers: int = 0
    result: CallResult | None = None


@dataclass(frozen=True, slots=True)
class _OfTerminal:
    session_id: str
    terminal_id: str

    def __post_init__(self) -> None:
        check_session_id(self.session_id)
        check_id("terminal", self.terminal_id)


@dataclass(frozen=True, slots=True)
class TerminalAttach(_OfTerminal):
    """Read a terminal. What is older than its window is left out: then the first offset that comes is a later one."""

    offset: int | None = 0  # from this byte on; 0: all that is kept; None: what comes from now on
    input: InputMode = InputMode.WATCH
    client_id: str | None = None  # how this client is called when it writes, and by the one that takes over

    def __post_init__(self) -> None:
        _OfTerminal.__post_init__(self)
        if self.offset is not None:
            limits.within("offset", self.offset, 0, limits.FILE_OFFSET_MAX)
        if self.client_id is not None:
            check_id("client", self.client_id)


@dataclass(frozen=True, slots=True)
class TerminalInput(_OfTerminal):
    data: bytes = field(repr=False)  # keys may be a password
    client_id: str = ""

    def __post_init__(self) -> None:
        _OfTerminal.__post_init__(self)
        limits.at_most("terminal_input_bytes", len(self.data), limits.TERMINAL_INPUT_BYTES_MAX)


@dataclass(frozen=True, slots=True)
class TerminalResize(_OfTerminal):
    size: TerminalSize
    client_id: str = ""


@dataclass(frozen=True, slots=True)
class TerminalKill(_OfTerminal):
    signal: int | None = None  # to its process group, alone; None: it ends, and everything that it started


@dataclass(frozen=True, slots=True)
class TerminalOutput:
    """Bytes as the program wrote them: they may move the cursor, and worse. Only for a terminal, or for a parser."""

    offset: int
    data: bytes


@dataclass(frozen=True, slots=True)
class TerminalTaken:
    """Another client has the input now; this one goes on reading."""

    by: str


@dataclass(frozen=True, slots=True)
class TerminalResized:
    size: TerminalSize


@dataclass(frozen=True, slots=True)
class TerminalEnded:
    result: CallResult


TerminalEvent = TerminalOutput | TerminalTaken | TerminalResized | TerminalEnded
