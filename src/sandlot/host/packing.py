"""A directory of a session as an archive. Everything here blocks, and raises OSError."""

import errno
import fnmatch
import os
import posixpath
import re
import stat
from collections.abc import Callable, Generator, Sequence
from contextlib import suppress

from sandlot.host.inside import LARGE_BYTES, PIECE_BYTES, Inside
from sandlot.host.kernel import ONE_STEP, open_inside
from sandlot.model import FileConflict, LimitReached, MemberKind, TreeTally, tar

_READ = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY
_PENDING_MAX = 500_000  # directories found and not yet looked into
_LOOKED_INTO = 250  # directories in one step
_MODE_BITS = 0o777
# Something is not there any more, or is another thing by now.
_GONE = {errno.ENOENT, errno.ESTALE, errno.ELOOP, errno.ENXIO, errno.ENOTDIR, errno.EXDEV}
_OTHER = "a pipe, a socket or a device"


class Packing:
    """Goes through a directory and what is below it. No link is followed; they are told of as they are."""

    def __init__(self, inside: Inside, path: str, wanted: Callable[[str], bool] | None) -> None:
        self.tally = TreeTally()
        self.at = ""  # what is being read, below the directory
        self._inside = inside
        self._path = path
        self._wanted = wanted
        self._out = bytearray()

    def pieces(self) -> Generator[bytes]:
        """Some of them empty: no step is long."""
        pending = [""]
        looked_into = 0
        with self._inside.opened(self._path, _READ | os.O_DIRECTORY) as top:
            yield b""
            while pending:
                below = self.at = pending.pop()
                try:
                    here = open_inside(top, below or ".", _READ | os.O_DIRECTORY, ONE_STEP)
                except OSError as error:
                    if not self._is_lost(error, below):
                        raise
                    continue
                try:
                    yield from self._folder(here, below, pending)
                finally:
                    os.close(here)
                looked_into += 1
                if looked_into % _LOOKED_INTO == 0:
                    yield self._take()
        yield self._take() + tar.END

    def _take(self) -> bytes:
        taken = bytes(self._out)
        self._out.clear()
        return taken

    def _is_lost(self, error: OSError, path: str) -> bool:
        if not path or error.errno not in {*_GONE, errno.ENAMETOOLONG}:
            return False
        too_deep = error.errno == errno.ENAMETOOLONG
        self.tally.skip(path, "too deep to be named" if too_deep else "gone meanwhile, or another mount")
        return True

    def _folder(self, here: int, below: str, pending: list[str]) -> Generator[bytes]:
        if not self._wanted:
            found = os.fstat(here)
            self._out += tar.header(below or ".", MemberKind.DIRECTORY, _bits(found), 0, int(found.st_mtime))
            self.tally.directories += 1
        with os.scandir(here) as entries:
            for entry in entries:
                path = self.at = posixpath.join(below, entry.name)
                if entry.is_dir(follow_symlinks=False):
                    pending.append(path)
                    if len(pending) > _PENDING_MAX:
                        raise LimitReached(
                            f"more than {_PENDING_MAX} directories beside each other", limit="tree_width"
                        )
                elif self._wanted and not self._wanted(path):
                    continue
                elif entry.is_file(follow_symlinks=False):
                    yield from self._file(here, entry.name, path)
                elif entry.is_symlink():
                    self._link(here, entry.name, path)
                else:
                    self.tally.skip(path, _OTHER)
                if len(self._out) >= PIECE_BYTES:
                    yield self._take()

    def _link(self, here: int, name: str, path: str) -> None:
        with suppress(FileNotFoundError):
            target = os.readlink(name, dir_fd=here)
            self._out += tar.header(path, MemberKind.SYMLINK, _MODE_BITS, 0, 0, target)
            self.tally.links += 1

    def _file(self, here: int, name: str, path: str) -> Generator[bytes]:
        try:
            fd = open_inside(here, name, _READ, ONE_STEP)
        except OSError as error:
            if not self._is_lost(error, path):
                raise
            return
        try:
            found = os.fstat(fd)
            if not stat.S_ISREG(found.st_mode):
                self.tally.skip(path, "changed meanwhile")
                return
            first = os.read(fd, min(PIECE_BYTES, max(found.st_size, 1)))
            size = found.st_size if len(first) == PIECE_BYTES else len(first)
            self._out += tar.header(path, MemberKind.FILE, _bits(found), size, int(found.st_mtime))
            self._out += first
            self.tally.size_bytes += len(first)
            if size > len(first):
                yield self._take()
                yield from self._rest(fd, path, size - len(first))
            self._out += tar.padding(size)
            self.tally.files += 1
        finally:
            os.close(fd)

    def _rest(self, fd: int, path: str, left: int) -> Generator[bytes]:
        while left:
            piece = os.read(fd, min(LARGE_BYTES, left))
            if not piece:
                raise FileConflict(f"{path}: became shorter while it was read", next_step="try again", path=path)
            left -= len(piece)
            self.tally.size_bytes += len(piece)
            yield piece


def _bits(found: os.stat_result) -> int:
    return found.st_mode & _MODE_BITS


def wanted(patterns: Sequence[str]) -> Callable[[str], bool] | None:
    """Whether a path fits one of the patterns; None when every path does."""
    if not patterns:
        return None
    fits = re.compile("|".join(map(fnmatch.translate, patterns))).match
    return lambda path: fits(path) is not None
