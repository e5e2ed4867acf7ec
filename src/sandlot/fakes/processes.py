"""The verbs of managed processes, on processes in memory."""

import asyncio
import secrets
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager

from sandlot.fakes.calls import FakeCall
from sandlot.fakes.ports import no_ports
from sandlot.fakes.process import FakeProcess
from sandlot.fakes.session import FakeSession
from sandlot.model import (
    CallRequest,
    CapabilityNotSupported,
    Conflict,
    DeadlineExceeded,
    InvalidArgument,
    InvalidState,
    LimitReached,
    Process,
    ProcessLogs,
    ProcessNotFound,
    ProcessOutput,
    ProcessSpec,
    ProcessState,
    ReadyKind,
    SandlotError,
    StartFailed,
    Stream,
    check_id,
    limits,
)

# By the name of the check in `conformance/processes.py` that is not kept, and why.
DEVIATIONS: Mapping[str, str] = {
    "what_is_no_program_is_told": "files of the fake are no programs",
    "a_kill_reaches_all_that_descends": "programs of the fake start no others",
    "a_kill_reaches_who_has_left": "programs of the fake start no others",
    "who_does_not_listen_below_is_killed": "programs of the fake start no others",
    "who_does_not_listen_is_killed": "its shell has no traps",
    "a_signal_is_sent_alone": "its shell has no traps",
    "it_is_ready_when_it_answers": "nobody listens in it",
}
_SIGNALS, _TERM, _KILL = 64, 15, 9
_NOT_FOUND = 127


class FakeProcesses:
    def __init__(
        self, find: Callable[[str], FakeSession], begin: Callable[[FakeSession, CallRequest], FakeCall]
    ) -> None:
        self._find = find
        self._begin = begin

    def _process(self, session_id: str, asked: str) -> FakeProcess:
        known = self._find(session_id).processes
        check_id("process", asked)
        found = known.get(asked) or next((p for p in reversed(known.values()) if p.spec.name == asked), None)
        if found is None:
            raise ProcessNotFound(f"session {session_id} has no process {asked}", session_id=session_id)
        return found

    async def launch_process(self, spec: ProcessSpec) -> Process:
        session = self._find(spec.session_id)
        known = session.processes.get(spec.process_id or "")
        if known is not None:
            if known.spec.argv != spec.argv:
                raise Conflict(f"process {spec.process_id} is another program", next_step="choose another id")
            return known.told()
        session.check_use()
        if spec.port is not None:
            raise no_ports()
        if spec.ready.kind in (ReadyKind.PORT, ReadyKind.HTTP):
            raise CapabilityNotSupported("nobody listens in the fake", next_step="wait for a text in the log")
        living = [each for each in session.processes.values() if not each.is_over]
        if spec.name is not None and any(each.spec.name == spec.name for each in living):
            raise Conflict(f"there is a process {spec.name}", next_step="kill it, or choose another name")
        if len(living) >= limits.PROCESSES_MAX:
            raise LimitReached(f"there are {len(living)} processes", limit="processes")
        process_id = spec.process_id or f"p-{secrets.token_hex(6)}"
        process = FakeProcess(spec.session_id, process_id, spec, lambda request: self._begin(session, request))
        session.processes[process_id] = process
        try:
            process.launch()
        except InvalidArgument as error:
            process.state, process.exit_code, process.reason = ProcessState.EXITED, 126, error.message
            raise StartFailed(error.message, process_id=process_id, exit_code=126) from error
        except SandlotError:
            del session.processes[process_id]
            raise
        for _ in range(3):  # a program that is not there says so at once
            await asyncio.sleep(0)
        if process.call is not None and process.call.result is not None:
            await process.wait(ProcessState.EXITED)
        if process.is_over and process.exit_code == _NOT_FOUND and process.reason:
            raise StartFailed(
                f"{spec.argv[0]} could not be started: {process.reason}", process_id=process_id, exit_code=_NOT_FOUND
            )
        return process.told()

    async def list_processes(self, session_id: str) -> Sequence[Process]:
        return [process.told() for process in self._find(session_id).processes.values()]

    async def process_status(self, session_id: str, process_id: str) -> Process:
        return self._process(session_id, process_id).told()

    @asynccontextmanager
    async def process_logs(self, request: ProcessLogs) -> AsyncGenerator[AsyncIterator[ProcessOutput]]:
        process = self._process(request.session_id, request.process_id)
        asked = {Stream.STDOUT: request.stdout_from, Stream.STDERR: request.stderr_from}
        starts = {stream: at for stream, at in asked.items() if at is not None}
        yield process.read(starts, follow=request.follow)

    async def write_process_stdin(self, session_id: str, process_id: str, data: bytes) -> None:
        call = self._input(self._process(session_id, process_id))
        if call is None:
            raise InvalidState(f"process {process_id} does not run", process_id=process_id)
        call.give(data)

    async def close_process_stdin(self, session_id: str, process_id: str) -> None:
        if (call := self._input(self._process(session_id, process_id))) is not None:
            call.end_input()

    def _input(self, process: FakeProcess) -> FakeCall | None:
        if not process.spec.stdin:
            raise InvalidState(f"process {process.process_id} has no standard input", next_step="launch it with stdin")
        return process.call

    async def kill_process(self, session_id: str, process_id: str, signal: int | None = None) -> Process:
        session, process = self._find(session_id), self._process(session_id, process_id)
        if signal is not None and not 1 <= signal <= _SIGNALS:
            raise InvalidArgument(f"{signal} is no signal", next_step="give one from 1 to 64")
        if process.is_over:
            return process.told()
        session.check_use()
        process.is_killed = process.is_killed or signal in (None, _TERM, _KILL)
        if process.call is not None:
            process.call.kill(signal or _TERM)
        elif process.is_killed:
            process.again.set()
        if signal is None:
            await process.wait(ProcessState.EXITED)
        return process.told()

    async def wait_process(
        self,
        session_id: str,
        process_id: str,
        *,
        until: ProcessState = ProcessState.EXITED,
        timeout_s: float | None = None,
    ) -> Process:
        process = self._process(session_id, process_id)
        deadline = asyncio.timeout(timeout_s)
        try:
            async with deadline:
                return await process.wait(until)
        except TimeoutError:
            if not deadline.expired():
                raise
            raise DeadlineExceeded(f"process {process_id} was not {until} in {timeout_s} s") from None
