"""The log of a managed process: the newest bytes, from any place, whole after any death."""

import os
import random
from pathlib import Path

import pytest

from sandlot.host import process_log
from sandlot.host.process_log import ProcessLog
from sandlot.model import CallOutput, Stream

OUT, ERR = Stream.STDOUT, Stream.STDERR


def flush(log: ProcessLog) -> None:
    batch = log.take_unwritten()
    log.write(batch)
    log.wrote(batch)


def read(log: ProcessLog, position: int) -> tuple[list[CallOutput], int]:
    """All from a position on, each piece where the one before ended."""
    found: list[CallOutput] = []
    while True:
        some, after = log.read_from(position)
        if not some and after == position:
            return found, position
        found += some
        position = after


def joined(pieces: list[CallOutput], stream: Stream) -> bytes:
    return b"".join(piece.data for piece in pieces if piece.stream is stream)


def opened(folder: Path, bytes_max: int) -> ProcessLog:
    log = ProcessLog(lambda: folder, "p1", bytes_max)
    log.restore()
    return log


@pytest.mark.parametrize("seed", range(8))
def test_the_newest_bytes_are_there_whoever_wrote_them_and_when(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    bytes_max = 40_000
    whole = {OUT: b"", ERR: b""}
    log = opened(tmp_path, bytes_max)
    for _round in range(60):
        stream = chance.choice((OUT, ERR))
        piece = chance.randbytes(chance.choice((1, 7, 300, 9000)))
        log.append(stream, piece)
        whole[stream] += piece
        if chance.random() < 0.5:
            flush(log)
        if chance.random() < 0.1:
            flush(log)
            log.close()
            log = opened(tmp_path, bytes_max)
        pieces, end = read(log, log.place_of({OUT: 0, ERR: 0}))
        assert end == log.end
        for each, data in whole.items():
            kept = joined(pieces, each)
            assert data.endswith(kept)
            first = next((one.offset for one in pieces if one.stream is each), len(data))
            assert first == len(data) - len(kept)
        total = sum(map(len, whole.values()))
        kept_bytes = sum(len(one.data) for one in pieces)
        assert kept_bytes >= min(total, bytes_max * 7 // 8 - 5000)
    files = sum(file.stat().st_size for file in tmp_path.iterdir())
    assert files <= 2 * bytes_max + 20_000


def test_any_offset_is_found_without_reading_what_is_before(tmp_path: Path) -> None:
    log = opened(tmp_path, 8000)
    for number in range(700):
        log.append(OUT, b"%09d\n" % number)
        flush(log)
    for offset in (6900, 5005, 3000):
        pieces, _end = read(log, log.place_of({OUT: offset}))
        if pieces[0].offset <= offset:
            data = joined(pieces, OUT)[offset - pieces[0].offset :]
            assert data.startswith((b"%09d\n" % (offset // 10))[offset % 10 :])
        else:
            assert log.place_of({OUT: offset}) == log.place_of({OUT: 0})


def test_half_a_record_is_none(tmp_path: Path) -> None:
    log = opened(tmp_path, 8000)
    log.append(OUT, b"first")
    log.append(ERR, b"second")
    flush(log)
    log.close()
    (file,) = tmp_path.iterdir()
    os.truncate(file, file.stat().st_size - 3)
    again = opened(tmp_path, 8000)
    assert (again.totals[OUT], again.totals[ERR]) == (5, 0)
    again.append(ERR, b"second")
    flush(again)
    assert joined(read(again, 0)[0], ERR) == b"second"


def test_a_full_disk_costs_the_oldest_and_nothing_breaks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = opened(tmp_path, 8000)
    room = 3000
    write = os.write

    def short(fd: int, data: bytes) -> int:
        used = sum(file.stat().st_size for file in tmp_path.iterdir())
        if used + len(data) > room:
            raise OSError(28, "no space")
        return write(fd, data)

    monkeypatch.setattr(process_log.os, "write", short)
    whole = b""
    for number in range(300):
        piece = b"%099d\n" % number
        log.append(OUT, piece)
        whole += piece
        flush(log)
    kept = joined(read(log, log.place_of({OUT: 0}))[0], OUT)
    assert len(kept) > 1000
    assert whole.endswith(kept[-1000:])
    room = 1 << 20
    for number in range(300, 600):
        piece = b"%099d\n" % number
        log.append(OUT, piece)
        whole += piece
        flush(log)
    log.close()
    again = opened(tmp_path, 8000)
    kept = joined(read(again, again.place_of({OUT: 0}))[0], OUT)
    assert len(kept) > 6000
    assert whole.endswith(kept)
