"""Calls in memory: a program is a coroutine, its output a list, its input a buffer."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field

from sandlot.fakes.tree import Tree
from sandlot.model import (
    CallEvent,
    CallOutput,
    CallRecord,
    CallRequest,
    CallResult,
    CallStarted,
    CallState,
    CapabilityNotSupported,
    InvalidArgument,
    InvalidState,
    LimitHit,
    SandlotError,
    Stream,
    TerminalSize,
)

_SIGNALS = 64
_INPUT_BYTES = 64 * 1024  # that wait for a program, of a terminal
_TIMEOUT_CODE, _MISSING_CODE, _SIGNAL_CODE = 124, 127, 128


class Exits(Exception):
    """Raised by a program to end with a code."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


@dataclass(slots=True)
class Running:
    """What a program is given: its words, its world, and its three streams."""

    argv: tuple[str, ...]
    tree: Tree
    cwd: str
    envs: dict[str, str]
    read: Callable[[], Awaitable[bytes]]  # b"" at the end
    write: Callable[[Stream, bytes], Awaitable[None]]
    size: Callable[[], TerminalSize] | None = None  # of its terminal, if it has one

    async def out(self, text: str) -> None:
        await self.write(Stream.STDOUT, text.encode(errors="surrogateescape"))

    async def err(self, text: str) -> None:
        await self.write(Stream.STDERR, text.encode(errors="surrogateescape"))

    async def read_all(self) -> bytes:
        got = bytearray()
        while piece := await self.read():
            got += piece
        return bytes(got)


Program = Callable[[Running], Awaitable[int]]
"""Ends with its exit code."""


@dataclass(slots=True)
class FakeCall:
    """One call, live or finished. Everything that waits for it waits for `changed`."""

    session_id: str
    call_id: str
    request: CallRequest
    pid: int
    gate: asyncio.Event  # open while the session is not paused
    started: float = field(default_factory=time.time)
    events: list[CallEvent] = field(default_factory=list[CallEvent])
    result: CallResult | None = None
    lost: SandlotError | None = None
    task: "asyncio.Task[tuple[int, str]] | None" = None
    _input: bytearray = field(default_factory=bytearray)
    _input_ended: bool = False
    _changed: asyncio.Event = field(default_factory=asyncio.Event)
    _seen: dict[Stream, int] = field(default_factory=lambda: dict.fromkeys(Stream, 0))
    _kept: int = 0
    _ended_by: tuple[int, int | None, LimitHit | None] | None = None

    @property
    def is_over(self) -> bool:
        return self.result is not None or self.lost is not None

    @property
    def record(self) -> CallRecord:
        state = CallState.ENDED if self.result else CallState.LOST if self.lost else CallState.RUNNING
        return CallRecord(self.session_id, self.call_id, self.request.argv, state, self.started, self.result)

    def begin(self, work: Callable[["FakeCall"], Awaitable[int]]) -> None:
        self.events.append(CallStarted(self.call_id, self.pid))
        self._input_ended = not self.request.stdin
        self.task = asyncio.create_task(self._run(work), name=f"fake call {self.call_id}")
        self.task.add_done_callback(self._end)

    async def _run(self, work: Callable[["FakeCall"], Awaitable[int]]) -> tuple[int, str]:
        """Its exit code, and why it could not be run."""
        deadline = asyncio.timeout(self.request.timeout_s)
        try:
            async with deadline:
                return await work(self), ""
        except TimeoutError:
            if not deadline.expired():
                raise
            self._ended_by = (_TIMEOUT_CODE, None, LimitHit.TIMEOUT)
            return _TIMEOUT_CODE, ""
        except Exits as ended:
            return ended.code, ""
        except FileNotFoundError as error:
            return _MISSING_CODE, str(error)

    def _end(self, task: "asyncio.Task[tuple[int, str]]") -> None:
        """However it ended: one that was killed may never have begun."""
        if self.lost is not None or (task.cancelled() and self._ended_by is None):
            return  # the session has gone; whoever did that tells
        if task.cancelled():
            code, reason = 0, ""
        elif error := task.exception():
            code, reason = 1, f"the program of the fake raised {type(error).__name__}: {error}"
        else:
            code, reason = task.result()
        code, signal, limit = self._ended_by or (code, None, None)
        sizes = (self._seen[Stream.STDOUT], self._seen[Stream.STDERR])
        cut = sum(sizes) > self._kept
        took = time.time() - self.started
        self.result = CallResult(self.call_id, code, signal, limit, reason, took, 0.0, 0.0, 0, *sizes, truncated=cut)
        self.events.append(self.result)
        self.tell()

    def lose(self, why: SandlotError) -> None:
        if not self.is_over:
            self.lost = why
            if self.task is not None:
                self.task.cancel()
            self.tell()

    def kill(self, number: int) -> None:
        if not self.is_over and self.task is not None:
            self._ended_by = (_SIGNAL_CODE + number, number, None)
            self.task.cancel()

    async def ended(self) -> None:
        while not self.is_over:
            await self.changed()

    # ---- for the program ---------------------------------------------------------------------------------------

    async def write(self, stream: Stream, data: bytes) -> None:
        await self.gate.wait()
        offset = self._seen[stream]
        self._seen[stream] += len(data)
        kept = data[: max(0, self.request.output_bytes_max - self._kept)]
        if kept:
            self._kept += len(kept)
            self.events.append(CallOutput(stream, offset, kept))
            self.tell()
        await asyncio.sleep(0)  # a program that only prints lets others go on

    async def read(self) -> bytes:
        while not self._input and not self._input_ended:
            await self.changed()
        await self.gate.wait()
        got = bytes(self._input)
        self._input.clear()
        self.tell()
        return got

    # ---- for readers -------------------------------------------------------------------------------------------

    async def follow(self) -> AsyncIterator[CallEvent]:
        at = 0
        while True:
            while at < len(self.events):
                at += 1
                yield self.events[at - 1]
            if self.lost is not None:
                raise self.lost
            if self.result is not None:
                return
            await self.changed()

    def give(self, data: bytes) -> None:
        if not self.request.stdin:
            raise InvalidState(f"call {self.call_id} has no standard input", next_step="start it with stdin=True")
        if not self.is_over:
            self._input += data
            self.tell()

    async def room(self) -> None:
        """Until the program has taken of its input, or has ended."""
        while len(self._input) >= _INPUT_BYTES and not self.is_over:
            await self.changed()

    def end_input(self) -> None:
        self._input_ended = True
        self.tell()

    async def changed(self) -> None:
        await self._changed.wait()

    def tell(self) -> None:
        """Everyone who waits now; who comes later waits for the next change."""
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()


class FakeStream:
    def __init__(self, call: FakeCall) -> None:
        self._call = call

    @property
    def call_id(self) -> str:
        return self._call.call_id

    def __aiter__(self) -> AsyncIterator[CallEvent]:
        return self._call.follow()

    async def result(self) -> CallResult:
        await self._call.ended()
        if self._call.result is None:
            raise self._call.lost or InvalidState("the call has no result")
        return self._call.result

    async def write_stdin(self, data: bytes) -> None:
        self._call.give(data)

    async def close_stdin(self) -> None:
        self._call.end_input()

    async def signal(self, number: int) -> None:
        check_signal(number)
        self._call.kill(number)
        with suppress(TimeoutError):
            async with asyncio.timeout(1):
                await self._call.ended()

    async def resize(self, rows: int, columns: int) -> None:
        raise InvalidState(f"call {self._call.call_id} has no terminal of {rows} x {columns}")


def check_call(request: CallRequest) -> None:
    """Refuse what the fake does not have. Raises CapabilityNotSupported."""
    if request.resources.asked():
        raise CapabilityNotSupported("the fake has no limits of calls", next_step="use a real host")


def check_signal(number: int) -> None:
    if not 1 <= number <= _SIGNALS:
        raise InvalidArgument(f"{number} is no signal", next_step="give one from 1 to 64")
