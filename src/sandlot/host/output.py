"""The output of one call: in memory while it is small, in a file when it grows; readable from the start by anyone.

The log is a row of records in the order of arrival. A position is the number of bytes before a record, headers
included, so it means the same in memory and in the file.
"""

import os
import struct
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from sandlot.model import CallOutput, Stream

_RECORD = struct.Struct("<BQI")
_STREAMS: tuple[Stream, ...] = (Stream.STDOUT, Stream.STDERR)
_RECENT_BYTES = 256 * 1024  # kept in memory behind the file, for readers who keep up


@dataclass(frozen=True, slots=True)
class Read:
    event: CallOutput
    position: int  # of the record behind it


class Log(Protocol):
    """What a call writes its output to."""

    @property
    def totals(self) -> Mapping[Stream, int]: ...

    @property
    def written(self) -> Mapping[Stream, int]: ...

    @property
    def size_bytes(self) -> int: ...

    @property
    def unwritten_bytes(self) -> int: ...

    @property
    def spill_bytes(self) -> int:
        """As soon as so many are unwritten, they are written."""
        ...

    def append(self, stream: Stream, data: bytes) -> None: ...

    def read(self, position: int) -> Read | None: ...

    def is_near(self, position: int) -> bool: ...

    def place_near_end(self, size_bytes: int) -> int:
        """A position with at least so many bytes behind it, if there are so many."""
        ...

    def short(self, size_bytes: int) -> bytes | None:
        """All of it, when it is not more than that and in no file."""
        ...

    def take_unwritten(self) -> list[CallOutput]: ...

    def write(self, batch: list[CallOutput]) -> None: ...

    def wrote(self, batch: list[CallOutput]) -> None: ...

    def restore(self) -> None: ...

    def close(self) -> None: ...


class OutputLog:
    spill_bytes = 256 * 1024  # output beyond this goes to a file, and only then the guest may forget it

    def __init__(self, path: Callable[[], Path]) -> None:
        """`path` is asked for only when a file is needed."""
        self._where = path
        self._memory: dict[int, CallOutput] = {}
        self._memory_bytes = 0
        self._unwritten: list[int] = []  # positions of records that are not in the file yet
        self._file = -1
        self.end = 0
        self.unwritten_bytes = 0
        self.spilled = False
        self.totals = {Stream.STDOUT: 0, Stream.STDERR: 0}
        self.written = {Stream.STDOUT: 0, Stream.STDERR: 0}

    @property
    def size_bytes(self) -> int:
        return self.totals[Stream.STDOUT] + self.totals[Stream.STDERR]

    def append(self, stream: Stream, data: bytes) -> None:
        event = CallOutput(stream, self.totals[stream], data)
        self._memory[self.end] = event
        self._unwritten.append(self.end)
        self.totals[stream] += len(data)
        self.unwritten_bytes += len(data)
        self._memory_bytes += len(data)
        self.end += _RECORD.size + len(data)

    def read(self, position: int) -> Read | None:
        """The record at a position, None at the end. May touch the disk when the reader has fallen far behind."""
        event = self._memory.get(position)
        if event is None:
            if position >= self.end:
                return None
            event = self._read_file(position)
        return Read(event, position + _RECORD.size + len(event.data))

    def is_near(self, position: int) -> bool:
        """Whether `read` answers from memory."""
        return position in self._memory or position >= self.end

    def place_near_end(self, size_bytes: int) -> int:
        del size_bytes  # it is not long
        return 0

    def records(self) -> bytes:
        """All records as one piece of bytes: the form in which short output is kept in the journal."""
        return b"".join(_pack(event) for event in self._memory.values())

    def short(self, size_bytes: int) -> bytes | None:
        """All records, when they are no more than this and in no file."""
        return None if self.spilled or self.size_bytes > size_bytes else self.records()

    def take_unwritten(self) -> list[CallOutput]:
        """What `write` is to bring to the file; one batch at a time."""
        batch = [self._memory[position] for position in self._unwritten]
        self._unwritten = []
        self.unwritten_bytes = 0
        return batch

    def write(self, batch: list[CallOutput]) -> None:
        """Blocking: append a batch to the file."""
        if self._file < 0:
            path = self._where()
            path.parent.mkdir(mode=0o700, exist_ok=True)
            self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        data = memoryview(b"".join(_pack(event) for event in batch))
        while data:
            data = data[os.write(self._file, data) :]

    def wrote(self, batch: list[CallOutput]) -> None:
        """After `write`, on the loop again: forget what readers hardly need."""
        self.spilled = True
        for event in batch:
            self.written[event.stream] = event.offset + len(event.data)
        unwritten = self._unwritten[0] if self._unwritten else self.end
        while self._memory_bytes > _RECENT_BYTES:
            oldest = next(iter(self._memory))
            if oldest >= unwritten:
                break
            self._memory_bytes -= len(self._memory.pop(oldest).data)

    def restore(self, records: bytes | None = None) -> None:
        """Take up an earlier engine's log: from the journal's bytes, or from the file as far as it is whole."""
        if records is not None:
            for event in _unpack(records)[0]:
                self.append(event.stream, event.data)
            self._unwritten = []
            self.unwritten_bytes = 0
            return
        path = self._where()
        if not path.exists():
            return
        self._file = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CLOEXEC)
        size = os.fstat(self._file).st_size
        while self.end < size:
            head = os.pread(self._file, _RECORD.size, self.end)
            if len(head) < _RECORD.size:
                break
            fields: tuple[int, int, int] = _RECORD.unpack(head)
            number, offset, length = fields
            if number >= len(_STREAMS) or length == 0 or self.end + _RECORD.size + length > size:
                break
            stream = _STREAMS[number]
            if offset != self.totals[stream]:
                break
            self.totals[stream] = offset + length
            self.end += _RECORD.size + length
        os.ftruncate(self._file, self.end)  # no whole record: its bytes are still with the guest
        self.written = dict(self.totals)
        self.spilled = True

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _read_file(self, position: int) -> CallOutput:
        # A descriptor of its own: readers may outlive the writer, who closes his.
        fd = os.open(self._where(), os.O_RDONLY | os.O_CLOEXEC)
        try:
            stream, offset, length = _head(os.pread(fd, _RECORD.size, position))
            return CallOutput(stream, offset, os.pread(fd, length, position + _RECORD.size))
        finally:
            os.close(fd)


def _head(record: bytes) -> tuple[Stream, int, int]:
    fields: tuple[int, int, int] = _RECORD.unpack(record)
    return _STREAMS[fields[0]], fields[1], fields[2]


def _pack(event: CallOutput) -> bytes:
    return _RECORD.pack(_STREAMS.index(event.stream), event.offset, len(event.data)) + event.data


def _unpack(records: bytes) -> tuple[list[CallOutput], int]:
    events: list[CallOutput] = []
    at = 0
    while at + _RECORD.size <= len(records):
        stream, offset, length = _head(records[at : at + _RECORD.size])
        if at + _RECORD.size + length > len(records):
            break
        at += _RECORD.size
        events.append(CallOutput(stream, offset, records[at : at + length]))
        at += length
    return events, at


def remove_outputs(folder: Path) -> None:
    """All output files of one session."""
    if folder.is_dir():
        for file in folder.iterdir():
            file.unlink(missing_ok=True)
        folder.rmdir()


def last_output(folder: Path) -> int:
    """The newest call that left a file, recorded or not."""
    return max((int(file.stem) for file in folder.glob("*.log") if file.stem.isdigit()), default=0)


def remove_other_outputs(outputs: Path, known: Iterable[str]) -> None:
    """Those of sessions that nobody knows any more."""
    keep = set(known)
    for folder in list(outputs.iterdir()):
        if folder.name not in keep and folder.name.startswith("v-"):
            remove_outputs(folder)
