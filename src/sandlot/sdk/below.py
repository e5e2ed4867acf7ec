"""Files of this machine below one directory, reached name by name and never through a link. Everything here blocks.

What a session calls its files is nobody's to trust: whatever names come from there, nothing outside is touched."""

import errno
import os
import posixpath
import secrets
import stat
from collections.abc import Callable
from contextlib import suppress
from functools import lru_cache

from sandlot.model import (
    FileConflict,
    FileNotFound,
    InvalidArgument,
    LimitReached,
    PermissionDenied,
    SandlotError,
    Unavailable,
)

Parts = tuple[str, ...]

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_NO_TMPFILE = (errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL, errno.ENOENT)
_MODE_BITS = 0o777
_WORDS = {
    stat.S_IFLNK: "a link",
    stat.S_IFDIR: "a directory",
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFREG: "a file",
}
_FORBIDDEN = (errno.EACCES, errno.EPERM, errno.EROFS)
_FULL = {errno.ENOSPC: "the disk is full", errno.EDQUOT: "the quota is used up", errno.EFBIG: "the file is too large"}
_IN_THE_WAY = {
    errno.EEXIST: "something else is there",
    errno.ENOTDIR: "something on the way is not a directory",
    errno.ELOOP: "a link is on the way, and links are not followed here",
    errno.EISDIR: "it is a directory",
    errno.ETXTBSY: "it is a program that is running",
}


def is_name(name: str) -> bool:
    """Whether it names one entry of a directory, and nothing else."""
    return name not in ("", ".", "..") and "/" not in name and "\0" not in name


def kind_in_words(mode: int) -> str:
    return _WORDS.get(stat.S_IFMT(mode), "a device")


def translate(error: OSError, path: str | os.PathLike[str]) -> SandlotError:
    """What the kernel said of a file of this machine, as an error that says what to do."""
    shown, number = os.fspath(path), error.errno or 0
    said = error.strerror or os.strerror(number)
    if number == errno.ENOENT:
        return FileNotFound(f"{shown}: there is no such file or directory", next_step="check the path", path=shown)
    if number in _FORBIDDEN:
        step = "take another path, or run this as someone who may"
        return PermissionDenied(f"{shown}: {said.lower()}", next_step=step, path=shown)
    if number in _FULL:
        step = "free some space, or take another path"
        return LimitReached(f"{shown}: {_FULL[number]}", next_step=step, limit=errno.errorcode[number], path=shown)
    if number in _IN_THE_WAY:
        step = "move it away, or take another path"
        return FileConflict(f"{shown}: {_IN_THE_WAY[number]}", next_step=step, path=shown)
    if number == errno.ENAMETOOLONG:
        return InvalidArgument(f"{shown[:300]}: a name of it is too long", next_step="take a shorter one")
    return Unavailable(f"{shown}: {said}", path=shown)


class Below:
    """One directory, open, as a person named it: links lead there. Below it none is followed."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._top = os.open(path, _DIRECTORY)
        self._here: Parts = ()
        self._fd = self._top

    def close(self) -> None:
        self._leave()
        if self._top >= 0:
            os.close(self._top)
            self._top = self._fd = -1

    def shown(self, parts: Parts) -> str:
        return posixpath.join(self.path, *parts)

    def folder(self, parts: Parts) -> int:
        """A directory below. Lent: a question for another one closes it."""
        if self._here != parts[: len(self._here)]:
            self._leave()
        for name in parts[len(self._here) :]:
            inner, here = self._step(name), (*self._here, name)
            self._leave()
            self._fd, self._here = inner, here
        return self._fd

    def _step(self, name: str) -> int:
        if not is_name(name):
            raise OSError(errno.EINVAL, "not a name of a file", name)
        return os.open(name, _DIRECTORY | os.O_NOFOLLOW, dir_fd=self._fd)

    def _leave(self) -> None:
        if self._fd != self._top:
            os.close(self._fd)
        self._fd, self._here = self._top, ()

    def make_directory(self, parts: Parts) -> bool:
        """Whether it was made; False when a directory is there. A new one is its owner's alone until `set_mode`."""
        above = self.folder(parts[:-1])
        if not is_name(parts[-1]):
            raise OSError(errno.EINVAL, "not a name of a file", parts[-1])
        try:
            os.mkdir(parts[-1], 0o700, dir_fd=above)
        except FileExistsError:
            found = os.stat(parts[-1], dir_fd=above, follow_symlinks=False)
            if not stat.S_ISDIR(found.st_mode):
                raise _in_the_way(self.shown(parts), found.st_mode) from None
            return False
        return True

    def set_mode(self, parts: Parts, mode: int) -> None:
        os.fchmod(self.folder(parts), mode & _MODE_BITS)

    def link(self, parts: Parts, target: str) -> None:
        """A symbolic link, in place of another one; whether it may lead there is for the caller to know."""
        above = self.folder(parts[:-1])
        if not is_name(parts[-1]):
            raise OSError(errno.EINVAL, "not a name of a file", parts[-1])
        try:
            os.symlink(target, parts[-1], dir_fd=above)
        except FileExistsError:
            found = os.stat(parts[-1], dir_fd=above, follow_symlinks=False)
            if not stat.S_ISLNK(found.st_mode):
                raise _in_the_way(self.shown(parts), found.st_mode) from None
            hidden = _hidden_name()
            os.symlink(target, hidden, dir_fd=above)
            os.rename(hidden, parts[-1], src_dir_fd=above, dst_dir_fd=above)

    def new_file(self, parts: Parts) -> "NewFile":
        if not is_name(parts[-1]):
            raise OSError(errno.EINVAL, "not a name of a file", parts[-1])
        return NewFile(os.dup(self.folder(parts[:-1])), parts[-1], lambda: self.shown(parts))


class NewFile:
    """A file that nobody sees until `commit` puts it in its place, whole. Takes the descriptor of its directory."""

    def __init__(self, above: int, name: str, shown: Callable[[], str]) -> None:
        self._above = above
        self._name = name
        self._hidden = ""  # a name that it has until it is in its place
        self._fd = -1
        try:
            self._is_there = self._look(shown)
            self._fd = self._open()
        except BaseException:  # whoever cannot have it cannot close it
            os.close(above)
            raise

    def _look(self, shown: Callable[[], str]) -> bool:
        try:
            mode = os.stat(self._name, dir_fd=self._above, follow_symlinks=False).st_mode
        except FileNotFoundError:
            return False
        if not stat.S_ISREG(mode):
            raise _in_the_way(shown(), mode)
        return True

    def _open(self) -> int:
        # Without a name there is nothing to clean up, whoever ends us; but only /proc can give it one afterwards.
        if _has_proc():
            try:
                return os.open(".", os.O_TMPFILE | os.O_WRONLY | os.O_CLOEXEC, 0o600, dir_fd=self._above)
            except OSError as error:
                if error.errno not in _NO_TMPFILE:
                    raise
        self._hidden = _hidden_name()
        return os.open(self._hidden, _NEW, 0o600, dir_fd=self._above)

    def write(self, data: bytes | memoryview) -> None:
        view = memoryview(data)
        while view:
            view = view[os.write(self._fd, view) :]

    def commit(self, mode: int, modified: int | None = None) -> None:
        os.fchmod(self._fd, mode & _MODE_BITS)
        if modified is not None:
            os.utime(self._fd, (modified, modified))
        if not self._hidden:
            source = f"/proc/self/fd/{self._fd}"
            if not self._is_there:
                with suppress(FileExistsError):  # made by someone meanwhile: then it is replaced
                    os.link(source, self._name, dst_dir_fd=self._above, follow_symlinks=True)
                    return
            hidden = _hidden_name()
            os.link(source, hidden, dst_dir_fd=self._above, follow_symlinks=True)
            self._hidden = hidden
        os.rename(self._hidden, self._name, src_dir_fd=self._above, dst_dir_fd=self._above)
        self._hidden = ""

    def close(self) -> None:
        """Without a commit nothing has happened. Closing twice is fine."""
        if self._fd < 0:
            return
        if self._hidden:
            with suppress(OSError):
                os.unlink(self._hidden, dir_fd=self._above)
        os.close(self._fd)
        os.close(self._above)
        self._fd = -1


def _in_the_way(shown: str, mode: int) -> FileConflict:
    return FileConflict(
        f"{shown}: {kind_in_words(mode)} is there already, and is not replaced",
        next_step="move it away, or take another path",
        path=shown,
    )


@lru_cache(maxsize=1)
def _has_proc() -> bool:
    return os.path.isdir("/proc/self/fd")  # noqa: PTH112 - no object is needed for it


def _hidden_name() -> str:
    return f".sandlot-{secrets.token_hex(8)}"
