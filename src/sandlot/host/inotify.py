"""What the kernel tells of directories that are watched. Everything here raises OSError, and nothing waits."""

import ctypes
import errno
import os
import struct
from dataclasses import dataclass
from functools import lru_cache

MODIFY, ATTRIB, CLOSE_WRITE = 0x2, 0x4, 0x8
MOVED_FROM, MOVED_TO, CREATE, DELETE, DELETE_SELF, MOVE_SELF = 0x40, 0x80, 0x100, 0x200, 0x400, 0x800
UNMOUNT, OVERFLOW, IGNORED, IS_DIRECTORY = 0x2000, 0x4000, 0x8000, 0x40000000
_ONLY_DIRECTORIES, _EXCLUDE_UNLINKED = 0x01000000, 0x04000000
_WATCHED = MODIFY | ATTRIB | MOVED_FROM | MOVED_TO | CREATE | DELETE | _ONLY_DIRECTORIES | _EXCLUDE_UNLINKED
_HEAD = struct.Struct("iIII")
_READ_BYTES = 64 << 10


@lru_cache(maxsize=1)
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True, slots=True)
class Notice:
    watch: int
    mask: int
    cookie: int  # the same for both ends of a move
    name: str


class Inotify:
    def __init__(self) -> None:
        self.fd = _libc().inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        if self.fd < 0:
            raise OSError(ctypes.get_errno(), "inotify_init1")

    def close(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)
        self.fd = -1

    def watch(self, directory: int) -> int:
        """An open directory, with the rights of the calling thread; the number of the watch."""
        found = _libc().inotify_add_watch(self.fd, b"/proc/self/fd/%d" % directory, _WATCHED)
        if found < 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        return found

    def forget(self, watch: int) -> None:
        _libc().inotify_rm_watch(self.fd, watch)

    def read(self) -> list[Notice]:
        """What has come; empty when nothing has."""
        try:
            data = os.read(self.fd, _READ_BYTES)
        except OSError as error:
            if error.errno in (errno.EAGAIN, errno.EINTR):
                return []
            raise
        found: list[Notice] = []
        at = 0
        while at < len(data):
            watch, mask, cookie, length = _HEAD.unpack_from(data, at)
            name = data[at + _HEAD.size : at + _HEAD.size + length].partition(b"\0")[0]
            found.append(Notice(watch, mask, cookie, os.fsdecode(name)))
            at += _HEAD.size + length
        return found
