"""Programs that live longer than a call."""

from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Protocol

from sandlot.model import Process, ProcessLogs, ProcessOutput, ProcessSpec, ProcessState


class Processes(Protocol):
    """A process belongs to its session: it outlives its caller and the engine, stands still while the session is paused
    and ends with it. A rollback, a recovery and a move end what runs; what is to be restarted on failure is started
    again then, where the memory of the session did not bring it back. A fork has no processes.

    Where a `process_id` is taken, a name is too: of the process that has it, or that had it last. Every verb raises
    InvalidArgument and SessionNotFound, and what is said of it.
    """

    async def launch_process(self, spec: ProcessSpec) -> Process:
        """Begin one; when this returns its program runs, whether it is ready or not, and it is durable. An id that came
        before tells of the process that has it.

        Raises StartFailed when the program cannot be started (it is told as exited then), Conflict when a process that
        has not ended has the name, when the id is that of another program, or when someone in the session listens on
        its port already; CapabilityNotSupported for a port or a user that cannot be had, LimitReached, SessionPaused,
        SessionDestroying, SessionFailed, Unavailable.
        """
        ...

    async def list_processes(self, session_id: str) -> Sequence[Process]:
        """In the order in which they were launched; the newest of those that have ended are kept."""
        ...

    async def process_status(self, session_id: str, process_id: str) -> Process:
        """Raises ProcessNotFound."""
        ...

    def process_logs(self, request: ProcessLogs) -> AbstractAsyncContextManager[AsyncIterator[ProcessOutput]]:
        """What it has printed, stdout and stderr apart, in the order in which it came. The newest bytes are kept; a
        piece tells how many before it were not. Followed, it ends when the process has ended for good.

        Entering raises ProcessNotFound; following raises Unavailable when the engine is closed.
        """
        ...

    async def write_process_stdin(self, session_id: str, process_id: str, data: bytes) -> None:
        """Waits while the program does not read. Bytes after it closed its input are dropped.

        Raises ProcessNotFound, InvalidState when it has no standard input or does not run, DeadlineExceeded when it
        does not read for long, Unavailable.
        """
        ...

    async def close_process_stdin(self, session_id: str, process_id: str) -> None:
        """Raises ProcessNotFound, InvalidState when it has no standard input."""
        ...

    async def kill_process(self, session_id: str, process_id: str, signal: int | None = None) -> Process:
        """Without a signal, TERM to all that descends from it, KILL to what is left after a moment, and it has ended
        when this returns. A signal that is given is sent alone, and not waited for. Without one, and with TERM or
        KILL, it is not restarted. One that has ended is told as it is.

        Raises ProcessNotFound, SessionPaused, DeadlineExceeded.
        """
        ...

    async def wait_process(
        self,
        session_id: str,
        process_id: str,
        *,
        until: ProcessState = ProcessState.EXITED,
        timeout_s: float | None = None,
    ) -> Process:
        """Until it has ended for good, or with RUNNING until it is ready.

        Raises ProcessNotFound, DeadlineExceeded, Unavailable when the engine is closed or the session goes; StartFailed
        when it ended, or its time to be ready did, before it was ready.
        """
        ...
