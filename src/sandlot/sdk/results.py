"""What the SDK gives back of a command. Both faces share it."""

from dataclasses import dataclass, field
from typing import NamedTuple

from sandlot.model import CallResult, LimitHit, SandlotError, Stream

_TAIL_CHARS = 2000


class CommandOutput(NamedTuple):
    """A piece of what a command printed."""

    stream: Stream
    data: bytes

    @property
    def text(self) -> str:
        """Bytes that are no UTF-8, or half a character at the edge of a piece, show as replacement characters."""
        return self.data.decode(errors="replace")


@dataclass(frozen=True, slots=True)
class CommandResult:
    """How a command ended, and what it printed. A command that fails is a result like any other."""

    call: CallResult
    stdout_bytes: bytes = field(repr=False)
    stderr_bytes: bytes = field(repr=False)

    @property
    def id(self) -> str:
        return self.call.call_id

    @property
    def exit_code(self) -> int:
        """128 + n after signal n, 124 after the timeout, 126 and 127 when it could not be run."""
        return self.call.exit_code

    @property
    def ok(self) -> bool:
        return self.call.exit_code == 0

    @property
    def stdout(self) -> str:
        return self.stdout_bytes.decode(errors="replace")

    @property
    def stderr(self) -> str:
        return self.stderr_bytes.decode(errors="replace")

    @property
    def timed_out(self) -> bool:
        return self.call.limit is LimitHit.TIMEOUT

    @property
    def limit(self) -> LimitHit | None:
        """Which limit it met, if any: its time, the sandbox's memory or processes, or what was kept of its output."""
        return self.call.limit

    @property
    def snapshot(self) -> str | None:
        """Of the files that it left, where the sandbox takes one after every command."""
        return self.call.snapshot

    @property
    def truncated(self) -> bool:
        """Whether it printed more than was kept."""
        return self.call.truncated

    @property
    def reason(self) -> str:
        """Why it could not be run."""
        return self.call.reason

    @property
    def duration_s(self) -> float:
        return self.call.duration_s

    def check(self) -> "CommandResult":
        """Itself. Raises CommandFailed unless the command succeeded."""
        if not self.ok:
            raise CommandFailed(self)
        return self


class CommandFailed(SandlotError):
    """A command did not succeed, and the caller had asked to be told with `check`."""

    code = "command_failed"

    def __init__(self, result: CommandResult) -> None:
        call = result.call
        how = f"exit code {call.exit_code}"
        if result.timed_out:
            how = f"it reached its timeout after {call.duration_s:.1f} s"
        elif result.limit is LimitHit.OOM:
            how = "the sandbox was out of memory"
        elif result.limit is LimitHit.PIDS:
            how = f"exit code {call.exit_code}, and the sandbox had as many processes as it may"
        elif result.limit is LimitHit.DISK:
            how = f"exit code {call.exit_code}, and the sandbox had used up its disk"
        elif call.signal:
            how = f"signal {call.signal}"
        said = result.reason or result.stderr.strip()[-_TAIL_CHARS:]
        super().__init__(f"the command failed: {how}" + (f"\n{said}" if said else ""), exit_code=call.exit_code)
        self.result = result

    def __reduce__(self) -> tuple[type["CommandFailed"], tuple[CommandResult]]:
        return type(self), (self.result,)
