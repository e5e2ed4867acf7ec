"""The runs of one context: those that wait, the one that runs, and those that are kept.

What is asked stands in a file before the program hears it, with where in its input: so an engine that comes later knows
what runs, what waits, and in the middle of which word the one before stopped.
"""

import asyncio
import time
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from sandlot.host.background import Background
from sandlot.host.code_frames import TEXT, Piece, fields_of
from sandlot.host.code_languages import asking
from sandlot.host.code_log import ContextLog
from sandlot.host.code_rows import ContextRow
from sandlot.host.code_runs import UNHEARD, Execution, Heard
from sandlot.host.session import Session
from sandlot.model import (
    CodeRequest,
    CodeStatus,
    InvalidState,
    LimitReached,
    SandlotError,
    SessionState,
    Stream,
    Unavailable,
    limits,
)

_END_PATIENCE_S = 2.0  # for the second stream to end, where the first one has
_LOOK_AGAIN_S = 1.0
_STOP_AGAIN_S = 1.0


class Program(Protocol):
    """What runs them."""

    row: ContextRow
    log: ContextLog
    reason: str | None
    stdin_sent: int
    stdin_base: int

    @property
    def is_up(self) -> bool:
        """It listens."""
        ...

    @property
    def is_held(self) -> bool: ...

    @property
    def paused_s(self) -> float: ...

    async def write(self, data: bytes) -> None: ...

    def signal(self) -> None: ...

    def end(self, why: str) -> None: ...

    def write_soon(self) -> None: ...

    def wake(self) -> None: ...

    async def changed(self) -> None: ...


class CodeQueue:
    def __init__(self, program: Program, session: Session, background: Background) -> None:
        self.runs: dict[str, Execution] = {}  # oldest first, by id
        self.count = 0  # of those that its program was asked for
        self._program = program
        self._session = session
        self._background = background
        self._loop = asyncio.get_running_loop()
        self._waiting: list[Execution] = []
        self.current: Execution | None = None
        self._is_pumping = False
        self._last_number = 0

    @property
    def is_busy(self) -> bool:
        return bool(self.current or self._waiting)

    async def ask(self, request: CodeRequest, execution_id: str) -> Execution:
        """It waits for its turn. Raises InvalidState, LimitReached, Unavailable."""
        row, reason = self._program.row, self._program.reason
        if reason is not None:
            raise InvalidState(
                f"context {row.context_id} is lost: {reason}",
                next_step="restart it, or make another one",
                context_id=row.context_id,
            )
        if len(self._waiting) >= limits.CODE_WAITING_MAX:
            raise LimitReached(
                f"{limits.CODE_WAITING_MAX} runs wait for context {row.context_id} already", limit="code_waiting"
            )
        self._last_number += 1
        path = row.story_path(self._session.output_folder(), self._last_number)
        execution = Execution(self._last_number, execution_id, request, path)
        execution.keep_request()
        self.runs[execution_id] = execution
        self._waiting.append(execution)
        self.pump()
        while self._is_pumping and not execution.is_kept:
            await self._program.changed()  # it may be kept with its beginning, in one go
        if not execution.is_kept:
            await execution.keep()
        return execution

    # ---- begun -----------------------------------------------------------------------------------------------------

    def pump(self) -> None:
        """Begin the next run, where that can be."""
        is_free = not self._is_pumping and self.current is None and self._program.is_up
        if self._waiting and is_free and self._session.row.state is SessionState.ACTIVE:
            self._is_pumping = True
            self._background.spawn("run code", self._send_next())

    async def _send_next(self) -> None:
        try:
            await self._session.gate.wait()
            if not self._waiting or not self._program.is_up or self._session.row.state is not SessionState.ACTIVE:
                return  # whoever makes it possible asks again
            execution = self._waiting[0]
            if not execution.is_sent:
                self.count += 1
                execution.send(self.count, self._program.stdin_sent)
            if not await self._is_kept(execution):
                return
            self._waiting.remove(execution)
            self._now_runs(execution)
            self._program.wake()
            await self._program.write(self._words(execution))
        except SandlotError:
            self._loop.call_later(_LOOK_AGAIN_S, self.pump)
        finally:
            self._is_pumping = False
            self._program.wake()

    async def _is_kept(self, execution: Execution) -> bool:
        """What is not kept does not run."""
        try:
            await execution.keep()
        except Unavailable as error:
            if execution in self._waiting:
                self._waiting.remove(execution)
                execution.finish(CodeStatus.LOST, UNHEARD, 0.0, error.message)
        if execution.is_over:  # or whoever asked for it left
            await keep_quietly(execution)
            self._loop.call_soon(self.pump)
        return not execution.is_over and self._program.reason is None

    def _words(self, execution: Execution) -> bytes:
        """What its program has not heard of it."""
        request, base = execution.request, self._program.stdin_base
        words = asking(self._program.row.language, execution.number, request.code, request.envs)
        return words[max(0, base - execution.sent_from) :]

    def _now_runs(self, execution: Execution) -> None:
        self.current = execution
        execution.busy.enter_context(self._session.in_use())
        execution.paused_s_before = self._program.paused_s
        if execution.request.timeout_s is not None:
            execution.later(execution.began + execution.request.timeout_s - time.time(), self._time_out)

    # ---- what its program tells ------------------------------------------------------------------------------------

    def hear(self, stream: Stream, piece: Piece) -> None:
        current, heard = self.current, self._program.log.places
        if current is None:
            return  # nobody asked: what goes on behind a run is not told
        if piece.kind == TEXT:
            current.printed(stream, piece.data, heard)
        elif piece.kind in ("V", "E") and stream is Stream.STDOUT:
            current.showed(piece, heard)
        elif piece.kind == "B" and fields_of(piece.data).get("n") == current.number and not current.is_begun:
            current.begin(heard)
            if current.wants_stop:
                self._program.signal()
        elif piece.kind == ("X" if stream is Stream.STDOUT else "Z"):
            current.ended(piece, heard)
            if current.has_ended:
                self._over_with(current)
            elif current.has_told:
                current.later(_END_PATIENCE_S, self._over_with)
        self._program.log.keeps(current.story)

    def _over_with(self, execution: Execution) -> None:
        if execution is not self.current:
            return
        execution.finish(execution.status, self._program.log.places, self._program.paused_s)
        self.current = None
        self._program.log.keeps(execution.story)
        self._loop.call_soon(self._program.write_soon)
        self._loop.call_soon(self.pump)
        self._prune()
        self._program.wake()

    def _prune(self) -> None:
        over = [each for each in self.runs.values() if each.is_over]
        size = sum(each.story.end for each in self.runs.values())
        while len(over) > 1 and (len(over) > limits.CODE_KEPT or size > limits.CODE_WINDOW_BYTES):
            gone = over.pop(0)
            size -= gone.story.end
            del self.runs[gone.execution_id]
            self._background.spawn("forget a run of code", asyncio.to_thread(gone.story.remove))

    # ---- stopped ---------------------------------------------------------------------------------------------------

    def interrupt(self) -> bool:
        if self.current is None:
            return False
        self._stop(self.current)
        return True

    def leave(self, execution: Execution) -> None:
        """Nobody wants it any more."""
        if execution.is_over:
            return
        if execution in self._waiting:
            self._waiting.remove(execution)
            execution.finish(CodeStatus.INTERRUPTED, UNHEARD, 0.0)
            self._background.spawn("keep a run of code", keep_quietly(execution))
            self._program.wake()
        else:
            self._stop(execution)

    def _time_out(self, execution: Execution) -> None:
        if execution is not self.current or execution.request.timeout_s is None:
            return
        paused_s = self._program.paused_s - execution.paused_s_before
        left_s = execution.began + execution.request.timeout_s + paused_s - time.time()
        if self._program.is_held:
            execution.later(_LOOK_AGAIN_S, self._time_out)
        elif left_s > 0:
            execution.later(left_s, self._time_out)
        else:
            execution.timed_out = True
            self._stop(execution)

    def _stop(self, execution: Execution) -> None:
        """An interrupt is heard by what has begun; what has not yet, hears it then."""
        if execution.is_begun and not execution.has_told:
            self._program.signal()
        if not execution.wants_stop:
            execution.wants_stop = True
            execution.later(_STOP_AGAIN_S, self._stop_again)

    def _stop_again(self, execution: Execution) -> None:
        """A signal that comes just before a program begins to wait does not wake it."""
        if execution is self.current and execution.is_begun and not execution.has_told:
            self._program.signal()
        execution.later(limits.CODE_INTERRUPT_S - _STOP_AGAIN_S, self._give_up)

    def _give_up(self, execution: Execution) -> None:
        if execution is not self.current:
            return
        if self._program.is_held:
            execution.later(_LOOK_AGAIN_S, self._give_up)
            return
        self._program.end(f"a run did not end in {limits.CODE_INTERRUPT_S:g} s when it was interrupted")

    def lose(self, reason: str, paused_s: float) -> list[Execution]:
        """Its program has ended. Those that it took with it, to be kept."""
        lost = [*filter(None, [self.current]), *self._waiting]
        current, self.current, self._waiting = self.current, None, []
        for execution in lost:
            if execution is current and execution.has_told:
                execution.finish(execution.status, UNHEARD, paused_s)
            else:
                status = CodeStatus.TIMEOUT if execution.timed_out else CodeStatus.LOST
                execution.finish(status, UNHEARD, paused_s, reason)
        return lost

    def give_up(self) -> None:
        """The engine goes."""
        if self.current is not None:
            self.current.stop_timer()

    # ---- found again -----------------------------------------------------------------------------------------------

    def take_back(self, other: "CodeQueue") -> int:
        """The runs of a program that has ended, and that is back as it was before. The number of the last one."""
        self.runs, self.count, self._last_number = other.runs, other.count, other._last_number
        return self._last_number

    def take_up(self, paths: list[Path], past: int) -> Heard:
        """Blocking: what an earlier engine kept, and how much of what was told by runs since `past` it had heard."""
        found: list[Execution] = []
        out = err = 0
        for path in paths:
            try:
                execution, heard = Execution.found(path)
            except (OSError, ValueError, KeyError, TypeError):
                path.unlink(missing_ok=True)  # it was never acknowledged
                continue
            found.append(execution)
            if execution.number > past:
                out, err = max(out, heard[0]), max(err, heard[1])
        for execution in sorted(found, key=lambda each: each.number):
            self.runs[execution.execution_id] = execution
            self.count = max(self.count, execution.count)
            self._last_number = execution.number
            if execution.is_over:
                continue
            if execution.is_sent and self.current is None:
                self.current = execution
            else:
                self._waiting.append(execution)
        return out, err

    def go_on(self) -> None:
        """Its program lives, and is heard again."""
        if self.current is None:
            self._loop.call_soon(self.pump)
            return
        self._now_runs(self.current)
        self._background.spawn("go on with a run of code", self._go_on(self.current))

    async def _go_on(self, execution: Execution) -> None:
        with suppress(SandlotError):
            await self._program.write(self._words(execution))
        if execution.has_ended:
            self._over_with(execution)


async def keep_quietly(execution: Execution) -> None:
    with suppress(Unavailable):
        await execution.keep()
