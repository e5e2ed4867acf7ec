"""What the guest program promises its host, asked of the real program."""

import hashlib
import os
import select
import socket
import struct
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from sandlot.contracts import SpawnPlan
from sandlot.host.runtimes import frames
from sandlot.host.runtimes.frames import Frame, frame
from sandlot.model import Stream, TerminalSize, limits
from tests.unit.host.runtimes.guest_program import Ended, GuestProgram, Seen

RING_BYTES = 1024 * 1024
PIPE_BYTES = 64 * 1024


@pytest.fixture
def guest() -> Iterator[GuestProgram]:
    with GuestProgram() as made:
        yield made


# ---- a program and its end --------------------------------------------------------------------------------------


def test_a_program_writes_and_ends(guest: GuestProgram) -> None:
    guest.shell(1, "printf out; printf err >&2; exit 3")
    seen = guest.wait_over(1)
    assert (seen.stdout, seen.stderr) == (b"out", b"err")
    assert seen.ended == Ended(3, 0, 3, 3)
    assert seen.starts == 1


@pytest.mark.parametrize("code", [0, 1, 127, 255])
def test_the_exit_code_is_told(guest: GuestProgram, code: int) -> None:
    guest.shell(1, f"exit {code}")
    assert guest.wait_over(1).ended == Ended(code, 0, 0, 0)


@pytest.mark.parametrize("number", [1, 9, 15])
@pytest.mark.parametrize("scope", [frames.SCOPE_GROUP, frames.SCOPE_TREE])
def test_a_signal_ends_it_and_is_told(guest: GuestProgram, number: int, scope: int) -> None:
    guest.shell(1, "echo up; exec sleep 1000")
    guest.wait_output(1, 3)
    guest.say(frames.signal(1, number, scope))
    assert guest.wait_over(1).ended == Ended(-1, number, 3, 0)


def test_a_signal_right_behind_the_start_is_not_lost(guest: GuestProgram) -> None:
    for ident in range(1, 51):
        guest.seen[ident] = Seen()
        plan = SpawnPlan(("sleep", "1000"), "", {"PATH": "/usr/bin:/bin"}, "")
        guest.say(frames.spawn(ident, plan), frames.signal(ident, 15, frames.SCOPE_GROUP))
        assert guest.wait_over(ident).ended == Ended(-1, 15, 0, 0)


def test_a_signal_to_the_tree_finds_those_who_left_the_group(guest: GuestProgram) -> None:
    guest.shell(1, "setsid sleep 1000 & echo $!; wait")
    pid = int(guest.wait_output(1, 2))
    while not Path(f"/proc/{pid}/cmdline").read_bytes().startswith(b"sleep"):
        guest.ping()  # until it has its own session and program
    stayed = os.pidfd_open(pid)
    guest.say(frames.signal(1, 9, frames.SCOPE_TREE))
    guest.wait_over(1)
    assert is_over(stayed)
    os.close(stayed)


def is_over(handle: int, timeout_s: float = 20) -> bool:
    """A pidfd is readable when its process has ended."""
    return bool(select.select([handle], [], [], timeout_s)[0])


def handles(guest: GuestProgram, ident: int, count: int) -> list[int]:
    """Of programs that print their numbers once they are what they are to be."""
    while len(guest.seen[ident].stdout.split()) < count:
        guest.hear()
    return [os.pidfd_open(int(word)) for word in guest.seen[ident].stdout.split()]


DEAF = "sh -c 'trap \"\" TERM; echo $$; exec sleep 1000'"


@pytest.mark.parametrize(
    "start", [f"{DEAF} &", f"setsid {DEAF} &", f"({DEAF} &);", f"(setsid {DEAF} &);", f"(setsid env -i {DEAF} &);"]
)
def test_an_end_is_told_when_nobody_is_left(guest: GuestProgram, start: str) -> None:
    guest.shell(1, f"{start} sleep 1000")
    (deaf,) = handles(guest, 1, 1)
    head = os.pidfd_open(guest.seen[1].pid)
    guest.say(frames.signal(1, 15, frames.SCOPE_END))
    assert is_over(head)
    guest.ping()
    assert (guest.seen[1].ended, is_over(deaf, 0)) == (None, False)
    guest.say(frames.signal(1, 9, frames.SCOPE_END))
    assert guest.wait_over(1).ended == Ended(-1, 15, len(guest.seen[1].stdout), 0)
    assert is_over(deaf, 0)
    os.close(deaf)
    os.close(head)


def test_who_does_not_listen_is_killed_also_when_the_host_says_no_more(guest: GuestProgram) -> None:
    guest.shell(1, f"{DEAF} & sleep 1000")
    (deaf,) = handles(guest, 1, 1)
    guest.say(frames.signal(1, 15, frames.SCOPE_END))
    assert is_over(deaf)
    assert guest.wait_over(1).ended == Ended(-1, 15, len(guest.seen[1].stdout), 0)
    os.close(deaf)


def test_a_family_is_ended_and_no_other(guest: GuestProgram) -> None:
    guest.shell(1, "(setsid sh -c 'echo $$; exec sleep 1000' &); sleep 1000")
    guest.shell(2, "(setsid sh -c 'echo $$; exec sleep 1000' &); sleep 1000")
    (ours,), (theirs,) = handles(guest, 1, 1), handles(guest, 2, 1)
    guest.say(frames.signal(1, 15, frames.SCOPE_END))
    assert guest.wait_over(1).ended == Ended(-1, 15, len(guest.seen[1].stdout), 0)
    assert (is_over(ours, 0), is_over(theirs, 0)) == (True, False)
    guest.ping()
    assert guest.seen[2].ended is None
    os.close(ours)
    os.close(theirs)


def test_a_signal_alone_is_followed_by_nothing(guest: GuestProgram) -> None:
    guest.shell(1, f"{DEAF} & sleep 1000")
    (deaf,) = handles(guest, 1, 1)
    guest.say(frames.signal(1, 15, frames.SCOPE_TREE))
    assert guest.wait_over(1).ended == Ended(-1, 15, len(guest.seen[1].stdout), 0)
    assert not is_over(deaf, 0)
    os.close(deaf)


def test_arguments_environment_and_directory_arrive_as_they_are(guest: GuestProgram, tmp_path: Path) -> None:
    odd = os.fsdecode(b"\xff\n 'x")
    guest.spawn(1, "sh", "-c", 'printf "%s|%s|" "$1" "$A"; pwd', "sh", odd, envs={"A": odd}, cwd=str(tmp_path))
    raw = os.fsencode(odd)
    assert guest.wait_over(1).stdout == raw + b"|" + raw + b"|" + os.fsencode(tmp_path) + b"\n"


def test_nothing_of_the_guest_leaks_into_a_program(guest: GuestProgram) -> None:
    guest.spawn(
        1, "sh", "-c", "ls /proc/self/fd | wc -l; env; grep SigBlk /proc/self/status; grep SigIgn /proc/self/status"
    )
    lines = guest.wait_over(1).stdout.splitlines()
    assert lines[0] == b"4"  # three streams, and the folder that ls reads
    assert {line.split(b"=")[0] for line in lines[1:-2]} <= {b"PATH", b"PWD", b"SHLVL", b"_", b"OLDPWD"}
    assert [line.split()[1].strip(b"0") for line in lines[-2:]] == [b"", b""]


@pytest.mark.parametrize(
    ("fields", "failure"),
    [
        ({"argv": ("/nonexistent/program",)}, (2, "exec")),
        ({"argv": ("no-such-program",)}, (2, "exec")),
        ({"argv": ("/etc/passwd",)}, (13, "exec")),
        ({"argv": ("true",), "cwd": "/nonexistent"}, (2, "cwd")),
        ({"argv": ("true",), "user": "no-such-user"}, (2, "user")),
        ({"argv": ("true",), "user": "1:x"}, (2, "user")),
        ({"argv": ("true",), "user": "u" * 5000}, (2, "user")),
    ],
    ids=repr,
)
def test_what_cannot_be_run_says_why(guest: GuestProgram, fields: dict[str, object], failure: tuple[int, str]) -> None:
    argv = fields.pop("argv")
    assert isinstance(argv, tuple)
    guest.spawn(1, *argv, **fields)  # pyright: ignore[reportUnknownArgumentType, reportArgumentType]
    seen = guest.wait_over(1)
    assert (seen.failed, seen.ended, seen.stdout, seen.stderr) == (failure, None, b"", b"")
    guest.release(1)
    assert guest.resume() == {}


def test_the_longest_command_runs(guest: GuestProgram) -> None:
    # The kernel takes no single argument above 128 KiB.
    count = 1 << 14
    words = ["y" * count] * (limits.COMMAND_BYTES_MAX // (count + 1) - 1)
    guest.spawn(1, "sh", "-c", 'echo $#; printf %s "$@" | wc -c', "sh", *words, tag=bytes(4096))
    assert guest.wait_over(1).stdout.split() == [str(len(words)).encode(), str(len(words) * count).encode()]


def test_as_many_words_as_allowed_run_and_one_more_is_refused(guest: GuestProgram) -> None:
    most = {f"V{number}": "" for number in range(limits.ARGUMENTS_MAX)}
    guest.spawn(1, "/bin/true", *["x"] * (limits.ARGUMENTS_MAX - 1), envs=most)
    assert guest.wait_over(1).ended == Ended(0, 0, 0, 0)
    # The host refuses one more itself; a guest that hears of it all the same says which process it is about.
    plan = SpawnPlan(("/bin/true",), "", most, "")
    message = bytearray(frames.spawn(2, plan)) + b"LAST=\0"
    struct.pack_into("<I", message, 0, len(message) - frames.HEADER.size)
    struct.pack_into("<I", message, frames.HEADER.size + 12, limits.ARGUMENTS_MAX + 1)
    guest.say(bytes(message))
    guest.ping()
    assert guest.broken == [Frame.SPAWN]


def test_a_terminal_has_its_size_and_can_be_resized(guest: GuestProgram) -> None:
    script = "stty size; trap 'stty size; exit 0' WINCH; echo ready; while :; do sleep 0.02; done"
    guest.spawn(1, "sh", "-c", script, terminal=TerminalSize(33, 99))
    while b"ready" not in guest.seen[1].stdout:
        guest.hear()
    guest.say(frames.resize(1, 44, 111))
    assert guest.wait_over(1).stdout.split() == [b"33", b"99", b"ready", b"44", b"111"]


# ---- input ------------------------------------------------------------------------------------------------------


def test_input_arrives_whole_and_its_end_is_seen(guest: GuestProgram) -> None:
    data = os.urandom(700_000)
    guest.spawn(1, "cat", stdin=True)
    guest.write(1, 0, data)
    guest.say(frame(Frame.STDIN_END, 1))
    assert guest.wait_over(1).stdout == data
    assert guest.seen[1].ended == Ended(0, 0, len(data), 0)


def test_input_said_twice_arrives_once(guest: GuestProgram) -> None:
    guest.spawn(1, "cat", stdin=True)
    guest.say(frames.stdin(1, 0, b"abc"))
    guest.say(frames.stdin(1, 0, b"abc"), frames.stdin(1, 1, b"bcde"), frames.stdin(1, 9, b"a hole"))
    guest.say(frames.stdin(1, 5, b"f"), frame(Frame.STDIN_END, 1), frame(Frame.STDIN_END, 1))
    assert guest.wait_over(1).stdout == b"abcdef"


def test_no_more_than_the_credit_is_taken(guest: GuestProgram) -> None:
    guest.spawn(1, "sleep", "1000", stdin=True)
    for offset in range(0, 1 << 20, 1 << 15):
        guest.say(frames.stdin(1, offset, bytes(1 << 15)))
    assert guest.resume()[1].stdin_taken == PIPE_BYTES + frames.STDIN_CREDIT


def test_a_program_that_closed_its_input_does_not_stop_the_writer(guest: GuestProgram) -> None:
    guest.shell(1, "exec <&-; sleep 1000", stdin=True)
    seen = guest.seen[1]
    offset = 0
    while not seen.stdin_closed:
        guest.say(frames.stdin(1, offset, b"x"))
        offset += 1
        guest.ping()
    guest.say(frames.stdin(1, offset, b"more"))
    guest.ping()
    assert seen.stdin_taken == offset + 4


def test_a_program_without_input_reads_its_end(guest: GuestProgram) -> None:
    guest.spawn(1, "cat")
    guest.say(frames.stdin(1, 0, b"nobody reads this"))
    assert guest.wait_over(1).ended == Ended(0, 0, 0, 0)


# ---- output -----------------------------------------------------------------------------------------------------


def test_a_writer_stops_at_the_ring_and_loses_nothing(guest: GuestProgram) -> None:
    size = 5_000_000
    guest.shell(1, f"yes sandlot | head -c {size}")
    seen = guest.seen[1]
    guest.wait_output(1, RING_BYTES)
    guest.ping()
    assert len(seen.stdout) == RING_BYTES, "nothing was acknowledged, so nothing more may be kept"
    assert not seen.is_over
    guest.wait_over(1)
    expected = (b"sandlot\n" * (size // 8 + 1))[:size]
    assert hashlib.sha256(seen.stdout).digest() == hashlib.sha256(expected).digest()
    assert seen.ended == Ended(0, 0, size, 0)


def test_one_full_stream_does_not_stop_the_other(guest: GuestProgram) -> None:
    guest.shell(1, "yes | head -c 3000000 & yes err | head -c 40 >&2; wait")
    guest.wait_output(1, RING_BYTES)
    assert len(guest.wait_output(1, 40, Stream.STDERR)) == 40
    assert len(guest.wait_over(1).stdout) == 3_000_000


def test_discarded_output_is_counted_once_and_not_sent(guest: GuestProgram) -> None:
    guest.shell(1, "printf 12345; read go; yes | head -c 3000000; printf err >&2", stdin=True)
    assert guest.wait_output(1, 5) == b"12345"
    guest.say(frames.discard(1, Stream.STDOUT), frames.discard(1, Stream.STDOUT))
    guest.say(frames.stdin(1, 0, b"\n"))
    seen = guest.wait_over(1)
    assert (seen.stdout, seen.stderr) == (b"12345", b"err")
    assert seen.ended == Ended(0, 0, 3_000_005, 3)


def test_discarding_frees_a_writer_who_is_stuck(guest: GuestProgram) -> None:
    guest.shell(1, "yes | head -c 3000000")
    guest.wait_output(1, RING_BYTES)
    guest.say(frames.discard(1, Stream.STDOUT))
    seen = guest.seen[1]
    while not seen.is_over:
        guest.hear()
    assert seen.ended == Ended(0, 0, 3_000_000, 0)


@pytest.mark.parametrize("offset", [RING_BYTES + 1, 2**64 - 1])
def test_an_acknowledgement_of_what_never_was_changes_nothing(guest: GuestProgram, offset: int) -> None:
    guest.shell(1, "printf abc; sleep 1000")
    guest.wait_output(1, 3)
    guest.say(frames.ack(1, Stream.STDOUT, offset))
    guest.say(frames.ack(99, Stream.STDOUT, 1))
    assert guest.resume()[1].kept_from[Stream.STDOUT] == 0


def test_a_child_left_behind_does_not_hold_up_the_end(guest: GuestProgram) -> None:
    guest.shell(1, "sleep 1000 & echo done")
    before = time.monotonic()
    assert guest.wait_over(1).stdout == b"done\n"
    assert time.monotonic() - before < 10


def test_an_end_behind_a_full_ring_is_told_though_a_child_lives(guest: GuestProgram) -> None:
    # The ring is full with an odd first offset, and behind it the pipe holds what fills exactly four pieces of a ring
    # that grows anew: 3996 and 100 of 4096 bytes, then 12188 and 100 of 16384.
    size = RING_BYTES + 100 + 16384
    guest.shell(1, f"yes | head -c {size}; sleep 1000 & exit 0")
    guest.wait_output(1, RING_BYTES)
    pid = guest.wait_started(1).pid
    while Path(f"/proc/{pid}").exists():
        guest.ping()
    guest.say(frames.ack(1, Stream.STDOUT, 100))
    guest.wait_output(1, RING_BYTES + 100)
    guest.say(frames.ack(1, Stream.STDOUT, RING_BYTES + 100))
    guest.wait_output(1, size)
    while not guest.seen[1].is_over:
        guest.hear()


def test_a_start_is_told_soon_though_another_program_floods(guest: GuestProgram) -> None:
    for ident in (1, 2, 3, 4):
        guest.spawn(ident, "yes")
        guest.say(frames.discard(ident, Stream.STDOUT))
    guest.ping()
    for ident in range(5, 35):
        guest.spawn(ident, "sleep", "1000", stdin=True)
        guest.wait_started(ident)


# ---- a host that comes again -------------------------------------------------------------------------------------


def test_an_id_runs_once(guest: GuestProgram, tmp_path: Path) -> None:
    for _ in range(3):
        guest.shell(7, f"echo ran >>{tmp_path}/ran")
    guest.wait_over(7)
    guest.shell(7, f"echo ran >>{tmp_path}/ran")
    guest.ping()
    assert (tmp_path / "ran").read_text() == "ran\n"
    assert guest.seen[7].starts == 1


def test_a_new_host_hears_what_was_not_acknowledged(guest: GuestProgram) -> None:
    guest.shell(1, "printf 0123456789; printf abc >&2; exit 4", tag=b"mine")
    while not guest.seen[1].is_over:
        guest.hear()
    guest.say(frames.ack(1, Stream.STDOUT, 4))
    guest.seen[1].output[Stream.STDOUT][:] = b"0123"
    guest.seen[1].output[Stream.STDERR].clear()
    (known,) = guest.resume().values()
    assert known.kept_from == {Stream.STDOUT: 4, Stream.STDERR: 0}
    assert (known.process_id, known.tag) == (1, b"mine")
    while not guest.seen[1].is_over:
        guest.hear()
    assert (guest.seen[1].stdout, guest.seen[1].stderr) == (b"0123456789", b"abc")
    assert guest.seen[1].ended == Ended(4, 0, 10, 3)
    assert guest.seen[1].starts == 1


def test_a_failure_is_told_to_a_new_host_too(guest: GuestProgram) -> None:
    guest.spawn(1, "/nonexistent/program")
    assert guest.wait_over(1).failed
    assert list(guest.resume()) == [1]
    assert guest.wait_over(1).failed == (2, "exec")


def test_only_what_is_over_is_released(guest: GuestProgram) -> None:
    guest.spawn(1, "sleep", "1000")
    guest.shell(2, "exit 0")
    guest.wait_over(2)
    guest.release(1)
    guest.release(2)
    assert list(guest.resume()) == [1]


def test_many_processes_with_long_tags_are_listed(guest: GuestProgram) -> None:
    for ident in range(1, 151):
        guest.spawn(ident, "/nonexistent/program", tag=struct.pack("<Q", ident) * 512)
    found = guest.resume()
    assert {ident: known.tag for ident, known in found.items()} == {
        ident: struct.pack("<Q", ident) * 512 for ident in range(1, 151)
    }


# ---- messages that no host sends --------------------------------------------------------------------------------

SPAWN_HEAD = struct.Struct("<IHHIIII")
STRINGS = b"\0\0/bin/true\0"
MALFORMED = {
    "half a header": (b"\0" * 15, 0),
    "payload beyond the message": (struct.pack("<IBBHQ", 1, Frame.PING, 0, 0, 0), 0),
    "length that overflows": (struct.pack("<IBBHQ", 0xFFFFFFFF, Frame.SPAWN, 0, 0, 1), 0),
    "reserve set": (struct.pack("<IBBHQ", 0, Frame.RELEASE, 0, 1, 0), 0),
    "unknown type": (struct.pack("<IBBHQ", 0, 200, 0, 0, 1), 200),
    "type 0": (struct.pack("<IBBHQ", 0, 0, 0, 0, 1), 0),
    "a guest's own type": (frame(Frame.EXIT, 1), Frame.EXIT),
    "ping without token": (frame(Frame.PING), Frame.PING),
    "resume with a short nonce": (frame(Frame.RESUME, 0, bytes(19)), Frame.RESUME),
    "spawn of nothing": (frame(Frame.SPAWN, 5), Frame.SPAWN),
    "spawn of garbage": (frame(Frame.SPAWN, 5, b"\xff" * 64), Frame.SPAWN),
    "spawn without program": (frame(Frame.SPAWN, 5, SPAWN_HEAD.pack(0, 0, 0, 0, 0, 0, 0) + b"\0\0"), Frame.SPAWN),
    "spawn with unknown flags": (frame(Frame.SPAWN, 5, SPAWN_HEAD.pack(4, 0, 0, 1, 0, 0, 0) + STRINGS), Frame.SPAWN),
    "spawn with too few strings": (frame(Frame.SPAWN, 5, SPAWN_HEAD.pack(0, 0, 0, 2, 0, 0, 0) + STRINGS), Frame.SPAWN),
    "spawn with a string too many": (
        frame(Frame.SPAWN, 5, SPAWN_HEAD.pack(0, 0, 0, 1, 0, 0, 0) + STRINGS + b"\0"),
        Frame.SPAWN,
    ),
    "spawn without last zero": (
        frame(Frame.SPAWN, 5, SPAWN_HEAD.pack(0, 0, 0, 1, 0, 0, 0) + STRINGS[:-1]),
        Frame.SPAWN,
    ),
    "spawn with a tag beyond its end": (
        frame(Frame.SPAWN, 5, SPAWN_HEAD.pack(0, 0, 0, 1, 0, 0, 4096) + STRINGS),
        Frame.SPAWN,
    ),
    "spawn with limits beyond its end": (
        frame(Frame.SPAWN, 5, SPAWN_HEAD.pack(0, 0, 0, 1, 0, 16, 0) + STRINGS),
        Frame.SPAWN,
    ),
    "short stdin": (frame(Frame.STDIN, 1, bytes(7)), Frame.STDIN),
    "stdin end with bytes": (frame(Frame.STDIN_END, 1, b"x"), Frame.STDIN_END),
    "short signal": (frame(Frame.SIGNAL, 1, bytes(7)), Frame.SIGNAL),
    "signal 0": (frames.signal(1, 0, 0), Frame.SIGNAL),
    "signal 65": (frames.signal(1, 65, 0), Frame.SIGNAL),
    "signal of no scope": (frames.signal(1, 9, 4), Frame.SIGNAL),
    "short resize": (frame(Frame.RESIZE, 1, bytes(3)), Frame.RESIZE),
    "short acknowledgement": (frame(Frame.ACK, 1, bytes(7)), Frame.ACK),
    "acknowledgement of stream 2": (frame(Frame.ACK, 1, bytes(8), 2), Frame.ACK),
    "discard of stream 255": (frame(Frame.DISCARD, 1, b"", 255), Frame.DISCARD),
    "release with bytes": (frame(Frame.RELEASE, 1, b"x"), Frame.RELEASE),
    "too long": (frame(Frame.PING, 0, bytes(frames.MESSAGE_BYTES_MAX)), 0),
}


def test_malformed_messages_are_refused_and_change_nothing(guest: GuestProgram) -> None:
    guest.spawn(1, "cat", stdin=True)
    for name, (message, reason) in MALFORMED.items():
        guest.broken.clear()
        guest.say(message)
        guest.ping()
        assert guest.broken == [reason], name
    assert list(guest.resume()) == [1]
    guest.say(frames.stdin(1, 0, b"still here"), frame(Frame.STDIN_END, 1))
    assert guest.wait_over(1).stdout == b"still here"


def test_an_empty_message_is_the_end_of_the_line(guest: GuestProgram) -> None:
    """The kernel gives both as zero bytes. No host sends one, so it counts as what it looks like."""
    guest.say(b"")
    assert guest.program.wait(10) == 0


def test_frames_before_a_malformed_one_are_done(guest: GuestProgram) -> None:
    """What is refused is told, so a host is not left waiting for either."""
    guest.seen.clear()
    plan = frames.spawn(1, SpawnPlan(("true",), "", {}, ""))
    guest.say(plan, b"\1")
    guest.ping()
    assert guest.broken == [0]
    assert guest.wait_over(1).ended == Ended(0, 0, 0, 0)


def test_the_guest_goes_when_its_host_is_gone(guest: GuestProgram) -> None:
    guest.ping()
    guest.socket.shutdown(socket.SHUT_RDWR)
    assert guest.program.wait(10) == 0
