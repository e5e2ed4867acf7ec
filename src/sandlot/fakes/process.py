"""One managed process in memory: each run is a call of nobody's, and its log is a list."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from dataclasses import dataclass, field

from sandlot.fakes.calls import FakeCall
from sandlot.model import (
    CallOutput,
    CallRequest,
    Process,
    ProcessOutput,
    ProcessSpec,
    ProcessState,
    ReadyKind,
    Restart,
    SandlotError,
    StartFailed,
    Stream,
    Unavailable,
)

_TERM, _KILL = 15, 9


@dataclass(slots=True)
class FakeProcess:
    session_id: str
    process_id: str
    spec: ProcessSpec
    begin: Callable[[CallRequest], FakeCall]
    started: float = field(default_factory=time.time)
    state: ProcessState = ProcessState.STARTING
    exit_code: int | None = None
    signal: int | None = None
    ended: float | None = None
    reason: str = ""
    restarts: int = 0
    was_ready: bool = False
    is_killed: bool = False
    gone: bool = False
    call: FakeCall | None = None
    pieces: list[ProcessOutput] = field(default_factory=list[ProcessOutput])
    totals: dict[Stream, int] = field(default_factory=lambda: dict.fromkeys(Stream, 0))
    task: "asyncio.Task[None] | None" = None
    unready: StartFailed | None = None
    first: dict[Stream, int] = field(default_factory=lambda: dict.fromkeys(Stream, 0))  # of this run
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    again: asyncio.Event = field(default_factory=asyncio.Event)  # it is not to wait longer
    moved: str = ""  # its session was rolled back under it

    def tell(self) -> None:
        changed, self.changed = self.changed, asyncio.Event()
        changed.set()

    def told(self) -> Process:
        spec = self.spec
        return Process(
            self.session_id,
            self.process_id,
            spec.argv,
            self.state,
            self.exit_code,
            name=spec.name or "",
            signal=self.signal,
            reason=self.reason or (self.unready.message if self.unready else ""),
            pid=self.call.pid if self.call else None,
            started=self.started,
            ended=self.ended,
            restarts=self.restarts,
            restart=spec.restart,
            port=spec.port,
            stdin=spec.stdin,
            stdout_bytes=self.totals[Stream.STDOUT],
            stderr_bytes=self.totals[Stream.STDERR],
        )

    @property
    def is_over(self) -> bool:
        return self.state is ProcessState.EXITED

    # ---- runs --------------------------------------------------------------------------------------------------

    def launch(self) -> None:
        """Raises what a call does."""
        self._start()
        self.task = asyncio.create_task(self._live(), name=f"fake process {self.process_id}")

    def _start(self) -> None:
        spec, self.first = self.spec, dict(self.totals)
        self.call = self.begin(
            CallRequest(spec.session_id, spec.argv, envs=spec.envs, cwd=spec.cwd, user=spec.user, stdin=spec.stdin)
        )

    async def _live(self) -> None:
        while True:
            await self._run()
            if self.is_over or self.gone:
                return
            pause_s = 0.0 if self.moved else self.spec.backoff_s * 2 ** (self.restarts - 1)
            self.moved = ""
            with suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await self.again.wait()
            if self.is_killed:
                self._end(128 + _TERM, _TERM, "it was killed before it began again")
                return
            self._start()

    async def _run(self) -> None:
        call = self.call
        assert call is not None, "it was started"
        watch = asyncio.create_task(self._watch(), name=f"fake readiness {self.process_id}")
        try:
            with suppress(SandlotError):
                async for event in call.follow():
                    if isinstance(event, CallOutput):
                        self._printed(event)
        finally:
            watch.cancel()
        self.call, self.unready = None, None
        result = call.result
        if result is None:
            self.gone = True
            self.tell()
            return
        again = self.spec.restart is Restart.ON_FAILURE and bool(result.exit_code) and not self.is_killed
        if again and (self.moved or self.restarts < self.spec.restarts_max) and not result.reason:
            self.state, self.restarts = ProcessState.STARTING, self.restarts + (not self.moved)
            self.reason = self.moved or f"it ended with {result.exit_code}; it is started again"
            self.tell()
        else:
            self._end(result.exit_code, result.signal, result.reason or self.moved)

    def _end(self, code: int, signal: int | None, reason: str) -> None:
        self.state, self.exit_code, self.signal, self.reason = ProcessState.EXITED, code, signal, reason
        self.ended = time.time()
        self.tell()

    def _printed(self, event: CallOutput) -> None:
        offset = self.totals[event.stream]
        self.totals[event.stream] += len(event.data)
        self.pieces.append(ProcessOutput(event.stream, offset, event.data))
        while sum(len(piece.data) for piece in self.pieces) > self.spec.log_bytes_max:
            del self.pieces[0]
        self.tell()

    async def _watch(self) -> None:
        ready = self.spec.ready
        if ready.kind is ReadyKind.LOG:
            try:
                async with asyncio.timeout(self.spec.ready_timeout_s):
                    while not any(ready.text.encode() in self._since(stream) for stream in Stream):
                        await self.changed.wait()
            except TimeoutError:
                said = (self._since(Stream.STDOUT) + self._since(Stream.STDERR)).decode(errors="replace")
                self.unready = StartFailed(
                    f"the process was not ready ({ready}) in {self.spec.ready_timeout_s:g} s; it printed last: {said}"
                )
                self.tell()
                return
        self.state, self.was_ready, self.reason = ProcessState.RUNNING, True, ""
        self.tell()

    def _since(self, stream: Stream) -> bytes:
        return b"".join(p.data for p in self.pieces if p.stream is stream and p.offset >= self.first[stream])

    def move(self) -> None:
        """Its session is rolled back under it: it ends, and what is to be started again is."""
        if self.call is not None:
            self.moved = "its session was rolled back"
            self.call.kill(_KILL)

    def stop(self) -> None:
        """Its session goes."""
        self.gone = True
        if self.call is not None:
            self.call.lose(Unavailable(f"session {self.session_id} was destroyed", session_id=self.session_id))
        self.tell()

    def check(self) -> None:
        if self.gone and not self.is_over:
            raise Unavailable(f"session {self.session_id} is gone", process_id=self.process_id)

    # ---- readers -----------------------------------------------------------------------------------------------

    async def read(self, starts: dict[Stream, int], *, follow: bool) -> AsyncIterator[ProcessOutput]:
        expected = {s: at if at >= 0 else max(0, self.totals[s] + at) for s, at in starts.items()}
        while True:
            for piece in tuple(self.pieces):
                at = expected.get(piece.stream)
                if at is None or piece.offset + len(piece.data) <= at:
                    continue
                skip = max(0, at - piece.offset)
                offset = piece.offset + skip
                expected[piece.stream] = piece.offset + len(piece.data)
                yield ProcessOutput(piece.stream, offset, piece.data[skip:], offset - at)
            if any(at < self.totals[stream] for stream, at in expected.items()):
                continue  # it printed meanwhile
            if not follow or self.is_over:
                return
            self.check()
            await self.changed.wait()

    async def wait(self, until: ProcessState) -> Process:
        while not self.is_over:
            self.check()
            if until is self.state or until is ProcessState.STARTING:
                return self.told()
            if until is ProcessState.RUNNING and self.unready:
                raise self.unready
            await self.changed.wait()
        if until is ProcessState.RUNNING and not self.was_ready:
            said = b"".join(piece.data for piece in self.pieces).decode(errors="replace")
            raise StartFailed(f"the process ended with {self.exit_code} before it was ready; it printed last: {said}")
        return self.told()
