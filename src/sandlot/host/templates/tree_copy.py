"""Copies a tree into a template: a directory of the host, or what a session's snapshot shows. Blocking, by handle; no
link is followed and no other filesystem entered. There is nothing to be parsed, so it is done by the engine itself.

Where the tree shows a template that is kept here, files that are still its own are linked, not copied.
"""

import hashlib
import os
import stat
import struct
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from sandlot.host.kernel import BENEATH, NO_MAGICLINKS, NO_SYMLINKS, NO_XDEV, open_inside
from sandlot.host.storage.canonical import CANONICAL_ID, RANGE_IDS
from sandlot.host.templates.unpacking.refusal import Bounds, Refused, shown

_CONFINED = BENEATH | NO_SYMLINKS | NO_MAGICLINKS | NO_XDEV
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_PIECE_BYTES = 1 << 20
_LOOK_EVERY_BYTES = 64 << 20
_CAPABILITY_V2, _CAPABILITY_V3 = 20, 24
_REVISION_3 = 0x03000000


@dataclass(slots=True)
class Copied:
    digest: str = ""
    entries: int = 0
    size_bytes: int = 0
    left_out: Counter[str] = field(default_factory=Counter[str])


class TreeCopy:
    def __init__(self, source: int, target: Path, bounds: Bounds, tell: Callable[[int, int], None]) -> None:
        self._source, self._bounds, self._tell = source, bounds, tell
        self._target = os.open(target, _DIRECTORY | os.O_CLOEXEC)
        self._base: int | None = None
        self._hash = hashlib.sha256()
        self._linked: dict[tuple[int, int], str] = {}
        self._looked_at = 0
        self.cancelled = False
        self.copied = Copied()

    def link_from(self, base: Path, digest: str) -> None:
        """A template whose files the source may still show."""
        self._base = os.open(base, _DIRECTORY | os.O_CLOEXEC)
        self._hash.update(digest.encode())

    def close(self) -> None:
        os.close(self._target)
        if self._base is not None:
            os.close(self._base)

    def run(self) -> Copied:
        """Raises Refused, OSError."""
        folders: list[tuple[str, os.stat_result]] = []
        for path, found in self._walk():
            self._count(0)
            if stat.S_ISDIR(found.st_mode):
                if path != ".":
                    os.mkdir(path, 0o700, dir_fd=self._target)
                folders.append((path, found))
                self._note("d", path, found)
            elif stat.S_ISREG(found.st_mode):
                self._file(path, found)
            elif stat.S_ISLNK(found.st_mode):
                self._symlink(path, found)
            else:
                self.copied.left_out["device, pipe or socket"] += 1
        for path, found in reversed(folders):
            fd = open_inside(self._target, path, _DIRECTORY, _CONFINED)
            with _Closing(fd):
                self._give(fd, path, found)
        self.copied.digest = f"sha256:{self._hash.hexdigest()}"
        return self.copied

    def _walk(self) -> Iterator[tuple[str, os.stat_result]]:
        pending = ["."]
        yield ".", os.stat(".", dir_fd=self._source)
        while pending:
            folder = pending.pop()
            if folder.count("/") > self._bounds.depth_max:
                raise Refused(f"{shown(folder)} lies too deep; {self._bounds.depth_max} levels are allowed")
            try:
                fd = open_inside(self._source, folder, _DIRECTORY, _CONFINED)
            except OSError:
                self.copied.left_out["directory of another filesystem"] += 1
                continue
            with _Closing(fd):
                for name in sorted(os.listdir(fd)):
                    path = name if folder == "." else f"{folder}/{name}"
                    found = os.stat(name, dir_fd=fd, follow_symlinks=False)
                    yield path, found
                    if stat.S_ISDIR(found.st_mode):
                        pending.append(path)

    def _count(self, size: int) -> None:
        if self.cancelled:
            raise Refused("it was given up")
        done = self.copied
        done.entries += not size
        done.size_bytes += size
        if done.entries > self._bounds.entries_max:
            raise Refused(f"it has more than {self._bounds.entries_max} entries")
        if done.size_bytes > self._bounds.bytes_max:
            raise Refused(f"it is larger than {self._bounds.bytes_max} bytes")
        if done.size_bytes - self._looked_at > _LOOK_EVERY_BYTES:
            self._looked_at = done.size_bytes
            space = os.fstatvfs(self._target)
            if space.f_bavail * space.f_frsize < self._bounds.free_min:
                raise Refused("the disk would be too full with it")
        self._tell(done.entries, done.size_bytes)

    def _note(self, kind: str, path: str, found: os.stat_result, more: str = "") -> None:
        uid, gid = self._owner(path, found)
        line = f"{kind} {path}\0{stat.S_IMODE(found.st_mode):o} {uid} {gid} {more}\n"
        self._hash.update(line.encode("utf-8", "surrogateescape"))

    def _owner(self, path: str, found: os.stat_result) -> tuple[int, int]:
        """As a session numbers them, whether the disk has its own numbers or those of sessions."""
        first, last = CANONICAL_ID, CANONICAL_ID + RANGE_IDS
        uid, gid = (one - first if first <= one < last else one for one in (found.st_uid, found.st_gid))
        if max(uid, gid) >= RANGE_IDS:
            raise Refused(f"{shown(path)} belongs to {uid}:{gid}, and a session has the ids 0 to {RANGE_IDS - 1}")
        return uid, gid

    def _file(self, path: str, found: os.stat_result) -> None:
        key = (found.st_dev, found.st_ino)
        if found.st_nlink > 1 and (first := self._linked.get(key)) is not None:
            os.link(first, path, src_dir_fd=self._target, dst_dir_fd=self._target, follow_symlinks=False)
            self._note("h", path, found, first)
            return
        if self._base is not None and self._link_base(path, found):
            self._note("b", path, found)
            return
        if found.st_nlink > 1:
            self._linked[key] = path
        self._note("f", path, found, self._copy(path, found))

    def _link_base(self, path: str, found: os.stat_result) -> bool:
        """What a session has not touched has the number and the time of change that it has in the template. Nobody in
        a session can set either."""
        assert self._base is not None
        try:
            folder, _, name = path.rpartition("/")
            fd = open_inside(self._base, folder or ".", os.O_PATH | os.O_DIRECTORY, _CONFINED)
        except OSError:
            return False
        with _Closing(fd):
            try:
                own = os.stat(name, dir_fd=fd, follow_symlinks=False)
                if (own.st_ino, own.st_ctime_ns, own.st_size, own.st_mode, own.st_uid) != (
                    *(found.st_ino, found.st_ctime_ns, found.st_size, found.st_mode, found.st_uid),
                ) or own.st_uid < CANONICAL_ID:
                    return False
                os.link(name, path, src_dir_fd=fd, dst_dir_fd=self._target, follow_symlinks=False)
            except OSError:
                return False
        return True

    def _copy(self, path: str, found: os.stat_result) -> str:
        content = hashlib.sha256()
        source = open_inside(self._source, path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, _CONFINED)
        with _Closing(source):
            if not stat.S_ISREG(os.fstat(source).st_mode):
                raise Refused(f"{shown(path)} changed while it was read")
            target = os.open(path, _NEW, 0o600, dir_fd=self._target)
            with _Closing(target):
                for offset, data in _pieces(source):
                    self._count(len(data))
                    content.update(b"%d %d\n" % (offset, len(data)))
                    content.update(data)
                    view = memoryview(data)
                    while view:
                        wrote = os.pwrite(target, view, offset)
                        offset, view = offset + wrote, view[wrote:]
                os.ftruncate(target, os.fstat(source).st_size)
                self._attributes(source, target)
                self._give(target, path, found)
        return content.hexdigest()

    def _attributes(self, source: int, target: int) -> None:
        for name in os.listxattr(source):
            if name.startswith("user.") and not name.startswith("user.overlay."):
                os.setxattr(target, name, os.getxattr(source, name))

    def _give(self, fd: int, path: str, found: os.stat_result) -> None:
        uid, gid = self._owner(path, found)
        os.fchown(fd, CANONICAL_ID + uid, CANONICAL_ID + gid)
        os.fchmod(fd, stat.S_IMODE(found.st_mode))
        if stat.S_ISREG(found.st_mode):
            self._capability(fd, path)
        os.utime(fd, ns=(found.st_atime_ns, found.st_mtime_ns))

    def _capability(self, fd: int, path: str) -> None:
        """It holds for user 0 of whoever mounts the file: for sessions that is the first of their ids on disk."""
        source = open_inside(self._source, path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, _CONFINED)
        with _Closing(source):
            try:
                value = os.getxattr(source, "security.capability")
            except OSError:
                return
        if len(value) not in (_CAPABILITY_V2, _CAPABILITY_V3):
            self.copied.left_out["extended attribute"] += 1
            return
        (magic,) = struct.unpack_from("<I", value)
        marked = struct.pack("<I", _REVISION_3 | magic & 0xFFFFFF) + value[4:_CAPABILITY_V2]
        with suppress(OSError):
            os.setxattr(fd, "security.capability", marked + struct.pack("<I", CANONICAL_ID))

    def _symlink(self, path: str, found: os.stat_result) -> None:
        fd = open_inside(self._source, path, os.O_PATH | os.O_NOFOLLOW, BENEATH | NO_MAGICLINKS | NO_XDEV)
        with _Closing(fd):
            to = os.readlink("", dir_fd=fd)
        uid, gid = self._owner(path, found)
        os.symlink(to, path, dir_fd=self._target)
        os.chown(path, CANONICAL_ID + uid, CANONICAL_ID + gid, dir_fd=self._target, follow_symlinks=False)
        os.utime(path, ns=(found.st_atime_ns, found.st_mtime_ns), dir_fd=self._target, follow_symlinks=False)
        self._note("l", path, found, to)


class _Closing:
    def __init__(self, fd: int) -> None:
        self._fd = fd

    def __enter__(self) -> int:
        return self._fd

    def __exit__(self, *_exception: object) -> None:
        os.close(self._fd)


def _pieces(fd: int) -> Iterator[tuple[int, bytes]]:
    """Data with its place; holes are left out."""
    at, end = 0, os.fstat(fd).st_size
    while at < end:
        try:
            at = os.lseek(fd, at, os.SEEK_DATA)
            stop = os.lseek(fd, at, os.SEEK_HOLE)
        except OSError:
            return  # nothing but a hole follows
        while at < stop:
            data = os.pread(fd, min(_PIECE_BYTES, stop - at), at)
            if not data:
                return
            yield at, data
            at += len(data)
