"""The story of one run of code: what was asked, what it told, how it ended. In memory while it is fresh, in a file from
then on, readable from the beginning by anyone.

A story is a row of records in the order of arrival; a position is the number of bytes before one. Each says how much of
its context's output had been heard with it, so an engine that comes later goes on exactly there.
"""

import json
import os
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HEAD, SENT, BEGUN, DROPPED, RESULT = "h", "s", "b", "d", "r"  # of ours; what the context tells has capitals
_RECORD = struct.Struct("<ccIQQ")
_TRAILER = struct.Struct("<8sQ")  # behind a story that has ended: where its last record begins
_MAGIC = b"the end."
_RECENT_BYTES = 64 * 1024  # kept in memory behind the file, for readers who keep up
_RECORD_BYTES_MAX = 64 << 20


@dataclass(frozen=True, slots=True)
class Record:
    kind: str
    flag: str
    data: bytes
    heard: tuple[int, int]  # of both streams of its context

    @property
    def size(self) -> int:
        return _RECORD.size + len(self.data)

    def packed(self) -> bytes:
        return _RECORD.pack(self.kind.encode(), self.flag.encode(), len(self.data), *self.heard) + self.data


@dataclass(frozen=True, slots=True)
class Batch:
    records: tuple[tuple[int, Record], ...]


class Story:
    """`write` blocks; one thread does it at a time. Readers read anywhere."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._recent: dict[int, Record] = {}
        self._recent_bytes = 0
        self._unwritten: list[int] = []
        self._fd = -1
        self.end = 0

    def append(self, kind: str, data: bytes, heard: tuple[int, int], flag: str = ".") -> None:
        record = Record(kind, flag, data, heard)
        self._recent[self.end] = record
        self._recent_bytes += record.size
        self._unwritten.append(self.end)
        self.end += record.size

    def append_fields(self, kind: str, fields: dict[str, Any], heard: tuple[int, int]) -> None:
        self.append(kind, json.dumps(fields).encode(), heard)

    # ---- written -----------------------------------------------------------------------------------------------

    def take_unwritten(self) -> Batch:
        batch = Batch(tuple((at, self._recent[at]) for at in self._unwritten))
        self._unwritten = []
        return batch

    def write(self, batch: Batch) -> None:
        """Blocking. Raises OSError."""
        if not batch.records:
            return
        if self._fd < 0:
            self._path.parent.mkdir(mode=0o700, exist_ok=True)
            self._fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        parts = [record.packed() for _at, record in batch.records]
        at, last = batch.records[-1]
        if last.kind == RESULT:
            parts.append(_TRAILER.pack(_MAGIC, at))
        rest = memoryview(b"".join(parts))
        while rest:
            rest = rest[os.write(self._fd, rest) :]
        if last.kind == RESULT:
            self.close()

    def wrote(self, batch: Batch) -> None:
        """After `write`, on the loop again: forget what readers hardly need."""
        is_over = bool(batch.records) and batch.records[-1][1].kind == RESULT
        keep = 0 if is_over else _RECENT_BYTES
        unwritten = self._unwritten[0] if self._unwritten else self.end
        while self._recent_bytes > keep:
            oldest = next(iter(self._recent))
            if oldest >= unwritten:
                break
            self._recent_bytes -= self._recent.pop(oldest).size

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def remove(self) -> None:
        self.close()
        self._path.unlink(missing_ok=True)

    # ---- read --------------------------------------------------------------------------------------------------

    def is_near(self, position: int) -> bool:
        """Whether `read` answers from memory."""
        return position in self._recent or position >= self.end

    def read(self, position: int) -> tuple[Record, int] | None:
        """The record at a position and the position behind it; None at the end. Raises OSError when it is kept no
        longer."""
        record = self._recent.get(position)
        if record is None:
            if position >= self.end:
                return None
            fd = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                record = _read(fd, position, self.end)
            finally:
                os.close(fd)
            if record is None:
                raise OSError(5, os.strerror(5))
        return record, position + record.size

    # ---- found again -------------------------------------------------------------------------------------------

    def restore(self) -> list[Record]:
        """Blocking: take up an earlier engine's file as far as it is whole, and tell its records; of one that has ended
        the first and the last."""
        fd = os.open(self._path, os.O_RDWR | os.O_APPEND | os.O_CLOEXEC)
        try:
            size = os.fstat(fd).st_size
            if (ended := self._ended(fd, size)) is not None:
                return ended
            found: list[Record] = []
            while (record := _read(fd, self.end, size)) is not None:
                found.append(record)
                self.end += record.size
            os.ftruncate(fd, self.end)  # no whole record: it is still with the guest
            return found
        finally:
            os.close(fd)

    def _ended(self, fd: int, size: int) -> list[Record] | None:
        trailer = os.pread(fd, _TRAILER.size, max(0, size - _TRAILER.size))
        if len(trailer) < _TRAILER.size:
            return None
        told: tuple[bytes, int] = _TRAILER.unpack(trailer)
        magic, at = told
        first, last = _read(fd, 0, size), _read(fd, at, size) if magic == _MAGIC and at < size else None
        if first is None or last is None or last.kind != RESULT:
            return None
        self.end = at + last.size
        return [first, last]


def _read(fd: int, at: int, end: int) -> Record | None:
    head = os.pread(fd, _RECORD.size, at)
    if len(head) < _RECORD.size:
        return None
    fields: tuple[bytes, bytes, int, int, int] = _RECORD.unpack(head)
    kind, flag, size, out, err = fields
    if size > _RECORD_BYTES_MAX or at + _RECORD.size + size > end:
        return None
    data = os.pread(fd, size, at + _RECORD.size)
    return Record(kind.decode("latin-1"), flag.decode("latin-1"), data, (out, err)) if len(data) == size else None
