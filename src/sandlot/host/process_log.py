"""What a managed process prints, over all of its runs: the newest bytes are kept, in a row of files.

The log is a row of records in the order of arrival. A position is the number of bytes before a record, headers
included. Each file says in its head where it begins, so the oldest can be removed, and a reader finds any place without
reading what is before it.
"""

import os
import struct
from bisect import bisect_right
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from sandlot.host.output import Read
from sandlot.model import CallOutput, ProcessOutput, Stream

_RECORD = struct.Struct("<BQI")
_HEAD = struct.Struct("<8sQQQ")
_MAGIC = b"sandlog1"
_STREAMS: tuple[Stream, ...] = (Stream.STDOUT, Stream.STDERR)
_FILES = 8  # that the bytes to keep are spread over: so large a part of them goes at once
_RECORD_BYTES_MAX = 64 * 1024
_RECENT_BYTES = 32 * 1024  # kept in memory behind the files, for readers who keep up
_RECORD_COST = 100  # of memory, beside its bytes
_READ_BYTES = 256 * 1024  # at once; more than any record
SPILL_BYTES = 64 * 1024
_MERGED_BYTES = 64 * 1024


@dataclass(slots=True)
class _File:
    number: int
    position: int
    starts: dict[Stream, int]
    size_bytes: int = 0  # of its records
    data_bytes: int = 0

    @property
    def end(self) -> int:
        return self.position + self.size_bytes


class ProcessLog:
    """Written by one run after the other. `write` blocks; one thread does it at a time. Readers read anywhere."""

    def __init__(self, folder: Callable[[], Path], name: str, bytes_max: int) -> None:
        self._folder = folder
        self._name = name
        self._bytes_max = bytes_max
        self._part = max(1, bytes_max // _FILES)
        self._files: list[_File] = []
        self._fd = -1
        self._passed = dict.fromkeys(_STREAMS, 0)  # by whoever writes the files
        self._recent: dict[int, CallOutput] = {}
        self._recent_cost = 0
        self._unwritten: list[int] = []
        self._writing: list[int] = []
        self.unwritten_bytes = 0
        self.end = 0
        self.totals = dict.fromkeys(_STREAMS, 0)
        self.written = dict.fromkeys(_STREAMS, 0)

    def append(self, stream: Stream, data: bytes) -> None:
        room = min(_RECORD_BYTES_MAX, self._part)
        for start in range(0, len(data), room):
            event = CallOutput(stream, self.totals[stream], data[start : start + room])
            self._recent[self.end] = event
            self._unwritten.append(self.end)
            self.totals[stream] += len(event.data)
            self.unwritten_bytes += len(event.data) + _RECORD_COST
            self._recent_cost += len(event.data) + _RECORD_COST
            self.end += _RECORD.size + len(event.data)

    def skip_to(self, starts: dict[Stream, int]) -> None:
        """What was printed before these offsets and is not here is lost."""
        for stream, start in starts.items():
            if self.totals[stream] < start:
                self._close_file()
                self.totals[stream] = self.written[stream] = self._passed[stream] = start

    # ---- written -----------------------------------------------------------------------------------------------

    def take_unwritten(self) -> list[CallOutput]:
        """What `write` is to bring to the files; one batch at a time."""
        batch = [self._recent[position] for position in self._unwritten]
        self._writing, self._unwritten, self.unwritten_bytes = self._unwritten, [], 0
        return batch

    def write(self, batch: list[CallOutput]) -> None:
        """Blocking. A full disk takes the place of the oldest; what it does not take even then is lost."""
        for position, event in zip(self._writing, batch, strict=True):
            record = _RECORD.pack(_STREAMS.index(event.stream), event.offset, len(event.data)) + event.data
            while not self._write_record(position, record, event) and len(self._files) > 1:
                self._remove_oldest()
            self._passed[event.stream] = event.offset + len(event.data)
        while sum(file.data_bytes for file in self._files) > self._bytes_max and len(self._files) > 1:
            self._remove_oldest()
        while sum(file.size_bytes for file in self._files) > 2 * self._bytes_max and len(self._files) > 1:
            self._remove_oldest()

    def wrote(self, batch: list[CallOutput]) -> None:
        """After `write`, on the loop again: forget what readers hardly need."""
        for event in batch:
            self.written[event.stream] = event.offset + len(event.data)
        unwritten = self._unwritten[0] if self._unwritten else self.end
        while self._recent_cost > _RECENT_BYTES:
            oldest = next(iter(self._recent))
            if oldest >= unwritten:
                break
            self._recent_cost -= len(self._recent.pop(oldest).data) + _RECORD_COST

    def _write_record(self, position: int, record: bytes, event: CallOutput) -> bool:
        try:
            file = self._file_at(position)
            rest = memoryview(record)
            while rest:
                rest = rest[os.write(self._fd, rest) :]
        except OSError:
            with suppress(OSError):
                if self._fd >= 0:
                    os.ftruncate(self._fd, _HEAD.size + self._files[-1].size_bytes)
            self._close_file()
            return False
        file.size_bytes += len(record)
        file.data_bytes += len(event.data)
        return True

    def _file_at(self, position: int) -> _File:
        last = self._files[-1] if self._files else None
        has_room = last and last.data_bytes < self._part and last.size_bytes < 2 * self._part
        if last and has_room and self._fd >= 0 and last.end == position:
            return last
        self._close_file()
        file = _File(last.number + 1 if last else 1, position, dict(self._passed))
        path = self._path(file.number)
        path.parent.mkdir(mode=0o700, exist_ok=True)
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            os.write(fd, _HEAD.pack(_MAGIC, position, *(file.starts[stream] for stream in _STREAMS)))
        except OSError:
            os.close(fd)
            path.unlink()
            raise
        self._fd = fd
        self._files.append(file)
        return file

    def _path(self, number: int) -> Path:
        return self._folder() / f"{self._name}-{number}.run"

    def _remove_oldest(self) -> None:
        gone = self._files.pop(0)
        self._path(gone.number).unlink(missing_ok=True)

    def _close_file(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def close(self) -> None:
        """What is in the files can still be read."""
        self._close_file()
        unwritten = set(self._unwritten)
        for position in [position for position in self._recent if position not in unwritten]:
            self._recent_cost -= len(self._recent.pop(position).data) + _RECORD_COST

    def remove(self) -> None:
        self._close_file()
        for file in self._found():
            file.unlink(missing_ok=True)
        self._files = []

    # ---- found again -------------------------------------------------------------------------------------------

    def _found(self) -> list[Path]:
        return sorted(self._folder().glob(f"{self._name}-*.run"), key=lambda path: int(path.stem.rpartition("-")[2]))

    def restore(self) -> None:
        """Blocking: take up an earlier engine's log, as far as it is whole."""
        for path in self._found():
            number = int(path.stem.rpartition("-")[2])
            with path.open("rb") as opened:
                data = opened.read(_HEAD.size)
            fields: tuple[bytes, int, int, int] | None = _HEAD.unpack(data) if len(data) == _HEAD.size else None
            last = self._files[-1] if self._files else None
            if fields is None or fields[0] != _MAGIC or (last and fields[1] < last.position):
                path.unlink()
                continue
            file = _File(number, fields[1], {Stream.STDOUT: fields[2], Stream.STDERR: fields[3]})
            file.size_bytes = file.data_bytes = path.stat().st_size - _HEAD.size
            self._files.append(file)
        if self._files:
            self._restore_last(self._files[-1])

    def _restore_last(self, file: _File) -> None:
        """The others ended where the next one begins, or before."""
        self._passed = dict(file.starts)
        fd = os.open(self._path(file.number), os.O_RDWR | os.O_APPEND | os.O_CLOEXEC)
        size = file.data_bytes = 0
        for _at, event in _records(fd, _HEAD.size, _HEAD.size + file.size_bytes):
            if event.offset != self._passed[event.stream]:
                break
            self._passed[event.stream] += len(event.data)
            size += _RECORD.size + len(event.data)
            file.data_bytes += len(event.data)
        file.size_bytes = size
        os.ftruncate(fd, _HEAD.size + size)  # no whole record: its bytes are still with the guest
        self._fd, self.end = fd, file.end
        self.totals, self.written = dict(self._passed), dict(self._passed)

    # ---- read --------------------------------------------------------------------------------------------------

    def place_of(self, starts: dict[Stream, int]) -> int:
        """A position at or before which everything from these offsets on begins."""
        files = tuple(self._files)
        for file in reversed(files):
            if all(file.starts[stream] <= start for stream, start in starts.items()):
                return file.position
        if files:
            return files[0].position
        return next(iter(self._recent), self.end)

    def is_near(self, position: int) -> bool:
        """Whether `read_from` answers from memory."""
        return position in self._recent or position >= self.end

    def read_from(self, position: int, bytes_max: int = _READ_BYTES) -> tuple[list[CallOutput], int]:
        """Some records from a position on, and the position behind them; none at the end. Where what was there is not
        kept any more, it goes on with the oldest that is."""
        if position in self._recent:
            return self._read_recent(position, bytes_max)
        files = tuple(self._files)
        at = bisect_right(files, position, key=lambda file: file.position) - 1
        if at >= 0 and position >= files[at].end:
            at += 1  # a gap, or the end
        elif at < 0:
            at = 0
        if at >= len(files):  # nothing in files: what is not in memory either is gone
            known = next((known for known in tuple(self._recent) if known >= position), None)
            return ([], position) if known is None else self._read_recent(known, bytes_max)
        file = files[at]
        return self._read_file(file, max(position, file.position), bytes_max)

    def _read_recent(self, position: int, bytes_max: int) -> tuple[list[CallOutput], int]:
        found: list[CallOutput] = []
        size = 0
        while size < bytes_max and (event := self._recent.get(position)) is not None:
            found.append(event)
            size += len(event.data)
            position += _RECORD.size + len(event.data)
        return found, position

    def _read_file(self, file: _File, position: int, bytes_max: int) -> tuple[list[CallOutput], int]:
        end = file.end
        try:
            # A descriptor of its own: readers may outlive the writer, who closes his.
            fd = os.open(self._path(file.number), os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return [], end  # it was removed meanwhile: the next one follows
        try:
            found: list[CallOutput] = []
            size = 0
            for _at, event in _records(fd, _HEAD.size + position - file.position, _HEAD.size + file.size_bytes):
                found.append(event)
                size += len(event.data)
                position += _RECORD.size + len(event.data)
                if size >= bytes_max:
                    return found, position
            return found, position if found else end
        finally:
            os.close(fd)


def _records(fd: int, at: int, end: int) -> Iterator[tuple[int, CallOutput]]:
    """Whole records of a file, with where they begin."""
    while at < end:
        data = os.pread(fd, min(_READ_BYTES, end - at), at)
        used = 0
        while used + _RECORD.size <= len(data):
            fields: tuple[int, int, int] = _RECORD.unpack_from(data, used)
            stream, offset, length = fields
            if stream >= len(_STREAMS) or length == 0 or length > _RECORD_BYTES_MAX:
                return
            if used + _RECORD.size + length > len(data):
                break
            start = used + _RECORD.size
            yield at + used, CallOutput(_STREAMS[stream], offset, data[start : start + length])
            used = start + length
        if used == 0:
            return
        at += used


def merged(found: list[CallOutput]) -> list[ProcessOutput]:
    """Small neighbours as one."""
    told: list[tuple[CallOutput, list[bytes], int]] = []
    for event in found:
        if told:
            first, parts, size = told[-1]
            follows = first.stream is event.stream and first.offset + size == event.offset
            if follows and size + len(event.data) <= _MERGED_BYTES:
                parts.append(event.data)
                told[-1] = (first, parts, size + len(event.data))
                continue
        told.append((event, [event.data], len(event.data)))
    return [ProcessOutput(first.stream, first.offset, b"".join(parts)) for first, parts, _size in told]


class RunLog:
    """A log as one run of its process writes it: offsets count from the beginning of the run."""

    spill_bytes = SPILL_BYTES

    def __init__(self, log: ProcessLog, base: dict[Stream, int]) -> None:
        self._log = log
        # What is there already is of this run where an earlier engine has heard it.
        self._first = log.place_of(base)
        self.base = base

    @property
    def totals(self) -> dict[Stream, int]:
        return {stream: total - self.base[stream] for stream, total in self._log.totals.items()}

    @property
    def written(self) -> dict[Stream, int]:
        return {stream: max(0, done - self.base[stream]) for stream, done in self._log.written.items()}

    @property
    def size_bytes(self) -> int:
        return sum(self.totals.values())

    @property
    def unwritten_bytes(self) -> int:
        return self._log.unwritten_bytes

    def append(self, stream: Stream, data: bytes) -> None:
        self._log.append(stream, data)

    def take_unwritten(self) -> list[CallOutput]:
        return self._log.take_unwritten()

    def write(self, batch: list[CallOutput]) -> None:
        self._log.write(batch)

    def wrote(self, batch: list[CallOutput]) -> None:
        self._log.wrote(batch)

    def restore(self) -> None:
        """Its process has done that."""

    def short(self, size_bytes: int) -> bytes | None:
        """Never: what it prints goes to files, however little it is."""
        del size_bytes

    def is_near(self, position: int) -> bool:
        return self._log.is_near(self._first + position)

    def read(self, position: int) -> Read | None:
        """From its beginning, or from where this engine found it."""
        position += self._first
        while True:
            found, end = self._log.read_from(position, bytes_max=1)
            if not found and end == position:
                return None
            position = end
            if found and found[0].offset >= self.base[found[0].stream]:
                return Read(found[0], end - self._first)

    def place_near_end(self, size_bytes: int) -> int:
        near = {stream: max(0, total - size_bytes) for stream, total in self._log.totals.items()}
        return max(0, self._log.place_of(near) - self._first)

    def close(self) -> None:
        """The next run goes on with the files."""
