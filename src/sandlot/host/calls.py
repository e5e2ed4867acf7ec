"""One call while it lives: hears the guest, keeps the output, enforces time and size, tells everyone who listens."""

import asyncio
import errno
import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from sandlot.contracts.runtime import GuestProcess, ProcessEnd
from sandlot.host.call_timer import CallTimer
from sandlot.host.output import Log, OutputLog
from sandlot.host.runtimes.link import error_words
from sandlot.host.terminal_log import Window, WindowLog
from sandlot.model import (
    CallRecord,
    CallRequest,
    CallResult,
    CallState,
    InvalidArgument,
    InvalidState,
    LimitHit,
    Stream,
    TerminalSize,
    Unavailable,
    check_id,
    limits,
)

INLINE_BYTES = 16 * 1024  # shorter output is kept in the journal itself
STDIN_CREDIT = 64 * 1024
_STDIN_PIECE = 32 * 1024
NOTE_AFTER_S = 0.02  # a call that lives longer is recorded while it runs; a shorter one when it has ended
_TAG_CHARS = 900
_EXIT_TIMEOUT = 124
_EXIT_NOT_RUN = 126
_EXIT_NOT_FOUND = 127


@dataclass(frozen=True, slots=True)
class Ticket:
    """What is known of a call from the first moment. The guest keeps it too, so an engine that comes later knows it."""

    session_id: str
    process_id: int
    call_id: str
    argv: tuple[str, ...]
    started: float
    timeout_s: float | None
    output_bytes_max: int
    stdin: bool
    terminal: bool
    window: Window | None = None  # of a terminal that outlives its clients: of its output only so much is kept

    @classmethod
    def of(cls, request: CallRequest, process_id: int, call_id: str, window: Window | None = None) -> "Ticket":
        return cls(
            session_id=request.session_id,
            process_id=process_id,
            call_id=call_id,
            argv=request.argv,
            started=time.time(),
            timeout_s=request.timeout_s,
            output_bytes_max=request.output_bytes_max,
            stdin=request.stdin,
            terminal=request.terminal is not None,
            window=window,
        )

    def to_tag(self) -> bytes:
        """Lines rather than JSON: this is written for every call and read after a crash only."""
        numbers = f"{self.started!r}\n{self.timeout_s!r}\n{self.output_bytes_max}"
        kept = self.window
        window = f" {kept.bytes} {kept.size.rows} {kept.size.columns}" if kept else ""
        head = f"{self.call_id}\n{numbers}\n{self.stdin:d}{self.terminal:d}{window}\n"
        words = "\0".join(self.argv)
        # A long command line is cut: it is recorded whole elsewhere.
        return os.fsencode(head + (words if len(words) <= _TAG_CHARS else words[:_TAG_CHARS] + "…"))

    @classmethod
    def from_tag(cls, session_id: str, process_id: int, tag: bytes) -> "Ticket":
        """Raises ValueError for a tag that no host of ours wrote."""
        call_id, started, timeout, output_max, flags, words = os.fsdecode(tag).split("\n", 5)
        timeout_s = None if timeout == "None" else float(timeout)
        argv = tuple(words.split("\0"))
        numbers = (float(started), timeout_s, int(output_max))
        flags, *kept = flags.split(" ")
        window = Window(int(kept[0]), TerminalSize(int(kept[1]), int(kept[2]))) if kept else None
        streams = (flags[0] == "1", flags[1] == "1")
        return cls(session_id, process_id, check_id("call", call_id), argv, *numbers, *streams, window)


def _no_limit(exit_code: int) -> LimitHit | None:
    del exit_code
    return None


class LiveCall:
    """A ProcessSink. Its readers come and go; it ends when its result is recorded."""

    def __init__(
        self,
        ticket: Ticket,
        path: Callable[[int], Path],
        record_start: Callable[[Ticket], None],
        record: Callable[["LiveCall", CallResult, bytes | None, Callable[[], None]], None],
        wedged: Callable[[str], None],
        log: Log | None = None,
    ) -> None:
        self.ticket = ticket
        where = partial(path, ticket.process_id)
        self.log: Log = log or (WindowLog(where, ticket.window) if ticket.window else OutputLog(where))
        self.pid: int | None = None
        self.result: CallResult | None = None
        self.lost: str | None = None
        self.refused: InvalidArgument | None = None
        self.is_attended = False  # someone waits for it
        self.is_limited = False  # it has limits of its own
        self.limit_met: Callable[[int], LimitHit | None] = _no_limit  # by its exit code
        self.is_left = False  # the engine has gone; the command has not
        self.is_record_awaited = False  # someone is told of it only when that is recorded
        self._is_recorded = False
        self._record_start = record_start
        self._record = record
        self._wedged = wedged
        self._process: GuestProcess | None = None
        self._loop = asyncio.get_running_loop()
        self._listeners: list[asyncio.Future[None]] = []
        self._timer = CallTimer(self._loop)
        self.paused_s = 0.0
        self._held_at = 0.0
        self._spill: asyncio.Task[None] | None = None
        self._due = 0.0  # before that nothing more is written of one that may print without end
        self._ended: CallResult | None = None
        self._began = time.perf_counter()
        self._timed_out = False
        self._discarding = False
        self._stdin_sent = 0
        self._stdin_taken = 0
        self._stdin_closed = not (ticket.stdin or ticket.terminal)
        self._is_parted = False
        self._when_back: list[Callable[[], None]] = []

    def begin(self, process: GuestProcess) -> None:
        self._process = process
        # Most calls end before this: one timer for all that is only needed of those that live longer.
        self._timer.set(min(NOTE_AFTER_S, self.ticket.timeout_s or NOTE_AFTER_S), self._note)

    @property
    def is_held(self) -> bool:
        return self._timer.is_held

    def hold(self) -> None:
        """Its session stands still, and so does its time."""
        if self._timer.waits_for(self._note):
            self._note()  # an engine that comes later must know of it, and cannot ask the guest
        if not self._timer.is_held:
            self._held_at = time.perf_counter()
        self._timer.hold()

    def release_hold(self, paused_s: float) -> None:
        if self._timer.is_held:
            self.paused_s += paused_s
            self._timer.release()

    def _note(self) -> None:
        self._timer.cancel()
        self._record_start(self.ticket)
        if self.ticket.timeout_s is not None:
            left = self.ticket.started + self.ticket.timeout_s + self.paused_s - time.time()
            self._timer.set(max(0.0, left), self._time_out)

    def resume(self, process: GuestProcess, stdin_taken: int) -> None:
        """After a restart of the engine: go on where the log ends."""
        self.log.restore()
        self._began -= max(0.0, time.time() - self.ticket.started)  # with an earlier engine
        self._stdin_sent = self._stdin_taken = stdin_taken
        self.begin(process)
        for stream, offset in self.log.written.items():
            process.acknowledge(stream, offset)

    def part(self) -> None:
        """Its guest is about to go. What it is told from now on waits until another one knows of the call."""
        self._is_parted = True

    def rejoin(self, process: GuestProcess) -> None:
        """A guest that goes on where the one before stopped."""
        self._process, self._is_parted = process, False
        for stream, offset in self.log.written.items():
            process.acknowledge(stream, offset)
        if self._discarding:
            self._discard()
        when_back, self._when_back = self._when_back, []
        for then in when_back:
            then()
        self.wake()

    # ---- what the guest says -----------------------------------------------------------------------------------

    def on_started(self, pid: int) -> None:
        self.pid = pid
        self.wake()

    def on_output(self, stream: Stream, offset: int, data: bytes) -> None:
        known = self.log.totals[stream]
        if self._ended is not None:
            return  # no guest of ours speaks of a process after its end
        if self._discarding or offset + len(data) <= known:
            return  # over the limit, or heard before the engine was restarted
        if offset > known:
            self._wedged(f"output of call {self.ticket.call_id} has a hole at byte {known}")
            return
        data = data[known - offset :]
        is_endless = self.ticket.window is not None
        room = len(data) + 1 if is_endless else self.ticket.output_bytes_max - self.log.size_bytes
        if room > 0:
            self.log.append(stream, data[:room])
        if len(data) >= room:
            self._discard()
        if self.log.unwritten_bytes >= self.log.spill_bytes and self._spill is None:
            self._spill = self._loop.create_task(self._write_out(), name=f"spill {self.ticket.call_id}")
        self.wake()

    def on_stdin_taken(self, offset: int, closed: bool) -> None:
        # Never more than was sent: a guest that says so would get credit without end.
        self._stdin_taken = max(self._stdin_taken, min(offset, self._stdin_sent))
        self._stdin_closed = self._stdin_closed or closed
        self.wake()

    def on_failed(self, error: int, stage: str) -> None:
        words = error_words(error)
        if stage == "user":
            self.refused = InvalidArgument(f"the session has no such user: {words}", stage=stage)
        elif stage == "cwd":
            self.refused = InvalidArgument(f"the working directory of the call cannot be used: {words}", stage=stage)
        code = _EXIT_NOT_FOUND if stage == "exec" and error == errno.ENOENT else _EXIT_NOT_RUN
        self._end(ProcessEnd(code, 0, 0, 0, 0, 0, 0), f"{stage}: {self.ticket.argv[0]}: {words}")

    def on_exit(self, ended: ProcessEnd) -> None:
        self._end(ended)

    def _end(self, ended: ProcessEnd, reason: str = "") -> None:
        if self._ended is not None:
            return
        self._timer.cancel()
        code = 128 + ended.signal if ended.signal else ended.code
        truncated = ended.stdout_bytes + ended.stderr_bytes > self.log.size_bytes
        self._ended = CallResult(
            call_id=self.ticket.call_id,
            exit_code=_EXIT_TIMEOUT if self._timed_out else code,
            signal=ended.signal or None,
            limit=self._limit(code, truncated=truncated),
            reason=reason,
            duration_s=self._lived_s(),
            user_s=ended.user_us / 1e6,
            system_s=ended.system_us / 1e6,
            rss_bytes_max=ended.rss_kib_max * 1024,
            stdout_bytes=ended.stdout_bytes,
            stderr_bytes=ended.stderr_bytes,
            truncated=truncated,
        )
        self._stdin_closed = True
        if self._spill is None:
            self._finish()

    def _lived_s(self) -> float:
        """Without the time that its session was paused; what thaws may end before its pause is recorded as over."""
        now = time.perf_counter()
        held_s = now - self._held_at if self._timer.is_held else 0.0
        return max(0.0, now - self._began - self.paused_s - held_s)

    def _limit(self, code: int, *, truncated: bool) -> LimitHit | None:
        # Counters of the kernel are not worth a look after a short success, which is what most calls are.
        is_short = time.perf_counter() - self._began < NOTE_AFTER_S
        met = None if is_short and code == 0 and not self.is_limited else self.limit_met(code)
        if self._timed_out:
            return LimitHit.TIMEOUT
        return met or (LimitHit.OUTPUT if truncated else None)

    def on_lost(self, reason: str) -> None:
        self._timer.cancel()
        self.lost = reason
        if self._spill is None:  # else the file is being written, and its number must not become another's
            self.log.close()
        self.wake()

    def leave(self) -> None:
        """The engine goes, and the guest remembers the call for the next one. Whoever waits is told so."""
        self._timer.cancel()
        self.is_left = True
        self.wake()

    # ---- output ------------------------------------------------------------------------------------------------

    def _discard(self) -> None:
        self._discarding = True
        if self._process:
            for stream in Stream:
                self._process.discard(stream)

    def write_soon(self) -> None:
        """However little there is."""
        if self.log.unwritten_bytes and self._spill is None and self._ended is None:
            self._spill = self._loop.create_task(self._write_out(), name=f"write {self.ticket.call_id}")

    async def _write_out(self) -> None:
        try:
            again = True  # even when it is little
            while again:
                if self.ticket.window:  # it may print without end; the program waits until it is acknowledged
                    await asyncio.sleep(max(self._due - self._loop.time(), 0))
                    self._due = self._loop.time() + self.log.unwritten_bytes / limits.TERMINAL_BYTES_PER_S
                await self._write_batch()
                again = self.log.unwritten_bytes >= self.log.spill_bytes
        except OSError as error:
            self._wedged(f"output of call {self.ticket.call_id} cannot be kept: {error.strerror}")
        finally:
            self._spill = None
            if self.lost is not None:
                self.log.close()
            elif self._ended:
                self._finish()

    async def _write_batch(self) -> None:
        batch = self.log.take_unwritten()
        await asyncio.to_thread(self.log.write, batch)
        self.log.wrote(batch)
        if self._process and self._ended is None:
            for stream, offset in self.log.written.items():
                self._process.acknowledge(stream, offset)

    def _finish(self) -> None:
        """Publish the result at once; the guest forgets the call when the record is safe."""
        result = self._ended
        assert result is not None
        self.result = result
        self.wake()
        short = self.log.short(INLINE_BYTES)
        if short is None:
            self._spill = self._loop.create_task(self._finish_file(result), name=f"finish {self.ticket.call_id}")
        else:
            # Behind whoever waits for the result.
            self._loop.call_soon(self._record, self, result, short, self._release)

    async def _finish_file(self, result: CallResult) -> None:
        try:
            await self._write_batch()
        except OSError as error:
            self._wedged(f"output of call {self.ticket.call_id} cannot be kept: {error.strerror}")
            return
        self._record(self, result, None, self._release)

    async def settle(self) -> None:
        """Wait until nothing is being written."""
        if self._spill:
            await asyncio.wait([self._spill], timeout=limits.KILL_DEADLINE_S)

    def _release(self) -> None:
        self._is_recorded = True
        self.wake()
        self.log.close()
        if self._process:
            self._process.release()

    # ---- time --------------------------------------------------------------------------------------------------

    def _time_out(self) -> None:
        self._timed_out = True
        self.terminate()

    def terminate(self) -> None:
        """TERM, then KILL, to all that the command started; a guest that cannot do that is at fault itself."""
        if self._is_parted:
            self._when_back.append(self.terminate)
        elif self._process and self._ended is None and self.lost is None:
            self._process.signal(signal.SIGTERM, end=True)
            self._timer.set(limits.TERMINATE_GRACE_S, self.kill)

    def kill(self) -> None:
        if self._is_parted:
            self._when_back.append(self.kill)
        elif self._process and self._ended is None and self.lost is None:
            self._process.signal(signal.SIGKILL, end=True)
            self._timer.set(limits.KILL_DEADLINE_S, self._unkillable)

    def _unkillable(self) -> None:
        self._wedged(f"call {self.ticket.call_id} could not be killed")

    # ---- listeners ---------------------------------------------------------------------------------------------

    def wake(self) -> None:
        """Whoever waits for news looks again."""
        listeners, self._listeners = self._listeners, []
        for listener in listeners:
            if not listener.done():
                listener.set_result(None)

    async def changed(self) -> None:
        listener: asyncio.Future[None] = self._loop.create_future()
        self._listeners.append(listener)
        await listener

    def check(self) -> None:
        if self.lost is not None:
            raise Unavailable(f"call {self.ticket.call_id} was lost: {self.lost}", call_id=self.ticket.call_id)
        if self.refused is not None:
            raise self.refused
        if self.is_left and self.result is None:
            raise Unavailable(
                f"the engine is closing; call {self.ticket.call_id} runs on",
                next_step="attach to it when an engine is there again",
                call_id=self.ticket.call_id,
            )

    async def wait(self) -> CallResult:
        while self.result is None:
            self.check()
            await self.changed()
        self.check()
        return self.result

    async def recorded(self) -> None:
        """Wait until an engine that comes later would tell the same, or nobody can."""
        while not (self._is_recorded or self.is_left or self.lost is not None):
            await self.changed()

    async def write_stdin(self, data: bytes) -> None:
        if not (self.ticket.stdin or self.ticket.terminal):
            raise InvalidState("the call has no standard input", next_step="start it with stdin=True")
        view = memoryview(data)
        while view and not self._stdin_closed:
            self.check()
            room = min(self._stdin_taken + STDIN_CREDIT - self._stdin_sent, _STDIN_PIECE, len(view))
            if room <= 0 or self._is_parted:
                await self.changed()
                continue
            assert self._process is not None
            self._process.write_stdin(self._stdin_sent, bytes(view[:room]))
            self._stdin_sent += room
            view = view[room:]

    def close_stdin(self) -> None:
        if self._is_parted:
            self._when_back.append(self.close_stdin)
        elif self._process and not self._stdin_closed:
            self._process.close_stdin()

    def signal(self, number: int, *, tree: bool = False) -> None:
        """To its group, or to all that descends from it."""
        if number not in signal.valid_signals():
            raise InvalidArgument(f"{number} is not a signal")
        if self._is_parted:
            self._when_back.append(lambda: self.signal(number, tree=tree))
        elif self._process and self._ended is None:
            self._process.signal(number, tree=tree)

    def resize(self, rows: int, columns: int) -> None:
        size = TerminalSize(rows, columns)
        if not self.ticket.terminal:
            raise InvalidState("the call has no terminal", next_step="start it with a terminal size")
        if self._is_parted:
            self._when_back.append(lambda: self.resize(rows, columns))
        elif self._process and self._ended is None:
            self._process.resize(size)
            if isinstance(self.log, WindowLog):
                self.log.resize(size)

    def told(self) -> CallRecord:
        ticket = self.ticket
        return CallRecord(ticket.session_id, ticket.call_id, ticket.argv, self.state, ticket.started, self.result)

    @property
    def state(self) -> CallState:
        if self.lost is not None:
            return CallState.LOST
        return CallState.ENDED if self.result else CallState.RUNNING
