"""One managed process over all of its runs: launched, watched, started again, ended.

What is recorded is what an engine that comes later goes by; its guest remembers the rest. A run has its number recorded
before its guest hears of it, and its end before the guest may forget it.
"""

import asyncio
import signal as signals
import time
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from dataclasses import dataclass, replace

from sandlot.contracts.runtime import Guest, KnownProcess
from sandlot.host.background import Background
from sandlot.host.process_log import ProcessLog, RunLog, merged
from sandlot.host.process_rows import ProcessRow, ProcessRows, Status
from sandlot.host.process_run import Run, RunPlan, run_number, serial_of
from sandlot.host.readiness import asks, start_failure, wait_ready
from sandlot.host.session import Session
from sandlot.model import (
    CallRequest,
    CallResult,
    Process,
    ProcessOutput,
    ProcessState,
    ReadyKind,
    Restart,
    SandlotError,
    SessionState,
    StartFailed,
    Stream,
    Unavailable,
    limits,
)

_RETRY_S = 2.0
_KILLED_CODE = 128 + signals.SIGKILL
_TAIL_BYTES = 1000
_WHO = "the process"


@dataclass(frozen=True, slots=True)
class Around:
    """What a process needs beside itself."""

    session: Session
    rows: ProcessRows
    background: Background
    on_printed: Callable[["ManagedProcess"], None]
    on_ended: Callable[["ManagedProcess"], None]


class ManagedProcess:
    """Belongs to one session. Its readers come and go."""

    def __init__(self, row: ProcessRow, around: Around) -> None:
        self.row = row
        self.spec = row.spec
        self.status = row.status
        self.run: Run | None = None
        self.address = ""
        self.gone = ""  # why nobody can be told any more how it ends
        self.was_begun = False  # it was launched by this engine, and its program has begun
        self._around = around
        self._session = around.session
        self._loop = asyncio.get_running_loop()
        self.log = ProcessLog(self._session.output_folder, f"p{row.serial}", row.spec.log_bytes_max)
        self.is_log_read = True
        self._listeners: list[asyncio.Future[None]] = []
        self._timer: asyncio.TimerHandle | None = None
        self._is_time = False  # what is due may be started
        self._watch: asyncio.Task[None] | None = None
        self._unready: StartFailed | None = None
        self._began = 0.0
        self._ends_for = ""

    @property
    def is_ended(self) -> bool:
        return self.status.state is ProcessState.EXITED

    @property
    def is_kept(self) -> bool:
        """It is started again when it fails."""
        return self.spec.restart is Restart.ON_FAILURE and not self.status.is_killed

    def told(self) -> Process:
        status, spec, run = self.status, self.spec, self.run
        reason = status.reason or (self._unready.message if self._unready else "")
        return Process(
            session_id=self.row.session_id,
            process_id=self.row.process_id,
            argv=spec.argv,
            state=status.state,
            exit_code=status.exit_code,
            address=self.address,
            name=spec.name or "",
            signal=status.signal,
            reason=reason,
            pid=run.live.pid if run else None,
            started=status.started,
            ended=status.ended,
            restarts=status.restarts,
            restart=spec.restart,
            port=spec.port,
            stdin=spec.stdin,
            stdout_bytes=self._totals()[0],
            stderr_bytes=self._totals()[1],
        )

    # ---- runs --------------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Raises as a call does."""
        session, number = self._session, run_number(self.row.serial, self.status.run)
        guest = session.active_guest("it starts no processes")
        spec = self.spec
        self._need_log()
        self.log.skip_to(self._base())
        run = self._new_run(number)
        request = CallRequest(
            self.row.session_id, spec.argv, envs=spec.envs, cwd=spec.cwd, user=spec.user, stdin=spec.stdin, detach=True
        )
        plan = replace(session.plan(request, run.live.ticket), tag=self.row.session_id.encode(), is_family=True)
        process = guest.spawn(number, plan, run)
        self._has(run)
        run.live.begin(process)

    def _new_run(self, number: int) -> Run:
        plan = RunPlan(
            self.row.session_id, self.row.process_id, number, self.spec.argv, self.status.started, self.spec.stdin
        )
        return Run(plan, RunLog(self.log, self._base()), self, self._session.on_wedged)

    def _has(self, run: Run) -> None:
        self.run = run
        self._session.runs[run.number] = run
        self._began = self._loop.time()

    def _need_log(self) -> None:
        """An earlier engine's, when its session is taken up."""
        if not self.is_log_read:
            self.is_log_read = True
            self.log.restore()

    def _base(self) -> dict[Stream, int]:
        return dict(zip((Stream.STDOUT, Stream.STDERR), self.status.base, strict=True))

    def _totals(self) -> tuple[int, int]:
        if not self.is_log_read:
            return self.status.base  # as it was at its end
        return self.log.totals[Stream.STDOUT], self.log.totals[Stream.STDERR]

    def adopt(self, guest: Guest, known: KnownProcess) -> bool:
        """A run that its guest remembers. What is alive there is what runs, also when an image brought it back."""
        if (run := self._session.runs.get(known.process_id)) is not None:
            run.rejoin(guest, known)
            return True
        number = serial_of(known.process_id)[1]
        is_next = number == self.status.run and not self.is_ended
        if known.is_over and not is_next:
            return False  # its end is recorded, and the guest has not heard that
        self._need_log()
        if not is_next:
            self._revive(known, number)
        run = self._new_run(known.process_id)
        self._has(run)
        run.adopt(guest, known)
        if self.status.is_due:
            self._say(replace(self.status, is_due=False, reason=""))
        self._look()
        return True

    def _revive(self, known: KnownProcess, number: int) -> None:
        self.log.skip_to(dict(known.kept_from))
        base = tuple(self.log.totals[s] - known.kept_from.get(s, 0) for s in (Stream.STDOUT, Stream.STDERR))
        again = replace(self.status, state=ProcessState.RUNNING, run=number, base=(base[0], base[1]), is_due=False)
        again = replace(again, last_run=max(self.status.last_run, self.status.run, number))
        self._say(replace(again, ended=None, exit_code=None, signal=None, reason=""))

    def began(self, run: Run) -> None:
        if run is self.run:
            self.was_begun = True
            self._look()

    def _look(self) -> None:
        """Whether it is ready, from now on."""
        self._wake()
        if self.status.state is not ProcessState.STARTING or self.run is None or self.run.live.pid is None:
            return
        if self.spec.ready.kind is ReadyKind.RUNNING:
            self._is_ready()
        elif self._watch is None:
            self._watch = self._loop.create_task(self._wait_ready(self.run), name=f"ready {self.row.process_id}")

    async def _wait_ready(self, run: Run) -> None:
        spec = self.spec
        try:
            await wait_ready(run.live, spec.ready, spec.ready_timeout_s, _WHO, asks(self._session))
        except StartFailed as failed:
            if run is self.run and run.live.result is None:
                self._unready = failed
        except SandlotError:
            return  # whoever waits hears of its end
        else:
            if run is self.run:
                self._is_ready()
        finally:
            self._watch = None
            self._wake()

    def _is_ready(self) -> None:
        self._say(replace(self.status, state=ProcessState.RUNNING, was_ready=True, reason=""))
        self._wake()

    def printed(self, run: Run) -> None:
        del run
        self._around.on_printed(self)
        self._wake()

    def woken(self, run: Run) -> None:
        del run
        self._wake()

    # ---- its end -----------------------------------------------------------------------------------------------

    def over(self, run: Run, result: CallResult, release: Callable[[], None]) -> None:
        self._session.runs.pop(run.number, None)
        if run is not self.run:
            release()
            return
        self._stop()
        status, ends_for = self.status, self._ends_for
        could_not = bool(result.reason)
        lived_long = self._loop.time() - self._began >= limits.BACKOFF_FORGIVEN_S
        restarts = 0 if lived_long else status.restarts
        never_began = could_not and status.run == 0 and not status.was_ready
        again = self.is_kept and result.exit_code != 0 and not never_began
        code = result.exit_code
        if again and (ends_for or restarts < self.spec.restarts_max):
            why = ends_for or f"it ended with {code}; it is started again"
            self._go_round(why, restarts + (0 if ends_for else 1), release)
            return
        reason = result.reason or ends_for or (f"it failed {restarts + 1} times" if again else "")
        ended = replace(status, state=ProcessState.EXITED, exit_code=code, signal=result.signal, reason=reason)
        self._end(replace(ended, restarts=restarts), release)

    def _go_round(self, why: str, restarts: int, release: Callable[[], None]) -> None:
        status = self.status
        last = max(status.last_run, status.run) + 1
        due = replace(status, state=ProcessState.STARTING, run=last, last_run=last, base=self._totals(), reason=why)
        self._is_time = False

        def recorded() -> None:
            release()
            if not self._ends_for and self._session.row.state is SessionState.ACTIVE:
                longest = max(limits.BACKOFF_S_LONGEST, self.spec.backoff_s)
                pause_s = min(self.spec.backoff_s * 2 ** min(max(0, restarts - 1), 30), longest)
                self._timer = self._loop.call_later(pause_s, self.begin_due)
            else:
                self._is_time = True  # whoever thaws or recovers the session

        self._say(replace(due, restarts=restarts, is_due=True), recorded)

    def _end(self, status: Status, release: Callable[[], None]) -> None:
        self._unready = None
        self._say(replace(status, base=self._totals(), ended=time.time(), is_due=False), release)
        self.log.close()
        self._around.on_ended(self)
        self._wake()

    def lost(self, run: Run, reason: str) -> None:
        self._session.runs.pop(run.number, None)
        if run is self.run:
            self._stop()
            self.lose(reason)

    def lose(self, reason: str) -> None:
        """What ran of it is gone, and nobody knows how it ended."""
        if self._session.row.state is SessionState.DESTROYING:
            self.give_up(f"session {self.row.session_id} is gone")
            self.log.close()
        elif self.run is None and not self.is_ended and not self.status.is_due:
            self._need_log()
            if self.log.unwritten_bytes:
                self._around.background.spawn("write what a process printed", self._write_rest())
            if self.is_kept:
                self._go_round(f"it ended with its session: {reason}", self.status.restarts, _nothing)
            else:
                ended = replace(self.status, state=ProcessState.EXITED, exit_code=_KILLED_CODE)
                self._end(replace(ended, signal=int(signals.SIGKILL), reason=reason), _nothing)

    async def _write_rest(self) -> None:
        batch = self.log.take_unwritten()
        await asyncio.to_thread(self.log.write, batch)
        self.log.wrote(batch)

    def _stop(self) -> None:
        self.run = None
        self._unready = None
        if self._watch:
            self._watch.cancel()
            self._watch = None

    def give_up(self, why: str) -> None:
        """Nobody hears of it from here on."""
        self.gone = self.gone or why
        if self._timer:
            self._timer.cancel()
        if self._watch:
            self._watch.cancel()
        self._wake()

    # ---- again -------------------------------------------------------------------------------------------------

    def expect_end(self, why: str) -> None:
        self._ends_for = why

    def again(self) -> None:
        """At once: it was ended from outside."""
        self._ends_for = ""
        if self.status.is_due and self._timer is None:
            self.begin_due()

    def begin_due(self) -> None:
        self._timer = None
        self._is_time = True
        self.go_on()

    def go_on(self) -> None:
        """Start what is due, as soon as it can be. Where it cannot, whoever makes it possible asks again."""
        session = self._session
        if not (self.status.is_due and self._is_time) or self.gone or session.row.state is not SessionState.ACTIVE:
            return
        if not session.gate.is_open:
            self._around.background.spawn("start a process again", self._when_open())
            return
        try:
            self.begin()
        except Unavailable:
            return  # its guest is gone, or busy: then it is lost, or asked again
        except SandlotError as error:
            ended = replace(self.status, state=ProcessState.EXITED, exit_code=126)
            self._end(replace(ended, reason=error.message), _nothing)
            return
        self._say(replace(self.status, is_due=False))

    async def _when_open(self) -> None:
        with suppress(SandlotError):
            await self._session.gate.wait()
            self.go_on()

    # ---- what is asked of it -----------------------------------------------------------------------------------

    def kill(self, number: int | None) -> None:
        """Raises as a call does."""
        for_good = number in (None, signals.SIGTERM, signals.SIGKILL)
        if for_good and not self.status.is_killed:
            self._say(replace(self.status, is_killed=True))
        if self.run is not None:
            if number is None:
                self.run.live.terminate()
            else:
                self.run.live.signal(number, tree=True)
        elif for_good and self.status.is_due:
            if self._timer:
                self._timer.cancel()
            ended = replace(self.status, state=ProcessState.EXITED, exit_code=143)
            self._end(
                replace(ended, signal=int(signals.SIGTERM), reason="it was killed before it began again"), _nothing
            )

    async def until_begun(self) -> None:
        """Its program runs, or could not be started. Raises StartFailed, Unavailable."""
        while not self.was_begun and not self.is_ended:
            self._check()
            await self.changed()
        if not self.was_begun:
            raise StartFailed(
                f"{' '.join(self.spec.argv)[:200]} could not be started: {self.status.reason}",
                next_step="`sandlot logs` shows what it printed"
                if any(self._totals())
                else "give a program that is there",
                process_id=self.row.process_id,
                exit_code=self.status.exit_code or 0,
            )

    async def wait(self, until: ProcessState) -> Process:
        while not self.is_ended:
            self._check()
            if until is ProcessState.STARTING or (until is not ProcessState.EXITED and self._is_running()):
                return self.told()
            if until is ProcessState.RUNNING and self._unready:
                raise self._unready
            await self.changed()
        if until is ProcessState.RUNNING and not self.status.was_ready:
            code, reason = self.status.exit_code, self.status.reason
            raise await self._failed(f"ended with {code} before it was ready" + (f": {reason}" if reason else ""))
        return self.told()

    async def read_log(self) -> None:
        """Of one that ended under an earlier engine."""
        if not self.is_log_read:
            self.is_log_read = True
            await asyncio.to_thread(self.log.restore)
            self.log.close()

    def _is_running(self) -> bool:
        return self.status.state is ProcessState.RUNNING

    async def _failed(self, what: str) -> StartFailed:
        await self.read_log()
        place = self.log.place_of({stream: max(0, total - _TAIL_BYTES) for stream, total in self.log.totals.items()})
        found, tail = True, b""
        while found:
            found, place = await asyncio.to_thread(self.log.read_from, place)
            tail = (tail + b"".join(event.data for event in found))[-_TAIL_BYTES:]
        return start_failure(_WHO, self.spec.argv, what, tail)

    def _check(self) -> None:
        if self.gone:
            raise Unavailable(f"process {self.row.process_id}: {self.gone}", process_id=self.row.process_id)

    async def read(self, starts: dict[Stream, int], *, follow: bool) -> AsyncIterator[ProcessOutput]:
        """From these offsets on; negative ones count from the end."""
        log = self.log
        expected = {s: at if at >= 0 else max(0, log.totals[s] + at) for s, at in starts.items()}
        position, end = log.place_of(expected), log.end
        while True:
            near = log.is_near(position)
            before = position
            found, position = log.read_from(position) if near else await asyncio.to_thread(log.read_from, position)
            for piece in merged(found):
                if piece.stream not in expected:
                    continue
                skip = max(0, expected[piece.stream] - piece.offset)
                if skip >= len(piece.data):
                    continue
                offset = piece.offset + skip
                yield ProcessOutput(piece.stream, offset, piece.data[skip:], offset - expected[piece.stream])
                expected[piece.stream] = piece.offset + len(piece.data)
            if position != before:
                if not follow and position >= end:
                    return
                continue
            if not follow or self.is_ended:
                return
            self._check()
            await self.changed()

    # ---- recorded, and told ------------------------------------------------------------------------------------

    def _say(self, status: Status, then: "Callable[[], None] | None" = None) -> None:
        """It is so at once for whoever asks; `then` when an engine that comes later would tell the same."""
        self.status = status

        def recorded(future: "asyncio.Future[None]") -> None:
            if future.cancelled() or future.exception() is not None:
                if self.status is status and not self.gone:  # a disk that was full may have room again
                    self._loop.call_later(_RETRY_S, lambda: self._say(status, then) if self.status is status else None)
            elif then:
                then()

        if self._session.row.state is SessionState.DESTROYING:
            if then:
                then()
            return
        with suppress(Unavailable):  # the journal is closed: the guest remembers
            self._around.rows.set(self.row, status).add_done_callback(recorded)

    def _wake(self) -> None:
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
