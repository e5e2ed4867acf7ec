"""The output of a call: whoever reads from wherever gets the same records, in memory, in a file or after a restart."""

import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from sandlot.host.output import OutputLog
from sandlot.model import CallOutput, Stream

HEAD_BYTES = 13
streams = st.sampled_from(list(Stream))
# Long ones, so that what is kept in memory is soon too much.
letters = st.binary(min_size=1, max_size=1)
sizes = st.sampled_from([1, 7, 5000, 90_000])


def read_all(log: OutputLog, position: int = 0) -> list[CallOutput]:
    found: list[CallOutput] = []
    while read := log.read(position):
        assert read.position > position
        found.append(read.event)
        position = read.position
    return found


class LogAndList(RuleBasedStateMachine):
    """A log beside a plain list of what it was given."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="sandlot-output-"))
        self.path = self.folder / "outputs" / "1.log"
        self.path.parent.mkdir()
        self.log = OutputLog(lambda: self.path)
        self.model: list[CallOutput] = []
        self.taken: list[CallOutput] | None = None
        self.in_file = 0  # records that the file has

    def totals(self) -> dict[Stream, int]:
        return {one: sum(len(event.data) for event in self.model if event.stream is one) for one in Stream}

    def positions(self) -> list[int]:
        positions = [0]
        for event in self.model:
            positions.append(positions[-1] + HEAD_BYTES + len(event.data))
        return positions

    @rule(stream=streams, letter=letters, size=sizes)
    def append(self, stream: Stream, letter: bytes, size: int) -> None:
        data = letter * size
        event = CallOutput(stream, self.totals()[stream], data)
        self.log.append(stream, data)
        self.model.append(event)

    @precondition(lambda self: self.taken is None)
    @rule()
    def take(self) -> None:
        self.taken = self.log.take_unwritten()
        assert self.taken == self.model[self.in_file :]
        assert self.log.unwritten_bytes == 0

    @precondition(lambda self: self.taken is not None)
    @rule()
    def write(self) -> None:
        assert self.taken is not None
        self.log.write(self.taken)
        self.log.wrote(self.taken)
        self.in_file += len(self.taken)
        self.taken = None
        assert self.log.spilled
        kept = self.model[: self.in_file]
        assert self.log.written == {one: sum(len(e.data) for e in kept if e.stream is one) for one in Stream}

    @rule(pick=st.integers(0, 1000))
    def read_from_an_earlier_position(self, pick: int) -> None:
        positions = self.positions()
        at = pick % len(positions)
        assert read_all(self.log, positions[at]) == self.model[at:]

    @precondition(lambda self: self.taken is None)
    @rule(torn=st.integers(0, 200_000))
    def come_again_by_the_file(self, torn: int) -> None:
        """A new engine; the last record may be torn, and what was not written is still with the guest."""
        self.log.close()
        size = self.positions()[self.in_file]
        if self.in_file:
            last = len(self.model[self.in_file - 1].data) + HEAD_BYTES
            cut = torn % (last + 1)
            with self.path.open("r+b") as file:
                file.truncate(size - cut)
            self.in_file -= cut > 0
        del self.model[self.in_file :]
        self.log = OutputLog(lambda: self.path)
        self.log.restore()
        assert self.log.written == self.log.totals == self.totals()

    @precondition(lambda self: self.taken is None and self.in_file == 0)
    @rule()
    def come_again_by_the_journal(self) -> None:
        """Short output of a finished call. Such a log is only read."""
        again = OutputLog(lambda: self.folder / "nowhere")
        again.restore(self.log.records())
        assert read_all(again) == self.model
        assert again.totals == self.totals()
        assert (again.end, again.unwritten_bytes) == (self.log.end, 0)

    @invariant()
    def counts_agree(self) -> None:
        assert self.log.totals == self.totals()
        assert self.log.size_bytes == sum(self.totals().values())
        assert self.log.end == self.positions()[-1]
        taken = len(self.taken) if self.taken is not None else 0
        assert self.log.unwritten_bytes == sum(len(event.data) for event in self.model[self.in_file + taken :])

    def teardown(self) -> None:
        assert read_all(self.log) == self.model
        self.log.close()
        shutil.rmtree(self.folder)


TestLogAndList = LogAndList.TestCase
TestLogAndList.settings = settings(max_examples=80, stateful_step_count=30)


@pytest.fixture
def log(tmp_path: Path) -> OutputLog:
    return OutputLog(lambda: tmp_path / "1.log")


def spill(log: OutputLog) -> None:
    batch = log.take_unwritten()
    log.write(batch)
    log.wrote(batch)


def test_what_is_in_the_file_does_not_stay_in_memory(log: OutputLog) -> None:
    for number in range(64):
        log.append(Stream.STDOUT, bytes([number]) * 65536)
        spill(log)
    assert not log.is_near(0)
    assert log.is_near(log.end)
    assert log.is_near(log.end - HEAD_BYTES - 65536)
    assert [event.data[0] for event in read_all(log)] == list(range(64))
    log.close()


def test_what_is_not_in_the_file_stays_in_memory(log: OutputLog) -> None:
    log.append(Stream.STDOUT, b"first")
    batch = log.take_unwritten()
    for _ in range(32):
        log.append(Stream.STDERR, bytes(65536))
    log.write(batch)
    log.wrote(batch)
    assert log.is_near(HEAD_BYTES + 5)
    assert len(read_all(log)) == 33
    log.close()


def test_a_reader_may_outlive_the_writer(log: OutputLog) -> None:
    for _ in range(8):
        log.append(Stream.STDOUT, bytes(65536))
    spill(log)
    log.close()
    assert len(read_all(log)) == 8


def test_the_log_is_for_the_engine_alone(log: OutputLog, tmp_path: Path) -> None:
    log.append(Stream.STDOUT, b"x")
    spill(log)
    assert (tmp_path / "1.log").stat().st_mode & 0o777 == 0o600
    log.close()


def test_nothing_to_restore_is_an_empty_log(log: OutputLog) -> None:
    log.restore()
    assert (log.end, log.spilled, read_all(log)) == (0, False, [])


def test_a_restored_log_goes_on(log: OutputLog, tmp_path: Path) -> None:
    log.append(Stream.STDOUT, b"before")
    spill(log)
    log.close()
    again = OutputLog(lambda: tmp_path / "1.log")
    again.restore()
    again.append(Stream.STDOUT, b"after")
    spill(again)
    again.close()
    assert read_all(again) == [CallOutput(Stream.STDOUT, 0, b"before"), CallOutput(Stream.STDOUT, 6, b"after")]


@pytest.mark.parametrize("tail", [bytes(HEAD_BYTES * 3), b"\7" + bytes(HEAD_BYTES * 2)], ids=["zeros", "stream 7"])
def test_a_tail_that_is_no_record_is_cut_off(log: OutputLog, tmp_path: Path, tail: bytes) -> None:
    log.append(Stream.STDOUT, b"whole")
    spill(log)
    log.close()
    with (tmp_path / "1.log").open("ab") as file:
        file.write(tail)
    again = OutputLog(lambda: tmp_path / "1.log")
    try:
        again.restore()
        assert again.totals[Stream.STDOUT] == 5
        assert read_all(again) == [CallOutput(Stream.STDOUT, 0, b"whole")]
    finally:
        again.close()
