"""Copies within a session. Blocks are shared where the filesystem can; holes stay holes. Everything here blocks, and
raises OSError."""

import errno
import fcntl
import os
import posixpath
import stat
from collections.abc import Generator
from contextlib import suppress

from sandlot.host import failpoints
from sandlot.host.inside import PIECE_BYTES, Inside, WrongKind, make_one, need_regular, open_entry, open_folder
from sandlot.host.kernel import ONE_STEP, open_inside, rename_without_replacing
from sandlot.host.replacement import open_new, write_all
from sandlot.model import LimitReached, TreeTally

_READ = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY
_FICLONE = 0x40049409
_NOT_SHARED = {errno.EOPNOTSUPP, errno.EXDEV, errno.EINVAL, errno.ENOTTY, errno.ENOSYS, errno.EBADF, errno.ETXTBSY}
_STEP_BYTES = 64 << 20
_STEP_ENTRIES = 250
_PENDING_MAX = 500_000  # directories found and not yet looked into
_CLIMBED_MAX = 4096
_OTHER = "a pipe, a socket or a device"
_GONE = {errno.ENOENT, errno.ESTALE, errno.ELOOP, errno.ENXIO, errno.ENOTDIR, errno.EXDEV}


class Duplicating:
    """One file, link or directory, to another name. Files are there whole or as they were."""

    def __init__(self, inside: Inside, path: str, to: str, *, recursive: bool, overwrite: bool) -> None:
        self.tally = TreeTally()
        self.at = ""  # what is being copied, below the path
        self._inside = inside
        self._path = path
        self._to = to
        self._recursive = recursive
        self._overwrite = overwrite
        self._entries = 0

    def steps(self) -> Generator[None]:
        folder, name = self._inside.split(self._path)
        to_folder, to_name = self._inside.split(self._to)
        with self._inside.opened(folder, os.O_PATH | os.O_DIRECTORY) as above:
            entry = open_entry(above, name)
            try:
                found = os.fstat(entry)
                to_above = open_folder(self._inside, to_folder, parents=True)
                try:
                    if stat.S_ISDIR(found.st_mode):
                        yield from self._tree(entry, to_above, to_name)
                    else:
                        if not stat.S_ISLNK(found.st_mode):
                            need_regular(found, self._path)
                        yield from self._one(above, name, found.st_mode, to_above, to_name)
                finally:
                    os.close(to_above)
            finally:
                os.close(entry)

    def _tree(self, source: int, to_above: int, to_name: str) -> Generator[None]:
        if not self._recursive:
            raise WrongKind(errno.EISDIR, "is a directory: all that is in it must be asked for", self._path)
        self._need_outside(source, to_above)
        top, made = make_one(to_above, to_name, stat.S_IMODE(os.fstat(source).st_mode) & 0o777 | stat.S_IRWXU)
        try:
            if not made and not self._overwrite:
                raise FileExistsError(errno.EEXIST, "something is there", self._to)
            pending = [""]
            while pending:
                below = self.at = pending.pop()
                try:
                    here = open_inside(source, below or ".", _READ | os.O_DIRECTORY, ONE_STEP)
                except OSError as error:
                    if not below or error.errno not in {*_GONE, errno.ENAMETOOLONG}:
                        raise
                    self.tally.skip(below, "gone meanwhile, another mount, or too deep to be named")
                    continue
                try:
                    yield from self._folder(here, top, below, pending)
                finally:
                    os.close(here)
        finally:
            os.close(top)

    def _need_outside(self, source: int, to_above: int) -> None:
        """A directory does not fit into itself."""
        own = os.fstat(source)
        here = os.dup(to_above)
        try:
            for _step in range(_CLIMBED_MAX):
                found = os.fstat(here)
                if (found.st_dev, found.st_ino) == (own.st_dev, own.st_ino):
                    raise WrongKind(errno.EINVAL, "cannot be copied into itself", self._path)
                up = os.open("..", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=here)
                os.close(here)
                here = up
                above = os.fstat(here)
                if (above.st_dev, above.st_ino) == (found.st_dev, found.st_ino):
                    return
        finally:
            os.close(here)

    def _folder(self, here: int, top: int, below: str, pending: list[str]) -> Generator[None]:
        target = open_inside(top, below or ".", os.O_PATH | os.O_DIRECTORY, ONE_STEP)
        try:
            self.tally.directories += 1
            with os.scandir(here) as entries:
                for entry in entries:
                    path = self.at = posixpath.join(below, entry.name)
                    self._entries += 1
                    if self._entries % _STEP_ENTRIES == 0:
                        yield
                    if entry.is_dir(follow_symlinks=False):
                        self._make(here, entry.name, target)
                        pending.append(path)
                        if len(pending) > _PENDING_MAX:
                            raise LimitReached(
                                f"more than {_PENDING_MAX} directories beside each other", limit="tree_width"
                            )
                    elif entry.is_symlink() or entry.is_file(follow_symlinks=False):
                        mode = stat.S_IFLNK if entry.is_symlink() else stat.S_IFREG
                        try:
                            yield from self._one(here, entry.name, mode, target, entry.name)
                        except OSError as error:
                            if error.errno not in _GONE:
                                raise
                            self.tally.skip(path, "gone meanwhile")
                    else:
                        self.tally.skip(path, _OTHER)
        finally:
            os.close(target)

    def _make(self, here: int, name: str, target: int) -> None:
        with suppress(FileNotFoundError):
            mode = stat.S_IMODE(os.stat(name, dir_fd=here, follow_symlinks=False).st_mode) & 0o777
            # Whoever fills it must be able to enter it.
            os.close(make_one(target, name, mode | stat.S_IRWXU)[0])

    def _one(self, above: int, name: str, mode: int, to_above: int, to_name: str) -> Generator[None]:
        folder = self._inside.split(posixpath.join(self._to, self.at) if self.at else self._to)[0]
        if stat.S_ISLNK(mode):
            with self._inside.aside(to_above, folder) as aside:
                os.symlink(os.readlink(name, dir_fd=above), aside.name, dir_fd=to_above)
                self._put(aside.name, to_above, to_name)
            self.tally.links += 1
            return
        source = open_inside(above, name, _READ, ONE_STEP)
        try:
            found = os.fstat(source)
            need_regular(found, self._path)
            new, aside = open_new(self._inside, to_above, folder)
            try:
                os.fchmod(new, stat.S_IMODE(found.st_mode) & 0o777)
                yield from _fill(source, new, found.st_size)
                if not aside:
                    aside = self._inside.aside(to_above, folder)
                    os.link(f"/proc/self/fd/{new}", aside.name, dst_dir_fd=to_above, follow_symlinks=True)
                self._put(aside.name, to_above, to_name)
            finally:
                os.close(new)
                if aside:
                    aside.close()
            self.tally.files += 1
            self.tally.size_bytes += found.st_size
        finally:
            os.close(source)

    def _put(self, hidden: str, to_above: int, to_name: str) -> None:
        failpoints.reach("copy: has a hidden name")
        if self._overwrite:
            os.rename(hidden, to_name, src_dir_fd=to_above, dst_dir_fd=to_above)
        else:
            rename_without_replacing(to_above, hidden, to_above, to_name)


def _fill(source: int, new: int, size: int) -> Generator[None]:
    """Content for an empty file. It may end before `size`, when someone makes it shorter meanwhile."""
    try:
        fcntl.ioctl(new, _FICLONE, source)
        return
    except OSError as error:
        if error.errno not in _NOT_SHARED:
            raise
    os.ftruncate(new, size)
    at = since = 0
    while at < size:
        try:
            at = os.lseek(source, at, os.SEEK_DATA)
        except OSError as error:
            if error.errno == errno.ENXIO:
                return  # nothing but a hole is left
            raise
        end = min(os.lseek(source, at, os.SEEK_HOLE), size)
        os.lseek(new, at, os.SEEK_SET)
        while at < end:
            piece = os.pread(source, min(PIECE_BYTES, end - at), at)
            if not piece:
                return
            write_all(new, piece)
            at += len(piece)
            since += len(piece)
            if since >= _STEP_BYTES:
                since = 0
                yield
