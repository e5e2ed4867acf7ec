"""The stream of a command, as servers have been seen to send it, and as nobody should."""

import contextlib
import json
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandlot.model import LimitReached, Unavailable
from sandlot.opensandbox.events import FRAME_BYTES_MAX, Collector, Event, EventReader
from sandlot.opensandbox.values import CommandResult

INIT = '{"type":"init","text":"9b1c","timestamp":1750000000000}'
PING = '{"type":"ping","text":"pong","timestamp":1750000000001}'
OUT = '{"type":"stdout","text":"hello","timestamp":1750000000002}'
BLANK = '{"type":"stdout","text":"\\n","timestamp":1750000000002}'
ERR = '{"type":"stderr","text":"ärger","timestamp":1750000000003}'
DONE = '{"type":"execution_complete","execution_time":1017,"timestamp":1750000000004}'
EXIT_3 = (
    '{"type":"error","error":{"ename":"CommandExecError","evalue":"3","traceback":["exit status 3"]},"timestamp":1}'
)
KILLED = (
    '{"type":"error","error":{"ename":"CommandExecError","evalue":"-1","traceback":["signal: killed"]},"timestamp":1}'
)
OLD = ['{"type":"stdout","data":"a\\nb\\n"}', '{"type":"execution_complete","exitCode":0,"durationMs":12}']
OLD_EXIT_7 = '{"type":"execution_complete","exitCode":7,"durationMs":12.5}'


def bare(*frames: str) -> bytes:
    return "".join(f"{frame}\n\n" for frame in frames).encode()


def sse(*frames: str) -> bytes:
    return "".join(f"event: message\ndata: {frame}\n\n" for frame in frames).encode()


def read(data: bytes, size: int = 1 << 20) -> list[Event]:
    reader = EventReader()
    pieces = [data[begin : begin + size] for begin in range(0, len(data), size)]
    return [event for piece in pieces for event in reader.feed(piece)] + list(reader.close())


def result(events: list[Event]) -> CommandResult:
    collector = Collector()
    for event in events:
        collector.take(event)
    return collector.result(1.5)


@pytest.mark.parametrize("framing", [bare, sse])
def test_both_framings_say_the_same(framing: Callable[..., bytes]) -> None:
    found = result(read(framing(INIT, PING, OUT, BLANK, ERR, OUT, DONE)))
    assert (found.stdout, found.stderr, found.exit_code) == ("hello\n\nhello\n", "ärger\n", 0)
    assert (found.command_id, found.error, found.duration_s) == ("9b1c", "", 1.017)


@pytest.mark.parametrize("data", [bare(INIT, OUT, ERR, DONE), sse(INIT, OUT, ERR, DONE)], ids=["bare", "sse"])
def test_split_anywhere_it_is_the_same(data: bytes) -> None:
    whole = read(data)
    assert len(whole) == 4
    for size in range(1, 40):
        assert read(data, size) == whole


def test_the_end_needs_no_blank_line() -> None:
    assert result(read(bare(OUT) + DONE.encode())).exit_code == 0
    assert result(read(f"{OUT}\n{DONE}\n".encode())).stdout == "hello\n", "a line each is enough"
    assert result(read(bare(OUT, DONE).replace(b"\n", b"\r\n"))).stdout == "hello\n"


def test_an_exit_code_is_no_error() -> None:
    found = result(read(bare(INIT, EXIT_3)))
    assert (found.exit_code, found.error, found.duration_s) == (3, "", 1.5)
    killed = result(read(bare(INIT, KILLED)))
    assert (killed.exit_code, killed.error) == (-1, "CommandExecError: -1")


def test_the_older_names_are_read_too() -> None:
    found = result(read(bare(*OLD)))
    assert (found.stdout, found.exit_code, found.duration_s) == ("a\nb\n", 0, 0.012)
    assert result(read(bare(OLD_EXIT_7))).exit_code == 7
    assert result(read(bare('{"type":"error","data":"no such directory"}'))).error == "no such directory"


def test_a_refusal_in_the_stream_is_an_error() -> None:
    found = result(read(b'{"code":"RUNTIME_ERROR","message":"busy"}\n\n'))
    assert (found.exit_code, found.error) == (None, "RUNTIME_ERROR: busy")


def test_a_stream_that_ends_early_is_no_result() -> None:
    with pytest.raises(Unavailable, match="ended before"):
        result(read(bare(INIT, OUT)))


def test_what_is_no_event_is_told() -> None:
    for data in (b"no json\n\n", b'["a"]\n\n', b"[" * 100_000 + b"\n\n", b"data: 1\n\n"):
        with pytest.raises(Unavailable):
            read(data)


def test_a_frame_is_bounded() -> None:
    for begin in (b"{", b"data: x\ndata: "):
        with pytest.raises(LimitReached):
            read(begin + b"x" * 2 * FRAME_BYTES_MAX, 10_000)


def test_output_is_bounded() -> None:
    collector = Collector(output_bytes_max=10)
    for event in read(bare(OUT, OUT, DONE)):
        collector.take(event)
    found = collector.result(0.0)
    assert (found.stdout, found.truncated) == ("hello\n", True)


@given(st.lists(st.text(alphabet=st.characters(codec="utf-8", exclude_characters="\n\r"), min_size=1)), st.data())
def test_lines_come_back_as_they_were(lines: list[str], data: st.DataObject) -> None:
    frames = [json.dumps({"type": "stdout", "text": line}, ensure_ascii=False) for line in lines]
    stream = bare(*frames, DONE)
    cut = data.draw(st.integers(0, len(stream)))
    reader = EventReader()
    events = [*reader.feed(stream[:cut]), *reader.feed(stream[cut:]), *reader.close()]
    assert result(events).stdout == "".join(f"{line}\n" for line in lines)


@given(st.binary(max_size=300))
def test_rubbish_is_typed(data: bytes) -> None:
    with contextlib.suppress(Unavailable, LimitReached):
        read(data, 7)
