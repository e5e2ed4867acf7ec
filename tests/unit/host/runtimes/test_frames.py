"""Frames as bytes: what is written can be read, and nothing a guest sends is worse than MalformedFrame."""

import os
import re
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandlot.contracts import SpawnPlan
from sandlot.host.runtimes import frames
from sandlot.host.runtimes.frames import Frame, MalformedFrame
from sandlot.model import LimitReached, Stream, TerminalSize, limits

WIRE_H = Path(__file__).parents[4] / "guest" / "src" / "wire.h"
U64_MAX = 2**64 - 1

one_frame = st.tuples(
    st.sampled_from(list(Frame)), st.integers(0, U64_MAX), st.binary(max_size=64), st.integers(0, 255)
)
messages = st.lists(one_frame, max_size=6).map(lambda some: b"".join(frames.frame(*one) for one in some))
words = st.binary(max_size=12).map(lambda data: os.fsdecode(data.replace(b"\0", b"?")))
names = words.filter(lambda word: word != "" and "=" not in word)
plans = st.builds(
    SpawnPlan,
    argv=st.lists(words, min_size=1, max_size=5),
    cwd=words,
    envs=st.dictionaries(names, words, max_size=5),
    user=words,
    stdin=st.booleans(),
    terminal=st.none() | st.builds(TerminalSize, st.integers(1, 65535), st.integers(1, 65535)),
    tag=st.binary(max_size=64),
)

Reader = Callable[[memoryview], Any]
READERS: list[Reader] = [
    frames.read_welcome,
    frames.read_listing,
    frames.read_failed,
    frames.read_exit,
    frames.read_stdin_ack,
    frames.read_u32,
    lambda payload: frames.read_data(0, payload),
    lambda payload: frames.read_data(1, payload),
    lambda payload: frames.read_data(2, payload),
    lambda payload: frames.read_data(255, payload),
]


def parse(message: bytes) -> list[tuple[int, int, int, bytes]]:
    split = frames.split(memoryview(message))
    return [(kind, flags, ident, bytes(payload)) for kind, flags, ident, payload in split]


@dataclass
class Decoded:
    flags: int
    rows: int
    columns: int
    tag: bytes
    user: bytes
    cwd: bytes
    argv: list[bytes]
    envs: list[bytes]


def decode_spawn(payload: bytes) -> Decoded:
    """Written from the comment on `struct spawn_request` in guest/src/wire.h alone."""

    def take(form: str) -> int:
        nonlocal payload
        size = struct.calcsize("<" + form)
        (value,) = struct.unpack("<" + form, payload[:size])
        payload = payload[size:]
        return value

    flags, rows, columns, argc, envc, rlimits, tag_length = map(take, "IHHIIII")
    assert rlimits == 0, "the host sends none"
    tag, payload = payload[:tag_length], payload[tag_length:]
    assert payload.endswith(b"\0")
    strings = payload[:-1].split(b"\0")
    assert len(strings) == 2 + argc + envc
    user, cwd, *rest = strings
    return Decoded(flags, rows, columns, tag, user, cwd, rest[:argc], rest[argc:])


# ---- whole messages ---------------------------------------------------------------------------------------------


@given(st.lists(one_frame, max_size=6))
def test_splitting_undoes_framing(some: list[tuple[Frame, int, bytes, int]]) -> None:
    message = b"".join(frames.frame(*one) for one in some)
    assert parse(message) == [(int(kind), flags, ident, payload) for kind, ident, payload, flags in some]


@given(messages, st.data())
def test_a_cut_message_is_malformed_or_whole_frames(message: bytes, data: st.DataObject) -> None:
    cut = message[: data.draw(st.integers(0, len(message)))]
    try:
        found = parse(cut)
    except MalformedFrame:
        return
    assert b"".join(frames.HEADER.pack(len(p), k, f, 0, i) + p for k, f, i, p in found) == cut


@given(messages.filter(bool), st.data())
def test_a_damaged_message_parses_or_is_malformed(message: bytes, data: st.DataObject) -> None:
    damaged = bytearray(message)
    for _ in range(data.draw(st.integers(1, 4))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    try:
        found = parse(bytes(damaged))
    except MalformedFrame:
        return
    assert sum(frames.HEADER.size + len(payload) for *_, payload in found) == len(damaged)


@given(st.binary(max_size=200))
def test_any_bytes_parse_or_are_malformed(message: bytes) -> None:
    try:
        parse(message)
    except MalformedFrame:
        return


@pytest.mark.parametrize("reader", READERS)
@given(payload=st.binary(max_size=80))
def test_any_payload_is_read_or_malformed(reader: Reader, payload: bytes) -> None:
    try:
        reader(memoryview(payload))
    except MalformedFrame:
        return


@pytest.mark.parametrize(
    ("reader", "size"),
    [
        (frames.read_welcome, 24),
        (frames.read_failed, 8),
        (frames.read_exit, 48),
        (frames.read_stdin_ack, 12),
        (frames.read_u32, 4),
    ],
)
@given(extra=st.integers(-4, 8).filter(bool))
def test_a_fixed_payload_has_one_size(reader: Reader, size: int, extra: int) -> None:
    assert reader(memoryview(bytes(size))) is not None
    with pytest.raises(MalformedFrame):
        reader(memoryview(bytes(size + extra)))


def test_a_header_with_a_set_reserve_is_malformed() -> None:
    with pytest.raises(MalformedFrame):
        parse(struct.pack("<IBBHQ", 0, Frame.DATA, 0, 1, 7))


@given(st.sampled_from(list(Stream)), st.integers(0, U64_MAX), st.binary(max_size=32))
def test_output_keeps_stream_offset_and_bytes(stream: Stream, offset: int, data: bytes) -> None:
    payload = memoryview(struct.pack("<Q", offset) + data)
    assert frames.read_data(frames.STREAM_NUMBERS[stream], payload) == (stream, offset, data)


def test_an_unknown_stage_is_told_by_its_number() -> None:
    assert frames.read_failed(memoryview(struct.pack("<II", 2, 7))) == (2, "exec")
    assert frames.read_failed(memoryview(struct.pack("<II", 2, 99))) == (2, "stage 99")


# ---- what the host sends ----------------------------------------------------------------------------------------


@given(st.integers(0, U64_MAX), plans)
def test_a_spawn_says_what_was_planned(ident: int, plan: SpawnPlan) -> None:
    ((kind, flags, told, payload),) = parse(frames.spawn(ident, plan))
    assert (kind, flags, told) == (Frame.SPAWN, 0, ident)
    size = (plan.terminal.rows, plan.terminal.columns) if plan.terminal else (0, 0)
    assert decode_spawn(payload) == Decoded(
        flags=(1 if plan.terminal else 0) + (2 if plan.stdin else 0),
        rows=size[0],
        columns=size[1],
        tag=plan.tag,
        user=os.fsencode(plan.user),
        cwd=os.fsencode(plan.cwd),
        argv=[os.fsencode(word) for word in plan.argv],
        envs=[os.fsencode(f"{name}={value}") for name, value in plan.envs.items()],
    )


def spawn_of(argument_bytes: int, tag: bytes = b"") -> bytes:
    """A spawn whose strings take exactly this many bytes, with the four zeros that end them."""
    return frames.spawn(1, SpawnPlan(argv=("x", "y" * (argument_bytes - 5)), cwd="", envs={}, user="", tag=tag))


def test_the_longest_command_fits_into_a_message() -> None:
    message = spawn_of(limits.COMMAND_BYTES_MAX, bytes(4096))
    assert len(message) <= frames.MESSAGE_BYTES_MAX
    # The kernel takes no message that is longer than its default send buffer less some overhead.
    assert len(message) <= 212992 - 32


def test_a_longer_command_is_refused() -> None:
    with pytest.raises(LimitReached) as refused:
        spawn_of(limits.COMMAND_BYTES_MAX + 1)
    assert "arguments and environment" in str(refused.value.context["limit"])


def test_a_long_environment_counts_too() -> None:
    plan = SpawnPlan(argv=("x",), cwd="", envs={"A": "y" * limits.COMMAND_BYTES_MAX}, user="")
    with pytest.raises(LimitReached):
        frames.spawn(1, plan)


def test_a_long_tag_is_refused() -> None:
    assert spawn_of(100, bytes(4096))
    with pytest.raises(LimitReached):
        spawn_of(100, bytes(4097))


def test_more_variables_than_a_guest_takes_are_refused() -> None:
    envs = {f"V{number}": "" for number in range(limits.ARGUMENTS_MAX + 1)}
    with pytest.raises(LimitReached):
        frames.spawn(1, SpawnPlan(argv=("true",), cwd="", envs=envs, user=""))


def test_small_frames_have_the_form_that_wire_h_says() -> None:
    assert parse(frames.resume(bytes(range(16)))) == [(1, 0, 0, bytes(range(16)) + struct.pack("<I", frames.VERSION))]
    assert parse(frames.stdin(5, 9, b"abc")) == [(3, 0, 5, struct.pack("<Q", 9) + b"abc")]
    assert parse(frames.signal(5, 15, frames.SCOPE_TREE)) == [(5, 0, 5, struct.pack("<II", 15, 1))]
    assert parse(frames.resize(5, 24, 80)) == [(6, 0, 5, struct.pack("<HH", 24, 80))]
    assert parse(frames.ack(5, Stream.STDERR, 77)) == [(7, 1, 5, struct.pack("<Q", 77))]
    assert parse(frames.discard(5, Stream.STDOUT)) == [(8, 0, 5, b"")]


def test_both_sides_number_frames_and_stages_alike() -> None:
    """The twin in C is read as text: a number changed on one side only would break every session."""
    text = WIRE_H.read_text()
    theirs = {name: int(number) for name, number in re.findall(r"\bFRAME_(\w+) = (\d+)", text)}
    assert theirs == {kind.name: int(kind) for kind in Frame}
    stages = {int(number) for number in re.findall(r"\bSTAGE_\w+ = (\d+)", text)}
    assert stages == set(frames.STAGES)
    constants = dict(re.findall(r"\b(WIRE_VERSION|NONCE_BYTES|TAG_BYTES_MAX|ARGUMENTS_MAX) = (\d+)", text))
    assert constants == {
        "WIRE_VERSION": str(frames.VERSION),
        "NONCE_BYTES": str(frames.NONCE_BYTES),
        "TAG_BYTES_MAX": "4096",
        "ARGUMENTS_MAX": str(limits.ARGUMENTS_MAX),
    }
