"""The log as it is written. A record is in the kernel before what it tells of begins, so a `kill -9` loses none."""

import logging
import os
import threading
import time
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

from sandlot.audit.anchor import Anchor, Ends
from sandlot.audit.chain import BEGINNING, Place, line_of, place_of
from sandlot.audit.files import LINE_BYTES_MAX, files_in, path_of
from sandlot.model import limits

_log = logging.getLogger("sandlot.audit")


class AuditLog:
    """Of one data directory, whose engine this process has: nobody else writes it."""

    def __init__(self, folder: Path, anchor: Path) -> None:
        self._folder = folder
        self._anchor = Anchor(anchor)
        self._before = self._last = BEGINNING
        self._fd = -1
        self._size = 0
        self.last_line = b""  # as it was found
        self._lost = 0  # records that there was no room for
        self._synced_at = 0.0
        self._syncing: threading.Thread | None = None

    def open(self) -> None:
        """Go on where it ends. What is missing stays missing: the chain is not mended. Raises OSError."""
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        ends = self._anchor.open()
        found, oldest = self._open_last(), files_in(self._folder)
        self._before = ends.before if ends else BEGINNING
        self._last = found
        if ends is None:
            if found.number:
                self._write({"verb": "audit", "phase": "anchor missing", "detail": {"files_from": oldest[0].first}})
        elif ends.last.number > found.number or (ends.last.number == found.number and ends.last != found):
            # Some are gone, or are not what they were. What comes now follows the ones that there were.
            self._last = ends.last
            self._write({"verb": "audit", "phase": "records missing", "detail": {"from": found.number + 1}})
        self._anchor.write(Ends(self._before, self._last))

    def _open_last(self) -> Place:
        """The last whole record. What stands behind it was not finished, and tells of nothing that was begun."""
        for file in reversed(files_in(self._folder)):
            fd = os.open(file.path, os.O_RDWR | os.O_CLOEXEC)
            size = os.fstat(fd).st_size
            begin = max(0, size - 2 * LINE_BYTES_MAX)
            tail = os.pread(fd, size - begin, begin)
            whole, _, half = tail.rpartition(b"\n")
            line = whole.rpartition(b"\n")[2]
            found = place_of(line)
            if found is not None:
                self.last_line = line
                if half:
                    os.ftruncate(fd, size - len(half))
                self._fd, self._size = fd, size - len(half)
                os.lseek(fd, 0, os.SEEK_END)
                return found
            os.close(fd)
            if whole:
                break  # it is no file of ours: what comes now gets another
        return BEGINNING

    def close(self) -> None:
        if self._syncing is not None:
            self._syncing.join()
        if self._fd >= 0:
            os.fsync(self._fd)
            self._anchor.sync()
            os.close(self._fd)
            self._fd = -1
        self._anchor.close()

    def record(self, fields: Mapping[str, Any]) -> int:
        """Its number; 0 when there was no room for it. It is in the log when this returns."""
        try:
            if self._lost:
                self._write({"verb": "audit", "phase": "no room", "detail": {"lost": self._lost}})
                self._lost = 0
            return self._write(fields)
        except OSError as error:
            if not self._lost:
                _log.error("the audit log cannot be written: %s", error.strerror)
            self._lost += 1
            return 0

    def _write(self, fields: Mapping[str, Any]) -> int:
        line, place = line_of(self._last, {"at": round(time.time(), 3), **fields})
        if self._fd < 0 or self._size + len(line) > limits.AUDIT_FILE_BYTES:
            self._rotate(place.number)
        written = os.write(self._fd, line)
        if written != len(line):
            os.ftruncate(self._fd, self._size)
            os.lseek(self._fd, 0, os.SEEK_END)
            raise OSError(28, "the disk is full")
        self._size += written
        self._last = place
        self._anchor.write(Ends(self._before, place))
        if time.monotonic() - self._synced_at > limits.AUDIT_SYNC_S:
            self._sync_soon()
        return place.number

    def _rotate(self, first: int) -> None:
        """Another file; the oldest are given up when there are too many, and the anchor tells where the log begins."""
        fd = os.open(path_of(self._folder, first), os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        old, self._fd, self._size = self._fd, fd, os.fstat(fd).st_size
        if old >= 0:
            os.fsync(old)
            os.close(old)
        for file, behind in _surplus(self._folder):
            last = _last_of(file)
            if last is not None and last.number == behind - 1:
                self._before = last
                self._anchor.write(Ends(last, self._last))
                self._anchor.sync()
            file.unlink()

    def _sync_soon(self) -> None:
        """For power cuts, and not waited for."""
        if self._syncing is not None and self._syncing.is_alive():
            return
        self._synced_at = time.monotonic()
        self._syncing = threading.Thread(target=_sync, args=(os.dup(self._fd),), name="audit", daemon=True)
        self._syncing.start()


def _sync(fd: int) -> None:
    try:
        os.fdatasync(fd)
    except OSError as error:
        _log.error("the audit log is not on the disk: %s", error.strerror)
    finally:
        os.close(fd)


def _surplus(folder: Path) -> list[tuple[Path, int]]:
    """Files that are too many, and where the ones behind them begin."""
    files = files_in(folder)
    return [(file.path, behind.first) for file, behind in pairwise(files)][: max(0, len(files) - limits.AUDIT_FILES)]


def _last_of(path: Path) -> Place | None:
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - LINE_BYTES_MAX))
        return place_of(file.read().rstrip(b"\n").rpartition(b"\n")[2])
