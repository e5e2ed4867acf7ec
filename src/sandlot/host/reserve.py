"""Space that is kept for the moment when there is none: a full disk must still let sessions be destroyed.

A file of a few MiB lies beside the journal. When the journal cannot be written it is given up, and taken again when
there is room. It is also an inode, for a disk that has run out of those.
"""

import os
import threading
from contextlib import suppress
from pathlib import Path

from sandlot.host.kernel import sync_filesystem
from sandlot.model import limits

_ROOM_FACTOR = 4  # it is taken where there is room for several of it: else it would be what fills the disk
_INODES_MIN = 16


class Reserve:
    """Used by the thread of the journal and by that of whoever looks after the host."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()

    def is_held(self) -> bool:
        try:
            return self._path.stat().st_size >= limits.RESERVE_BYTES
        except OSError:
            return False

    def take(self) -> bool:
        """Blocking. Whether it is held now."""
        with self._lock:
            if self.is_held():
                return True
            try:
                if not self._has_room():
                    return False
                fd = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
                try:
                    os.posix_fallocate(fd, 0, limits.RESERVE_BYTES)
                finally:
                    os.close(fd)
            except OSError:
                self._path.unlink(missing_ok=True)
                return False
            return True

    def give_up(self) -> bool:
        """Blocking. Whether there was something to give."""
        with self._lock:
            try:
                self._path.unlink()
            except OSError:
                return False
            with suppress(OSError):  # blocks that were freed can be used again only when that is on disk
                sync_filesystem(self._path.parent)
            return True

    def ease(self) -> None:
        """Give it up if the disk is full: at start, when files have to be made before anything can be removed."""
        try:
            room = os.statvfs(self._path.parent)
        except OSError:
            return
        is_full = room.f_bavail * room.f_frsize < limits.RESERVE_BYTES // 4
        if is_full or (room.f_files > 0 and room.f_favail < _INODES_MIN):
            self.give_up()

    def _has_room(self) -> bool:
        room = os.statvfs(self._path.parent)
        inodes = room.f_files == 0 or room.f_favail >= 4 * _INODES_MIN
        return inodes and room.f_bavail * room.f_frsize >= _ROOM_FACTOR * limits.RESERVE_BYTES
