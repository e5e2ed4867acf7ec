"""The host's end of one guest. Serves every runtime whose guest speaks our frames."""

import asyncio
import contextlib
import errno
import os
import secrets
import signal
import socket
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from sandlot import tracing
from sandlot.contracts.runtime import KnownProcess, ProcessSink, SpawnPlan
from sandlot.host.runtimes import frames
from sandlot.host.runtimes.frames import Frame, MalformedFrame
from sandlot.model import CapabilityNotSupported, DeadlineExceeded, Stream, TerminalSize, Unavailable, limits

_MESSAGES_PER_WAKE = 16
_LARGE_MESSAGE = 16 * 1024
_PROCESSES_MAX = 2048


class GuestLink:
    """Reads and writes messages on the running loop. Everything a guest says is hostile until parsed."""

    def __init__(
        self, end: socket.socket, pid: int, pidfd: int, buffer: bytearray, on_end: Callable[[str], None]
    ) -> None:
        """`buffer` may be shared by all links of a loop: a message is parsed before the next one is read."""
        self.pid = pid
        self.spawned = 0
        self._socket = end
        self._pidfd = pidfd
        self._on_end = on_end
        self._loop = asyncio.get_running_loop()
        self._buffer = buffer
        self._sinks: dict[int, ProcessSink] = {}
        self._outbox: deque[bytes] = deque()
        self._releases: list[bytes] = []
        self._nonce = b""
        self._version = 0
        self._listing: list[KnownProcess] = []
        self._synced: asyncio.Future[None] | None = None
        self._held: list[tuple[int, int, int, bytes]] | None = None
        self._counting: dict[int, asyncio.Future[int]] = {}
        self._last_count = 0
        self._ended = False
        self._reason = ""  # why it ended
        self._is_hearing = False
        self._is_leaving = False
        end.setblocking(False)
        self._loop.add_reader(end.fileno(), self._readable)
        self._loop.add_reader(pidfd, self._died)

    def is_alive(self) -> bool:
        if self._ended:
            return False
        try:
            signal.pidfd_send_signal(self._pidfd, 0)
        except ProcessLookupError:
            return False
        return True

    # ---- what the engine asks ----------------------------------------------------------------------------------

    async def known(self, deadline_s: float = limits.GUEST_DEADLINE_S) -> Sequence[KnownProcess]:
        self._nonce = secrets.token_bytes(frames.NONCE_BYTES)
        self._listing = []
        self._held = []
        self._synced = self._loop.create_future()
        self._send(frames.resume(self._nonce))
        try:
            async with asyncio.timeout(deadline_s):
                await self._synced
        except TimeoutError:
            raise DeadlineExceeded(f"guest {self.pid} did not answer in {deadline_s:g} s") from None
        finally:
            self._synced = None
        return tuple(self._listing)

    def begin(self) -> None:
        held, self._held = self._held or [], None
        try:
            for kind, flags, ident, payload in held:
                self._hear(kind, flags, ident, memoryview(payload))
        except MalformedFrame as error:
            self._end(f"the guest sent a malformed message: {error}")

    def spawn(self, process_id: int, plan: SpawnPlan, sink: ProcessSink) -> "LinkedProcess":
        if plan.is_family and self._version < frames.FAMILY_SINCE:
            plan = replace(plan, is_family=False)
        message = frames.spawn(process_id, plan)
        if plan.groups and self._version < frames.GROUPS_SINCE:
            raise CapabilityNotSupported(
                "the guest of this session is of an earlier release, and calls have no limits of their own there",
                next_step="make a new session",
            )
        if plan.is_connection and self._version < frames.CONNECT_SINCE:
            raise CapabilityNotSupported(
                "the guest of this session is of an earlier release, and connects nobody to a port",
                next_step="make a new session",
            )
        if plan.is_probe and self._version < frames.PROBE_SINCE:
            raise CapabilityNotSupported(
                "the guest of this session is of an earlier release, and cannot ask a port",
                next_step="make a new session",
            )
        self._sinks[process_id] = sink
        self.spawned += 1
        try:
            with tracing.span("spawn", guest=str(self.pid), process=str(process_id)):
                if plan.groups:
                    self._send_with(message, plan.groups)
                else:
                    self._send(message)
        except Unavailable:
            del self._sinks[process_id]
            raise
        return LinkedProcess(self, process_id)

    @property
    def ends_families(self) -> bool:
        return self._version >= frames.FAMILY_SINCE

    async def count(self, *, end: bool = False) -> int:
        """How many processes the guest sees beside itself. With `end` it kills them first. Raises DeadlineExceeded,
        Unavailable."""
        return await self._ask(partial(frames.count, end=end))

    async def part(self) -> int:
        """Tell the guest that it is about to be kept on disk; all that was said before has been heard then. It is to be
        asked what it knows when it is back. Gives how much forbids it. Raises DeadlineExceeded, Unavailable."""
        return await self._ask(frames.part)

    async def _ask(self, say: Callable[[int], bytes]) -> int:
        self._last_count += 1
        token, told = self._last_count, self._loop.create_future()
        self._counting[token] = told
        try:
            self._send(say(token))
            async with asyncio.timeout(limits.GUEST_DEADLINE_S):
                return await told
        except TimeoutError:
            raise DeadlineExceeded(f"guest {self.pid} did not answer in {limits.GUEST_DEADLINE_S:g} s") from None
        finally:
            del self._counting[token]

    def limit(self, processes: int) -> None:
        """How many there may be beside the guest, from the next one on; 0: any number. Raises Unavailable."""
        self._send(frames.limit(processes))

    def adopt(self, known: KnownProcess, sink: ProcessSink) -> "LinkedProcess":
        self._sinks[known.process_id] = sink
        return LinkedProcess(self, known.process_id)

    def close(self) -> None:
        if self._socket.fileno() >= 0:
            self._loop.remove_reader(self._socket.fileno())
            self._loop.remove_writer(self._socket.fileno())
            self._socket.close()
        if self._pidfd >= 0:
            self._loop.remove_reader(self._pidfd)
            os.close(self._pidfd)
            self._pidfd = -1
        self._ended = True

    def expect_end(self, *, expected: bool) -> None:
        """While it is expected, its end is no loss: whoever hears of its processes will hear of them again."""
        self._is_leaving = expected

    def descriptors(self) -> tuple[int, int]:
        """The host end and the pidfd, for a keeper that has to hold them too."""
        return self._socket.fileno(), self._pidfd

    def release(self, process_id: int) -> None:
        """Those of one turn of the loop travel together: each message wakes the guest."""
        self._sinks.pop(process_id, None)
        if not self._releases:
            self._loop.call_soon(self._send_releases)
        self._releases.append(frames.frame(Frame.RELEASE, process_id))

    def _send_releases(self) -> None:
        releases, self._releases = self._releases, []
        self.send(b"".join(releases))

    def send(self, message: bytes) -> None:
        """Tell a guest something that nobody waits for. One that is gone does not hear it."""
        if not self._ended:
            with contextlib.suppress(Unavailable):
                self._send(message)

    # ---- the socket --------------------------------------------------------------------------------------------

    def _send(self, message: bytes) -> None:
        if self._ended:
            raise self._gone()
        if not self._outbox:
            try:
                self._socket.send(message)
                return
            except BlockingIOError:
                self._loop.add_writer(self._socket.fileno(), self._writable)
            except OSError as error:
                if not self._is_hearing:  # it may have said why before it ended
                    self._hear_last_words(bytearray(frames.MESSAGE_BYTES_MAX))  # ours may be in use by another line
                self._end(f"the line to the guest broke: {error.strerror}")
                raise self._gone() from None
        self._outbox.append(message)

    def _send_with(self, message: bytes, fds: Sequence[int]) -> None:
        """Descriptors are not kept until there is room."""
        if self._ended or self._outbox:
            raise Unavailable(f"guest {self.pid} is gone or busy", next_step="try again")
        try:
            socket.send_fds(self._socket, [message], list(fds))
        except OSError as error:
            raise Unavailable(f"guest {self.pid} is gone or busy: {error.strerror}", next_step="try again") from None

    def _writable(self) -> None:
        while self._outbox:
            try:
                self._socket.send(self._outbox[0])
            except BlockingIOError:
                return
            except OSError as error:
                self._end(f"the line to the guest broke: {error.strerror}")
                return
            self._outbox.popleft()
        self._loop.remove_writer(self._socket.fileno())

    def _readable(self) -> None:
        for _ in range(_MESSAGES_PER_WAKE):
            if not self._read_message():
                return

    def _read_message(self, *, last_words: bool = False, buffer: bytearray | None = None) -> bool:
        """Hear one message. Returns whether another may be worth a try: behind a small one there rarely is one, and
        the loop calls again if there is."""
        buffer = self._buffer if buffer is None else buffer
        try:
            count = self._socket.recv_into(buffer)
        except BlockingIOError:
            return False
        except ConnectionResetError:
            return True  # said once, and in front of what the guest had sent before it ended
        except OSError as error:
            self._end(f"the line to the guest broke: {error.strerror}")
            return False
        if count == 0:
            self._end("the guest ended")
            return False
        self._is_hearing = True
        try:
            for kind, flags, ident, payload in frames.split(memoryview(buffer)[:count]):
                self._hear(kind, flags, ident, payload)
        except MalformedFrame as error:
            self._end(f"the guest sent a malformed message: {error}")
        finally:
            self._is_hearing = False
        return not self._ended and (last_words or count >= _LARGE_MESSAGE)

    def _hear_last_words(self, buffer: bytearray | None = None) -> None:
        while not self._ended and self._read_message(last_words=True, buffer=buffer):
            pass  # the kernel keeps no more than the socket holds

    def _died(self) -> None:
        self._hear_last_words()
        self._end("the guest ended")

    def _gone(self) -> Unavailable:
        return Unavailable(f"guest {self.pid} is gone{self._reason and ': '}{self._reason}")

    def _end(self, reason: str) -> None:
        if self._ended:
            return
        self._reason = reason
        self.close()
        if self._is_leaving:
            return
        if self._synced and not self._synced.done():
            self._synced.set_exception(Unavailable(f"guest {self.pid} did not start: {reason}"))
        for told in self._counting.values():
            if not told.done():
                told.set_exception(self._gone())
        sinks, self._sinks = self._sinks, {}
        for sink in sinks.values():
            sink.on_lost(reason)
        self._on_end(reason)

    # ---- frames ------------------------------------------------------------------------------------------------

    def _hear(self, kind: int, flags: int, ident: int, payload: memoryview) -> None:
        if self._nonce:
            # Until the guest repeats our nonce it still speaks to the host before us.
            self._hear_sync(kind, ident, payload)
            return
        if self._held is not None:
            # Nobody has adopted the processes yet that these frames are about.
            self._held.append((kind, flags, ident, bytes(payload)))
            return
        sink = self._sinks.get(ident)
        if sink is not None:
            self._deliver(sink, kind, flags, payload)
        elif kind == Frame.COUNTED:
            token, processes = frames.read_counted(payload)
            told = self._counting.get(token)
            if told is not None and not told.done():
                told.set_result(processes)
        elif kind == Frame.BOOT_FAILED:
            self._boot_failed(payload)

    def _deliver(self, sink: ProcessSink, kind: int, flags: int, payload: memoryview) -> None:
        if kind == Frame.DATA:
            sink.on_output(*frames.read_data(flags, payload))
        elif kind == Frame.STARTED:
            sink.on_started(frames.read_u32(payload))
        elif kind == Frame.EXIT:
            sink.on_exit(frames.read_exit(payload))
        elif kind == Frame.STDIN_ACK:
            offset, closed = frames.read_stdin_ack(payload)
            sink.on_stdin_taken(offset, bool(closed))
        elif kind == Frame.FAILED:
            sink.on_failed(*frames.read_failed(payload))
        elif kind == Frame.BROKEN:
            sink.on_failed(errno.EINVAL, "frame")

    def _hear_sync(self, kind: int, ident: int, payload: memoryview) -> None:
        if kind == Frame.BOOT_FAILED:
            self._boot_failed(payload)
        elif kind == Frame.WELCOME:
            nonce, version, _count = frames.read_welcome(payload)
            self._version = version
            if nonce == self._nonce and version > frames.VERSION:
                raise MalformedFrame(f"it speaks version {version}, this host knows up to {frames.VERSION}")
            if nonce == self._nonce:
                self._listing.clear()
        elif kind == Frame.PROCESS:
            pid, flags, out, err, taken, tag = frames.read_listing(payload)
            if len(self._listing) >= _PROCESSES_MAX:
                raise MalformedFrame("it lists more processes than a guest can have")
            kept = {Stream.STDOUT: out, Stream.STDERR: err}
            self._listing.append(KnownProcess(ident, pid, kept, taken, tag, bool(flags & frames.PROCESS_OVER)))
        elif kind == Frame.SYNCED and bytes(payload) == self._nonce:
            self._nonce = b""
            if self._synced and not self._synced.done():
                self._synced.set_result(None)

    def _boot_failed(self, payload: memoryview) -> None:
        error = frames.U32.unpack_from(payload)[0] if len(payload) >= frames.U32.size else 0
        stage = bytes(payload[frames.U32.size :]).decode("ascii", "replace")
        self._end(f"{stage}: {error_words(error)}")


class LinkedProcess:
    """One process behind a link."""

    def __init__(self, link: GuestLink, ident: int) -> None:
        self._link = link
        self._ident = ident

    def acknowledge(self, stream: Stream, offset: int) -> None:
        self._link.send(frames.ack(self._ident, stream, offset))

    def discard(self, stream: Stream) -> None:
        self._link.send(frames.discard(self._ident, stream))

    def release(self) -> None:
        self._link.release(self._ident)

    def write_stdin(self, offset: int, data: bytes) -> None:
        self._link.send(frames.stdin(self._ident, offset, data))

    def close_stdin(self) -> None:
        self._link.send(frames.frame(Frame.STDIN_END, self._ident))

    def signal(self, number: int, *, tree: bool = False, end: bool = False) -> None:
        scope = frames.SCOPE_TREE if tree or end else frames.SCOPE_GROUP
        if end and self._link.ends_families:
            scope = frames.SCOPE_END
        self._link.send(frames.signal(self._ident, number, scope))

    def resize(self, size: TerminalSize) -> None:
        self._link.send(frames.resize(self._ident, size.rows, size.columns))


def error_words(number: int) -> str:
    """What an errno means; numbers come from the guest, and may be any."""
    return os.strerror(number) if number < 4096 else f"error {number}"
