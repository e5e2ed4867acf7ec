"""A session's files, touched by the host without ever leaving them. Everything here blocks, and raises OSError.

Every path is resolved by the kernel below one descriptor (`openat2`), so links and races lead to other files of the
session at worst. What was found is asked for its kind before it is opened: opening a pipe or a device does things."""

import errno
import os
import posixpath
import secrets
import stat
from collections.abc import Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from sandlot.contracts.runtime import Tree
from sandlot.host.kernel import (
    BENEATH,
    IN_ROOT,
    NO_MAGICLINKS,
    NO_SYMLINKS,
    NO_XDEV,
    open_inside,
    rename_without_replacing,
)
from sandlot.model import FileInfo, FileKind

PIECE_BYTES = 1 << 20
BATCH_ENTRIES = 1000
_IDS = 65536
_NOBODY = 65534
_LINKS_MAX = 40  # as many as the kernel follows
_PENDING_MAX = 1_000_000  # directories found and not yet looked into
_REMEMBERED_MAX = 100_000  # names of directories that are still to be removed
_LEVELS_COUNTED = 64  # below these, one name at a time is remembered
_KINDS = {stat.S_IFREG: FileKind.FILE, stat.S_IFDIR: FileKind.DIRECTORY, stat.S_IFLNK: FileKind.SYMLINK}
_WORDS = {stat.S_IFDIR: "a directory", stat.S_IFIFO: "a pipe", stat.S_IFSOCK: "a socket", stat.S_IFLNK: "a link"}
_NO_TMPFILE = (errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL, errno.ENOENT)
_ONE_STEP = BENEATH | NO_SYMLINKS | NO_MAGICLINKS | NO_XDEV


class WrongKind(OSError):
    """Something is there, and it is not what the operation works on."""


class Inside:
    """One tree, open. Paths are absolute, as the session names them; `locate` makes them so."""

    def __init__(self, tree: Tree, workspace: str) -> None:
        self._tree = tree
        self._workspace = workspace
        self._resolve = NO_XDEV | NO_MAGICLINKS | (IN_ROOT if tree.path == "/" else BENEATH)

    def close(self) -> None:
        os.close(self._tree.fd)

    def locate(self, path: str) -> str:
        return posixpath.join(self._workspace, path)

    def open(self, path: str, flags: int) -> int:
        return open_inside(self._tree.fd, self._inner(path), flags, self._resolve)

    def _inner(self, path: str) -> str:
        if self._tree.path == "/":
            return path
        if path != self._tree.path and not path.startswith(self._tree.path + "/"):
            raise OSError(errno.EXDEV, "outside of the workspace", path)
        return path[len(self._tree.path) + 1 :] or "."

    @contextmanager
    def opened(self, path: str, flags: int) -> Generator[int]:
        fd = self.open(path, flags)
        try:
            yield fd
        finally:
            os.close(fd)

    def split(self, path: str) -> tuple[str, str]:
        """The directory that holds an entry, and the entry's name in it."""
        folder, name = posixpath.split(path.rstrip("/"))
        if name in ("", ".", ".."):
            raise OSError(errno.EBUSY, "names no entry of a directory", path)
        return folder or "/", name

    def info(self, path: str, found: os.stat_result, target: str = "") -> FileInfo:
        return FileInfo(
            path=posixpath.normpath(path),
            kind=_KINDS.get(stat.S_IFMT(found.st_mode), FileKind.OTHER),
            size_bytes=found.st_size,
            mode=stat.S_IMODE(found.st_mode),
            uid=self._own_id(found.st_uid),
            gid=self._own_id(found.st_gid),
            modified=found.st_mtime,
            target=target,
        )

    def _own_id(self, number: int) -> int:
        first = self._tree.first_id
        if first is None:
            return number
        return number - first if first <= number < first + _IDS else _NOBODY


def stat_file(inside: Inside, path: str, *, follow: bool) -> FileInfo:
    with inside.opened(path, os.O_PATH | (0 if follow else os.O_NOFOLLOW)) as fd:
        found = os.fstat(fd)
        target = os.readlink("", dir_fd=fd) if stat.S_ISLNK(found.st_mode) else ""
        return inside.info(path, found, target)


def open_regular(inside: Inside, path: str) -> tuple[int, os.stat_result]:
    """For reading. The kind is asked of a descriptor that opens nothing; the same file is then opened through it."""
    with inside.opened(path, os.O_PATH) as found:
        need_regular(os.fstat(found), path)
        # Without waiting: a program of the session may hold a lease on it.
        fd = os.open(f"/proc/self/fd/{found}", os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    return fd, os.fstat(fd)


def need_regular(found: os.stat_result, path: str) -> None:
    kind = stat.S_IFMT(found.st_mode)
    if kind != stat.S_IFREG:
        number = errno.EISDIR if kind == stat.S_IFDIR else errno.EINVAL
        raise WrongKind(number, f"is {_WORDS.get(kind, 'a device')}, not a file", path)


def list_files(inside: Inside, path: str, depth: int) -> Generator[list[FileInfo]]:
    """Batches. Holds one directory open at a time."""
    pending: list[tuple[str, int]] = [(path, 1)]
    batch: list[FileInfo] = []
    while pending:
        folder, level = pending.pop()
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NONBLOCK
        try:
            fd = inside.open(folder, flags if folder is path else flags | os.O_NOFOLLOW)
        except OSError:
            if folder is path:
                raise
            continue
        try:
            with os.scandir(fd) as entries:
                for entry in entries:
                    told = _entry(inside, fd, posixpath.join(folder, entry.name), entry)
                    if told is None:
                        continue
                    batch.append(told)
                    if level < depth and told.kind is FileKind.DIRECTORY:
                        pending.append((posixpath.join(folder, entry.name), level + 1))
                    if len(pending) > _PENDING_MAX:
                        raise OSError(errno.EMFILE, f"more than {_PENDING_MAX} directories", path)
                    if len(batch) >= BATCH_ENTRIES:
                        yield batch
                        batch = []
        finally:
            os.close(fd)
    yield batch


def _entry(inside: Inside, folder: int, path: str, entry: os.DirEntry[str]) -> FileInfo | None:
    try:
        found = entry.stat(follow_symlinks=False)
        target = os.readlink(entry.name, dir_fd=folder) if stat.S_ISLNK(found.st_mode) else ""
    except OSError:
        return None  # gone meanwhile
    return inside.info(path, found, target)


def make_directory(inside: Inside, path: str, mode: int, *, parents: bool) -> bool:
    """Whether it was made; False when a directory is there."""
    with suppress(FileNotFoundError), inside.opened(path, os.O_PATH) as fd:
        if stat.S_ISDIR(os.fstat(fd).st_mode):
            return False
        raise FileExistsError(errno.EEXIST, "something else is there", path)
    folder, name = inside.split(path)
    above = _open_folder(inside, folder, parents=parents)
    try:
        os.close(_make_one(above, name, mode))
    finally:
        os.close(above)
    return True


def _open_folder(inside: Inside, folder: str, *, parents: bool) -> int:
    """The directory; made, with those above it, when it may be."""
    missing: list[str] = []
    while True:
        try:
            fd = inside.open(folder, os.O_PATH | os.O_DIRECTORY)
            break
        except FileNotFoundError:
            if not parents:
                raise
            folder, name = inside.split(folder)
            missing.append(name)
    while missing:
        try:
            below = _make_one(fd, missing.pop(), 0o755)
        finally:
            os.close(fd)
        fd = below
    return fd


def _make_one(above: int, name: str, mode: int) -> int:
    """A new directory, or the one that someone else made meanwhile; open."""
    made = True
    try:
        os.mkdir(name, 0o700, dir_fd=above)
    except FileExistsError:
        made = False
    fd = open_inside(above, name, os.O_RDONLY | os.O_DIRECTORY if made else os.O_PATH | os.O_DIRECTORY, _ONE_STEP)
    if made:
        os.fchmod(fd, mode)
    return fd


def rename(inside: Inside, path: str, to: str, *, overwrite: bool) -> FileInfo:
    folder, name = inside.split(path)
    to_folder, to_name = inside.split(to)
    with (
        inside.opened(folder, os.O_PATH | os.O_DIRECTORY) as above,
        inside.opened(to_folder, os.O_PATH | os.O_DIRECTORY) as to_above,
    ):
        if overwrite:
            os.rename(name, to_name, src_dir_fd=above, dst_dir_fd=to_above)
        else:
            rename_without_replacing(above, name, to_above, to_name)
        return inside.info(to, os.stat(to_name, dir_fd=to_above, follow_symlinks=False))


class Replacement:
    """New content for a file, out of sight until `commit`. Where the user may write the file and not the directory, it
    is written in place."""

    def __init__(self, inside: Inside, path: str, mode: int | None, *, parents: bool) -> None:
        self._inside = inside
        self._mode = mode
        self._linked = ""  # the name of a file that is not in its place yet
        self._in_place = False
        self._path, self._above, self._name, self._old = _final_place(inside, path, parents=parents)
        try:
            self._fd = self._open()
        except BaseException:  # whoever cannot have it cannot close it
            os.close(self._above)
            raise

    def _open(self) -> int:
        if self._old is not None:
            need_regular(self._old, self._path)
            self._need_writable()
        try:
            return os.open(".", os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600, dir_fd=self._above)
        except PermissionError:
            if self._old is None:
                raise
            return self._open_in_place()
        except OSError as error:
            if error.errno not in _NO_TMPFILE:
                raise
        self._linked = _hidden_name()
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        return os.open(self._linked, flags, 0o600, dir_fd=self._above)

    def _need_writable(self) -> None:
        """A rename asks the directory alone; whoever may not write the file may not replace it either."""
        with self._old_file() as found:
            if not os.access(f"/proc/self/fd/{found}", os.W_OK, effective_ids=True):
                raise PermissionError(errno.EACCES, "may not be written", self._path)

    def _open_in_place(self) -> int:
        with self._old_file() as found:
            need_regular(os.fstat(found), self._path)
            self._in_place = True
            flags = os.O_WRONLY | os.O_TRUNC | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
            return os.open(f"/proc/self/fd/{found}", flags)

    @contextmanager
    def _old_file(self) -> Generator[int]:
        fd = open_inside(self._above, self._name, os.O_PATH | os.O_NOFOLLOW, _ONE_STEP & ~NO_SYMLINKS)
        try:
            yield fd
        finally:
            os.close(fd)

    def write(self, data: bytes | memoryview) -> None:
        view = memoryview(data)
        while view:
            view = view[os.write(self._fd, view) :]

    def commit(self) -> FileInfo:
        """Put it in its place, and close."""
        try:
            if not self._in_place:
                self._keep_owner_and_mode()
                self._put()
            elif self._mode is not None:
                os.fchmod(self._fd, self._mode)
            return self._inside.info(self._path, os.fstat(self._fd))
        finally:
            self.close()

    def _keep_owner_and_mode(self) -> None:
        old = self._old
        if old is not None:
            with suppress(PermissionError):  # only root can give files away
                os.fchown(self._fd, old.st_uid, old.st_gid)
        # Rights to become someone are not passed on to other content, as the kernel does on a write.
        kept = 0o644 if old is None else stat.S_IMODE(old.st_mode) & ~(stat.S_ISUID | stat.S_ISGID)
        os.fchmod(self._fd, kept if self._mode is None else self._mode)

    def _put(self) -> None:
        if not self._linked:
            source = f"/proc/self/fd/{self._fd}"
            if self._old is None:
                with suppress(FileExistsError):  # made by someone meanwhile: then it is replaced
                    os.link(source, self._name, dst_dir_fd=self._above, follow_symlinks=True)
                    return
            name = _hidden_name()
            os.link(source, name, dst_dir_fd=self._above, follow_symlinks=True)
            self._linked = name
        os.rename(self._linked, self._name, src_dir_fd=self._above, dst_dir_fd=self._above)
        self._linked = ""

    def close(self) -> None:
        """Without a commit nothing has happened. Closing twice is fine."""
        if self._above < 0:
            return
        if self._linked:
            with suppress(OSError):
                os.unlink(self._linked, dir_fd=self._above)
        os.close(self._fd)
        os.close(self._above)
        self._above = -1


def _hidden_name() -> str:
    return f".sandlot-{secrets.token_hex(8)}"


def _final_place(inside: Inside, path: str, *, parents: bool) -> tuple[str, int, str, os.stat_result | None]:
    """Where writing to a path writes: links at its end are followed, one by one and each inside."""
    for _link in range(_LINKS_MAX):
        folder, name = inside.split(path) if not path.endswith("/") else _refuse(path)
        above = _open_folder(inside, folder, parents=parents)
        try:
            old = os.stat(name, dir_fd=above, follow_symlinks=False)
            if not stat.S_ISLNK(old.st_mode):
                return path, above, name, old
            path = posixpath.join(folder, os.readlink(name, dir_fd=above))
        except FileNotFoundError:
            return path, above, name, None
        except BaseException:  # whoever cannot have it cannot close it
            os.close(above)
            raise
        os.close(above)
    raise OSError(errno.ELOOP, "too many links", path)


def _refuse(path: str) -> tuple[str, str]:
    raise WrongKind(errno.EISDIR, "names a directory, not a file", path)


def remove(inside: Inside, path: str, *, recursive: bool) -> Generator[None]:
    """Pauses after every batch. Keeps one directory open, however deep: the way up is `..`, proven by its inode."""
    folder, name = inside.split(path)
    with inside.opened(folder, os.O_PATH | os.O_DIRECTORY) as above:
        found = os.stat(name, dir_fd=above, follow_symlinks=False)
        if not stat.S_ISDIR(found.st_mode):
            os.unlink(name, dir_fd=above)
            return
        if recursive:
            yield from _empty(above, name)
        os.rmdir(name, dir_fd=above)


@dataclass(slots=True)
class _Level:
    """A directory that is being emptied: what is still to be entered in it, and whether all of it was seen."""

    below: list[str]
    seen: bool
    entered: str = ""
    device: int = 0
    inode: int = 0


def _empty(above: int, name: str) -> Generator[None]:
    here = open_inside(above, name, os.O_RDONLY | os.O_DIRECTORY, _ONE_STEP)
    levels: list[_Level] = []
    try:
        levels.append((yield from _clear(here, _REMEMBERED_MAX)))
        while True:
            level = levels[-1]
            if level.below:
                level.entered = level.below.pop()
                own = os.fstat(here)
                level.device, level.inode = own.st_dev, own.st_ino
                try:
                    inner = open_inside(here, level.entered, os.O_RDONLY | os.O_DIRECTORY, _ONE_STEP)
                except FileNotFoundError:
                    continue
                os.close(here)
                here = inner
                room = _REMEMBERED_MAX - sum(len(each.below) for each in levels[-_LEVELS_COUNTED:])
                levels.append((yield from _clear(here, room if len(levels) < _LEVELS_COUNTED and room > 0 else 1)))
            elif not level.seen:
                levels[-1] = yield from _clear(here, _REMEMBERED_MAX)
            elif len(levels) > 1:
                levels.pop()
                up = _open_above(here, levels[-1])
                os.close(here)
                here = up
                with suppress(FileNotFoundError):
                    os.rmdir(levels[-1].entered, dir_fd=here)
            else:
                return
    finally:
        os.close(here)


def _clear(here: int, room: int) -> Generator[None, None, _Level]:
    """Remove the files of a directory; tell of the directories in it, of as many as there is room for."""
    below: list[str] = []
    with os.scandir(here) as entries:
        for count, entry in enumerate(entries, start=1):
            if not entry.is_dir(follow_symlinks=False):
                with suppress(FileNotFoundError):
                    os.unlink(entry.name, dir_fd=here)
            elif len(below) < room:
                below.append(entry.name)
            else:
                return _Level(below, seen=False)
            if count % BATCH_ENTRIES == 0:
                yield
    yield
    return _Level(below, seen=True)


def _open_above(here: int, level: _Level) -> int:
    up = os.open("..", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=here)
    found = os.fstat(up)
    if (found.st_dev, found.st_ino) != (level.device, level.inode):
        os.close(up)
        raise WrongKind(errno.EBUSY, "was moved while it was being removed", level.entered)
    return up
