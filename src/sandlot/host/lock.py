"""One engine holds a data directory."""

import contextlib
import fcntl
import json
import os
import socket
import sys
import time
from pathlib import Path

from sandlot.model import DataDirectoryHeld

DOOR = "engine.sock"  # where whoever does not hold the data directory finds who does
_BACKLOG = 1024


class DataDirectoryLock:
    """A lock that the kernel drops when its process dies, however it dies. The file says who holds it."""

    def __init__(self, data: Path, *, shares: bool = False) -> None:
        """`shares`: others may come in through a socket beside it, which listens from the first moment on."""
        self._path = data / "engine.lock"
        self._fd = -1
        self._shares = shares
        self.door: socket.socket | None = None

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
        if self._shares:
            with contextlib.suppress(OSError):  # a file system without sockets: then others are told who holds it
                self.door = _open_door(self._path.parent)

    def release(self) -> None:
        if self._fd >= 0:
            if self.door is not None:
                with contextlib.suppress(OSError):
                    (self._path.parent / DOOR).unlink()
                self._close_door()
            with contextlib.suppress(OSError):
                os.ftruncate(self._fd, 0)
            os.close(self._fd)
            self._fd = -1

    def forget(self) -> None:
        """In a forked child: the lock is its parent's, and must not outlive it here."""
        self._close_door()
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _close_door(self) -> None:
        if self.door is not None:
            self.door.close()
            self.door = None


def _open_door(data: Path) -> socket.socket:
    """Its mode is that of a secret before it has a name. Named by a descriptor: a path may be longer than sockets take.
    What a dead engine left is replaced; whoever holds the lock is the only one who does that."""
    door = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK)
    folder = os.open(data, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        aside = data / f"{DOOR}.new"
        with contextlib.suppress(FileNotFoundError):
            aside.unlink()
        os.fchmod(door.fileno(), 0o600)
        door.bind(f"/proc/self/fd/{folder}/{DOOR}.new")
        door.listen(_BACKLOG)
        aside.replace(data / DOOR)
    except OSError:
        door.close()
        raise
    finally:
        os.close(folder)
    return door


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
