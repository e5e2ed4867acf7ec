"""Short words for what checks of managed processes do."""

from collections.abc import Sequence
from typing import Any

from sandlot.conformance.checks import Broken, Stage
from sandlot.model import Process, ProcessLogs, ProcessOutput, ProcessSpec, ProcessState, Stream

WAIT_S = 30.0
FOREVER = ("sleep", "600")


async def launch(stage: Stage, *argv: str, **options: Any) -> Process:
    return await stage.host.launch_process(ProcessSpec(stage.session.session_id, argv, **options))


async def sh(stage: Stage, script: str, **options: Any) -> Process:
    return await launch(stage, "sh", "-c", script, **options)


async def ended(stage: Stage, process: str) -> Process:
    return await stage.host.wait_process(stage.session.session_id, process, timeout_s=WAIT_S)


async def status(stage: Stage, process: str) -> Process:
    return await stage.host.process_status(stage.session.session_id, process)


async def read(stage: Stage, process: str, **options: Any) -> list[ProcessOutput]:
    async with stage.host.process_logs(ProcessLogs(stage.session.session_id, process, **options)) as logs:
        return [piece async for piece in logs]


def printed(pieces: Sequence[ProcessOutput], stream: Stream = Stream.STDOUT) -> bytes:
    return b"".join(piece.data for piece in pieces if piece.stream is stream)


async def hear(stage: Stage, process: str, wanted: bytes) -> bytes:
    """Follow both streams until this was printed."""
    heard = b""
    async with stage.host.process_logs(ProcessLogs(stage.session.session_id, process, follow=True)) as logs:
        async for piece in logs:
            heard += piece.data
            if wanted in heard:
                return heard
    raise Broken(f"{heard!r} is all that was printed, {wanted!r} is not in it")


async def until_ready(stage: Stage, process: str, timeout_s: float = WAIT_S) -> Process:
    until = ProcessState.RUNNING
    return await stage.host.wait_process(stage.session.session_id, process, until=until, timeout_s=timeout_s)
