"""A tree copied whole: owners, modes, times, links among its files, extended attributes, and what overlay marks with
devices and attributes. Blocking, and by descriptor: nothing in it is followed, and it may be as deep as it likes.

Where the filesystem can share blocks between files (reflink), content is shared and not copied. Someone who is not root
cannot give files away, so all that he copies is his own; what its own mode keeps him from reading is made readable
while it is copied.
"""

import asyncio
import errno
import fcntl
import math
import os
import stat
import time
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from sandlot.model import DeadlineExceeded, SandlotError, Unavailable, limits

_PIECE_BYTES = 8 << 20
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
_HANDLE = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
_FICLONE = 0x40049409
_NO_CLONES = (errno.EOPNOTSUPP, errno.EXDEV, errno.ENOTTY, errno.ENOSYS)  # for any file of this filesystem
_NOT_IN_KERNEL = (errno.EXDEV, errno.EINVAL, errno.EOPNOTSUPP, errno.ENOSYS)


class Patience:
    """How long a copy may take. Whoever does not want it any more ends it."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._until = time.monotonic() + seconds
        self._is_over = False

    def end(self) -> None:
        self._is_over = True

    def check(self) -> None:
        """Raises OSError."""
        if self._is_over:
            raise InterruptedError(errno.ECANCELED, os.strerror(errno.ECANCELED))
        if time.monotonic() > self._until:
            raise TimeoutError(errno.ETIMEDOUT, f"it took longer than {self._seconds:g} s")


async def copy_volume(source: Path, target: Path, undo: Callable[[], None]) -> None:
    """As `copy_tree`, without blocking. What is half made is undone, once nothing writes to it any more: also when
    nobody waits for it. Raises Unavailable, DeadlineExceeded."""
    patience = Patience(limits.COPY_DEADLINE_S)
    copying = asyncio.ensure_future(asyncio.to_thread(copy_tree, source, target, patience))
    try:
        await asyncio.shield(copying)
    except asyncio.CancelledError:
        patience.end()
        copying.add_done_callback(lambda task: _undo_when_done(task, undo))
        raise
    except TimeoutError as error:
        undo()
        raise DeadlineExceeded(f"the files of the session cannot be copied: {error.strerror}", limit="copy") from None
    except OSError as error:
        undo()
        raise Unavailable(f"the files of the session cannot be copied: {error.strerror}") from error


def _undo_when_done(copying: "asyncio.Future[None]", undo: Callable[[], None]) -> None:
    if not copying.cancelled():
        copying.exception()  # heard: nobody waits for it
    with suppress(SandlotError):
        undo()


def copy_tree(source: Path, target: Path, patience: Patience | None = None) -> None:
    """Into a directory that is there and empty. Raises OSError."""
    with _TreeCopy(target, patience or Patience(math.inf)) as copy:
        copy.run(source)


def can_clone(folder: Path) -> bool:
    """Whether files below a directory can share their blocks, found out by trying. Raises OSError."""
    with ExitStack() as opened:
        one, other = (os.open(folder, os.O_RDWR | os.O_TMPFILE | os.O_CLOEXEC, 0o600) for _ in range(2))
        opened.callback(os.close, one)
        opened.callback(os.close, other)
        os.write(one, b"x" * 4096)
        try:
            fcntl.ioctl(other, _FICLONE, one)
        except OSError as error:
            if error.errno in (*_NO_CLONES, errno.EINVAL):
                return False
            raise
        return True


@dataclass(slots=True)
class _Level:
    """A directory that is being copied: which of those in it are still to come, and what it was found as."""

    below: list[str]
    found: os.stat_result
    opened: ExitStack  # puts its mode back


class _TreeCopy:
    """One walk. Two directories are open at a time; the way up is `..`, proven by its inode."""

    def __init__(self, target: Path, patience: Patience) -> None:
        self._target = target
        self._patience = patience
        self._links = _Links(target)
        self._clones = True
        self._levels: list[_Level] = []
        self._here = self._there = -1

    def __enter__(self) -> "_TreeCopy":
        return self

    def __exit__(self, *_error: object) -> None:
        for level in reversed(self._levels):
            level.opened.close()
        for fd in (self._here, self._there):
            if fd >= 0:
                os.close(fd)
        self._links.close()

    def run(self, source: Path) -> None:
        above = os.open(source.parent, _DIRECTORY)
        try:
            self._enter(above, source.name, os.open(self._target, _DIRECTORY))
        finally:
            os.close(above)
        while True:
            if below := self._levels[-1].below:
                name = below.pop()
                self._enter(self._here, name, os.open(name, _DIRECTORY, dir_fd=self._there))
            elif len(self._levels) > 1:
                self._leave()
            else:
                self._links.close()
                self._finish()
                return

    def _enter(self, above: int, name: str, there: int) -> None:
        opened = ExitStack()
        try:
            found = os.stat(name, dir_fd=above, follow_symlinks=False)
            opened.enter_context(_readable(above, name, found))
            here = os.open(name, _DIRECTORY, dir_fd=above)
        except BaseException:  # undone, then raised again
            opened.close()
            os.close(there)
            raise
        self._step(here, there)
        self._levels.append(_Level([], found, opened))
        self._levels[-1].below = self._copy_entries()

    def _step(self, here: int, there: int) -> None:
        for fd in (self._here, self._there):
            if fd >= 0:
                os.close(fd)
        self._here, self._there = here, there

    def _leave(self) -> None:
        above = self._levels[-2].found
        up = os.open("..", _DIRECTORY, dir_fd=self._here)
        try:
            found = os.fstat(up)
            if (found.st_dev, found.st_ino) != (above.st_dev, above.st_ino):
                raise OSError(errno.EBUSY, "was moved while it was being copied")
            # Before its mode forbids it.
            there = os.open("..", _DIRECTORY, dir_fd=self._there)
        except BaseException:  # undone, then raised again
            os.close(up)
            raise
        self._finish()
        self._step(up, there)

    def _finish(self) -> None:
        """Last of all, because making entries changes the times of their directory, and its mode may forbid it."""
        level = self._levels[-1]
        copy_attributes(self._here, self._there, level.found)
        self._levels.pop()
        level.opened.close()

    def _copy_entries(self) -> list[str]:
        """All but what is in its directories; tells their names."""
        below: list[str] = []
        with os.scandir(self._here) as entries:
            for entry in entries:
                self._patience.check()
                found = entry.stat(follow_symlinks=False)
                if stat.S_ISDIR(found.st_mode):
                    os.mkdir(entry.name, 0o700, dir_fd=self._there)
                    below.append(entry.name)
                elif not self._links.find(found, self._there, entry.name):
                    self._copy_entry(entry.name, found)
                    self._links.note(found, self._there, entry.name)
        return below

    def _copy_entry(self, name: str, found: os.stat_result) -> None:
        if stat.S_ISREG(found.st_mode):
            self._copy_file(name, found)
            return
        if stat.S_ISLNK(found.st_mode):
            os.symlink(os.readlink(name, dir_fd=self._here), name, dir_fd=self._there)
        else:
            # Pipes, sockets, devices; a whiteout of overlay is a device too.
            os.mknod(name, found.st_mode, found.st_rdev, dir_fd=self._there)
        _finish_special(self._here, self._there, name, found)

    def _copy_file(self, name: str, found: os.stat_result) -> None:
        with ExitStack() as opened:
            opened.enter_context(_readable(self._here, name, found))
            source = os.open(name, _FILE, dir_fd=self._here)
            opened.callback(os.close, source)
            target = os.open(name, _NEW_FILE, 0o600, dir_fd=self._there)
            opened.callback(os.close, target)
            if not self._clone(source, target, found.st_size):
                for _piece in copy_data(source, target, found.st_size):
                    self._patience.check()
            copy_attributes(source, target, found)

    def _clone(self, source: int, target: int, size: int) -> bool:
        if not size or not self._clones:
            return not size
        try:
            fcntl.ioctl(target, _FICLONE, source)
        except OSError as error:
            self._clones = error.errno not in _NO_CLONES
            if self._clones and error.errno != errno.EINVAL:
                raise
            return False
        return True


class _Links:
    """Files with several names, while a tree is copied. A further name of each copy lies in a folder of its own: the
    first one may be out of reach by then."""

    def __init__(self, target: Path) -> None:
        self._path = target / f".sandlot-links-{os.urandom(8).hex()}"
        self._folder = -1
        self._known: dict[tuple[int, int], str] = {}

    def find(self, found: os.stat_result, there: int, name: str) -> bool:
        """Whether it is a further name of what was copied before; then it is made."""
        known = self._known.get((found.st_dev, found.st_ino)) if found.st_nlink > 1 else None
        if known is None:
            return False
        os.link(known, name, src_dir_fd=self._folder, dst_dir_fd=there, follow_symlinks=False)
        return True

    def note(self, found: os.stat_result, there: int, name: str) -> None:
        if found.st_nlink > 1:
            if self._folder < 0:
                self._path.mkdir(mode=0o700)
                self._folder = os.open(self._path, _DIRECTORY)
            known = self._known[found.st_dev, found.st_ino] = str(len(self._known))
            os.link(name, known, src_dir_fd=there, dst_dir_fd=self._folder, follow_symlinks=False)

    def close(self) -> None:
        if self._folder >= 0:
            for name in self._known.values():
                with suppress(FileNotFoundError):
                    os.unlink(name, dir_fd=self._folder)
            os.close(self._folder)
            self._folder = -1
            self._path.rmdir()


@contextmanager
def _readable(directory: int, name: str, found: os.stat_result) -> Generator[None]:
    """Inside, it can be read, whatever its mode says, if it is ours."""
    need = 0o500 if stat.S_ISDIR(found.st_mode) else 0o400
    mode = stat.S_IMODE(found.st_mode)
    if mode & need == need or os.geteuid() == 0 or found.st_uid != os.geteuid():
        yield
        return
    handle = os.open(name, _HANDLE, dir_fd=directory)
    try:
        os.chmod(f"/proc/self/fd/{handle}", mode | need)
        try:
            yield
        finally:
            os.chmod(f"/proc/self/fd/{handle}", mode)
    finally:
        os.close(handle)


def copy_data(source: int, target: int, size: int) -> Generator[None]:
    """Piece by piece. Holes stay holes."""
    os.ftruncate(target, size)
    at = 0
    while at < size:
        try:
            begin = os.lseek(source, at, os.SEEK_DATA)
        except OSError:
            return  # nothing but a hole from here on
        end = os.lseek(source, begin, os.SEEK_HOLE)
        while begin < end:
            count = _copy_piece(source, target, begin, min(_PIECE_BYTES, end - begin))
            if count == 0:
                return
            begin += count
            yield
        at = end


def _copy_piece(source: int, target: int, at: int, count: int) -> int:
    try:
        return os.copy_file_range(source, target, count, at, at)
    except OSError as error:
        if error.errno not in _NOT_IN_KERNEL:
            raise
    # Between filesystems of different kinds.
    os.lseek(target, at, os.SEEK_SET)
    return os.sendfile(target, source, at, count)


def copy_attributes(
    source: int | str, target: int, found: os.stat_result, without: frozenset[str] = frozenset()
) -> None:
    for name in os.listxattr(source):
        if name not in without:
            with _where_allowed(name):
                os.setxattr(target, name, os.getxattr(source, name))
    with _where_allowed():
        os.fchown(target, found.st_uid, found.st_gid)
    os.fchmod(target, stat.S_IMODE(found.st_mode))
    # File capabilities go when the owner changes.
    with suppress(OSError):
        os.setxattr(target, "security.capability", os.getxattr(source, "security.capability"))
    os.utime(target, ns=(found.st_atime_ns, found.st_mtime_ns))


@contextmanager
def _where_allowed(attribute: str = "") -> Generator[None]:
    """What only root can do is left out by others: owners, and attributes that are not the user's own."""
    try:
        yield
    except OSError as error:
        refused = error.errno in (errno.EPERM, errno.EACCES, errno.EOPNOTSUPP)
        if not refused or os.geteuid() == 0 or attribute.startswith("user."):
            raise


def _finish_special(here: int, there: int, name: str, found: os.stat_result) -> None:
    with _where_allowed():
        os.chown(name, found.st_uid, found.st_gid, dir_fd=there, follow_symlinks=False)
    if not stat.S_ISLNK(found.st_mode):
        os.chmod(name, stat.S_IMODE(found.st_mode), dir_fd=there)
    # Afterwards: file capabilities go when the owner changes.
    source, target = f"/proc/self/fd/{here}/{name}", f"/proc/self/fd/{there}/{name}"
    for attribute in os.listxattr(source, follow_symlinks=False):
        with _where_allowed(attribute):
            value = os.getxattr(source, attribute, follow_symlinks=False)
            os.setxattr(target, attribute, value, follow_symlinks=False)
    os.utime(name, ns=(found.st_atime_ns, found.st_mtime_ns), dir_fd=there, follow_symlinks=False)
