"""What btrfs is asked for by ioctl. Blocking; everything raises OSError. Where the kernel is met by number, the numbers
are here."""

import ctypes
import errno
import fcntl
import os
import struct
import uuid
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from sandlot.host.kernel import sync_filesystem

_MAGIC = 0x94
_WRITE, _READ = 1, 2
_ARGS_BYTES = 4096  # of most requests


def _number(direction: int, number: int, size: int) -> int:
    return direction << 30 | size << 16 | _MAGIC << 8 | number


_RESIZE = _number(_WRITE, 3, _ARGS_BYTES)
_SYNC = _number(0, 8, 0)
_SNAP_DESTROY = _number(_WRITE, 15, _ARGS_BYTES)
_TREE_SEARCH = _number(_WRITE | _READ, 17, 112)
_SNAP_CREATE = _number(_WRITE, 23, _ARGS_BYTES)
_SUBVOL_CREATE = _number(_WRITE, 24, _ARGS_BYTES)
_START_SYNC = _number(_READ, 24, 8)
_FS_INFO = _number(_READ, 31, 1024)
_QUOTA_CTL = _number(_WRITE | _READ, 40, 16)
_QGROUP_ASSIGN = _number(_WRITE, 41, 24)
_QGROUP_CREATE = _number(_WRITE, 42, 16)
_QGROUP_LIMIT = _number(_READ, 43, 48)
_SUBVOL_INFO = _number(_READ, 60, 504)

_READ_ONLY, _INHERIT = 1 << 1, 1 << 2
_ENABLE_SIMPLE = 4
_MAX_REFERENCED = 1
_NO_LIMIT = (1 << 64) - 1
_LEVEL = 1 << 48  # groups that hold others have a level above those of subvolumes
_QUOTA_TREE, _RELATION = 8, 246
_EXTENT_DATA, _EXTENT = 108, struct.Struct("=QQBBHBQQ")  # which transaction made it, …, what kind it is, where, bytes
_EXTENT_INLINE_AT = 21
_SEARCH_BYTES = 1 << 16
_HEADER = struct.Struct("=QQQII")
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


@contextmanager
def opened(path: Path) -> Generator[int]:
    fd = os.open(path, _FOLDER)
    try:
        yield fd
    finally:
        os.close(fd)


def filesystem_id(path: Path) -> str | None:
    """Of the btrfs that a directory is on. None: it is on something else."""
    args = bytearray(1024)
    try:
        with opened(path) as fd:
            fcntl.ioctl(fd, _FS_INFO, args)
    except OSError as error:
        if error.errno in (errno.ENOTTY, errno.EINVAL, errno.EOPNOTSUPP):
            return None
        raise
    return str(uuid.UUID(bytes=bytes(args[16:32])))


# ---- subvolumes --------------------------------------------------------------------------------------------------


def make_subvolume(folder: Path, name: str, group: int = 0) -> None:
    with opened(folder) as parent:
        _make(parent, _SUBVOL_CREATE, -1, name, group, 0)


def take_snapshot(source: Path, folder: Path, name: str, group: int = 0, *, read_only: bool = False) -> None:
    """One moment of a subvolume, whoever writes to it. On disk when this returns."""
    with opened(source) as fd, opened(folder) as parent:
        _make(parent, _SNAP_CREATE, fd, name, group, _READ_ONLY if read_only else 0)


def _make(parent: int, request: int, source: int, name: str, group: int, flags: int) -> None:
    # Flags, number of groups, two counts that nobody uses any more, an empty limit, the groups.
    inherit = struct.pack("=QQQQ5QQ", 0, 1, 0, 0, 0, 0, 0, 0, 0, _LEVEL | group)
    held = ctypes.create_string_buffer(inherit, len(inherit))
    args = bytearray(_ARGS_BYTES)
    struct.pack_into("=qQQ", args, 0, source, 0, flags | (_INHERIT if group else 0))
    if group:
        struct.pack_into("=QQ", args, 24, len(inherit), ctypes.addressof(held))
    raw = os.fsencode(name)
    args[56 : 56 + len(raw)] = raw
    fcntl.ioctl(parent, request, args)


def destroy_subvolume(folder: Path, name: str) -> None:
    """Its name is gone when this returns; the kernel frees its space when nobody uses it any more."""
    args = bytearray(_ARGS_BYTES)
    raw = os.fsencode(name)
    args[8 : 8 + len(raw)] = raw
    with opened(folder) as parent:
        fcntl.ioctl(parent, _SNAP_DESTROY, args)


@dataclass(frozen=True, slots=True)
class Subvolume:
    id: int
    uuid: bytes
    parent_uuid: bytes  # of what it is a snapshot of; zeroes: of nothing
    made_at: int  # the transaction that made it: what has a later one was written since


def describe(path: Path) -> Subvolume:
    args = bytearray(504)
    with opened(path) as fd:
        fcntl.ioctl(fd, _SUBVOL_INFO, args)
    made_at = struct.unpack_from("=Q", args, 352)[0]
    return Subvolume(struct.unpack_from("=Q", args, 0)[0], bytes(args[296:312]), bytes(args[312:328]), made_at)


def sync(path: Path) -> None:
    """All that was written is on disk when this returns."""
    sync_filesystem(path)


def free_destroyed(path: Path) -> None:
    """All that was written is on disk; and the kernel begins to free what was destroyed, instead of half a minute
    later."""
    with opened(path) as fd:
        fcntl.ioctl(fd, _SYNC)


def has_failed(path: Path) -> bool:
    """Whether a btrfs that is read-only is so because it could not write: then it stays so until it is mounted anew."""
    with opened(path) as fd:
        try:
            fcntl.ioctl(fd, _START_SYNC, bytearray(8))
        except OSError as error:
            return error.errno in (errno.EROFS, errno.EIO)
    return False


def grow_to_device(path: Path) -> None:
    """Use all of a device that has become larger."""
    args = bytearray(_ARGS_BYTES)
    args[8:11] = b"max"
    with opened(path) as fd:
        fcntl.ioctl(fd, _RESIZE, args)


# ---- quotas ------------------------------------------------------------------------------------------------------


def enable_simple_quotas(path: Path) -> None:
    with opened(path) as fd:
        fcntl.ioctl(fd, _QUOTA_CTL, bytearray(struct.pack("=QQ", _ENABLE_SIMPLE, 0)))


def make_group(path: Path, group: int) -> None:
    with opened(path) as fd:
        fcntl.ioctl(fd, _QGROUP_CREATE, bytearray(struct.pack("=QQ", 1, _LEVEL | group)))


def remove_group(path: Path, group: int) -> None:
    """And the groups below it whose subvolumes are gone. EBUSY: some are not."""
    with opened(path) as fd:
        for member in _members(fd, _LEVEL | group):
            fcntl.ioctl(fd, _QGROUP_CREATE, bytearray(struct.pack("=QQ", 0, member)))
        fcntl.ioctl(fd, _QGROUP_CREATE, bytearray(struct.pack("=QQ", 0, _LEVEL | group)))


def limit_group(path: Path, group: int, limit: int | None) -> None:
    most = _NO_LIMIT if limit is None else limit
    with opened(path) as fd:
        fcntl.ioctl(fd, _QGROUP_LIMIT, bytearray(struct.pack("=Q5Q", _LEVEL | group, _MAX_REFERENCED, most, 0, 0, 0)))


def _members(fd: int, group: int) -> list[int]:
    return [item.offset for item in search(fd, _QUOTA_TREE, group, group, (_RELATION, _RELATION))]


# ---- trees -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Item:
    """Of a tree: its key, and what it holds."""

    number: int
    kind: int
    offset: int
    data: bytes


def search(fd: int, tree: int, first: int, last: int, kinds: tuple[int, int], since: int = 0) -> Iterator[Item]:
    """Items of some kinds; tree 0 is that of the directory. `since`: only those in parts of the tree that were written
    in this transaction or a later one; others in the same parts come along."""
    args = bytearray(112 + _SEARCH_BYTES)
    number, kind, offset = first, kinds[0], 0
    while True:
        # The kernel goes from the first key to the last one, and tells all that lies between.
        struct.pack_into(
            "=7Q4I", args, 0, tree, number, last, offset, _NO_LIMIT, since, _NO_LIMIT, kind, kinds[1], 1 << 20, 0
        )
        struct.pack_into("=Q", args, 104, _SEARCH_BYTES)
        fcntl.ioctl(fd, _TREE_SEARCH, args)
        count = struct.unpack_from("=I", args, 64)[0]
        place = 112
        for _ in range(count):
            _transid, number, offset, kind, size = _HEADER.unpack_from(args, place)
            place += _HEADER.size
            if number <= last and kinds[0] <= kind <= kinds[1]:
                yield Item(number, kind, offset, bytes(args[place : place + size]))
            place += size
        if count == 0 or number > last:
            return
        number, kind, offset = _after(number, kind, offset)


def _after(number: int, kind: int, offset: int) -> tuple[int, int, int]:
    if offset < _NO_LIMIT:
        return number, kind, offset + 1
    return (number, kind + 1, 0) if kind < 255 else (number + 1, 0, 0)


def data_bytes(path: Path, since: int = 0) -> int:
    """Bytes on disk of all that the files of a subvolume hold, or of what was written after a transaction. Costs by
    the number of files, or of those that changed."""
    places: dict[int, int] = {}
    inline = 0
    with opened(path) as fd:
        for item in search(fd, 0, 0, _NO_LIMIT, (_EXTENT_DATA, _EXTENT_DATA), since and since + 1):
            if len(item.data) < _EXTENT.size:
                inline += len(item.data) - _EXTENT_INLINE_AT
                continue
            made_at, _ram, _packed, _coded, _other, kind, place, size = _EXTENT.unpack_from(item.data)
            if kind == 0:
                inline += len(item.data) - _EXTENT_INLINE_AT
            elif place and made_at > since:
                places[place] = size
    return sum(places.values()) + inline
