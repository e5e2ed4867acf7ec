"""One context: a program of a session that runs code, one run after the other.

Its program is a process of the session like any other; what it tells is split into stories (`code_log`), one for each
run, and the runs themselves are in `code_queue`.
"""

import asyncio
import signal as signals
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

from sandlot.contracts.runtime import Guest, KnownProcess
from sandlot.host.background import Background
from sandlot.host.code_frames import Piece
from sandlot.host.code_languages import LANGUAGES, greeting
from sandlot.host.code_log import ContextLog
from sandlot.host.code_queue import CodeQueue, keep_quietly
from sandlot.host.code_rows import ContextRow, end_reason, start_failure
from sandlot.host.code_runs import Execution
from sandlot.host.process_run import Run, RunPlan
from sandlot.host.session import Session
from sandlot.model import (
    CallRequest,
    CallResult,
    CodeContext,
    ContextState,
    DeadlineExceeded,
    SandlotError,
    SessionState,
    Stream,
    Unavailable,
    limits,
)

_WRITE_AFTER_S = 0.5
_NOTHING_HEARD = dict.fromkeys(Stream, 0)


class Context:
    """Belongs to one session. Its readers come and go."""

    def __init__(
        self, row: ContextRow, session: Session, background: Background, on_lost: Callable[["Context"], None]
    ) -> None:
        self.row = row
        self.reason: str | None = None  # why it is lost
        self.was_ready = False
        self.restarting = asyncio.Lock()
        self.stdin_sent = 0
        self.stdin_base = 0  # what its program had heard of an earlier engine
        self.queue = CodeQueue(self, session, background)
        self.log = ContextLog(row.mark, self._hear, _NOTHING_HEARD)
        self._session = session
        self._background = background
        self._on_lost = on_lost
        self._loop = asyncio.get_running_loop()
        self._is_ready = False
        self._run: Run | None = None
        self._why = ""  # it is being ended
        self._failed: SandlotError | None = None  # why it could not begin
        self._listeners: list[asyncio.Future[None]] = []
        self._writing: asyncio.TimerHandle | None = None

    def told(self) -> CodeContext:
        row = self.row
        state = ContextState.BUSY if self.queue.is_busy else ContextState.IDLE
        return CodeContext(
            self._session.row.session_id,
            row.context_id,
            row.language,
            row.cwd,
            ContextState.LOST if self.reason is not None else state,
            row.started,
            self.queue.count,
            self.reason or "",
        )

    # ---- its program -----------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Raises as a call does."""
        session, row, language = self._session, self.row, LANGUAGES[self.row.language]
        guest = session.active_guest("it runs no code")
        self.log = ContextLog(row.mark, self._hear, _NOTHING_HEARD)
        self.reason, self._failed, self._why, self._is_ready = None, None, "", False
        self.stdin_sent = self.stdin_base = self.queue.count = 0
        run = self._new_run()
        request = CallRequest(
            session.row.session_id,
            language.argv,
            envs={**language.envs, **row.envs},
            cwd=row.asked_cwd,
            user=row.user,
            stdin=True,
            detach=True,
        )
        plan = replace(session.plan(request, run.live.ticket), tag=session.row.session_id.encode(), is_family=True)
        process = guest.spawn(row.number, plan, run)
        self._has(run)
        run.live.begin(process)
        self._background.spawn("greet a context", self._greet())

    def _new_run(self) -> Run:
        row, session = self.row, self._session
        program = (LANGUAGES[row.language].program,)
        plan = RunPlan(session.row.session_id, row.context_id, row.number, program, time.time(), True)
        return Run(plan, self.log, self, session.on_wedged)

    def _has(self, run: Run) -> None:
        self._run = run
        self._session.runs[run.number] = run
        self._session.watch_limits(run.live)

    async def _greet(self) -> None:
        with suppress(SandlotError):  # whoever waits for it hears of that
            await self.write(await asyncio.to_thread(greeting, self.row.language, self.row.mark))

    async def until_ready(self) -> None:
        """Raises what creating a context raises."""
        try:
            async with asyncio.timeout(limits.CONTEXT_START_S):
                while not self._is_ready:
                    if self._failed:
                        raise self._failed
                    self.check_left()
                    if self.reason is not None:
                        raise Unavailable(
                            f"context {self.row.context_id} has ended: {self.reason}", next_step="restart it"
                        )
                    await self.changed()
        except TimeoutError as late:
            if isinstance(late, SandlotError):
                raise
            self.end("it did not answer")
            raise DeadlineExceeded(
                f"the context did not answer in {limits.CONTEXT_START_S:g} s", next_step="try again"
            ) from None

    def check_left(self) -> None:
        """Raises Unavailable when the engine is closing."""
        if self._run is not None and self._run.live.is_left:
            raise Unavailable(
                "the engine is closing; the code runs on", next_step="read it again when an engine is there"
            )

    # What its queue needs of it.

    @property
    def is_up(self) -> bool:
        is_there = self._run is not None and not self._run.live.is_left
        return is_there and self._is_ready and self.reason is None

    @property
    def is_held(self) -> bool:
        """Its session stands still."""
        return self._run is not None and self._run.live.is_held

    @property
    def paused_s(self) -> float:
        return self._run.live.paused_s if self._run else 0.0

    async def write(self, data: bytes) -> None:
        """Raises Unavailable."""
        self.stdin_sent += len(data)
        if self._run is not None:
            await self._run.live.write_stdin(data)

    def signal(self) -> None:
        if self._run is not None:
            self._run.live.signal(signals.SIGINT)

    def write_soon(self) -> None:
        self._writing = None
        if self._run is not None:
            self._run.live.write_soon()

    def _hear(self, stream: Stream, piece: Piece) -> None:
        if piece.kind == "R":
            self._is_ready = self.was_ready = True
            self.queue.pump()
        else:
            self.queue.hear(stream, piece)

    # ---- ended -----------------------------------------------------------------------------------------------------

    def end(self, why: str) -> None:
        self._why = self._why or why
        if self._run is not None:
            self._run.live.kill()

    def expect_end(self, why: str) -> None:
        self._why = why

    async def until_ended(self) -> None:
        """Raises DeadlineExceeded."""
        try:
            async with asyncio.timeout(limits.KILL_DEADLINE_S):
                while self._run is not None and not self._run.live.is_left:
                    await self.changed()
        except TimeoutError:
            raise DeadlineExceeded(
                f"context {self.row.context_id} did not end", next_step="a session that is paused must be resumed first"
            ) from None

    # What a run tells its owner.

    def began(self, run: Run) -> None:
        del run
        self.wake()

    def printed(self, run: Run) -> None:
        del run
        if self._writing is None:
            self._writing = self._loop.call_later(_WRITE_AFTER_S, self.write_soon)
        self.wake()

    def woken(self, run: Run) -> None:
        del run
        self.wake()

    def over(self, run: Run, result: CallResult, release: Callable[[], None]) -> None:
        self._session.runs.pop(run.number, None)
        if run is not self._run:
            release()
            return
        if not self._is_ready and not self._why:
            self._failed = run.live.refused or start_failure(self.row.language, result)
        self._lose(run, self._why or end_reason(result), release)

    def lost(self, run: Run, reason: str) -> None:
        self._session.runs.pop(run.number, None)
        if run is self._run:
            self._lose(run, self._why or reason, _nothing)

    def _lose(self, run: Run, reason: str, release: Callable[[], None]) -> None:
        self.reason, self._run = reason, None
        lost = self.queue.lose(reason, run.live.paused_s)
        if self._session.row.state is SessionState.DESTROYING:
            release()
        else:
            self._background.spawn("keep what a context told", self._keep_all(run, lost, release))
        self._on_lost(self)
        self.wake()

    async def _keep_all(self, run: Run, lost: list[Execution], release: Callable[[], None]) -> None:
        log = self.log
        await run.live.settle()
        batch = log.take_unwritten()
        with suppress(OSError):
            await asyncio.to_thread(log.write, batch)
            log.wrote(batch)
        for execution in lost:
            await keep_quietly(execution)
        release()

    # ---- an engine that comes later --------------------------------------------------------------------------------

    def again(self) -> None:
        self.row = self.row.again(time.time())

    def write_row(self) -> None:
        """Blocking. Raises OSError."""
        self.row.write(self._session.output_folder())

    def remove_files(self) -> None:
        """Blocking."""
        self.row.remove(self._session.output_folder())
        for execution in tuple(self.queue.runs.values()):
            execution.story.remove()

    def take_up(self, guest: Guest, known: KnownProcess) -> None:
        """Blocking: go on where an earlier engine stopped."""
        out, err = self.queue.take_up(self.row.story_paths(self._session.output_folder()), self.row.past)
        kept = known.kept_from
        heard = {
            Stream.STDOUT: max(out, kept.get(Stream.STDOUT, 0)),
            Stream.STDERR: max(err, kept.get(Stream.STDERR, 0)),
        }
        self._hear_again(guest, known, heard)

    def take_back(self, guest: Guest, known: KnownProcess, lost: "Context") -> None:
        """Blocking: an image brought its program back, as it was when that was made. It remembers none of the runs
        since then, and what it told them is not what it will tell."""
        self.row = replace(self.row, past=self.queue.take_back(lost.queue))
        with suppress(OSError):
            self.write_row()
        self._hear_again(guest, known, {stream: known.kept_from.get(stream, 0) for stream in Stream})

    def _hear_again(self, guest: Guest, known: KnownProcess, heard: dict[Stream, int]) -> None:
        self.log = ContextLog(self.row.mark, self._hear, heard)
        self._is_ready = self.was_ready = True  # nobody was told of it before
        self.stdin_sent = self.stdin_base = known.stdin_taken
        run = self._new_run()
        self._has(run)
        run.adopt(guest, known)
        self.queue.go_on()

    def give_up(self) -> None:
        """The engine goes."""
        if self._writing:
            self._writing.cancel()
        self.queue.give_up()
        self.wake()

    # ---- listeners -------------------------------------------------------------------------------------------------

    def wake(self) -> None:
        listeners, self._listeners = self._listeners, []
        for listener in listeners:
            if not listener.done():
                listener.set_result(None)

    async def changed(self) -> None:
        listener: asyncio.Future[None] = self._loop.create_future()
        self._listeners.append(listener)
        await listener


def _nothing() -> None:
    return
