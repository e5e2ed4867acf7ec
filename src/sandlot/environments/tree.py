"""A directory of this machine, touched below a handle of it: no path and no link leads out.

A path is taken apart here, and each of its names is opened in the directory before it without following links; where a
link leads is looked at in the same way. So nothing can be exchanged between a look and its use. Steps block: they are
for a thread.
"""

import errno
import os
import posixpath
import secrets
import stat
from collections import deque
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager, suppress

from sandlot.model import (
    FileConflict,
    FileInfo,
    FileKind,
    FileNotFound,
    InvalidArgument,
    LimitReached,
    PermissionDenied,
    SandlotError,
    Unavailable,
)

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_NOCTTY | os.O_CLOEXEC
_LINKS_MAX = 40
_DEPTH_MAX = 256  # levels that are gone down: each holds a descriptor
_MISSING = (errno.ENOENT,)
_REFUSED = (errno.EACCES, errno.EPERM, errno.EROFS)
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_OTHER_KIND = (errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.EEXIST, errno.ENXIO, errno.ENODEV, errno.ENOTEMPTY)
_KINDS = {stat.S_IFREG: FileKind.FILE, stat.S_IFDIR: FileKind.DIRECTORY, stat.S_IFLNK: FileKind.SYMLINK}


def translate(error: OSError, path: str) -> SandlotError:
    told = f"{path}: {os.strerror(error.errno) if error.errno else error}"
    if error.errno in _MISSING:
        return FileNotFound(f"{path} is not there", next_step="list the directory above it")
    if error.errno in _REFUSED:
        return PermissionDenied(told)
    if error.errno in _FULL:
        return LimitReached(told, next_step="free some space", limit="disk")
    if error.errno in _OTHER_KIND:
        return FileConflict(told, next_step="look what is there")
    if error.errno in (errno.ENAMETOOLONG, errno.EINVAL):
        return InvalidArgument(told)
    return Unavailable(told)


class Tree:
    """`top` is a real path, without links."""

    def __init__(self, top: str) -> None:
        self.top = top

    @contextmanager
    def _at(self, path: str, *, follow: bool) -> Generator[tuple[int, str]]:
        """The directory that a path ends in, and the last name: empty for the top itself."""
        stack = [os.open(self.top, _DIRECTORY)]
        try:
            yield self._walk(stack, path, follow=follow)
        finally:
            for fd in stack:
                os.close(fd)

    def _walk(self, stack: list[int], path: str, *, follow: bool) -> tuple[int, str]:
        waiting, links = self._parts(path), 0
        while waiting:
            name = waiting.popleft()
            if name == "..":
                if len(stack) == 1:
                    raise self._outside(path)
                os.close(stack.pop())
                continue
            try:
                kind = stat.S_IFMT(os.stat(name, dir_fd=stack[-1], follow_symlinks=False).st_mode)
            except FileNotFoundError:
                if waiting:
                    raise
                return stack[-1], name
            if kind == stat.S_IFLNK and (waiting or follow):
                links += 1
                if links > _LINKS_MAX:
                    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
                target = os.readlink(name, dir_fd=stack[-1])
                if target.startswith("/"):
                    self._begin_anew(stack)
                waiting = self._parts(target, path) + waiting
            elif waiting:
                stack.append(os.open(name, _DIRECTORY, dir_fd=stack[-1]))
            else:
                return stack[-1], name
        return stack[-1], ""

    def _parts(self, path: str, asked: str = "") -> deque[str]:
        """From the top on. Raises PermissionDenied for an absolute path that is not below it."""
        if path.startswith("/"):
            if path != self.top and not path.startswith(f"{self.top}/"):
                raise self._outside(asked or path)
            path = path[len(self.top) :]
        return deque(part for part in path.split("/") if part not in ("", "."))

    def _begin_anew(self, stack: list[int]) -> None:
        while len(stack) > 1:
            os.close(stack.pop())

    def _outside(self, path: str) -> PermissionDenied:
        return PermissionDenied(
            f"{path} leads out of the directory of this session", next_step=f"use a path below {self.top}"
        )

    def shown(self, path: str) -> str:
        """Absolute, as it is told."""
        return posixpath.normpath(posixpath.join(self.top, path))

    # ---- one file ----------------------------------------------------------------------------------------------

    def stat(self, path: str, *, follow: bool = True) -> FileInfo:
        with self._at(path, follow=follow) as (fd, name):
            return info_of(fd, name, self.shown(path))

    def open(self, path: str) -> tuple[int, FileInfo]:
        """A file to be read: what is none is told, and not opened. The caller closes it."""
        with self._at(path, follow=True) as (fd, name):
            info = info_of(fd, name, self.shown(path))
            _need_file(info)
            found = os.open(name, _FILE, dir_fd=fd)
            if not stat.S_ISREG(os.fstat(found).st_mode):  # it was exchanged
                os.close(found)
                raise FileConflict(f"{path} is no file", next_step="look what is there")
            return found, info

    def open_directory(self, path: str) -> int:
        with self._at(path, follow=True) as (fd, name):
            return os.open(name or ".", _DIRECTORY, dir_fd=fd)

    def make_parents(self, path: str) -> None:
        """Each directory above it that is not there."""
        parts = path.rstrip("/").split("/")
        for count in range(1, len(parts)):
            part = "/".join(parts[:count])
            if not part or (part.startswith("/") and f"{self.top}/".startswith(f"{part}/")):
                continue
            with self._at(part, follow=True) as (fd, name), suppress(FileExistsError):
                if name:
                    os.mkdir(name, 0o755, dir_fd=fd)

    def replace(self, path: str, mode: int | None, fill: Callable[[int], None]) -> FileInfo:
        """The file whole, as `fill` writes it, or as it was before. Through a link, where it leads."""
        with self._at(path, follow=True) as (fd, name):
            before: FileInfo | None = None
            with suppress(FileNotFoundError):
                before = info_of(fd, name, self.shown(path))
                _need_file(before)
            if not name or name == "..":
                raise FileConflict(f"{path} is a directory", next_step="name a file in it")
            new = f".sandlot-{secrets.token_hex(8)}"
            out = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=fd)
            try:
                try:
                    os.fchmod(out, mode if mode is not None else before.mode if before else 0o644)
                    if before is not None:
                        with suppress(PermissionError):
                            os.fchown(out, before.uid, before.gid)
                    fill(out)
                finally:
                    os.close(out)
                os.replace(new, name, src_dir_fd=fd, dst_dir_fd=fd)
            except BaseException:  # whatever it was: what is half written does not stay
                with suppress(OSError):
                    os.unlink(new, dir_fd=fd)
                raise
            return info_of(fd, name, self.shown(path))

    # ---- all below a directory ---------------------------------------------------------------------------------

    def below(self, path: str, depth: int, enters: Callable[[str], bool]) -> Iterator[tuple[str, FileInfo]]:
        """What is below a directory, by name, each directory before what is in it, with its path from there on.
        Links are not followed, and what cannot be entered, or lies too deep, shows as itself alone."""
        top = _Level(self.open_directory(path), "", self.shown(path))
        levels = [top]
        try:
            while levels:
                level = levels[-1]
                name = next(level.names, None)
                if name is None:
                    os.close(levels.pop().fd)
                    continue
                inner = f"{level.above}{name}"
                try:
                    info = info_of(level.fd, name, posixpath.join(level.shown, name))
                except FileNotFoundError:
                    continue
                yield inner, info
                if info.kind is FileKind.DIRECTORY and len(levels) < min(depth, _DEPTH_MAX) and enters(inner):
                    with suppress(OSError):
                        fd = os.open(name, _DIRECTORY, dir_fd=level.fd)
                        levels.append(_Level(fd, f"{inner}/", info.path))
        finally:
            for level in levels:
                os.close(level.fd)


class _Level:
    """A directory that is gone through."""

    def __init__(self, fd: int, above: str, shown: str) -> None:
        self.fd = fd
        self.above = above
        self.shown = shown
        self.names = iter(sorted(os.listdir(fd), key=os.fsencode))


def info_of(fd: int, name: str, shown: str) -> FileInfo:
    """Of one name in a directory, which is not followed."""
    found = os.stat(name, dir_fd=fd, follow_symlinks=False) if name else os.fstat(fd)
    kind = _KINDS.get(stat.S_IFMT(found.st_mode), FileKind.OTHER)
    return FileInfo(
        shown,
        kind,
        found.st_size,
        stat.S_IMODE(found.st_mode),
        found.st_uid,
        found.st_gid,
        found.st_mtime,
        os.readlink(name, dir_fd=fd) if kind is FileKind.SYMLINK else "",
        changed=found.st_ctime,
    )


def _need_file(info: FileInfo) -> None:
    if info.kind is not FileKind.FILE:
        raise FileConflict(f"{info.path} is no file but a {info.kind}", next_step="name a file")
