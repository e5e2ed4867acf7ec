"""The ring of a terminal keeps the newest bytes, on disk as in memory, whatever an engine died in the middle of."""

import os
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from sandlot.host.output import OutputLog
from sandlot.host.terminal_log import Window, WindowLog, find_window_log
from sandlot.model import InvalidArgument, Stream, TerminalSize, limits

WINDOW = limits.TERMINAL_WINDOW_BYTES_MIN
SIZE = TerminalSize(10, 20)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "v-1" / "7.log"


def make(path: Path) -> WindowLog:
    return WindowLog(lambda: path, Window(WINDOW, SIZE))


def spill(log: WindowLog) -> None:
    batch = log.take_unwritten()
    log.write(batch)
    log.wrote(batch)


def read_all(log: WindowLog, position: int = 0) -> tuple[int | None, bytes]:
    first, data = None, b""
    while found := log.read(position):
        first = found.event.offset if first is None else first
        assert first + len(data) == found.event.offset
        data += found.event.data
        position = found.position
    return first, data


def fill(log: WindowLog, count: int, chance: random.Random, now: Callable[[], bool]) -> bytes:
    whole = b""
    while len(whole) < count:
        piece = chance.randbytes(chance.choice((1, 100, 5000, 65536)))
        log.append(Stream.STDOUT, piece)
        whole += piece
        if now():
            spill(log)
    return whole


@pytest.mark.parametrize("seed", range(4))
def test_the_newest_bytes_are_read_from_any_place(path: Path, seed: int) -> None:
    chance = random.Random(seed)
    log = make(path)
    whole = fill(log, 700_000, chance, lambda: chance.random() < 0.3)
    kept = len(whole) - WINDOW
    assert (log.end, log.kept_from) == (len(whole), kept)
    assert read_all(log) == (kept, whole[kept:])
    for position in (kept + 1, kept + WINDOW // 2, len(whole) - 1):
        assert read_all(log, position) == (position, whole[position:])
    assert read_all(log, len(whole)) == read_all(log, len(whole) + 1000) == (None, b"")
    spill(log)
    log.close()
    again = find_window_log(path)
    assert again is not None
    assert (again.end, again.kept_from, again.size, again.window_bytes) == (len(whole), kept, SIZE, WINDOW)
    assert read_all(again) == (kept, whole[kept:])


def test_a_short_output_is_all_there(path: Path) -> None:
    log = make(path)
    log.append(Stream.STDOUT, b"short")
    log.append(Stream.STDERR, b"a terminal has one stream")
    assert read_all(log) == (0, b"short")
    spill(log)
    assert log.written == {Stream.STDOUT: 5, Stream.STDERR: 0}
    assert read_all(log, 2) == (2, b"ort")
    log.close()


def test_who_is_killed_while_he_writes_leaves_less_and_nothing_wrong(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Dead after any of the writes to the file: what the file holds then is what was printed."""

    class Dead(Exception):
        pass

    real = os.pwrite
    for deaths in range(1, 12):
        path.unlink(missing_ok=True)
        log = make(path)
        log.prepare()
        left = deaths

        def write(fd: int, data: bytes, offset: int) -> int:
            nonlocal left
            left -= 1
            if left < 0:
                raise Dead
            return real(fd, data[: max(1, len(data) // 2)] if left == 0 and offset >= 64 else data, offset)

        monkeypatch.setattr(os, "pwrite", write)
        whole = b""
        try:
            for number in range(4):
                piece = bytes([number + 1]) * 40_000
                whole += piece
                log.append(Stream.STDOUT, piece)
                spill(log)
        except Dead:
            pass
        monkeypatch.setattr(os, "pwrite", real)
        log.close()
        found = find_window_log(path)
        assert found is not None
        first, data = read_all(found)
        assert data == whole[first or 0 : found.end], f"dead after {deaths} writes"
        # The guest tells from the end on, and it goes on as if nothing had been.
        next_log = make(path)
        next_log.restore()
        next_log.append(Stream.STDOUT, whole[next_log.end :] + b"more")
        spill(next_log)
        end = read_all(next_log)[1]
        assert (whole + b"more").endswith(end)
        assert len(end) >= min(40_004, len(whole) + 4)
        next_log.close()


def test_a_size_is_known_to_the_next_engine(path: Path) -> None:
    log = make(path)
    log.prepare()
    log.resize(TerminalSize(65535, 3))
    log.close()
    found = find_window_log(path)
    assert found is not None
    assert found.size == TerminalSize(65535, 3)


@pytest.mark.parametrize("content", [b"", b"terminal", b"\0" * 64, b"terminal" + b"\xff" * 56])
def test_what_is_no_ring_is_told_as_none(path: Path, content: bytes) -> None:
    path.parent.mkdir()
    path.write_bytes(content)
    assert find_window_log(path) is None
    log = make(path)
    log.restore()
    assert (log.end, path.exists()) == (0, False)


def test_output_of_another_call_is_told_as_none(path: Path) -> None:
    log = OutputLog(lambda: path)
    log.append(Stream.STDOUT, b"x" * 300)
    log.write(log.take_unwritten())
    log.close()
    assert find_window_log(path) is None
    assert find_window_log(path.with_name("8.log")) is None


def test_a_window_has_bounds() -> None:
    for wrong in (0, WINDOW - 1, limits.WINDOW_BYTES_MAX + 1):
        with pytest.raises(InvalidArgument):
            Window(wrong, SIZE)
