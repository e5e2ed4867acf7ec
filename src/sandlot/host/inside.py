"""A session's files, touched by the host without ever leaving them. Everything here blocks, and raises OSError.

Every path is resolved by the kernel below one descriptor (`openat2`), so links and races lead to other files of the
session at worst. What was found is asked for its kind before it is opened: opening a pipe or a device does things."""

import errno
import os
import posixpath
import stat
from collections.abc import Callable, Generator
from contextlib import closing, contextmanager, suppress

from sandlot.contracts.runtime import Tree
from sandlot.host.asides import Aside, hidden_name
from sandlot.host.kernel import (
    BENEATH,
    IN_ROOT,
    NO_MAGICLINKS,
    NO_SYMLINKS,
    NO_XDEV,
    ONE_STEP,
    mount_id,
    open_inside,
    rename_without_replacing,
)
from sandlot.host.removal import Moved, empty
from sandlot.model import FileInfo, FileKind

PIECE_BYTES = 1 << 20
LARGE_BYTES = 4 << 20  # of a large file on its way: each piece changes threads twice
BATCH_ENTRIES = 1000
_IDS = 65536
_NOBODY = 65534
_PENDING_BYTES_MAX = 64 << 20  # for directories found and not yet looked into
_PENDING_BYTES_EACH = 128  # beside the name
_LOOKED_INTO = 250  # directories of a listing in one step
_KINDS = {stat.S_IFREG: FileKind.FILE, stat.S_IFDIR: FileKind.DIRECTORY, stat.S_IFLNK: FileKind.SYMLINK}
_WORDS = {stat.S_IFDIR: "a directory", stat.S_IFIFO: "a pipe", stat.S_IFSOCK: "a socket", stat.S_IFLNK: "a link"}
# A directory in a listing that is closed to the user, or gone, or another thing by now, or too deep to be named.
_NOT_ENTERED = {
    *(errno.EACCES, errno.EPERM, errno.EXDEV, errno.ENAMETOOLONG),
    *(errno.ENOENT, errno.ESTALE, errno.ENOTDIR, errno.ELOOP),
}


Names = Callable[[int, int], str]  # of a user (0) or a group (1), by number
# Notes a hidden name: its directory, it, the file that it is copied into, and that one's mode. Gives the end of it.
Noting = Callable[[str, str, str, int | None], Callable[[], None]]


def kind_and_mode(mode: int) -> tuple[FileKind, int]:
    return _KINDS.get(stat.S_IFMT(mode), FileKind.OTHER), stat.S_IMODE(mode)


class WrongKind(OSError):
    """Something is there, and it is not what the operation works on."""


class Inside:
    """One tree, open. Paths are absolute, as the session names them; `locate` makes them so."""

    def __init__(self, tree: Tree, workspace: str, names: Names | None = None, noting: Noting | None = None) -> None:
        self._tree = tree
        self._names = names or _nameless
        self._noting = noting or _unnoted
        self.workspace = workspace
        self._resolve = NO_XDEV | NO_MAGICLINKS | (IN_ROOT if tree.path == "/" else BENEATH)

    def close(self) -> None:
        os.close(self._tree.fd)

    def aside(self, above: int, folder: str, *, target: str = "", mode: int | None = None) -> Aside:
        """A name for what is not in its place yet, in an open directory and as the session names that. With `target` it
        is going to be copied into that file."""
        name = hidden_name()
        return Aside(above, self._noting(folder, name, target, mode), name)

    def locate(self, path: str) -> str:
        return posixpath.join(self.workspace, path)

    def open(self, path: str, flags: int) -> int:
        try:
            return open_inside(self._tree.fd, self._inner(path), flags, self._resolve)
        except OSError as error:
            if error.errno != errno.EXDEV or not self._tree.mounts:
                raise
        return self._open_mounted(path, flags)

    def _open_mounted(self, path: str, flags: int) -> int:
        """What lies in a volume, and in no other mount: it is found without being opened, and asked where it is."""
        found = open_inside(
            self._tree.fd, path, os.O_PATH | (flags & (os.O_NOFOLLOW | os.O_DIRECTORY)), self._resolve & ~NO_XDEV
        )
        try:
            if mount_id(found) not in self._mount_ids():
                raise OSError(errno.EXDEV, "another mount", path)
            if flags & os.O_PATH:
                return os.dup(found)
            return os.open(f"/proc/self/fd/{found}", (flags & ~os.O_NOFOLLOW) | os.O_CLOEXEC)
        finally:
            os.close(found)

    def _mount_ids(self) -> set[int]:
        """Asked anew: a session that is rolled back has them at the same places, and they are others."""
        ids: set[int] = set()
        for target in self._tree.mounts:
            # Without links: whatever a program puts in its place is a directory of the session, or the volume itself.
            with suppress(OSError):
                fd = open_inside(self._tree.fd, target.lstrip("/"), os.O_PATH, BENEATH | NO_SYMLINKS | NO_MAGICLINKS)
                try:
                    ids.add(mount_id(fd))
                finally:
                    os.close(fd)
        return ids

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
            path=tidy(path) if path.endswith("/") or "//" in path or "/." in path else path,
            kind=_KINDS.get(stat.S_IFMT(found.st_mode), FileKind.OTHER),
            size_bytes=found.st_size,
            mode=stat.S_IMODE(found.st_mode),
            uid=(uid := self.own_id(found.st_uid)),
            gid=(gid := self.own_id(found.st_gid)),
            modified=found.st_mtime,
            target=target,
            owner=self._names(0, uid),
            group=self._names(1, gid),
            changed=found.st_ctime,
        )

    def owners_of(self, uid: int, gid: int) -> tuple[int, int, str, str]:
        """What the machine knows by these numbers: the session's numbers, and their names in it."""
        uid, gid = self.own_id(uid), self.own_id(gid)
        return uid, gid, self._names(0, uid), self._names(1, gid)

    def own_id(self, number: int) -> int:
        first = self._tree.first_id
        if first is None:
            return number
        return number - first if first <= number < first + _IDS else _NOBODY


def _nameless(_list: int, number: int) -> str:
    return str(number)


def _unnoted(_folder: str, _name: str, _target: str, _mode: int | None) -> Callable[[], None]:
    return lambda: None


def tidy(path: str) -> str:
    """Without what says nothing. `..` stays, but for those at the top: after a link it leads elsewhere than the text
    tells."""
    parts: list[str] = []
    for part in path.split("/"):
        if part not in ("", ".") and (part != ".." or parts):
            parts.append(part)
    return "/" + "/".join(parts)


def stat_file(inside: Inside, path: str, *, follow: bool) -> FileInfo:
    with inside.opened(path, os.O_PATH | (0 if follow else os.O_NOFOLLOW)) as fd:
        return tell(inside, path, fd)


def tell(inside: Inside, path: str, fd: int) -> FileInfo:
    found = os.fstat(fd)
    return inside.info(path, found, os.readlink("", dir_fd=fd) if stat.S_ISLNK(found.st_mode) else "")


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
    """Batches, some of them empty: no step is long. Holds two directories open at a time. Below the first one no link
    is followed, whatever a directory becomes meanwhile."""
    pending = [("", "", 1)]
    size = _PENDING_BYTES_EACH
    batch: list[FileInfo] = []
    looked_into = 0
    with inside.opened(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NONBLOCK) as top:
        while pending:
            above, name, level = pending.pop()
            size -= len(name) + _PENDING_BYTES_EACH
            below = posixpath.join(above, name)
            with closing(_entries(inside, top, below, path)) as entries:
                for told in entries:
                    batch.append(told)
                    if level < depth and told.kind is FileKind.DIRECTORY:
                        pending.append((below, told.name, level + 1))
                        size += len(told.name) + _PENDING_BYTES_EACH
                        if size > _PENDING_BYTES_MAX:
                            raise OSError(errno.EMFILE, f"{len(pending)} directories are still to be listed", path)
                    if len(batch) >= BATCH_ENTRIES:
                        yield batch
                        batch = []
            looked_into += 1
            if looked_into % _LOOKED_INTO == 0:
                yield batch
                batch = []
    yield batch


def _entries(inside: Inside, top: int, below: str, path: str) -> Generator[FileInfo]:
    """What is in one directory of a listing of `path`; nothing when it cannot be entered, unless it is the first."""
    try:
        fd = open_inside(top, below or ".", os.O_RDONLY | os.O_DIRECTORY | os.O_NONBLOCK, ONE_STEP)
        try:
            with os.scandir(fd) as entries:
                for entry in entries:
                    told = _entry(inside, fd, posixpath.join(path, below, entry.name), entry)
                    if told is not None:
                        yield told
        finally:
            os.close(fd)
    except OSError as error:
        if not below or error.errno not in _NOT_ENTERED:
            raise


def _entry(inside: Inside, folder: int, path: str, entry: os.DirEntry[str]) -> FileInfo | None:
    try:
        found = entry.stat(follow_symlinks=False)
        target = os.readlink(entry.name, dir_fd=folder) if stat.S_ISLNK(found.st_mode) else ""
    except OSError as error:
        if error.errno not in (errno.ENOENT, errno.ESTALE, errno.EINVAL):
            raise
        return None  # gone meanwhile, or no link any more
    return inside.info(path, found, target)


def make_directory(inside: Inside, path: str, mode: int, *, parents: bool) -> bool:
    """Whether it was made; False when a directory is there."""
    with suppress(FileNotFoundError), inside.opened(path, os.O_PATH) as fd:
        if stat.S_ISDIR(os.fstat(fd).st_mode):
            return False
        raise FileExistsError(errno.EEXIST, "something else is there", path)
    folder, name = inside.split(path)
    above = open_folder(inside, folder, parents=parents)
    try:
        fd, made = make_one(above, name, mode)
    finally:
        os.close(above)
    os.close(fd)
    return made


def open_folder(inside: Inside, folder: str, *, parents: bool) -> int:
    """The directory; made, with those above it, when it may be."""
    missing: list[str] = []
    while True:
        try:
            fd = inside.open(folder, os.O_PATH | os.O_DIRECTORY)
            break
        except FileNotFoundError:
            folder, name = posixpath.split(folder.rstrip("/"))
            if not parents or name in ("", ".."):
                raise
            missing += [name] if name != "." else []
    while missing:
        try:
            below, _made = make_one(fd, missing.pop(), 0o755)
        finally:
            os.close(fd)
        fd = below
    return fd


def make_one(above: int, name: str, mode: int) -> tuple[int, bool]:
    """A directory, open, and whether it is new: someone else may have made it meanwhile."""
    made = False
    with suppress(FileExistsError):
        # With its mode at once: what has this name a moment later may be another directory, which keeps its own.
        os.mkdir(name, mode, dir_fd=above)
        made = True
    fd = open_inside(above, name, os.O_PATH | os.O_DIRECTORY, ONE_STEP)
    more = mode & (stat.S_ISUID | stat.S_ISGID)  # the kernel leaves them out
    if made and more:
        try:
            os.chmod(f"/proc/self/fd/{fd}", stat.S_IMODE(os.fstat(fd).st_mode) | more)
        except BaseException:  # whoever cannot have it cannot close it
            os.close(fd)
            raise
    return fd, made


def rename(inside: Inside, path: str, to: str, *, overwrite: bool) -> FileInfo:
    folder, name = inside.split(path)
    to_folder, to_name = inside.split(to)
    with (
        inside.opened(folder, os.O_PATH | os.O_DIRECTORY) as above,
        inside.opened(to_folder, os.O_PATH | os.O_DIRECTORY) as to_above,
    ):
        with suppress(FileNotFoundError):
            os.close(open_entry(to_above, to_name))
        entry = open_entry(above, name)
        try:
            if overwrite:
                os.rename(name, to_name, src_dir_fd=above, dst_dir_fd=to_above)
            else:
                rename_without_replacing(above, name, to_above, to_name)
            return tell(inside, to, entry)
        finally:
            os.close(entry)


def open_entry(above: int, name: str) -> int:
    """What has a name in a directory, a link itself included. Not a mount: the kernel keeps those of our own namespace
    in their place, but those of a session would go with the directory that they stand on."""
    return open_inside(above, name, os.O_PATH | os.O_NOFOLLOW, ONE_STEP & ~NO_SYMLINKS)


def remove(inside: Inside, path: str, *, recursive: bool) -> Generator[None]:
    """Pauses after every batch. Keeps one directory open, however deep: the way up is `..`, proven by its inode."""
    folder, name = inside.split(path)
    with inside.opened(folder, os.O_PATH | os.O_DIRECTORY) as above:
        entry = open_entry(above, name)
        try:
            is_directory = stat.S_ISDIR(os.fstat(entry).st_mode)
        finally:
            os.close(entry)
        if not is_directory:
            os.unlink(name, dir_fd=above)
            return
        if recursive:
            try:
                yield from empty(above, name)
            except Moved as error:
                raise WrongKind(error.errno, error.strerror, path) from None
        os.rmdir(name, dir_fd=above)
