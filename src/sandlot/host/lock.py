"""One engine holds a data directory."""

import contextlib
import fcntl
import json
import os
import sys
import time
from pathlib import Path

from sandlot.model import DataDirectoryHeld


class DataDirectoryLock:
    """A lock that the kernel drops when its process dies, however it dies. The file says who holds it."""

    def __init__(self, data: Path) -> None:
        self._path = data / "engine.lock"
        self._fd = -1

    def acquire(self) -> None:
        fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(fd, 4096, 0)
            os.close(fd)
            raise _held(self._path.parent, holder) from None
        me = {"pid": os.getpid(), "command": " ".join(sys.argv)[:200], "since": time.time()}
        with contextlib.suppress(OSError):  # a full disk; the lock holds all the same, and only its words are missing
            os.ftruncate(fd, 0)
            os.pwrite(fd, json.dumps(me).encode(), 0)
        self._fd = fd

    def release(self) -> None:
        if self._fd >= 0:
            with contextlib.suppress(OSError):
                os.ftruncate(self._fd, 0)
            os.close(self._fd)
            self._fd = -1

    def forget(self) -> None:
        """In a forked child: the lock is its parent's, and must not outlive it here."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def _held(data: Path, holder: bytes) -> DataDirectoryHeld:
    pid, command = 0, "unknown"
    with contextlib.suppress(ValueError, KeyError, TypeError):
        known = json.loads(holder)
        pid, command = int(known["pid"]), str(known["command"])
    return DataDirectoryHeld(
        f"{data} is held by process {pid} ({command})",
        next_step="wait for it to end, or give this one another data directory",
        pid=pid,
    )
