"""Files of a session that are read by lines, added to, and changed in place. Everything here blocks, and raises
OSError."""

import errno
import os
from collections.abc import Generator

from sandlot.host.inside import PIECE_BYTES, Inside, need_regular, open_regular
from sandlot.host.replacement import NO_TMPFILE, Replacement, final_place, write_all
from sandlot.model import FileAppend, FileConflict, FileInfo, FileLines, FileReplace, LimitReached, Line, limits

_BATCH_LINES = 1000
_BATCH_BYTES = 1 << 20
_PLACE_ATTEMPTS = 8  # to find or to make a file that others make and remove


_FLAGS = os.O_WRONLY | os.O_APPEND | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC


class Appending:
    """A file, open at its end. Every piece is there when it was written, behind whatever others wrote meanwhile. A new
    one has its name when it has its first piece: an engine that is killed on the way leaves no empty file."""

    def __init__(self, inside: Inside, request: FileAppend, path: str, first: bytes) -> None:
        self._inside = inside
        self._path = path
        self._fd = -1
        for _attempt in range(_PLACE_ATTEMPTS):
            self._path, above, name, found = final_place(inside, path, parents=request.parents)
            try:
                self._fd = self._new(above, name, request.mode, first) if found < 0 else self._open(found, first)
                return
            except (FileExistsError, FileNotFoundError):
                continue
            finally:
                os.close(above)
                if found >= 0:
                    os.close(found)
        raise OSError(errno.EAGAIN, "it comes and goes", path)

    def _new(self, above: int, name: str, mode: int, first: bytes) -> int:
        try:
            fd = os.open(".", _FLAGS | os.O_TMPFILE, mode & 0o777, dir_fd=above)
        except OSError as error:
            if error.errno not in NO_TMPFILE:
                raise
            fd = os.open(name, _FLAGS | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, mode & 0o777, dir_fd=above)
            has_name = True
        else:
            has_name = False
        try:
            if mode & ~0o777:
                os.fchmod(fd, mode)
            write_all(fd, first)
            if not has_name:
                os.link(f"/proc/self/fd/{fd}", name, dst_dir_fd=above, follow_symlinks=True)
        except BaseException:  # whoever cannot have it cannot close it
            os.close(fd)
            raise
        return fd

    def _open(self, found: int, first: bytes) -> int:
        need_regular(os.fstat(found), self._path)
        fd = os.open(f"/proc/self/fd/{found}", _FLAGS)
        try:
            write_all(fd, first)
        except BaseException:  # the same
            os.close(fd)
            raise
        return fd

    def write(self, data: bytes) -> None:
        write_all(self._fd, data)

    def finish(self) -> FileInfo:
        return self._inside.info(self._path, os.fstat(self._fd))

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
        self._fd = -1


def replace_text(inside: Inside, path: str, request: FileReplace) -> tuple[int, Replacement | None]:
    """How often it was there, and the new content, to be committed. Raises FileConflict, LimitReached."""
    old, new = (text.encode("utf-8", "surrogateescape") for text in (request.old, request.new))
    fd, before = open_regular(inside, path)
    try:
        if before.st_size > limits.FILE_READ_BYTES_MAX:
            raise LimitReached(
                f"{path} has {before.st_size} bytes, more than the {limits.FILE_READ_BYTES_MAX} that are edited",
                next_step="edit it with a command",
                limit="file_read_bytes",
            )
        content = _read_whole(fd, path)
    finally:
        os.close(fd)
    count = content.count(old)
    if not request.all and count != 1:
        raise FileConflict(
            f"{path}: the text is there {count} times" if count else f"{path}: the text is not there",
            next_step="give more of what is around it, or replace all" if count else "read the file first",
            path=path,
            count=count,
        )
    if not count:
        return 0, None
    if len(content) + count * (len(new) - len(old)) > limits.FILE_READ_BYTES_MAX:
        raise LimitReached(
            f"{path}: it would have more than {limits.FILE_READ_BYTES_MAX} bytes", limit="file_read_bytes"
        )
    made = Replacement(inside, path, None, parents=False)
    try:
        if made.replaces != (before.st_dev, before.st_ino, before.st_size, before.st_mtime_ns):
            raise FileConflict(f"{path}: it changed meanwhile", next_step="try again", path=path)
        made.write(content.replace(old, new))
    except BaseException:  # whoever cannot have it cannot close it
        made.close()
        raise
    return count, made


def _read_whole(fd: int, path: str) -> bytes:
    pieces: list[bytes] = []
    size = 0
    while piece := os.pread(fd, PIECE_BYTES, size):
        pieces.append(piece)
        size += len(piece)
        if size > limits.FILE_READ_BYTES_MAX:
            raise FileConflict(f"{path}: it grows while it is read", next_step="try again", path=path)
    return b"".join(pieces)


class LineReader:
    """Some lines of a file, in batches. A line is kept as far as it is told."""

    def __init__(self, inside: Inside, path: str, request: FileLines) -> None:
        self.fd, found = open_regular(inside, path)
        self.info = inside.info(path, found)
        self.total: int | None = None
        self._first = request.first
        self._end = None if request.count is None else request.first + request.count
        self._count_all = request.total
        self._most = request.line_bytes

    def close(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)
        self.fd = -1

    def batches(self) -> Generator[list[Line]]:
        """Some of them empty: no step is long."""
        number, offset = 1, 0
        line, size = bytearray(), 0  # what is told of the line that is being read, and what it has
        batch: list[Line] = []
        held = 0
        piece = b""
        while piece := os.pread(self.fd, PIECE_BYTES, offset):
            offset += len(piece)
            at = 0
            while at < len(piece):
                if not self._is_wanted(number):
                    if self._is_over(number):
                        if not self._count_all:
                            yield batch
                            return
                        number += piece.count(b"\n", at)
                        size = len(piece) - 1 - piece.rfind(b"\n")
                        break
                    at, number, size = self._skip(piece, at, number, size)
                    continue
                end = piece.find(b"\n", at)
                stop = len(piece) if end < 0 else end
                line += piece[at : min(stop, at + max(0, self._most - len(line)))]
                size += stop - at
                at = stop
                if end < 0:
                    break
                batch.append(self._told(number, line, size))
                held += len(line)
                number, at = number + 1, end + 1
                line, size = bytearray(), 0
                if len(batch) >= _BATCH_LINES or held > _BATCH_BYTES:
                    yield batch
                    batch, held = [], 0
            yield batch
            batch, held = [], 0
        if size and self._is_wanted(number):
            batch.append(self._told(number, line, size))
        if self._count_all or self._end is None or number < self._end:
            self.total = number - (0 if size else 1)
        yield batch

    def _skip(self, piece: bytes, at: int, number: int, size: int) -> tuple[int, int, int]:
        """To the next line that is wanted, or to the end of the piece."""
        if number + piece.count(b"\n", at) < self._first:
            number += piece.count(b"\n", at)
            last = piece.rfind(b"\n", at)
            return len(piece), number, size + len(piece) - at if last < 0 else len(piece) - 1 - last
        while number < self._first:
            at = piece.index(b"\n", at) + 1
            number += 1
        return at, number, 0

    def _is_wanted(self, number: int) -> bool:
        return number >= self._first and not self._is_over(number)

    def _is_over(self, number: int) -> bool:
        return self._end is not None and number >= self._end

    def _told(self, number: int, line: bytearray, size: int) -> Line:
        return Line(number, line.decode("utf-8", "surrogateescape"), size > len(line))
