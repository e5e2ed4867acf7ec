"""One run of a managed process: a call of nobody's, whose output goes to the log of its process."""

import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from sandlot.contracts.runtime import Guest, KnownProcess, ProcessEnd
from sandlot.host.calls import LiveCall, Ticket
from sandlot.host.output import Log
from sandlot.model import CallResult, Stream

FIRST_RUN = 1 << 56  # calls count from 1, errands from 1 << 62
FIRST_CONTEXT = 1 << 60  # programs that run code in contexts
_RUN_BITS = 24
_OUTPUT_MAX = 1 << 62
_TAG = struct.Struct("<Q")


def run_number(serial: int, run: int) -> int:
    """What a guest knows it by."""
    return FIRST_RUN + (serial << _RUN_BITS) + run


def serial_of(number: int) -> tuple[int, int]:
    """The process, by its place in its session, and which of its runs."""
    rest = number - FIRST_RUN
    return rest >> _RUN_BITS, rest & ((1 << _RUN_BITS) - 1)


class RunOwner(Protocol):
    """Who hears of a run."""

    def began(self, run: "Run") -> None: ...

    def printed(self, run: "Run") -> None: ...

    def over(self, run: "Run", result: CallResult, release: Callable[[], None]) -> None:
        """All that it printed is in files. `release` when that it ended is recorded."""
        ...

    def lost(self, run: "Run", reason: str) -> None: ...

    def woken(self, run: "Run") -> None:
        """Whoever waits for something of it should look."""
        ...


class SessionProcesses(Protocol):
    """The managed processes of one session, as that session knows them."""

    def adopt(self, guest: Guest, known: KnownProcess) -> bool:
        """Take up a run that a guest remembers. False: it is none of these."""
        ...

    def heard(self) -> None:
        """The guest has told all that it remembers."""
        ...

    def go_on(self) -> None:
        """The session does not stand still any more."""
        ...

    def lose(self, reason: str) -> None:
        """All that ran is gone with the guest."""
        ...

    def expect_ends(self, why: str) -> None:
        """All that runs is about to be ended from outside, and is to be told so."""
        ...

    def again(self) -> None:
        """Start what was ended from outside, where it is to be started again."""
        ...


class Together:
    """Several kinds of them, of one session; or none, of what is no session yet."""

    def __init__(self, *kinds: SessionProcesses) -> None:
        self._kinds = kinds

    def adopt(self, guest: Guest, known: KnownProcess) -> bool:
        return any(kind.adopt(guest, known) for kind in self._kinds)

    def heard(self) -> None:
        for kind in self._kinds:
            kind.heard()

    def go_on(self) -> None:
        for kind in self._kinds:
            kind.go_on()

    def lose(self, reason: str) -> None:
        for kind in self._kinds:
            kind.lose(reason)

    def expect_ends(self, why: str) -> None:
        for kind in self._kinds:
            kind.expect_ends(why)

    def again(self) -> None:
        for kind in self._kinds:
            kind.again()


@dataclass(frozen=True, slots=True)
class RunPlan:
    session_id: str
    process_id: str
    number: int
    argv: tuple[str, ...]
    started: float
    stdin: bool

    @property
    def ticket(self) -> Ticket:
        return Ticket(
            self.session_id,
            self.number,
            self.process_id,
            self.argv,
            self.started,
            timeout_s=None,
            output_bytes_max=_OUTPUT_MAX,
            stdin=self.stdin,
            terminal=False,
        )


class Run:
    """A ProcessSink: everything as a call hears it, and its owner hears of it too."""

    def __init__(self, plan: RunPlan, log: Log, owner: RunOwner, wedged: Callable[[str], None]) -> None:
        self.number = plan.number
        self.log = log
        self.live = LiveCall(plan.ticket, _no_path, _not_recorded, self._record, wedged, log)
        self._owner = owner

    def adopt(self, guest: Guest, known: KnownProcess) -> None:
        """After a restart of the engine, or out of an image: go on where the log ends."""
        self.live.pid = known.pid or None
        self.live.resume(guest.adopt(known, self), known.stdin_taken)

    def rejoin(self, guest: Guest, known: KnownProcess) -> None:
        """In a guest that goes on where the one before stopped."""
        self.live.rejoin(guest.adopt(known, self))

    # ---- what the guest says -----------------------------------------------------------------------------------

    def on_started(self, pid: int) -> None:
        self.live.on_started(pid)
        self._owner.began(self)

    def on_output(self, stream: Stream, offset: int, data: bytes) -> None:
        self.live.on_output(stream, offset, data)
        self._owner.printed(self)

    def on_stdin_taken(self, offset: int, closed: bool) -> None:
        self.live.on_stdin_taken(offset, closed)

    def on_failed(self, error: int, stage: str) -> None:
        self.live.on_failed(error, stage)

    def on_exit(self, ended: ProcessEnd) -> None:
        self.live.on_exit(ended)

    def on_lost(self, reason: str) -> None:
        if self.live.lost is None and self.live.result is None:
            self.live.on_lost(reason)
            self._owner.lost(self, reason)

    def _record(self, live: LiveCall, result: CallResult, output: bytes | None, release: Callable[[], None]) -> None:
        del live, output
        self._owner.over(self, result, release)

    # ---- as its session has calls ------------------------------------------------------------------------------

    def hold(self) -> None:
        self.live.hold()

    def release_hold(self, paused_s: float) -> None:
        self.live.release_hold(paused_s)

    def part(self) -> None:
        self.live.part()

    def leave(self) -> None:
        self.live.leave()
        self._owner.woken(self)

    async def settle(self) -> None:
        await self.live.settle()

    async def wait(self) -> CallResult:
        return await self.live.wait()


def _no_path(number: int) -> Path:
    raise AssertionError(f"run {number} has a log of its own")


def _not_recorded(ticket: Ticket) -> None:
    """Its process is in the journal."""
    del ticket
