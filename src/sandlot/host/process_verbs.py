"""The verbs of managed processes as the waist has them."""

import asyncio
import secrets
import signal as signals
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress

from sandlot.host.exposing import Exposures
from sandlot.host.process_rows import ProcessRow, ProcessRows, Status
from sandlot.host.process_run import Run
from sandlot.host.process_table import ProcessTables
from sandlot.host.processes import ManagedProcess
from sandlot.host.session import Session
from sandlot.model import (
    Capability,
    DeadlineExceeded,
    InvalidArgument,
    InvalidState,
    Process,
    ProcessLogs,
    ProcessOutput,
    ProcessSpec,
    ProcessState,
    SandlotError,
    SessionState,
    Stream,
    Unavailable,
    check_id,
    limits,
    refusal,
)
from sandlot.model.capability import need

_STDIN_PATIENCE_S = 30.0
_END_PATIENCE_S = limits.TERMINATE_GRACE_S + limits.KILL_DEADLINE_S + 5.0


class ProcessVerbs:
    def __init__(
        self,
        find: Callable[[str], Session],
        ready: Callable[[Session], Awaitable[None]],
        check_open: Callable[[], None],
        tables: ProcessTables,
        rows: ProcessRows,
        exposures: Exposures,
    ) -> None:
        self._find = find
        self._ready = ready  # wakes a session that rests
        self._check_open = check_open
        self._tables = tables
        self._rows = rows
        self._exposures = exposures

    def _process(self, session_id: str, asked: str) -> ManagedProcess:
        return self._tables.of(self._find(session_id)).find(check_id("process", asked))

    async def launch_process(self, spec: ProcessSpec) -> Process:
        session = self._find(spec.session_id)
        table = self._tables.of(session)
        if (known := table.known(spec)) is not None:
            return await self._told_again(known)
        if not session.gate.is_open or session.row.state is SessionState.PAUSED:
            await self._ready(session)
        self._check_open()  # while it waited the engine may have left
        session.active_guest("it starts no processes")
        session.user_for(spec.user)
        if spec.port is not None:
            need(session.capabilities, Capability.PORTS, f"the runtime {session.row.runtime}")
        if (known := table.known(spec)) is not None:
            return await self._told_again(known)
        process_id = spec.process_id or f"p-{secrets.token_hex(6)}"
        try:
            address = await self._address(session, spec, process_id)
            if (known := table.known(spec)) is not None:
                return await self._told_again(known)
            process = table.add(ProcessRow(spec.session_id, 0, process_id, spec, Status(started=time.time())))
            process.address = address
            try:
                process.begin()
            except BaseException:  # undone, then raised again
                table.remove(process)
                raise
            await self._record(process, table.remove)
        except BaseException:  # undone, then raised again
            if spec.port is not None and table.by_id(process_id) is None:
                self._exposures.release(spec.session_id, process_id)
            raise
        try:
            async with asyncio.timeout(limits.GUEST_DEADLINE_S):
                await process.until_begun()
        except TimeoutError as late:
            if isinstance(late, SandlotError):
                raise
            process.kill(signals.SIGKILL)
            raise Unavailable(
                f"the program did not begin in {limits.GUEST_DEADLINE_S:g} s",
                next_step="try again",
                process_id=process_id,
            ) from None
        return process.told()

    async def _address(self, session: Session, spec: ProcessSpec, process_id: str) -> str:
        """Of its port, which is its own from now on."""
        if spec.port is None:
            return ""
        return self._exposures.address(await self._exposures.claim(session, spec.port, process_id))

    async def _record(self, process: ManagedProcess, forget: Callable[[ManagedProcess], None]) -> None:
        """While its program is started. What is not recorded does not run."""
        recorded = self._rows.add(process.row)
        try:
            await asyncio.shield(recorded)
        except SandlotError:
            process.give_up("it could not be recorded")
            if process.run is not None:
                process.run.live.kill()
            forget(process)
            raise

    async def _told_again(self, process: ManagedProcess) -> Process:
        """The first one may still be on its way."""
        with suppress(SandlotError, TimeoutError):
            async with asyncio.timeout(limits.GUEST_DEADLINE_S):
                while process.run is not None and process.run.live.pid is None:
                    await process.changed()
        return process.told()

    async def list_processes(self, session_id: str) -> Sequence[Process]:
        return tuple(process.told() for process in self._tables.of(self._find(session_id)).all())

    async def process_status(self, session_id: str, process_id: str) -> Process:
        return self._process(session_id, process_id).told()

    @asynccontextmanager
    async def process_logs(self, request: ProcessLogs) -> AsyncGenerator[AsyncIterator[ProcessOutput]]:
        process = self._process(request.session_id, request.process_id)
        await process.read_log()
        asked = {Stream.STDOUT: request.stdout_from, Stream.STDERR: request.stderr_from}
        starts = {stream: start for stream, start in asked.items() if start is not None}
        yield process.read(starts, follow=request.follow)

    async def write_stdin(self, session_id: str, process_id: str, data: bytes) -> None:
        run = self._need_input(self._process(session_id, process_id))
        if run is None:
            raise InvalidState(
                f"process {process_id} does not run", next_step="`sandlot ps` tells how it is", process_id=process_id
            )
        try:
            async with asyncio.timeout(_STDIN_PATIENCE_S):
                await run.live.write_stdin(data)
        except TimeoutError as late:
            if isinstance(late, SandlotError):
                raise
            raise DeadlineExceeded(
                f"process {process_id} did not read in {_STDIN_PATIENCE_S:g} s", process_id=process_id
            ) from None

    async def close_stdin(self, session_id: str, process_id: str) -> None:
        if (run := self._need_input(self._process(session_id, process_id))) is not None:
            run.live.close_stdin()

    def _need_input(self, process: ManagedProcess) -> Run | None:
        if not process.spec.stdin:
            raise InvalidState(
                f"process {process.row.process_id} has no standard input", next_step="launch it with stdin=True"
            )
        return process.run

    async def kill_process(self, session_id: str, process_id: str, signal: int | None = None) -> Process:
        session, process = self._find(session_id), self._process(session_id, process_id)
        if signal is not None and signal not in signals.valid_signals():
            raise InvalidArgument(f"{signal} is not a signal", next_step="give one from 1 to 64")
        if process.is_ended:
            return process.told()
        if not session.gate.is_open or session.row.state is SessionState.PAUSED:
            await self._ready(session)
        if session.row.state is SessionState.PAUSED:
            raise refusal(session_id, session.row.state, "its processes stand still")
        process.kill(signal)
        if signal is None:
            try:
                async with asyncio.timeout(_END_PATIENCE_S):
                    await process.wait(ProcessState.EXITED)
            except TimeoutError as late:
                if isinstance(late, SandlotError):
                    raise
                raise DeadlineExceeded(f"process {process_id} did not end", process_id=process_id) from None
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
        try:
            async with asyncio.timeout(timeout_s):
                return await process.wait(until)
        except TimeoutError as late:
            if isinstance(late, SandlotError):
                raise
            raise DeadlineExceeded(
                f"process {process_id} was not {until} in {timeout_s:g} s",
                next_step="wait longer",
                process_id=process_id,
            ) from None
