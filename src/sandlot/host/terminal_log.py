"""The output of one terminal: only the newest part of it is kept, in a file that goes round in a ring.

Its file has a head, which says what the file holds, and behind it the byte of each offset at `offset % window`. Before
bytes are overwritten the head says so, and only when they are there it says that they are: an engine that is killed in
between leaves less, and nothing wrong.
"""

import contextlib
import os
import struct
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from sandlot.host.output import OutputLog, Read
from sandlot.model import CallOutput, InvalidArgument, Stream, TerminalSize, limits

_MARK = b"terminal"  # no row of records begins like that
_HEAD = struct.Struct("<8sQHHxxxxQQ")  # mark, bytes of the window, rows, columns, first kept, end
_SIZE_AT = 16
_FIRST_AT = 24
_END_AT = 32
_DATA_AT = 64
_RECENT_BYTES = 256 * 1024  # kept in memory behind the file, for readers who keep up
_PIECE_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True)
class Window:
    """How much of a terminal's output is kept, and how large the terminal is at its beginning."""

    bytes: int
    size: TerminalSize

    def __post_init__(self) -> None:
        limits.within("window_bytes", self.bytes, limits.TERMINAL_WINDOW_BYTES_MIN, limits.WINDOW_BYTES_MAX)


class WindowLog:
    """Has the verbs of `OutputLog`, so that a call may have either. A position is an offset; reading below the window
    gives what the window has first."""

    spill_bytes = OutputLog.spill_bytes

    def __init__(self, path: Callable[[], Path], window: Window) -> None:
        self._where = path
        self.window_bytes = window.bytes
        self.size = window.size
        self._recent = bytearray()  # up to the end; all that is not in the file yet is in it
        self._lock = threading.Lock()  # readers of the file are threads
        self._floor = 0
        self._written = 0
        self._file = -1
        self.end = 0

    @property
    def kept_from(self) -> int:
        return max(self._floor, self.end - self.window_bytes)

    @property
    def unwritten_bytes(self) -> int:
        return self.end - self._written

    @property
    def size_bytes(self) -> int:
        return self.end

    @property
    def totals(self) -> dict[Stream, int]:
        return {Stream.STDOUT: self.end, Stream.STDERR: 0}

    @property
    def written(self) -> dict[Stream, int]:
        return {Stream.STDOUT: self._written, Stream.STDERR: 0}

    def short(self, size_bytes: int) -> bytes | None:
        """Never: what it kept is in its file, which says that it was a terminal."""
        del size_bytes

    def append(self, stream: Stream, data: bytes) -> None:
        if stream is Stream.STDOUT:  # a terminal has no other
            with self._lock:
                self._recent += data
                self.end += len(data)

    def read(self, position: int) -> Read | None:
        """What is there from a position on, or from where the window begins; None at the end. Touches the disk when
        the reader has fallen far behind. Raises OSError."""
        while True:
            with self._lock:
                start, recent = max(position, self.kept_from), self.end - len(self._recent)
                if start >= self.end:
                    return None
                if start >= recent:
                    return _read(start, bytes(self._recent[start - recent : start - recent + _PIECE_BYTES]))
            data = self._read_file(start, min(_PIECE_BYTES, recent - start))
            if start >= self.kept_from:  # else others were written into their place
                return _read(start, data)

    def is_near(self, position: int) -> bool:
        """Whether `read` answers from memory."""
        return max(position, self.kept_from) >= self.end - len(self._recent)

    def place_near_end(self, size_bytes: int) -> int:
        return max(0, self.end - size_bytes)

    def take_unwritten(self) -> list[CallOutput]:
        """What `write` is to bring to the file; one batch at a time."""
        start = max(self._written, self.kept_from)
        if start >= self.end:
            return []
        recent = self.end - len(self._recent)
        return [CallOutput(Stream.STDOUT, start, bytes(self._recent[start - recent :]))]

    def write(self, batch: list[CallOutput]) -> None:
        """Blocking: bring a batch to the file."""
        self.prepare()
        for event in batch:
            end = event.offset + len(event.data)
            os.pwrite(self._file, struct.pack("<Q", max(self._floor, end - self.window_bytes)), _FIRST_AT)
            self._write_ring(event.offset, memoryview(event.data))
            os.pwrite(self._file, struct.pack("<Q", end), _END_AT)

    def wrote(self, batch: list[CallOutput]) -> None:
        """After `write`, on the loop again: forget what readers hardly need."""
        with self._lock:
            for event in batch:
                self._written = event.offset + len(event.data)
            keep = max(min(_RECENT_BYTES, self.window_bytes), self.end - self._written)
            del self._recent[: max(0, len(self._recent) - keep)]

    def prepare(self) -> None:
        """Blocking: there is a file from now on. Raises OSError."""
        if self._file >= 0:
            return
        path = self._where()
        path.parent.mkdir(mode=0o700, exist_ok=True)
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            if os.fstat(file).st_size < _HEAD.size:
                head = (_MARK, self.window_bytes, self.size.rows, self.size.columns, 0, 0)
                os.pwrite(file, _HEAD.pack(*head), 0)
        except BaseException:  # whatever failed, the descriptor has no owner yet
            os.close(file)
            raise
        self._file = file

    def resize(self, size: TerminalSize) -> None:
        """Four bytes, into the memory of the kernel: not worth a thread."""
        self.size = size
        if self._file >= 0:
            with contextlib.suppress(OSError):  # the next engine tells an older size
                os.pwrite(self._file, struct.pack("<HH", size.rows, size.columns), _SIZE_AT)

    def restore(self) -> None:
        """Take up an earlier engine's log as far as it is whole."""
        path = self._where()
        if not path.exists():
            return
        file = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        head = _read_head(file)
        if head is None:
            os.close(file)
            path.unlink()  # it was killed while it began: all is still with the guest
            return
        window, self._floor, self.end = head
        self.window_bytes, self.size = window.bytes, window.size
        self._file, self._written = file, self.end

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _write_ring(self, offset: int, data: memoryview) -> None:
        while data:
            at = offset % self.window_bytes
            written = os.pwrite(self._file, data[: self.window_bytes - at], _DATA_AT + at)
            offset, data = offset + written, data[written:]

    def _read_file(self, offset: int, size: int) -> bytes:
        # A descriptor of its own: readers may outlive the writer, who closes his.
        fd = os.open(self._where(), os.O_RDONLY | os.O_CLOEXEC)
        try:
            at = offset % self.window_bytes
            data = os.pread(fd, min(size, self.window_bytes - at), _DATA_AT + at)
        finally:
            os.close(fd)
        if not data:
            raise OSError(0, "the file of a terminal is shorter than its head says")
        return data


def find_window_log(path: Path) -> WindowLog | None:
    """Blocking: what a terminal left; None where there is nothing, or the output of another call."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        head = _read_head(fd)
    finally:
        os.close(fd)
    if head is None:
        return None
    log = WindowLog(lambda: path, head[0])
    log.restore()
    log.close()
    return log


def _read_head(fd: int) -> tuple[Window, int, int] | None:
    """The window, the first offset that is kept, the end; None when it is no head."""
    head = os.pread(fd, _HEAD.size, 0)
    if len(head) < _HEAD.size or not head.startswith(_MARK):
        return None
    fields: tuple[bytes, int, int, int, int, int] = _HEAD.unpack(head)
    _mark, window, rows, columns, first, end = fields
    try:
        return Window(window, TerminalSize(rows, columns)), min(first, end), end
    except InvalidArgument:
        return None


def _read(offset: int, data: bytes) -> Read:
    return Read(CallOutput(Stream.STDOUT, offset, data), offset + len(data))
