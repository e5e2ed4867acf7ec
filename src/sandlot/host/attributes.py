"""What is told beside the content of a session's files: permission bits, owners, extended attributes, and links.
Everything here blocks, and raises OSError."""

import errno
import os
import posixpath
import stat
from collections.abc import Generator, Mapping
from contextlib import suppress

from sandlot.host.inside import Inside, open_entry, open_folder, tell
from sandlot.host.kernel import ONE_STEP, change_owner, open_inside
from sandlot.model import ATTRIBUTE_PREFIX, FileInfo, LimitReached, limits

_READ = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_DIRECTORY
_STEP_ENTRIES = 500
_PENDING_MAX = 500_000
_GONE = {errno.ENOENT, errno.ESTALE, errno.ELOOP, errno.ENOTDIR, errno.EXDEV, errno.ENAMETOOLONG}
_KEEP = -1


class Changing:
    """Permission bits and owners, of one file or of all below a directory. -1: the owner stays."""

    def __init__(self, inside: Inside, path: str, mode: int | None, uid: int = _KEEP, gid: int = _KEEP) -> None:
        self.at = ""  # what is being changed, below the path
        self._inside = inside
        self._path = path
        self._mode = mode
        self._uid = uid
        self._gid = gid

    def one(self) -> FileInfo:
        with self._inside.opened(self._path, os.O_PATH) as fd:
            self._change(fd)
            return tell(self._inside, self._path, fd)

    def all(self) -> Generator[FileInfo | None]:
        """What is below first: a mode may close a directory to the user. The last one told is the path's own."""
        with self._inside.opened(self._path, os.O_PATH) as top:
            if stat.S_ISDIR(os.fstat(top).st_mode):
                yield from self._below(top)
            self.at = ""
            self._change(top)
            yield tell(self._inside, self._path, top)

    def _below(self, top: int) -> Generator[None]:
        found, at, entries = [""], 0, 0
        while at < len(found):  # the way down; those that are deep are changed last, and their own bits after them
            below = self.at = found[at]
            at += 1
            try:
                here = open_inside(top, below or ".", _READ, ONE_STEP)
            except OSError as error:
                if below and error.errno in _GONE:
                    continue
                raise
            try:
                with os.scandir(here) as inner:
                    for entry in inner:
                        self.at = posixpath.join(below, entry.name)
                        entries += 1
                        if entries % _STEP_ENTRIES == 0:
                            yield
                        if entry.is_dir(follow_symlinks=False):
                            found.append(self.at)
                        else:
                            self._entry(here, entry.name)
            finally:
                os.close(here)
            if len(found) > _PENDING_MAX:
                raise LimitReached(f"more than {_PENDING_MAX} directories", limit="tree_width")
        while len(found) > 1:
            self.at = found.pop()
            folder, name = posixpath.split(self.at)
            with suppress(FileNotFoundError):
                above = open_inside(top, folder or ".", os.O_PATH | os.O_DIRECTORY, ONE_STEP)
                try:
                    self._entry(above, name)
                finally:
                    os.close(above)
            if len(found) % _STEP_ENTRIES == 0:
                yield

    def _entry(self, above: int, name: str) -> None:
        try:
            fd = open_entry(above, name)
        except OSError as error:
            if error.errno in _GONE:
                return
            raise
        try:
            self._change(fd)
        finally:
            os.close(fd)

    def _change(self, fd: int) -> None:
        if self._uid != _KEEP or self._gid != _KEEP:
            change_owner(fd, self._uid, self._gid)
        if self._mode is not None and not stat.S_ISLNK(os.fstat(fd).st_mode):
            os.chmod(f"/proc/self/fd/{fd}", self._mode)


def make_link(inside: Inside, path: str, target: str, *, parents: bool) -> FileInfo:
    folder, name = inside.split(path)
    above = open_folder(inside, folder, parents=parents)
    try:
        os.symlink(target, name, dir_fd=above)
        entry = open_entry(above, name)
        try:
            return tell(inside, path, entry)
        finally:
            os.close(entry)
    finally:
        os.close(above)


def get_attributes(inside: Inside, path: str) -> dict[str, bytes]:
    with inside.opened(path, os.O_PATH) as fd:
        return _attributes(fd)


def set_attributes(inside: Inside, path: str, values: Mapping[str, bytes | None], *, replace: bool) -> dict[str, bytes]:
    """What is there afterwards."""
    with inside.opened(path, os.O_PATH) as fd:
        where = f"/proc/self/fd/{fd}"
        gone = [name for name in _attributes(fd) if name not in values] if replace else []
        for name in (*gone, *(name for name, value in values.items() if value is None)):
            try:
                os.removexattr(where, name)
            except OSError as error:
                if error.errno != errno.ENODATA:
                    raise
        for name, value in values.items():
            if value is not None:
                os.setxattr(where, name, value)
        return _attributes(fd)


def _attributes(fd: int) -> dict[str, bytes]:
    where = f"/proc/self/fd/{fd}"
    found: dict[str, bytes] = {}
    names = sorted(name for name in os.listxattr(where) if name.startswith(ATTRIBUTE_PREFIX))
    limits.at_most("attributes", len(names), 16 * limits.ATTRIBUTES_MAX)
    for name in names:
        try:
            found[name] = os.getxattr(where, name)
        except OSError as error:
            if error.errno != errno.ENODATA:
                raise
    return found
