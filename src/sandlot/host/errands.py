"""Short processes of the engine's own in a guest: they belong to no call, and nobody else hears of them."""

import asyncio
import secrets

from sandlot.contracts.runtime import Guest, ProcessEnd, SpawnPlan
from sandlot.model import DeadlineExceeded, Stream, limits

FIRST_ERRAND = 1 << 62  # calls count from 1
_OUTPUT_BYTES_MAX = 4096


class _Errand:
    def __init__(self) -> None:
        self.done: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self.output = b""

    def _end(self, code: int) -> None:
        if not self.done.done():
            self.done.set_result(code)

    def on_started(self, pid: int) -> None:
        del pid

    def on_output(self, stream: Stream, offset: int, data: bytes) -> None:
        del offset
        if stream is Stream.STDOUT:
            self.output = (self.output + data)[:_OUTPUT_BYTES_MAX]

    def on_stdin_taken(self, offset: int, closed: bool) -> None:
        del offset, closed

    def on_failed(self, error: int, stage: str) -> None:
        del error, stage
        self._end(-1)

    def on_exit(self, ended: ProcessEnd) -> None:
        self._end(ended.code)

    def on_lost(self, reason: str) -> None:
        del reason
        self._end(-1)


async def run_errand(guest: Guest, plan: SpawnPlan) -> tuple[int, bytes]:
    """How it ended, -1 when by anything but an exit, and the beginning of what it printed. Raises DeadlineExceeded,
    Unavailable, CapabilityNotSupported."""
    errand = _Errand()
    # At random: a guest remembers the errands of an engine that died.
    process = guest.spawn(FIRST_ERRAND + secrets.randbits(40), plan, errand)
    try:
        async with asyncio.timeout(limits.GUEST_DEADLINE_S):
            code = await errand.done
    except TimeoutError:
        raise DeadlineExceeded(f"guest {guest.pid} did not end a program in {limits.GUEST_DEADLINE_S:g} s") from None
    process.release()
    return code, errand.output
