"""Writes entries into a tree, each by the handle of the directory that holds it. A path that leads out leads to the top
of the tree instead, as it would for a process that lives in it; `..` in a name is refused."""

import errno
import os
import stat
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import suppress

from sandlot.host.kernel import IN_ROOT, NO_MAGICLINKS, NO_XDEV, open_inside
from sandlot.host.removal import empty
from sandlot.host.templates.unpacking.refusal import Bounds, Refused, shown
from sandlot.host.templates.unpacking.tar import Entry, Kind

_CONFINED = IN_ROOT | NO_MAGICLINKS | NO_XDEV
_DIRECTORY = os.O_PATH | os.O_DIRECTORY
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_HANDLES_MAX = 64
_TIMES_MAX = 200_000  # directories whose time is set at the end
LOOK_EVERY_BYTES = 64 << 20
_WHITEOUT, _OPAQUE, _RESERVED = ".wh.", ".wh..wh..opq", ".wh..wh."
_XATTRS_MAX = 64
_ENTRY_BYTES = 512  # counted for each, whatever it holds

Pieces = Callable[[Entry], Iterable[tuple[int, bytes]]]


def parts_of(path: str) -> list[str]:
    """Raises Refused for a name that nobody writes by accident."""
    parts = [part for part in path.split("/") if part not in ("", ".")]
    if ".." in parts:
        raise Refused(f"{shown(path)} leads out of the template")
    return parts


class TreeWriter:
    """One tree, layer by layer."""

    def __init__(self, root: int, bounds: Bounds, on_write: Callable[[int, int], None]) -> None:
        self._root, self._bounds, self._on_write = root, bounds, on_write
        self._handles: dict[str, int] = {}
        self._times: dict[str, int] = {}
        self._new: set[str] | None = None  # of this layer; None: nothing lies below it
        self.entries = 0
        self.bytes = 0
        self._looked_at = 0
        self.left_out: Counter[str] = Counter()

    def apply(self, entries: Iterable[Entry], pieces: Pieces, *, is_layer: bool, is_first: bool) -> None:
        """`is_layer`: names that begin with .wh. hide what older layers hold."""
        self._new = None if is_first else set()
        for entry in entries:
            parts = parts_of(entry.path)
            if len(parts) > self._bounds.depth_max:
                raise Refused(
                    f"{shown(entry.path)} lies {len(parts)} levels deep; {self._bounds.depth_max} are allowed"
                )
            self._count(_ENTRY_BYTES)
            if is_layer and parts and parts[-1].startswith(_WHITEOUT):
                self._hide(parts)
                continue
            self._add(entry, parts, pieces)
            self._remember(parts)
        self._set_times()

    def _count(self, size: int) -> None:
        if size == _ENTRY_BYTES:
            self.entries += 1
            if self.entries > self._bounds.entries_max:
                raise Refused(f"it has more than {self._bounds.entries_max} entries")
        self.bytes += size
        if self.bytes > self._bounds.bytes_max:
            raise Refused(f"it is larger than {self._bounds.bytes_max} bytes when it is unpacked")
        if self.bytes - self._looked_at > LOOK_EVERY_BYTES:
            self._looked_at = self.bytes
            self.look_at_disk()
        self._on_write(self.entries, self.bytes)

    def look_at_disk(self) -> None:
        found = os.fstatvfs(self._root)
        if found.f_bavail * found.f_frsize < self._bounds.free_min:
            raise Refused("the disk would be too full with it")

    # ---- one entry ---------------------------------------------------------------------------------------------

    def _add(self, entry: Entry, parts: list[str], pieces: Pieces) -> None:
        if entry.kind is Kind.OTHER:
            self.left_out[str(Kind.OTHER)] += 1
            return
        if not parts:
            if entry.kind is Kind.DIRECTORY:
                self._mark_directory(self._root, ".", entry)
            return
        try:
            folder = self._open(parts[:-1])
            _MAKE[entry.kind](self, folder, parts[-1], entry, pieces)
        except OSError as error:
            raise Refused(f"{shown(entry.path)} cannot be made: {os.strerror(error.errno or 0)}") from error
        if entry.kind is Kind.DIRECTORY and len(self._times) < _TIMES_MAX:
            self._times["/".join(parts)] = entry.mtime_ns

    def _open(self, parts: list[str]) -> int:
        """The directory, by handle; those that are missing on the way are made."""
        path = "/".join(parts)
        if not path:
            return self._root
        found = self._handles.get(path)
        if found is not None:
            return found
        try:
            found = open_inside(self._root, path, _DIRECTORY, _CONFINED)
        except FileNotFoundError:
            above = self._open(parts[:-1])
            os.mkdir(parts[-1], 0o755, dir_fd=above)
            os.chmod(parts[-1], 0o755, dir_fd=above)
            self._count(_ENTRY_BYTES)
            found = open_inside(self._root, path, _DIRECTORY, _CONFINED)
        if len(self._handles) >= _HANDLES_MAX:
            self._forget()
        self._handles[path] = found
        return found

    def _forget(self) -> None:
        """A handle means a path only as long as nothing on the way is replaced."""
        for fd in self._handles.values():
            os.close(fd)
        self._handles.clear()

    def _clear(self, folder: int, name: str) -> None:
        """Whatever has the name goes, with all that is in it."""
        found = os.stat(name, dir_fd=folder, follow_symlinks=False)
        if not stat.S_ISDIR(found.st_mode):
            os.unlink(name, dir_fd=folder)
            if stat.S_ISLNK(found.st_mode):
                self._forget_but(folder)
            return
        for _pause in empty(folder, name):
            pass
        os.rmdir(name, dir_fd=folder)
        self._forget_but(folder)

    def _forget_but(self, folder: int) -> None:
        """The one that is in use stays open."""
        for path, fd in tuple(self._handles.items()):
            if fd != folder:
                os.close(fd)
                del self._handles[path]

    def _file(self, folder: int, name: str, entry: Entry, pieces: Pieces) -> None:
        try:
            fd = os.open(name, _NEW, entry.mode & 0o777, dir_fd=folder)
        except FileExistsError:
            self._clear(folder, name)
            fd = os.open(name, _NEW, entry.mode & 0o777, dir_fd=folder)
        try:
            for offset, data in pieces(entry):
                self._count(len(data))
                view = memoryview(data)
                while view:
                    wrote = os.pwrite(fd, view, offset)
                    offset += wrote
                    view = view[wrote:]
            if entry.holes is not None:
                os.ftruncate(fd, entry.size)
            self._own(fd, entry)
            if entry.xattrs:
                self._mark(fd, entry)
            os.utime(fd, ns=(entry.mtime_ns, entry.mtime_ns))
        finally:
            os.close(fd)

    def _own(self, fd: int, entry: Entry) -> None:
        """Most files of most images are the first user's, and were made with their mode: to look is cheaper."""
        found = os.fstat(fd)
        if (found.st_uid, found.st_gid) != (entry.uid, entry.gid):
            os.fchown(fd, entry.uid, entry.gid)
        elif stat.S_IMODE(found.st_mode) == entry.mode:
            return
        os.fchmod(fd, entry.mode)

    def _directory(self, folder: int, name: str, entry: Entry, _pieces: Pieces) -> None:
        try:
            os.mkdir(name, 0o700, dir_fd=folder)
        except FileExistsError:
            if not stat.S_ISDIR(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode):
                self._clear(folder, name)
                os.mkdir(name, 0o700, dir_fd=folder)
        self._mark_directory(folder, name, entry)

    def _mark_directory(self, folder: int, name: str, entry: Entry) -> None:
        fd = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
        try:
            os.fchown(fd, entry.uid, entry.gid)
            os.fchmod(fd, entry.mode)
            if entry.xattrs:
                self._mark(fd, entry)
        finally:
            os.close(fd)

    def _symlink(self, folder: int, name: str, entry: Entry, _pieces: Pieces) -> None:
        try:
            os.symlink(entry.target, name, dir_fd=folder)
        except FileExistsError:
            self._clear(folder, name)
            os.symlink(entry.target, name, dir_fd=folder)
        os.chown(name, entry.uid, entry.gid, dir_fd=folder, follow_symlinks=False)
        os.utime(name, ns=(entry.mtime_ns, entry.mtime_ns), dir_fd=folder, follow_symlinks=False)

    def _hard_link(self, folder: int, name: str, entry: Entry, _pieces: Pieces) -> None:
        target = parts_of(entry.target)
        if not target:
            raise Refused(f"{shown(entry.path)} links to nothing")
        try:
            source = open_inside(self._root, "/".join(target[:-1]) or ".", _DIRECTORY, _CONFINED)
        except OSError as error:
            raise Refused(f"{shown(entry.path)} links to {shown(entry.target)}, which is not there") from error
        try:
            found = os.stat(target[-1], dir_fd=source, follow_symlinks=False)
            if stat.S_ISDIR(found.st_mode):
                raise Refused(f"{shown(entry.path)} links to a directory")
            here = None
            with suppress(FileNotFoundError):
                here = os.stat(name, dir_fd=folder, follow_symlinks=False)
            if here is not None:
                if (here.st_dev, here.st_ino) == (found.st_dev, found.st_ino):
                    return
                self._clear(folder, name)
            os.link(target[-1], name, src_dir_fd=source, dst_dir_fd=folder, follow_symlinks=False)
        except FileNotFoundError as error:
            raise Refused(f"{shown(entry.path)} links to {shown(entry.target)}, which is not there") from error
        finally:
            os.close(source)

    def _mark(self, fd: int, entry: Entry) -> None:
        """Marks that the kernel acts on could change what a lower layer means; only harmless ones are taken."""
        if len(entry.xattrs) > _XATTRS_MAX:
            raise Refused(f"{shown(entry.path)} has {len(entry.xattrs)} extended attributes")
        for name, value in entry.xattrs.items():
            is_own = name.startswith("user.") and not name.startswith("user.overlay.")
            if not is_own and name != "security.capability":
                self.left_out["extended attribute"] += 1
                continue
            try:
                os.setxattr(fd, name, value)
            except OSError as error:
                if error.errno == errno.ENOSPC:
                    raise
                self.left_out["extended attribute"] += 1

    # ---- what older layers hold --------------------------------------------------------------------------------

    def _hide(self, parts: list[str]) -> None:
        name = parts[-1]
        path = "/".join(parts[:-1])
        try:
            folder = open_inside(self._root, path or ".", os.O_RDONLY | os.O_DIRECTORY, _CONFINED)
        except OSError:
            return  # there is nothing to be hidden
        try:
            if name == _OPAQUE:
                self._hide_old(folder, path)
            elif not name.startswith(_RESERVED):
                hidden = name.removeprefix(_WHITEOUT)
                if hidden in ("", ".", ".."):
                    raise Refused(f"{shown('/'.join(parts))} hides what has no name")
                with suppress(FileNotFoundError):
                    self._clear(folder, hidden)
        except OSError as error:
            raise Refused(f"{shown('/'.join(parts))} cannot be done: {os.strerror(error.errno or 0)}") from error
        finally:
            os.close(folder)

    def _hide_old(self, folder: int, path: str) -> None:
        """All but what this layer itself has written there."""
        if self._new is None:
            return
        below = f"{path}/" if path else ""
        for name in os.listdir(folder):
            inner = f"{below}{name}"
            if inner not in self._new:
                self._clear(folder, name)
            elif self._is_directory(folder, name):
                self._hide_in(folder, name, inner)

    def _remember(self, parts: list[str]) -> None:
        """What this layer wrote, and what lies above it."""
        if self._new is None:
            return
        while parts and (path := "/".join(parts)) not in self._new:
            self._new.add(path)
            parts = parts[:-1]

    def _hide_in(self, folder: int, name: str, path: str) -> None:
        inner = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
        try:
            self._hide_old(inner, path)
        finally:
            os.close(inner)

    def _is_directory(self, folder: int, name: str) -> bool:
        return stat.S_ISDIR(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode)

    def _set_times(self) -> None:
        self._forget()
        for path, mtime_ns in self._times.items():
            with suppress(OSError):  # it may be gone, or something else by now
                fd = open_inside(self._root, path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, _CONFINED)
                try:
                    os.utime(fd, ns=(mtime_ns, mtime_ns))
                finally:
                    os.close(fd)
        self._times.clear()


_MAKE = {
    Kind.FILE: TreeWriter._file,  # pyright: ignore[reportPrivateUsage] - a table of its own methods
    Kind.DIRECTORY: TreeWriter._directory,  # pyright: ignore[reportPrivateUsage]
    Kind.SYMLINK: TreeWriter._symlink,  # pyright: ignore[reportPrivateUsage]
    Kind.HARD_LINK: TreeWriter._hard_link,  # pyright: ignore[reportPrivateUsage]
}
