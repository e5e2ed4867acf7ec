"""The host's end of a line, with a guest written by hand at the other end."""

import asyncio
import os
import socket
import struct
import subprocess
from collections.abc import AsyncIterator, Callable
from dataclasses import replace

import pytest

from sandlot.contracts import KnownProcess, ProcessEnd, SpawnPlan
from sandlot.host.runtimes import frames
from sandlot.host.runtimes.frames import Frame, frame
from sandlot.host.runtimes.link import GuestLink
from sandlot.model import Stream, Unavailable

WAIT_S = 10.0
PLAN = SpawnPlan(argv=("true",), cwd="", envs={}, user="")


class Ear:
    """A sink that writes down what it hears."""

    def __init__(self) -> None:
        self.heard: list[tuple[object, ...]] = []
        self.lost: list[str] = []

    def on_started(self, pid: int) -> None:
        self.heard.append(("started", pid))

    def on_output(self, stream: Stream, offset: int, data: bytes) -> None:
        self.heard.append((stream, offset, data))

    def on_stdin_taken(self, offset: int, closed: bool) -> None:
        self.heard.append(("stdin", offset, closed))

    def on_failed(self, error: int, stage: str) -> None:
        self.heard.append(("failed", error, stage))

    def on_exit(self, ended: ProcessEnd) -> None:
        self.heard.append(("exit", ended.code, ended.signal))

    def on_lost(self, reason: str) -> None:
        self.lost.append(reason)


class Line:
    """A link, the guest's end of its socket, and a child whose pid plays the guest's."""

    def __init__(self) -> None:
        ours, self.guest = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.guest.setblocking(False)
        self.child = subprocess.Popen(["sleep", "1000"])
        self.ends: list[str] = []
        self.ended = asyncio.Event()
        pidfd = os.pidfd_open(self.child.pid)
        self.link = GuestLink(ours, self.child.pid, pidfd, bytearray(frames.MESSAGE_BYTES_MAX), self._on_end)

    def _on_end(self, reason: str) -> None:
        self.ends.append(reason)
        self.ended.set()

    def say(self, *some: bytes) -> None:
        self.guest.send(b"".join(some))

    async def hear(self) -> list[tuple[int, int, int, bytes]]:
        """The frames of the next message of the host."""
        async with asyncio.timeout(WAIT_S):
            message = await asyncio.get_running_loop().sock_recv(self.guest, frames.MESSAGE_BYTES_MAX)
        return [
            (kind, flags, ident, bytes(payload)) for kind, flags, ident, payload in frames.split(memoryview(message))
        ]

    async def wait_end(self) -> None:
        async with asyncio.timeout(WAIT_S):
            await self.ended.wait()

    async def synced(self, *processes: bytes, after: tuple[bytes, ...] = ()) -> tuple[KnownProcess, ...]:
        """One resynchronisation. `after` are messages that follow before the host has looked."""
        asking = asyncio.ensure_future(self.link.known())
        ((_kind, _flags, _ident, asked),) = await self.hear()
        for message in (welcome(asked[:16]), *processes, frame(Frame.SYNCED, 0, asked[:16]), *after):
            self.say(message)
        async with asyncio.timeout(WAIT_S):
            return tuple(await asking)

    def close(self) -> None:
        self.link.close()
        self.guest.close()
        self.child.kill()
        self.child.wait()


@pytest.fixture
async def line() -> AsyncIterator[Line]:
    made = Line()
    yield made
    made.close()


def welcome(nonce: bytes, version: int = frames.VERSION) -> bytes:
    return frame(Frame.WELCOME, 0, nonce + struct.pack("<II", version, 0))


def listing(ident: int, pid: int = 7, out: int = 0, err: int = 0, taken: int = 0, tag: bytes = b"") -> bytes:
    return frame(Frame.PROCESS, ident, struct.pack("<IIQQQ", pid, 1, out, err, taken) + tag)


def output(ident: int, offset: int, data: bytes, stream: int = 0) -> bytes:
    return frame(Frame.DATA, ident, struct.pack("<Q", offset) + data, stream)


def exited(ident: int, code: int = 0, signal: int = 0) -> bytes:
    return frame(Frame.EXIT, ident, struct.pack("<iIQQQQQ", code, signal, 1, 2, 3, 4, 5))


async def until(condition: Callable[[], bool]) -> None:
    """Let the loop turn until it is so; nothing here waits for a clock but to give up."""
    async with asyncio.timeout(WAIT_S):
        while not condition():
            await turn()


async def turn() -> None:
    """The loop looks at all that is ready by now, and some more times for what follows from it."""
    for _ in range(20):
        await asyncio.sleep(0)


# ---- resynchronisation ------------------------------------------------------------------------------------------


async def test_what_was_meant_for_an_earlier_host_is_not_heard(line: Line) -> None:
    asking = asyncio.ensure_future(line.link.known())
    ((kind, _flags, _ident, asked),) = await line.hear()
    assert kind == Frame.RESUME
    old = b"o" * 16
    line.say(output(1, 0, b"old"), exited(1))
    line.say(welcome(old), listing(1, tag=b"old"))
    line.say(frame(Frame.SYNCED, 0, old))
    line.say(welcome(asked[:16]))
    line.say(listing(2, pid=9, out=3, err=4, taken=5, tag=b"new"))
    line.say(frame(Frame.SYNCED, 0, old))
    line.say(listing(3))
    assert not asking.done()
    line.say(frame(Frame.SYNCED, 0, asked[:16]))
    async with asyncio.timeout(WAIT_S):
        found = await asking
    assert [known.process_id for known in found] == [2, 3]
    assert found[0] == KnownProcess(2, 9, {Stream.STDOUT: 3, Stream.STDERR: 4}, 5, b"new")


@pytest.mark.parametrize(("version", "scope", "flags"), [(4, 1, 0), (5, 3, 32)])
async def test_an_end_is_asked_for_as_the_guest_knows_it(line: Line, version: int, scope: int, flags: int) -> None:
    asking = asyncio.ensure_future(line.link.known())
    ((_kind, _flags, _ident, asked),) = await line.hear()
    line.say(welcome(asked[:16], version), frame(Frame.SYNCED, 0, asked[:16]))
    async with asyncio.timeout(WAIT_S):
        await asking
    process = line.link.spawn(1, replace(PLAN, is_family=True), Ear())
    process.signal(9, end=True)
    ((_kind, _flags, _ident, plan),) = await line.hear()
    assert plan[:4] == struct.pack("<I", flags)
    assert await line.hear() == [(Frame.SIGNAL, 0, 1, struct.pack("<II", 9, scope))]


async def test_every_resynchronisation_has_a_nonce_of_its_own(line: Line) -> None:
    nonces: set[bytes] = set()
    for _ in range(3):
        asking = asyncio.ensure_future(line.link.known())
        ((_kind, _flags, _ident, asked),) = await line.hear()
        nonces.add(asked[:16])
        line.say(welcome(asked[:16]), frame(Frame.SYNCED, 0, asked[:16]))
        async with asyncio.timeout(WAIT_S):
            await asking
    assert len(nonces) == 3


async def test_a_later_version_is_refused(line: Line) -> None:
    asking = asyncio.ensure_future(line.link.known())
    ((_kind, _flags, _ident, asked),) = await line.hear()
    line.say(welcome(asked[:16], frames.VERSION + 1))
    with pytest.raises(Unavailable, match=f"version {frames.VERSION + 1}"):
        async with asyncio.timeout(WAIT_S):
            await asking


async def test_news_are_held_back_until_begin_and_keep_their_order(line: Line) -> None:
    (known,) = await line.synced(listing(1))
    ear, other = Ear(), Ear()
    line.link.adopt(known, ear)
    line.link.spawn(2, PLAN, other)
    line.say(frame(Frame.STARTED, 1, struct.pack("<I", 7)), output(1, 0, b"a"))
    line.say(frame(Frame.STARTED, 2, struct.pack("<I", 8)))
    line.say(output(1, 1, b"b", 1), output(1, 1, b"c"))
    line.say(exited(1, 3))
    await turn()
    assert ear.heard == other.heard == []
    line.link.begin()
    assert ear.heard == [
        ("started", 7),
        (Stream.STDOUT, 0, b"a"),
        (Stream.STDERR, 1, b"b"),
        (Stream.STDOUT, 1, b"c"),
        ("exit", 3, 0),
    ]
    assert other.heard == [("started", 8)]
    line.say(output(2, 0, b"live"))
    await until(lambda: len(other.heard) == 2)


async def test_news_right_behind_the_sync_are_not_lost(line: Line) -> None:
    (known,) = await line.synced(listing(1), after=(output(1, 0, b"quick"), exited(1)))
    ear = Ear()
    line.link.adopt(known, ear)
    line.link.begin()
    line.say(frame(Frame.STDIN_ACK, 1, struct.pack("<QI", 0, 0)))
    await until(lambda: ("stdin", 0, False) in ear.heard)
    assert ear.heard[:2] == [(Stream.STDOUT, 0, b"quick"), ("exit", 0, 0)]


async def test_malformed_news_that_were_held_back_end_the_link(line: Line) -> None:
    (known,) = await line.synced(listing(1))
    ear = Ear()
    line.link.adopt(known, ear)
    line.say(frame(Frame.EXIT, 1, b"short"))
    await turn()
    line.link.begin()
    await line.wait_end()
    assert len(ear.lost) == 1


# ---- the end ----------------------------------------------------------------------------------------------------

MALFORMED = {
    "half a header": b"\1\0",
    "payload longer than the message": struct.pack("<IBBHQ", 9, Frame.DATA, 0, 0, 1),
    "reserve set": struct.pack("<IBBHQ", 0, Frame.DATA, 0, 9, 1),
    "short exit": frame(Frame.EXIT, 1, b"\0" * 47),
    "long exit": frame(Frame.EXIT, 1, b"\0" * 49),
    "stream 2": output(1, 0, b"x", 2),
    "output without offset": frame(Frame.DATA, 1, b"\0" * 7),
    "short start": frame(Frame.STARTED, 1, b"\0"),
    "short failure": frame(Frame.FAILED, 1, b"\0" * 4),
    "short stdin ack": frame(Frame.STDIN_ACK, 1, b"\0" * 8),
}


@pytest.mark.parametrize("message", MALFORMED.values(), ids=MALFORMED.keys())
async def test_a_malformed_message_ends_the_link_for_everyone_once(line: Line, message: bytes) -> None:
    ears = [Ear(), Ear()]
    for ident, ear in enumerate(ears, 1):
        line.link.spawn(ident, PLAN, ear)
    line.say(message)
    line.say(output(2, 0, b"behind"))
    await line.wait_end()
    assert [len(ear.lost) for ear in ears] == [1, 1]
    assert "malformed" in ears[0].lost[0]
    assert len(line.ends) == 1
    with pytest.raises(Unavailable):
        line.link.spawn(3, PLAN, Ear())
    line.child.kill()
    line.child.wait()
    await turn()
    assert len(line.ends) == 1
    assert ears[1].heard == [], "nothing behind a malformed message is believed"


@pytest.mark.parametrize("how", ["closed socket", "dead guest"])
async def test_a_guest_that_goes_is_told_once(line: Line, how: str) -> None:
    ears = [Ear(), Ear()]
    processes = [line.link.spawn(ident, PLAN, ear) for ident, ear in enumerate(ears, 1)]
    line.say(output(1, 0, b"last words"))
    await line.hear()
    await line.hear()
    if how == "closed socket":
        line.guest.close()
    else:
        line.child.kill()
        line.child.wait()
    await line.wait_end()
    assert ears[0].heard == [(Stream.STDOUT, 0, b"last words")]
    assert [len(ear.lost) for ear in ears] == [1, 1]
    assert len(line.ends) == 1
    processes[0].acknowledge(Stream.STDOUT, 10)  # nobody hears it, and nothing breaks
    processes[0].release()
    line.link.close()


async def test_all_last_words_of_a_guest_are_heard(line: Line) -> None:
    ear = Ear()
    line.link.spawn(1, PLAN, ear)
    for offset in range(100):
        line.say(output(1, offset, b"x"))
    line.say(exited(1))
    line.child.kill()
    line.child.wait()
    await line.wait_end()
    assert ear.heard[-1] == ("exit", 0, 0)


async def test_last_words_are_heard_of_a_guest_that_did_not_listen(line: Line) -> None:
    ear = Ear()
    line.link.spawn(1, PLAN, ear)
    line.say(exited(1))
    line.guest.close()
    await line.wait_end()
    assert ear.heard == [("exit", 0, 0)]


async def test_waiting_for_a_guest_that_goes_ends(line: Line) -> None:
    asking = asyncio.ensure_future(line.link.known())
    await line.hear()
    line.guest.close()
    with pytest.raises(Unavailable):
        async with asyncio.timeout(WAIT_S):
            await asking


async def test_a_boot_that_failed_tells_its_stage(line: Line) -> None:
    asking = asyncio.ensure_future(line.link.known())
    await line.hear()
    line.say(frame(Frame.BOOT_FAILED, 0, struct.pack("<I", 2) + b"mount /proc"))
    with pytest.raises(Unavailable, match="mount /proc: No such file or directory"):
        async with asyncio.timeout(WAIT_S):
            await asking
    assert len(line.ends) == 1


@pytest.mark.parametrize("payload", [b"", b"\1", struct.pack("<I", 99999), struct.pack("<I", 1) + b"\xff\xfe"])
async def test_a_boot_failure_in_bad_form_is_one_all_the_same(line: Line, payload: bytes) -> None:
    line.link.spawn(1, PLAN, Ear())
    line.say(frame(Frame.BOOT_FAILED, 0, payload))
    await line.wait_end()


async def test_no_error_number_breaks_the_host(line: Line) -> None:
    asyncio.get_running_loop().set_exception_handler(lambda _loop, _context: None)
    line.say(frame(Frame.BOOT_FAILED, 0, struct.pack("<I", 0xFFFFFFFF) + b"boot"))
    await turn()
    assert line.ends


async def test_a_closed_link_says_nothing_more(line: Line) -> None:
    ear = Ear()
    line.link.spawn(1, PLAN, ear)
    line.say(output(1, 0, b"x"))
    line.link.close()
    line.link.close()
    await turn()
    assert ear.heard == ear.lost == line.ends == []
    assert line.child.poll() is None


# ---- news -------------------------------------------------------------------------------------------------------


async def test_frames_of_processes_that_nobody_knows_are_ignored(line: Line) -> None:
    ear = Ear()
    process = line.link.spawn(1, PLAN, ear)
    line.say(output(99, 0, b"x"), frame(Frame.EXIT, 99, b"short"), frame(Frame.PONG, 0, b""), output(1, 0, b"mine"))
    await until(lambda: bool(ear.heard))
    process.release()
    line.say(output(1, 4, b"released"))
    other = Ear()
    line.link.spawn(2, PLAN, other)
    line.say(output(2, 0, b"next"))
    await until(lambda: bool(other.heard))
    assert ear.heard == [(Stream.STDOUT, 0, b"mine")]


async def test_the_end_of_a_process_is_told_in_our_terms(line: Line) -> None:
    ears = [Ear() for _ in range(3)]
    for ident, ear in enumerate(ears):
        line.link.spawn(ident, PLAN, ear)
    line.say(exited(0, 5), exited(1, -1, 9), frame(Frame.FAILED, 2, struct.pack("<II", 2, 7)))
    await until(lambda: all(ear.heard for ear in ears))
    assert [ear.heard for ear in ears] == [[("exit", 5, 0)], [("exit", -1, 9)], [("failed", 2, "exec")]]


async def test_what_a_guest_does_not_read_waits_and_arrives_in_order(line: Line) -> None:
    process = line.link.spawn(1, PLAN, Ear())
    count, piece = 200, 8192
    for number in range(count):
        process.write_stdin(number * piece, bytes([number]) * piece)
    process.close_stdin()
    process.signal(15, tree=True)
    assert (await line.hear())[0][0] == Frame.SPAWN
    for number in range(count):
        assert await line.hear() == [(Frame.STDIN, 0, 1, struct.pack("<Q", number * piece) + bytes([number]) * piece)]
    assert (await line.hear())[0][0] == Frame.STDIN_END
    assert await line.hear() == [(Frame.SIGNAL, 0, 1, struct.pack("<II", 15, 1))]
    process.acknowledge(Stream.STDERR, 5)
    assert (await line.hear())[0][0] == Frame.ACK


async def test_who_speaks_to_a_guest_that_is_gone_is_told_why_it_ended(line: Line) -> None:
    line.say(frame(Frame.BOOT_FAILED, 0, struct.pack("<I", 2) + b"mount /proc"))
    line.guest.close()
    with pytest.raises(Unavailable, match=r"guest \d+ is gone: mount /proc: No such file"):
        await line.link.known()
    with pytest.raises(Unavailable, match="is gone: mount /proc"):
        line.link.spawn(1, PLAN, Ear())
    assert line.ends == ["mount /proc: No such file or directory"]
