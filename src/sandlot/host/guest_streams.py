"""Connections that only a guest can make: it carries their bytes in the streams of a process that is no program, so the
credit of those streams holds both ways, and a slow reader costs no memory on either side."""

import asyncio
import errno
import os
import secrets
from collections import deque
from contextlib import suppress

from sandlot.contracts.runtime import Guest, GuestProcess, ProcessEnd, SpawnPlan
from sandlot.host.errands import FIRST_ERRAND
from sandlot.host.port_streams import check_size
from sandlot.model import DeadlineExceeded, NotFound, SandlotError, Stream, Unavailable, limits

CONNECTION = b"connection"  # the tag of such a process
_CREDIT = 64 * limits.KIB  # that may be on its way in; docs/protocol.md
_KEPT_MAX = 2 * limits.MIB  # a guest sends no more than half of it before it hears that something was read
_ACKNOWLEDGED = 128 * limits.KIB  # at a time
_WORDS_MAX = 64
_GRACE_S = 5.0  # for what was written to arrive, when whoever wrote it has left
_TAKEN, _ENDED = b"c", b"e"
_ENDED_BYTES = 9


class GuestStream:
    """A ProcessSink."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._process: GuestProcess | None = None
        self._words = b""  # what it said on stderr
        self._taken = False
        self._total: int | None = None  # of all that is to come
        self._kept: deque[bytes] = deque()
        self._heard = 0
        self._given = 0
        self._acknowledged = 0
        self._said = 0
        self._stdin_taken = 0
        self._fault: SandlotError | None = None
        self._is_over = False
        self._has_left = False
        self._changed = asyncio.Event()

    def begin(self, process: GuestProcess) -> None:
        self._process = process

    async def opened(self) -> None:
        """Raises NotFound, DeadlineExceeded, Unavailable."""
        try:
            async with asyncio.timeout(limits.CONNECT_DEADLINE_S + limits.GUEST_DEADLINE_S):
                while not self._taken and self._fault is None:
                    await self._wait()
        except TimeoutError:
            raise DeadlineExceeded("the guest of the session did not connect", port=self._port) from None
        if not self._taken and self._fault is not None:
            raise self._fault

    # ---- as whoever asked for it has it --------------------------------------------------------------------------

    async def read(self, size_max: int = limits.PIECE_BYTES) -> bytes:
        check_size(size_max)
        while not self._kept and not self._is_at_end():
            if self._fault is not None:
                raise self._fault
            await self._wait()
        if not self._kept:
            return b""
        first = self._kept.popleft()
        if len(first) > size_max:
            first, rest = first[:size_max], first[size_max:]
            self._kept.appendleft(rest)
        self._given += len(first)
        if self._given - self._acknowledged >= _ACKNOWLEDGED and self._process is not None and not self._is_over:
            self._acknowledged = self._given
            self._process.acknowledge(Stream.STDOUT, self._given)
        return first

    def _is_at_end(self) -> bool:
        return self._total is not None and self._given >= self._total

    async def write(self, data: bytes) -> None:
        at = 0
        while at < len(data):
            room = self._stdin_taken + _CREDIT - self._said
            if self._fault is not None or self._is_over or self._process is None:
                raise self._fault or _broken("both sides have ended")
            if room <= 0:
                await self._wait()
                continue
            piece = data[at : at + room]
            self._process.write_stdin(self._said, piece)
            self._said += len(piece)
            at += len(piece)

    async def close_write(self) -> None:
        if self._fault is not None:
            raise self._fault
        if self._process is not None and not self._is_over:
            self._process.close_stdin()

    async def leave(self) -> None:
        self._has_left = True
        if self._fault is None:
            self._fault = Unavailable("the connection has ended")
        self._kept.clear()
        self._wake()
        if self._process is not None and not self._is_over:
            # What was written arrives; what is still said goes nowhere.
            self._process.discard(Stream.STDOUT)
            self._process.close_stdin()
            asyncio.get_running_loop().call_later(_GRACE_S, self._kill)

    def break_off(self, why: str) -> None:
        """From here."""
        if self._fault is None:
            self._break(why)
            self._wake()

    async def over(self) -> None:
        """Until its guest has nothing of it any more."""
        while not self._is_over:
            await self._wait()

    def _kill(self) -> None:
        if self._process is not None and not self._is_over:
            self._process.signal(9)

    async def _wait(self) -> None:
        await self._changed.wait()

    def _wake(self) -> None:
        """Everybody who waits looks again."""
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    # ---- what the guest says -------------------------------------------------------------------------------------

    def on_started(self, pid: int) -> None:
        del pid

    def on_output(self, stream: Stream, offset: int, data: bytes) -> None:
        if stream is Stream.STDERR:
            self._hear_words(offset, data)
        elif offset <= self._heard < offset + len(data):  # after a resumption some bytes come again
            fresh = data[self._heard - offset :]
            self._heard += len(fresh)
            if not self._has_left:
                self._kept.append(fresh)
            if self._heard - self._given > _KEPT_MAX and not self._has_left:
                self._break("it said more than it may")
        self._wake()

    def _hear_words(self, offset: int, data: bytes) -> None:
        if offset != len(self._words) or len(self._words) + len(data) > _WORDS_MAX:
            return
        self._words += data
        self._taken = self._words.startswith(_TAKEN)
        rest = self._words[len(_TAKEN) :]
        if self._taken and rest.startswith(_ENDED) and len(rest) >= _ENDED_BYTES:
            self._total = int.from_bytes(rest[1:_ENDED_BYTES], "little")

    def _break(self, why: str) -> None:
        self._fault = _broken(why)
        self._kept.clear()
        self._kill()

    def on_stdin_taken(self, offset: int, closed: bool) -> None:
        del closed
        self._stdin_taken = max(self._stdin_taken, min(offset, self._said))
        self._wake()

    def on_failed(self, error: int, stage: str) -> None:
        del error
        self._end(Unavailable(f"the guest of the session could not connect: {stage}"))

    def on_exit(self, ended: ProcessEnd) -> None:
        if ended.code == 0 and self._taken:
            self._end(None)
        elif self._taken:
            self._end(_broken(os.strerror(ended.code) if 0 < ended.code < 256 else "it was ended"))
        elif ended.code > 0 and ended.code in (errno.ECONNREFUSED, errno.ENETUNREACH, errno.EADDRNOTAVAIL):
            self._end(
                NotFound(
                    f"nobody listens on port {self._port} of the session",
                    next_step="start a program there, and wait for it",
                    port=self._port,
                )
            )
        else:
            self._end(DeadlineExceeded(f"whoever listens on port {self._port} took no connection", port=self._port))

    def _end(self, fault: SandlotError | None) -> None:
        self._is_over = True
        if self._fault is None:
            self._fault = fault
        if self._process is not None:
            self._process.release()
        self._wake()

    def on_lost(self, reason: str) -> None:
        self._is_over = True
        self._process = None
        if self._fault is None:
            self._fault = _broken(reason)
        self._wake()


def _broken(why: str) -> Unavailable:
    return Unavailable(f"the connection to the session was broken off: {why}", next_step="connect again")


async def connect_by_guest(guest: Guest, port: int) -> GuestStream:
    """Raises NotFound, DeadlineExceeded, Unavailable, CapabilityNotSupported for a guest of an earlier release."""
    stream = GuestStream(port)
    plan = SpawnPlan((str(port),), "/", {}, "", stdin=True, tag=CONNECTION, is_connection=True)
    stream.begin(guest.spawn(FIRST_ERRAND + secrets.randbits(40), plan, stream))
    try:
        await stream.opened()
    except BaseException:  # undone, then raised again
        with suppress(SandlotError):
            await stream.leave()
        raise
    return stream
