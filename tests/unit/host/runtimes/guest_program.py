"""The real guest program as an ordinary child, driven frame by frame. Every byte it sends is checked on arrival."""

import socket
import struct
import subprocess
from collections import deque
from dataclasses import dataclass, field
from types import TracebackType

from sandlot.config.settings import load
from sandlot.contracts import KnownProcess, SpawnPlan
from sandlot.host.runtimes import frames
from sandlot.host.runtimes.frames import Frame, frame
from sandlot.model import Stream, TerminalSize

WAIT_S = 20.0
KILL = 9


@dataclass
class Ended:
    code: int
    signal: int
    stdout_bytes: int
    stderr_bytes: int


@dataclass
class Seen:
    """What a host knows of one process."""

    pid: int = 0
    starts: int = 0
    output: dict[Stream, bytearray] = field(default_factory=lambda: {stream: bytearray() for stream in Stream})
    frames_of_output: int = 0
    ended: Ended | None = None
    failed: tuple[int, str] | None = None
    stdin_taken: int = 0
    stdin_closed: bool = False

    @property
    def stdout(self) -> bytes:
        return bytes(self.output[Stream.STDOUT])

    @property
    def stderr(self) -> bytes:
        return bytes(self.output[Stream.STDERR])

    @property
    def is_over(self) -> bool:
        return self.ended is not None or self.failed is not None


class GuestProgram:
    def __init__(self) -> None:
        self.socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.socket.settimeout(WAIT_S)
        # Twice the usual, so that a message longer than a guest takes can be sent at all.
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 212992)
        self.program = subprocess.Popen([load().keeper, "guest"], stdin=theirs.fileno(), stdout=subprocess.DEVNULL)
        theirs.close()
        self.seen: dict[int, Seen] = {}
        self.broken: list[int] = []
        self._pongs: deque[int] = deque()
        self._token = 0

    def __enter__(self) -> "GuestProgram":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        """As no pid 1, this guest leaves its children behind; so they are ended first."""
        self.socket.settimeout(WAIT_S)  # a test may have waited for less
        try:
            if self.program.poll() is None:
                for ident in self.seen:
                    self.socket.send(frames.signal(ident, KILL, frames.SCOPE_TREE))
                if error is None:
                    self.ping()
        finally:
            self.socket.close()
            try:
                self.program.wait(WAIT_S)
            finally:
                self.program.kill()

    # ---- saying ------------------------------------------------------------------------------------------------

    def say(self, *some: bytes) -> None:
        self.socket.send(b"".join(some))

    def spawn(
        self,
        ident: int,
        *argv: str,
        stdin: bool = False,
        terminal: TerminalSize | None = None,
        envs: dict[str, str] | None = None,
        cwd: str = "",
        user: str = "",
        tag: bytes = b"",
    ) -> Seen:
        self.seen.setdefault(ident, Seen())
        plan = SpawnPlan(argv, cwd, envs or {"PATH": "/usr/bin:/bin"}, user, stdin, terminal, tag)
        self.say(frames.spawn(ident, plan))
        return self.seen[ident]

    def shell(self, ident: int, script: str, *, stdin: bool = False, tag: bytes = b"") -> Seen:
        return self.spawn(ident, "sh", "-c", script, stdin=stdin, tag=tag)

    def release(self, ident: int) -> None:
        self.say(frame(Frame.RELEASE, ident))

    def acknowledge(self, ident: int) -> None:
        """All that was heard."""
        for stream in Stream:
            self.say(frames.ack(ident, stream, len(self.seen[ident].output[stream])))

    def write(self, ident: int, offset: int, data: bytes) -> None:
        """All of it, as far as the guest gives credit, waiting for more."""
        seen = self.seen[ident]
        end = offset + len(data)
        while data and not seen.stdin_closed and not seen.is_over:
            room = min(seen.stdin_taken + frames.STDIN_CREDIT - offset, 32768, len(data))
            if room <= 0:
                self.hear()
                self.acknowledge(ident)
                continue
            self.say(frames.stdin(ident, offset, data[:room]))
            offset, data = offset + room, data[room:]
        assert offset == end or seen.stdin_closed or seen.is_over

    # ---- hearing -----------------------------------------------------------------------------------------------

    def hear(self) -> None:
        """The next message, into `seen`."""
        for kind, flags, ident, payload in self._message():
            self._note(kind, flags, ident, payload)

    def _message(self) -> list[tuple[int, int, int, memoryview]]:
        message = self.socket.recv(frames.MESSAGE_BYTES_MAX)
        assert message, "the guest is gone"
        return list(frames.split(memoryview(message)))

    def _note(self, kind: int, flags: int, ident: int, payload: memoryview) -> None:
        if kind == Frame.PONG:
            self._pongs.append(struct.unpack("<Q", payload)[0])
            return
        if kind == Frame.BROKEN:
            self.broken.append(frames.read_u32(payload))
            return
        seen = self.seen.setdefault(ident, Seen())
        if kind == Frame.STARTED:
            seen.pid = frames.read_u32(payload)
            seen.starts += 1
        elif kind == Frame.DATA:
            self._note_output(seen, *frames.read_data(flags, payload))
        elif kind == Frame.STDIN_ACK:
            taken, closed = frames.read_stdin_ack(payload)
            assert taken >= seen.stdin_taken, "the guest gives back what it took"
            seen.stdin_taken, seen.stdin_closed = taken, bool(closed)
        elif kind == Frame.FAILED:
            seen.failed = frames.read_failed(payload)
        elif kind == Frame.EXIT:
            assert seen.ended is None, "a process ends once"
            code, signal, _user, _system, _rss, out, err = frames.read_exit(payload)
            seen.ended = Ended(code, signal, out, err)

    def _note_output(self, seen: Seen, stream: Stream, offset: int, data: bytes) -> None:
        known = seen.output[stream]
        assert not seen.is_over, "output behind the end"
        assert data, "a frame without bytes"
        assert offset <= len(known), "a hole in the output"
        again = known[offset : offset + len(data)]
        assert data[: len(again)] == again, "other bytes than the first time"
        known += data[len(again) :]
        seen.frames_of_output += 1

    def ping(self) -> None:
        """The guest has done all that it was told before."""
        self._token += 1
        self.say(frame(Frame.PING, 0, struct.pack("<Q", self._token)))
        while self._token not in self._pongs:
            self.hear()
        self._pongs.clear()

    def wait_started(self, ident: int) -> Seen:
        seen = self.seen[ident]
        while not seen.pid and not seen.is_over:
            self.hear()
        return seen

    def wait_output(self, ident: int, length: int, stream: Stream = Stream.STDOUT) -> bytes:
        output = self.seen[ident].output[stream]
        while len(output) < length:
            self.hear()
        return bytes(output)

    def wait_over(self, ident: int) -> Seen:
        """Hear it to its end, acknowledging everything."""
        while ident not in self.seen:
            self.hear()
        seen = self.seen[ident]
        while not seen.is_over:
            self.acknowledge(ident)
            self.hear()
        return seen

    def resume(self) -> dict[int, KnownProcess]:
        """As a host that has just been started: all that is known is forgotten but the output it kept."""
        nonce = struct.pack("<QQ", 0x5EED, len(self._pongs) + self._token)
        self._token += 1
        self.say(frames.resume(nonce))
        found: dict[int, KnownProcess] = {}
        welcome = synced = False
        while not synced:
            for kind, flags, ident, payload in self._message():
                if synced:
                    self._note(kind, flags, ident, payload)
                elif kind == Frame.WELCOME and frames.read_welcome(payload)[0] == nonce:
                    welcome = True
                    self._forget()
                elif not welcome:
                    self._note(kind, flags, ident, payload)
                elif kind == Frame.PROCESS:
                    pid, _flags, out, err, taken, tag = frames.read_listing(payload)
                    found[ident] = KnownProcess(ident, pid, {Stream.STDOUT: out, Stream.STDERR: err}, taken, tag)
                elif kind == Frame.SYNCED:
                    assert bytes(payload) == nonce
                    synced = True
                else:
                    assert kind in (Frame.PONG, Frame.BROKEN), f"{kind} amid a resynchronisation"
                    self._note(kind, flags, ident, payload)
        return found

    def _forget(self) -> None:
        for seen in self.seen.values():
            seen.pid = seen.starts = 0
            seen.ended = seen.failed = None
