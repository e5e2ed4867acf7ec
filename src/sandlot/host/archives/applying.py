"""Puts the changes of a point onto a volume that nobody else uses. Blocking.

The kernel is asked to show the volume over its template, and to write: so it marks what is removed and what is new in
its own way, whatever the storage. Nothing that an entry names is followed: directories are opened step by step below
the one that is shown, and names are used in them one at a time.
"""

import errno
import os
import posixpath
import stat
from collections.abc import Generator, Iterable
from contextlib import contextmanager, suppress
from pathlib import Path

from sandlot.contracts.storage import Volume
from sandlot.host.archives.entries import CAPABILITY, Entry, Kind, attribute_on_disk, owner_on_disk
from sandlot.host.kernel import BENEATH, NO_MAGICLINKS, NO_SYMLINKS, mount_writable, open_inside
from sandlot.host.removal import empty, remove_tree
from sandlot.host.storage.canonical import CANONICAL_ID
from sandlot.model import InvalidArgument, SandlotError

_CONFINED = BENEATH | NO_SYMLINKS | NO_MAGICLINKS
_SPECIAL = {Kind.PIPE: stat.S_IFIFO, Kind.SOCKET: stat.S_IFSOCK}
_FRESH = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_ASIDE = ".sandlot-aside"
_COPY_BYTES = 1 << 20
# What no filesystem here has room for in a name, a number or a place: that is the archive's fault, not the disk's.
_IMPOSSIBLE = {errno.ENAMETOOLONG, errno.EINVAL, errno.EFBIG, errno.ENOTDIR, errno.EISDIR, errno.EEXIST, errno.ELOOP}
_Times = tuple[int, int]


def apply_entries(volume: Volume, template: Path | None, entries: Iterable[Entry]) -> Generator[int]:
    """Gives the bytes of content that were written, now and then. A volume without a template holds files of whoever
    runs the engine, and they stay so. Raises OSError, InvalidArgument for an entry that cannot be."""
    upper = os.open(volume.path / "u", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with _shown(volume, template) as root:
            target = _Target(root, upper, owned=template is not None)
            for entry in entries:
                try:
                    yield from target.apply(entry)
                except OSError as error:
                    if error.errno not in _IMPOSSIBLE or isinstance(error, SandlotError):
                        raise
                    told = ascii(entry.path[:64])[1:-1]
                    raise InvalidArgument(f"{told} of an archive cannot be made here: {error.strerror}") from error
                yield 0
            target.finish()
        for path in target.copied if template is not None else ():
            _own(upper, path)
    finally:
        os.close(upper)


@contextmanager
def _shown(volume: Volume, template: Path | None) -> Generator[int]:
    if template is None:
        root = os.open(volume.path / "u", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    else:
        root = mount_writable(volume.path / "u", volume.path / "w", [*volume.layers, template])
    try:
        yield root
    finally:
        os.close(root)
        if template is not None:
            # It says that what was written may not be on disk; whoever asked for this sees to that.
            for left in os.listdir(volume.path / "w"):
                remove_tree(volume.path / "w" / left)


class _Target:
    def __init__(self, root: int, upper: int, *, owned: bool) -> None:
        self._root = root
        self._upper = upper
        self._owned = owned
        self.copied: set[str] = set()  # what the kernel may have copied from the template
        self._times: dict[str, _Times] = {}  # of directories that were touched: theirs stay
        self._folders: dict[str, Entry] = {}  # are finished last: what is put into them changes their times

    def apply(self, entry: Entry) -> Generator[int]:
        if entry.path == "/":
            if entry.kind is not Kind.DIRECTORY:
                raise InvalidArgument("the root of an archive is no directory")
            self._folders["/"] = entry
            return
        folder, name = _split(entry.path)
        with self._opened(folder) as above:
            if folder not in self._times:
                found = os.fstat(above)
                self._times[folder] = (found.st_atime_ns, found.st_mtime_ns)
                self._note_copies(folder)
            yield from self._put(above, name, entry)

    def _note_copies(self, path: str) -> None:
        while path not in self.copied and path != "/":
            self.copied.add(path)
            path = posixpath.dirname(path)

    def _put(self, above: int, name: str, entry: Entry) -> Generator[int]:
        if entry.kind is Kind.KEPT:
            self._keep(above, name, entry)
        elif entry.kind is Kind.DIRECTORY:
            self._make_folder(above, name, entry)
        elif entry.kind is Kind.FILE:
            _clear(above, name)
            yield from self._make_file(above, name, entry)
        elif entry.kind is Kind.LINK:
            self._link(above, name, entry)
        else:
            _clear(above, name)
            if entry.kind is Kind.SYMLINK:
                os.symlink(entry.target, name, dir_fd=above)
                self._finish(above, name, entry)
            elif entry.kind is not Kind.REMOVED:
                os.mknod(name, _SPECIAL[entry.kind] | 0o600, dir_fd=above)
                self._finish(above, name, entry)

    def _make_folder(self, above: int, name: str, entry: Entry) -> None:
        if _kind(above, name) != stat.S_IFDIR:
            _clear(above, name)
            os.mkdir(name, 0o700, dir_fd=above)
        self._folders[entry.path] = entry

    def _make_file(self, above: int, name: str, entry: Entry) -> Generator[int]:
        fd = os.open(name, _FRESH, 0o600, dir_fd=above)
        try:
            os.ftruncate(fd, entry.size)
            yield from _write(fd, entry)
        finally:
            os.close(fd)
        self._finish(above, name, entry)

    def _link(self, above: int, name: str, entry: Entry) -> None:
        folder, other = _split(entry.target)
        self._note_copies(entry.target)
        with self._opened(folder) as there:
            if _kind(there, other) in (stat.S_IFDIR, None):
                raise InvalidArgument("a link of an archive leads to no file")
            if _is_same(above, name, there, other):
                return
            _clear(above, name)
            os.link(other, name, src_dir_fd=there, dst_dir_fd=above, follow_symlinks=False)

    def _keep(self, above: int, name: str, entry: Entry) -> None:
        if _kind(above, name) != stat.S_IFREG:
            raise InvalidArgument("an archive changes a file that is not there")
        if self._has_other_names(entry.path):
            _copy_aside(above, name)
        self._finish(above, name, entry)

    def _has_other_names(self, path: str) -> bool:
        """In the volume. Those of a template are not changed by what is done here."""
        with suppress(OSError):
            fd = open_inside(self._upper, path.lstrip("/"), os.O_PATH | os.O_NOFOLLOW, _CONFINED)
            try:
                return os.fstat(fd).st_nlink > 1
            finally:
                os.close(fd)
        return False

    # ---- what belongs to each ----------------------------------------------------------------------------------

    def _finish(self, above: int, name: str, entry: Entry) -> None:
        """Owner, mode, attributes, times, in that order: each may undo what comes after."""
        path = f"/proc/self/fd/{above}/{name}"
        if self._owned:
            uid, gid = owner_on_disk(entry.uid), owner_on_disk(entry.gid)
            os.chown(name, uid, gid, dir_fd=above, follow_symlinks=False)
        if entry.kind is not Kind.SYMLINK:
            os.chmod(path, entry.mode)
        self._set_attributes(path, entry)
        os.utime(name, ns=(entry.mtime_ns, entry.mtime_ns), dir_fd=above, follow_symlinks=False)

    def _set_attributes(self, path: str, entry: Entry) -> None:
        wanted = {key: attribute_on_disk(key, value) for key, value in entry.attributes.items()}
        if not self._owned:
            wanted = {key: value for key, value in wanted.items() if key.startswith("user.")}
        for key in os.listxattr(path, follow_symlinks=False):
            if key not in wanted and (key.startswith(("user.", "system.posix_acl_")) or key == CAPABILITY):
                os.removexattr(path, key, follow_symlinks=False)
        for key, value in wanted.items():
            os.setxattr(path, key, value, follow_symlinks=False)

    def finish(self) -> None:
        """Directories, the innermost first: their modes may forbid what was to be done in them."""
        for path in sorted({*self._folders, *self._times}, key=lambda path: path.count("/"), reverse=True):
            entry = self._folders.get(path)
            try:
                folder = open_inside(self._root, path.lstrip("/") or ".", os.O_RDONLY | os.O_DIRECTORY, _CONFINED)
            except FileNotFoundError:
                continue  # touched, and then removed
            try:
                if entry:
                    self._finish_folder(folder, entry)
                else:
                    os.utime(folder, ns=self._times[path])
            finally:
                os.close(folder)

    def _finish_folder(self, folder: int, entry: Entry) -> None:
        if self._owned:
            os.fchown(folder, owner_on_disk(entry.uid), owner_on_disk(entry.gid))
        os.fchmod(folder, entry.mode)
        self._set_attributes(f"/proc/self/fd/{folder}/.", entry)
        os.utime(folder, ns=(entry.mtime_ns, entry.mtime_ns))

    @contextmanager
    def _opened(self, folder: str) -> Generator[int]:
        try:
            fd = open_inside(self._root, folder.lstrip("/") or ".", os.O_PATH | os.O_DIRECTORY, _CONFINED)
        except (FileNotFoundError, NotADirectoryError):
            raise InvalidArgument("an archive has a path without the directory above it") from None
        except OSError as error:
            if error.errno in (errno.ELOOP, errno.EXDEV):
                raise InvalidArgument("a path of an archive leads through a link") from None
            raise
        try:
            yield fd
        finally:
            os.close(fd)


def _split(path: str) -> tuple[str, str]:
    """Raises InvalidArgument for what is no path that a tree has."""
    folder, name = posixpath.split(path)
    if not path.startswith("/") or "\0" in path or any(part in ("", ".", "..") for part in path[1:].split("/")):
        raise InvalidArgument(f"an archive has a path that cannot be: {path[:64]!r}")
    return folder, name


def _kind(above: int, name: str) -> int | None:
    try:
        return stat.S_IFMT(os.stat(name, dir_fd=above, follow_symlinks=False).st_mode)
    except FileNotFoundError:
        return None


def _is_same(above: int, name: str, there: int, other: str) -> bool:
    with suppress(FileNotFoundError):
        one = os.stat(name, dir_fd=above, follow_symlinks=False)
        two = os.stat(other, dir_fd=there, follow_symlinks=False)
        return (one.st_dev, one.st_ino) == (two.st_dev, two.st_ino) and one.st_uid == two.st_uid >= CANONICAL_ID
    return False


def _clear(above: int, name: str) -> None:
    kind = _kind(above, name)
    if kind == stat.S_IFDIR:
        for _pause in empty(above, name):
            pass
        os.rmdir(name, dir_fd=above)
    elif kind is not None:
        os.unlink(name, dir_fd=above)


def _write(fd: int, entry: Entry) -> Generator[int]:
    """Piece by piece, each where it belongs."""
    extents = iter(entry.extents)
    at = end = 0
    for piece in entry.content or ():
        left = memoryview(piece)
        while left:
            if at == end:
                begin, length = next(extents)
                at, end = begin, begin + length
            count = os.pwrite(fd, left[: end - at], at)
            at += count
            left = left[count:]
        yield len(piece)


def _copy_aside(above: int, name: str) -> None:
    """The same content under the same name, in a file that has no other."""
    source = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=above)
    try:
        with suppress(FileNotFoundError):
            os.unlink(_ASIDE, dir_fd=above)
        target = os.open(_ASIDE, _FRESH, 0o600, dir_fd=above)
        try:
            size = os.fstat(source).st_size
            os.ftruncate(target, size)
            at = 0
            while at < size:
                try:
                    at = os.lseek(source, at, os.SEEK_DATA)
                except OSError:
                    break  # nothing but a hole from here on
                at += os.pwrite(target, os.pread(source, _COPY_BYTES, at), at)
        finally:
            os.close(target)
    finally:
        os.close(source)
    os.rename(_ASIDE, name, src_dir_fd=above, dst_dir_fd=above)


def _own(upper: int, path: str) -> None:
    """What the kernel copied from the template, because something in it changed, has the template's numbers."""
    folder, name = posixpath.split(path)
    try:
        above = open_inside(upper, folder.lstrip("/") or ".", os.O_PATH | os.O_DIRECTORY, _CONFINED)
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
            return  # it was removed after all
        raise
    try:
        with suppress(FileNotFoundError):
            found = os.stat(name, dir_fd=above, follow_symlinks=False)
            if not stat.S_ISCHR(found.st_mode) and min(found.st_uid, found.st_gid) < CANONICAL_ID:
                _own_one(above, name, found)
    finally:
        os.close(above)


def _own_one(here: int, name: str, found: os.stat_result) -> None:
    path = f"/proc/self/fd/{here}/{name}"
    capability = b""
    with suppress(OSError):
        capability = os.getxattr(path, CAPABILITY, follow_symlinks=False)
    numbers = [each if each >= CANONICAL_ID else owner_on_disk(each) for each in (found.st_uid, found.st_gid)]
    os.chown(name, *numbers, dir_fd=here, follow_symlinks=False)
    if not stat.S_ISLNK(found.st_mode):
        os.chmod(path, stat.S_IMODE(found.st_mode))
    if capability:
        os.setxattr(path, CAPABILITY, attribute_on_disk(CAPABILITY, capability), follow_symlinks=False)
