"""New content for a file of a session: whole or not at all. Everything here blocks, and raises OSError."""

import errno
import os
import posixpath
import stat
from collections.abc import Callable, Generator
from contextlib import suppress

from sandlot.host import failpoints
from sandlot.host.asides import Aside, Note
from sandlot.host.inside import PIECE_BYTES, Inside, WrongKind, need_regular, open_entry, open_folder, open_regular
from sandlot.model import FileInfo

_LINKS_MAX = 40  # as many as the kernel follows
_COPIED_PIECES = 64  # in one step
_SOON_GONE_BYTES = 1 << 20  # of a file whose end is not worth waiting for, nor worth being late for
NO_TMPFILE = (errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL, errno.ENOENT)


class Replacement:
    """New content for a file, out of sight until `commit`. Where the user may write the file and yet not replace it, or
    could not leave it to its owner, the content is copied into it at the end."""

    def __init__(self, inside: Inside, path: str, mode: int | None, *, parents: bool) -> None:
        self._inside = inside
        self._mode = mode
        self._aside: Aside | None = None  # its name while it is not in its place
        self._in_place = False
        self._scratch: tuple[int, str] | None = None  # the directory that has it meanwhile
        self._target = -1  # what is copied into
        self._copied = 0
        self._fd = -1
        self.leave_old: Callable[[int], None] = os.close  # takes what was there, which ends when that is closed
        self._path, self._above, self._name, self._found = final_place(inside, path, parents=parents)
        self._folder = posixpath.dirname(self._path.rstrip("/"))
        self._old = None if self._found < 0 else os.fstat(self._found)
        try:
            self._open(self._found)
        except BaseException:  # whoever cannot have it cannot close it
            self.close()
            raise

    def _open(self, found: int) -> None:
        old = self._old
        if old is None:
            self._fd, self._aside = open_new(self._inside, self._above, self._folder, self._new_mode())
            return
        need_regular(old, self._path)
        # A rename asks the directory alone; whoever may not write the file may not replace it either.
        if not os.access(f"/proc/self/fd/{found}", os.W_OK, effective_ids=True):
            raise PermissionError(errno.EACCES, "may not be written", self._path)
        try:
            self._fd, self._aside = open_new(self._inside, self._above, self._folder)
            made = os.fstat(self._fd)
            if (made.st_uid, made.st_gid) != (old.st_uid, old.st_gid):
                os.fchown(self._fd, old.st_uid, old.st_gid)
        except PermissionError:  # a directory that may not be written; and only root can give files away
            self._in_place = True
            if self._fd < 0:
                self._fd, self._aside, self._scratch = _open_scratch(self._inside)
            else:
                self._scratch = os.dup(self._above), self._folder

    @property
    def replaces(self) -> tuple[int, ...] | None:
        """What is there before: which file, how long, of when. None when nothing is."""
        old = self._old
        return (old.st_dev, old.st_ino, old.st_size, old.st_mtime_ns) if old else None

    def write(self, data: bytes) -> None:
        write_all(self._fd, data)

    def commit(self) -> FileInfo | None:
        """Put it in its place, and close. None: there is more to copy, call again."""
        try:
            if self._in_place:
                if not self._copy():
                    return None
            else:
                set_mode(self._fd, self._new_mode())
                self._put()
            told = self._inside.info(self._path, os.fstat(self._target if self._in_place else self._fd))
        except BaseException:  # whatever failed, it is over
            self.close()
            raise
        self.close()
        return told

    def _new_mode(self) -> int:
        if self._mode is not None:
            return self._mode
        # Rights to become someone are not passed on to other content, as the kernel does on a write.
        return 0o644 if self._old is None else stat.S_IMODE(self._old.st_mode) & ~(stat.S_ISUID | stat.S_ISGID)

    def _put(self) -> None:
        if not self._aside:
            source = f"/proc/self/fd/{self._fd}"
            if self._old is None:
                with suppress(FileExistsError):  # made by someone meanwhile: then it is replaced
                    os.link(source, self._name, dst_dir_fd=self._above, follow_symlinks=True)
                    return
            self._aside = self._inside.aside(self._above, self._folder)
            os.link(source, self._aside.name, dst_dir_fd=self._above, follow_symlinks=True)
        failpoints.reach("file: has a hidden name")
        self._aside.put_at(self._name, self._fd)
        # The kernel gives a file back to the disk when nobody has it open any more, and waits for what is still being
        # written of it: most of the time that it takes to replace one that was written a moment ago.
        if self._old and self._old.st_size <= _SOON_GONE_BYTES:
            found, self._found = self._found, -1
            self.leave_old(found)

    def _copy(self) -> bool:
        """Some of it into the file that is there; whether that was all. What can be refused comes first."""
        if self._target < 0:
            found = open_entry(self._above, self._name)
            try:
                need_regular(os.fstat(found), self._path)
                flags = os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
                self._target = os.open(f"/proc/self/fd/{found}", flags)
            finally:
                os.close(found)
            if self._mode is not None:
                os.fchmod(self._target, self._mode)
            self._note_copy()
            os.ftruncate(self._target, 0)
        for _piece in range(_COPIED_PIECES):
            piece = os.pread(self._fd, PIECE_BYTES, self._copied)
            if not piece:
                return True
            write_all(self._target, piece)
            self._copied += len(piece)
            failpoints.reach("file: half copied")
        return False

    def _note_copy(self) -> None:
        """From here on the file is not whole until all is copied, so whoever comes later must find the content."""
        assert self._scratch is not None, "it was opened for this"
        above, folder = self._scratch
        before, self._aside = self._aside, self._inside.aside(above, folder, target=self._path, mode=self._mode)
        try:
            os.link(f"/proc/self/fd/{self._fd}", self._aside.name, dst_dir_fd=above, follow_symlinks=True)
        finally:
            if before:
                before.close()

    def close(self) -> None:
        """Without a commit nothing has happened. Closing twice is fine."""
        if self._above < 0:
            return
        if self._aside:
            self._aside.close()
        for fd in (self._fd, self._target, self._found, self._above, self._scratch[0] if self._scratch else -1):
            if fd >= 0:
                os.close(fd)
        self._above = -1


def set_mode(fd: int, mode: int) -> None:
    """To look costs the disk nothing: most have been made with it, unless a directory or a umask wants another."""
    if stat.S_IMODE(os.fstat(fd).st_mode) != mode:
        os.fchmod(fd, mode)


def open_new(inside: Inside, above: int, folder: str, mode: int = 0o600) -> tuple[int, Aside | None]:
    """A new file in a directory, and its name where it must have one. With as much of its mode as may be."""
    mode &= 0o777
    try:
        return os.open(".", os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, mode, dir_fd=above), None
    except OSError as error:
        if error.errno not in NO_TMPFILE:
            raise
    aside = inside.aside(above, folder)
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        return os.open(aside.name, flags, mode, dir_fd=above), aside
    except BaseException:  # whoever cannot have it cannot close it
        aside.close()
        raise


def _open_scratch(inside: Inside) -> tuple[int, Aside | None, tuple[int, str]]:
    """A file away from its place, and where it is: for who may write a file and not the directory that holds it."""
    for folder in ("/tmp", "/var/tmp", inside.workspace):
        with suppress(OSError):
            above = inside.open(folder, os.O_PATH | os.O_DIRECTORY)
            try:
                return *open_new(inside, above, folder), (above, folder)
            except BaseException:  # the same
                os.close(above)
                raise
    raise PermissionError(errno.EACCES, "no directory may be written")


def finish_left(inside: Inside, note: Note) -> Generator[None]:
    """What an engine began that has died: what it was copying is copied, and what is left on the way is removed."""
    with inside.opened(note.folder, os.O_PATH | os.O_DIRECTORY) as above:
        try:
            if note.target:
                yield from _copy_again(inside, note)
        finally:
            with suppress(FileNotFoundError):
                os.unlink(note.name, dir_fd=above)


def _copy_again(inside: Inside, note: Note) -> Generator[None]:
    source, _found = open_regular(inside, posixpath.join(note.folder, note.name))
    try:
        with inside.opened(note.target, os.O_PATH) as found:
            need_regular(os.fstat(found), note.target)
            target = os.open(f"/proc/self/fd/{found}", os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
        try:
            if note.mode is not None:
                os.fchmod(target, note.mode)
            os.ftruncate(target, 0)
            while piece := os.read(source, PIECE_BYTES):
                write_all(target, piece)
                yield
        finally:
            os.close(target)
    finally:
        os.close(source)


def write_all(fd: int, data: bytes | memoryview) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def final_place(inside: Inside, path: str, *, parents: bool) -> tuple[str, int, str, int]:
    """Where writing to a path writes: the directory and the name in it, and what is there or -1. Links at the end are
    followed, one by one and each inside."""
    for _link in range(_LINKS_MAX):
        folder, name = inside.split(path) if not path.endswith("/") else _refuse(path)
        above = open_folder(inside, folder, parents=parents)
        found = -1
        try:
            with suppress(FileNotFoundError):
                found = open_entry(above, name)
            if found < 0 or not stat.S_ISLNK(os.fstat(found).st_mode):
                return path, above, name, found
            # A link in a directory of all may be one that the kernel does not let this user follow.
            with suppress(FileNotFoundError), inside.opened(path, os.O_PATH):
                pass
            path = posixpath.join(folder, os.readlink("", dir_fd=found))
        except BaseException:  # whoever cannot have it cannot close it
            os.close(above)
            if found >= 0:
                os.close(found)
            raise
        os.close(above)
        os.close(found)
    raise OSError(errno.ELOOP, "too many links", path)


def _refuse(path: str) -> tuple[str, str]:
    raise WrongKind(errno.EISDIR, "names a directory, not a file", path)
