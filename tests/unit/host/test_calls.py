"""What a guest keeps of a call for the next engine."""

import asyncio
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandlot.contracts import ProcessEnd
from sandlot.host import calls
from sandlot.host.calls import LiveCall, Ticket
from sandlot.model import CallResult, Stream, TerminalSize, limits

words = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=20)


@given(
    argv=st.lists(words, min_size=1, max_size=6),
    started=st.floats(0, 1e10),
    timeout_s=st.none() | st.floats(0.001, 1e6),
    output_max=st.integers(0, 1 << 40),
    stdin=st.booleans(),
    terminal=st.booleans(),
)
def test_a_ticket_comes_back_as_it_was(
    argv: list[str], started: float, timeout_s: float | None, output_max: int, stdin: bool, terminal: bool
) -> None:
    ticket = Ticket("s-1", 7, "c-1", tuple(argv), started, timeout_s, output_max, stdin, terminal)
    assert Ticket.from_tag("s-1", 7, ticket.to_tag()) == ticket


def test_a_long_command_line_is_cut_and_still_fits() -> None:
    ticket = Ticket("s-1", 7, "c-1", ("é" * 5000, "x" * 5000), 1.0, None, 1, False, False)
    assert len(ticket.to_tag()) <= 4096
    assert Ticket.from_tag("s-1", 7, ticket.to_tag()).call_id == "c-1"


@given(st.binary(max_size=64))
def test_a_tag_that_nobody_of_ours_wrote_is_refused(tag: bytes) -> None:
    with pytest.raises((ValueError, IndexError)):
        Ticket.from_tag("s-1", 7, b"../x\n" + tag)


class Program:
    """Stands in for a process in a guest; notes what it is told."""

    def __init__(self) -> None:
        self.told: list[object] = []
        self.input_bytes = 0

    def acknowledge(self, stream: Stream, offset: int) -> None:
        self.told.append(("ack", stream, offset))

    def discard(self, stream: Stream) -> None:
        self.told.append(("discard", stream))

    def release(self) -> None:
        self.told.append("release")

    def write_stdin(self, offset: int, data: bytes) -> None:
        assert offset == self.input_bytes
        self.input_bytes += len(data)

    def close_stdin(self) -> None:
        self.told.append("end of stdin")

    def signal(self, number: int, *, tree: bool = False, end: bool = False) -> None:
        self.told.append(("signal", number, tree))

    def resize(self, size: TerminalSize) -> None:
        self.told.append(size)


class Started:
    """A call that has begun, with what became of it."""

    def __init__(self, folder: Path, *, stdin: bool = False) -> None:
        self.wedged: list[str] = []
        self.results: list[CallResult] = []
        self.program = Program()
        ticket = Ticket("s-1", 1, "c-1", ("x",), 1e10, 60.0, 1000, stdin, False)
        self.live = LiveCall(
            ticket,
            lambda number: folder / f"{number}.log",
            lambda _ticket: None,
            lambda _live, result, _output, release: (self.results.append(result), release())[1],
            self.wedged.append,
        )
        self.live.begin(self.program)


EXITED = ProcessEnd(-1, 9, 0, 0, 0, 0, 0)


async def test_a_kill_that_worked_slowly_does_not_end_the_session(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "KILL_DEADLINE_S", 0.1)
    started = Started(tmp_path)
    started.live.kill()  # before the call is old enough to be noted
    await asyncio.sleep(calls.NOTE_AFTER_S + 0.02)
    started.live.on_exit(EXITED)
    await asyncio.sleep(0.15)
    assert started.wedged == []
    assert [result.exit_code for result in started.results] == [137]


async def test_a_command_that_cannot_be_killed_is_the_fault_of_its_guest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "KILL_DEADLINE_S", 0.05)
    started = Started(tmp_path)
    started.live.kill()
    await asyncio.sleep(0.15)
    assert started.wedged == ["call c-1 could not be killed"]


async def test_a_guest_that_tells_the_end_twice_is_heard_once(tmp_path: Path) -> None:
    started = Started(tmp_path)
    started.live.on_exit(EXITED)
    started.live.on_output(Stream.STDOUT, 0, b"late")
    started.live.on_exit(ProcessEnd(0, 0, 0, 0, 0, 0, 0))
    await asyncio.sleep(0)
    assert [result.exit_code for result in started.results] == [137]
    assert started.program.told == ["release"]


async def test_no_guest_gets_more_input_than_its_credit(tmp_path: Path) -> None:
    started = Started(tmp_path, stdin=True)
    started.live.on_stdin_taken(1 << 60, closed=False)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(started.live.write_stdin(bytes(1 << 20)), 0.1)
    assert started.program.input_bytes == calls.STDIN_CREDIT
