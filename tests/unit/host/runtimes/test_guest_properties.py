"""The guest program under random orders and random bytes."""

import struct
from dataclasses import dataclass
from typing import Any

from hypothesis import HealthCheck, given, note, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from sandlot.contracts import SpawnPlan
from sandlot.host.runtimes import frames
from sandlot.host.runtimes.frames import Frame, frame
from sandlot.model import Stream
from tests.unit.host.runtimes.guest_program import KILL, Ended, GuestProgram, Seen

TERM = 15
# Nothing that damage could turn into a command: no such file, and no folder on the way to it.
HARMLESS = SpawnPlan(argv=("/nonexistent/nothing/at/all",), cwd="/nonexistent", envs={"A": "b"}, user="", tag=b"tag")
SEEDS = [
    frames.spawn(1, HARMLESS),
    frames.spawn(2, HARMLESS) + frame(Frame.RELEASE, 2),
    frames.resume(bytes(16)),
    frames.stdin(3, 0, b"input"),
    frame(Frame.STDIN_END, 3),
    frames.signal(3, 28, frames.SCOPE_GROUP),
    frames.resize(3, 10, 20),
    frames.ack(3, Stream.STDOUT, 0) + frames.ack(3, Stream.STDERR, 0),
    frames.discard(3, Stream.STDERR),
]


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    message = bytearray(b"".join(draw(st.lists(st.sampled_from(SEEDS), min_size=1, max_size=4))))
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(message) - 1))
        message[at] = draw(st.integers(0, 255))
    return bytes(message[: draw(st.integers(1, len(message)))])


def test_random_messages_do_not_end_the_guest() -> None:
    with GuestProgram() as guest:
        guest.spawn(3, "cat", stdin=True)
        guest.wait_started(3)

        @settings(max_examples=500)
        @given(st.lists(st.binary(min_size=1, max_size=300) | damaged(), min_size=1, max_size=8))
        def bombard(messages: list[bytes]) -> None:
            for message in messages:
                guest.say(message)
            hear_pong(guest)

        bombard()
        assert guest.program.poll() is None


def hear_pong(guest: GuestProgram) -> None:
    """Only that it answers: what else it says to random frames follows no order that a host could check."""
    token = struct.pack("<Q", 0xF00D)
    guest.say(frame(Frame.PING, 0, token))
    while True:
        message = guest.socket.recv(frames.MESSAGE_BYTES_MAX)
        assert message, "the guest is gone"
        if any(
            kind == Frame.PONG and bytes(payload) == token
            for kind, _f, _i, payload in frames.split(memoryview(message))
        ):
            return


@dataclass
class Shadow:
    """What a process must turn out to be."""

    kind: str
    seen: Seen
    tag: bytes
    expected: bytes = b""
    code: int = 0
    acked: int = 0
    stdin_sent: int = 0
    stdin_ended: bool = False
    signal: int = 0

    @property
    def will_end(self) -> bool:
        return self.kind == "writer" or self.stdin_ended or self.signal != 0


PICK = st.integers(0, 1000)


class GuestAndHost(RuleBasedStateMachine):
    """One guest, and hosts that come and go; nothing is lost, doubled or mixed up.

    Which rules are open follows from what was asked alone, never from what a process has done by now.
    """

    def __init__(self) -> None:
        super().__init__()
        self.guest = GuestProgram()
        self.shadows: dict[int, Shadow] = {}
        self.last = 0

    @initialize()
    def begin(self) -> None:
        self.guest.ping()

    def add(self, kind: str, *argv: str, **fields: Any) -> Shadow:
        self.last += 1
        tag = f"tag {self.last}".encode()
        seen = self.guest.spawn(self.last, *argv, stdin=kind == "cat", tag=tag)
        self.shadows[self.last] = Shadow(kind, seen, tag, **fields)
        return self.shadows[self.last]

    def some(self, pick: int, *kinds: str) -> int:
        idents = [ident for ident, shadow in self.shadows.items() if shadow.kind in kinds]
        return idents[pick % len(idents)]

    def has(self, *kinds: str) -> bool:
        return any(shadow.kind in kinds for shadow in self.shadows.values())

    @rule(size=st.sampled_from([0, 1, 4095, 70_000, 1_200_000]), code=st.integers(0, 9))
    def spawn_writer(self, size: int, code: int) -> None:
        line = f"line {self.last}\n".encode()
        script = f"yes 'line {self.last}' | head -c {size}; exit {code}"
        self.add("writer", "sh", "-c", script, expected=(line * (size // len(line) + 1))[:size], code=code)

    @rule()
    def spawn_cat(self) -> None:
        self.add("cat", "cat")

    @rule()
    def spawn_sleeper(self) -> None:
        self.add("sleeper", "sleep", "1000")

    @precondition(lambda self: self.shadows)
    @rule(pick=PICK)
    def spawn_again(self, pick: int) -> None:
        ident = self.some(pick, "writer", "cat", "sleeper")
        self.guest.spawn(ident, "sh", "-c", "echo twice; exit 99")

    @precondition(lambda self: self.has("cat"))
    @rule(pick=PICK, size=st.sampled_from([1, 100, 30_000, 64 * 1024]), again=st.integers(0, 50))
    def write(self, pick: int, size: int, again: int) -> None:
        ident = self.some(pick, "cat")
        shadow = self.shadows[ident]
        room = shadow.seen.stdin_taken + frames.STDIN_CREDIT - shadow.stdin_sent
        if shadow.stdin_ended or shadow.seen.stdin_closed or room <= 0:
            return
        piece = (b"%d:%d;" % (ident, shadow.stdin_sent) * size)[: min(size, room)]
        whole = shadow.expected + piece
        start = max(0, shadow.stdin_sent - again)  # some of it for the second time
        self.guest.say(frames.stdin(ident, start, whole[start:]))
        shadow.expected = whole
        shadow.stdin_sent = len(whole)

    @precondition(lambda self: self.has("cat"))
    @rule(pick=PICK)
    def end_input(self, pick: int) -> None:
        ident = self.some(pick, "cat")
        self.guest.say(frame(Frame.STDIN_END, ident))
        self.shadows[ident].stdin_ended = True

    @precondition(lambda self: self.has("cat", "sleeper"))
    @rule(pick=PICK, number=st.sampled_from([TERM, KILL]))
    def signal(self, pick: int, number: int) -> None:
        ident = self.some(pick, "cat", "sleeper")
        self.guest.say(frames.signal(ident, number, frames.SCOPE_TREE))
        self.shadows[ident].signal = self.shadows[ident].signal or number

    @precondition(lambda self: self.shadows)
    @rule(pick=PICK, percent=st.integers(0, 100))
    def acknowledge(self, pick: int, percent: int) -> None:
        ident = self.some(pick, "writer", "cat", "sleeper")
        shadow = self.shadows[ident]
        offset = len(shadow.seen.stdout) * percent // 100
        self.guest.say(frames.ack(ident, Stream.STDOUT, offset))
        shadow.acked = max(shadow.acked, offset)

    @rule()
    def listen(self) -> None:
        self.guest.ping()

    @precondition(lambda self: any(shadow.will_end for shadow in self.shadows.values()))
    @rule(pick=PICK)
    def release(self, pick: int) -> None:
        ending = [ident for ident, shadow in self.shadows.items() if shadow.will_end]
        ident = ending[pick % len(ending)]
        self.guest.wait_over(ident)
        self.judge(ident)
        self.guest.release(ident)
        del self.shadows[ident], self.guest.seen[ident]

    @rule()
    def come_again(self) -> None:
        found = self.guest.resume()
        assert set(found) == set(self.shadows)
        for ident, known in found.items():
            shadow = self.shadows[ident]
            assert known.tag == shadow.tag
            assert known.kept_from == {Stream.STDOUT: shadow.acked, Stream.STDERR: 0}
            assert known.stdin_taken == shadow.stdin_sent

    def judge(self, ident: int) -> None:
        shadow = self.shadows[ident]
        seen = shadow.seen
        note(f"{ident}: {shadow.kind}, {seen.ended}, {len(seen.stdout)} of {len(shadow.expected)} bytes")
        assert seen.failed is None
        assert seen.ended is not None
        assert seen.starts == 1
        assert seen.stderr == b""
        assert seen.ended.stdout_bytes == len(seen.stdout)
        if shadow.kind == "writer" or not shadow.signal:
            assert seen.stdout == shadow.expected
            assert seen.ended == Ended(shadow.code, 0, len(shadow.expected), 0)
        else:
            assert shadow.expected.startswith(seen.stdout)
            assert (seen.ended.signal in (TERM, KILL)) or (shadow.stdin_ended and seen.ended.code == 0)

    def teardown(self) -> None:
        with self.guest as guest:
            for ident, shadow in self.shadows.items():
                if shadow.kind == "cat":
                    guest.say(frame(Frame.STDIN_END, ident))
                    shadow.stdin_ended = True
                elif shadow.kind == "sleeper":
                    guest.say(frames.signal(ident, KILL, frames.SCOPE_TREE))
                    shadow.signal = shadow.signal or KILL
            for ident in self.shadows:
                guest.wait_over(ident)
                self.judge(ident)
                guest.release(ident)
            assert guest.resume() == {}
            assert guest.broken == []


TestGuestAndHost = GuestAndHost.TestCase
TestGuestAndHost.settings = settings(
    max_examples=100, stateful_step_count=20, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)
