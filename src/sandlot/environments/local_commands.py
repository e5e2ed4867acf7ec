"""A program of this machine, run for a tool: its output as it comes, its time limit, and the end of all of it."""

import asyncio
import os
import signal
import time
from collections.abc import Mapping
from contextlib import suppress

from sandlot.contracts import Heard
from sandlot.model import CallResult, LimitHit, Stream, limits
from sandlot.tools.contained.command import Command

_PIECE = 64 * limits.KIB
_TIMED_OUT, _CANNOT_RUN, _NOT_FOUND = 124, 126, 127
_POLL_S = 0.05
_LINGER_S = 0.5  # for output to end after the program, where something that it left behind holds the pipe


async def run_command(command: Command, cwd: str, envs: Mapping[str, str], call_id: str, heard: Heard) -> CallResult:
    """Whoever is cancelled meanwhile leaves nothing of its process group behind."""
    began = time.perf_counter()
    try:
        process = await asyncio.create_subprocess_exec(
            *command.argv,
            cwd=cwd,
            env={**envs, **command.envs},
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,
        )
    except OSError as error:
        code = _NOT_FOUND if isinstance(error, FileNotFoundError) else _CANNOT_RUN
        reason = f"{command.argv[0]}: {os.strerror(error.errno) if error.errno else error}"
        return CallResult(call_id, code, reason=reason, duration_s=time.perf_counter() - began)
    is_late = False
    try:
        async with asyncio.timeout(command.timeout_s):
            await _until_end(process, heard)
    except TimeoutError:
        is_late = True
    finally:
        await _end(process)
    code = process.returncode or 0
    by_signal = -code if code < 0 else None
    return CallResult(
        call_id,
        _TIMED_OUT if is_late else 128 + by_signal if by_signal else code,
        signal=by_signal,
        limit=LimitHit.TIMEOUT if is_late else None,
        duration_s=time.perf_counter() - began,
    )


class _Ear:
    """One stream of it, on its way to whoever listens."""

    def __init__(self, stream: Stream, pipe: asyncio.StreamReader, heard: Heard) -> None:
        self.pieces = 0
        self.is_telling = False
        self.task = asyncio.create_task(self._read(stream, pipe, heard))

    async def _read(self, stream: Stream, pipe: asyncio.StreamReader, heard: Heard) -> None:
        while data := await pipe.read(_PIECE):
            self.pieces += 1
            self.is_telling = True
            await heard(stream, data)
            self.is_telling = False


async def _until_end(process: asyncio.subprocess.Process, heard: Heard) -> None:
    assert process.stdout is not None
    assert process.stderr is not None
    ears = [_Ear(Stream.STDOUT, process.stdout, heard), _Ear(Stream.STDERR, process.stderr, heard)]
    try:
        await _exit(process)
        waiting, pieces = {ear.task for ear in ears}, -1
        # A listener that is slow is waited for. A pipe that something left behind keeps open, and says nothing, is not.
        while waiting and (pieces != (pieces := sum(ear.pieces for ear in ears)) or any(e.is_telling for e in ears)):
            _done, waiting = await asyncio.wait(waiting, timeout=_LINGER_S)
    finally:
        for ear in ears:
            ear.task.cancel()
        await asyncio.wait([ear.task for ear in ears])
    for ear in ears:
        if not ear.task.cancelled() and (wrong := ear.task.exception()):
            raise wrong


async def _end(process: asyncio.subprocess.Process) -> None:
    """All of its group, also while this is cancelled."""
    ending = asyncio.ensure_future(_end_group(process))
    cancelled: asyncio.CancelledError | None = None
    while not ending.done():
        try:
            await asyncio.shield(ending)
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        raise cancelled


async def _end_group(process: asyncio.subprocess.Process) -> None:
    if process.returncode is None and _signal(process.pid, signal.SIGTERM):
        with suppress(TimeoutError):
            async with asyncio.timeout(limits.TERMINATE_GRACE_S):
                await _exit(process)
    _signal(process.pid, signal.SIGKILL)
    with suppress(TimeoutError):
        async with asyncio.timeout(limits.KILL_DEADLINE_S):
            await _exit(process)


async def _exit(process: asyncio.subprocess.Process) -> None:
    """Until the program has ended: `wait` also waits for whatever holds its pipes."""
    waiting = asyncio.create_task(process.wait())
    try:
        while process.returncode is None:
            await asyncio.wait([waiting], timeout=_POLL_S)
    finally:
        waiting.cancel()


def _signal(group: int, number: int) -> bool:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)
        return True
    return False
