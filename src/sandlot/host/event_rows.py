"""Events in the journal. One is written by the transaction that makes true what it tells."""

import json
import os
import sqlite3
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from sandlot.model import Event, EventKind, limits

_PRUNED_EVERY = 256
_NEVER_GIVEN = 1000  # more than can be written between two moments when the disk has everything
_COLUMNS = "number, at, session_id, kind, detail"
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class EventRows:
    """Used by the journal's thread alone. Remembers what a transaction has written, for those who wait for news."""

    def __init__(self) -> None:
        self._written: list[Event] = []

    def write(self, db: sqlite3.Connection, session_id: str, kind: EventKind, detail: str = "") -> None:
        values = (time.time(), session_id, str(kind), detail[: limits.EVENT_DETAIL_CHARS_MAX])
        number = db.execute("INSERT INTO events (at, session_id, kind, detail) VALUES (?,?,?,?)", values).lastrowid
        assert number is not None
        self._written.append(Event(number, values[0], session_id, kind, values[3]))
        if number % _PRUNED_EVERY == 0:
            db.execute("DELETE FROM events WHERE number <= ?", (number - limits.EVENTS_KEPT,))

    @property
    def count(self) -> int:
        return len(self._written)

    def forget_from(self, count: int) -> None:
        """What was written after the first so many was undone."""
        del self._written[count:]

    def take(self) -> list[Event]:
        written, self._written = self._written, []
        return written


def note_boot(db: sqlite3.Connection) -> None:
    """A power cut may take the last events with it. What comes after it must not have their numbers."""
    try:
        boot = _BOOT_ID.read_text().strip()
    except OSError:
        return
    found = db.execute("SELECT value FROM meta WHERE key = 'boot'").fetchone()
    last = db.execute("SELECT max(number) FROM events").fetchone()[0]
    if found and found[0] != boot and last:
        detail = "the machine was started again; the last events before that may be missing"
        sql = f"INSERT INTO events ({_COLUMNS}) VALUES (?,?,'',?,?)"
        db.execute(sql, (last + _NEVER_GIVEN, time.time(), str(EventKind.GAP), detail))
    if not found or found[0] != boot:
        db.execute("INSERT OR REPLACE INTO meta VALUES ('boot', ?)", (boot,))


def bounds(db: sqlite3.Connection) -> tuple[int, int]:
    """The oldest and the newest offset; 1 and 0 when there are none."""
    oldest, newest = db.execute("SELECT min(number), max(number) FROM events").fetchone()
    return (oldest, newest) if newest else (1, 0)


def read(db: sqlite3.Connection, after: int, session_id: str | None, count: int) -> list[Event]:
    where, values = ("AND session_id IN (?, '')", (session_id,)) if session_id else ("", ())
    sql = f"SELECT {_COLUMNS} FROM events WHERE number > ? {where} ORDER BY number LIMIT ?"
    return [_event(row) for row in db.execute(sql, (after, *values, count))]


def _event(row: tuple[int, float, str, str, str]) -> Event:
    number, at, session_id, kind, detail = row
    return Event(number, at, session_id, EventKind(kind), detail)


class EventCopy:
    """The newest events as lines of JSON in a file beside the journal, for programs that do not hold the data
    directory. Written after the commit, by the journal's thread; what a dead engine could not write is made up for.
    A file that is full becomes the older one of two. A disk that is full harms the copy only, and not for ever."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._fd = -1
        self._last = 0
        self._is_behind = True

    def append(self, db: sqlite3.Connection, events: Sequence[Event]) -> None:
        try:
            if self._is_behind:
                self._catch_up(db)
            else:
                self._write(events)
        except OSError:
            self._is_behind = True

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _catch_up(self, db: sqlite3.Connection) -> None:
        self.close()
        self._fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._last = self._end_whole()
        while events := read(db, self._last, None, _PRUNED_EVERY):
            self._write(events)
        self._is_behind = False

    def _end_whole(self) -> int:
        """Cut off a line that was not finished, and find the offset of the last one that was."""
        size = os.fstat(self._fd).st_size
        tail = os.pread(self._fd, 64 * limits.KIB, max(0, size - 64 * limits.KIB))
        whole, _, torn = tail.rpartition(b"\n")
        os.ftruncate(self._fd, size - len(torn))
        os.lseek(self._fd, 0, os.SEEK_END)
        with suppress(ValueError, KeyError, TypeError):
            return int(json.loads(whole.rpartition(b"\n")[2])["offset"])
        # Empty, or no file of ours: begun anew.
        os.ftruncate(self._fd, 0)
        os.lseek(self._fd, 0, os.SEEK_SET)
        return 0

    def _write(self, events: Sequence[Event]) -> None:
        text = "".join(_line(event) for event in events).encode()
        if os.fstat(self._fd).st_size + len(text) > limits.EVENT_COPY_BYTES_MAX:
            os.replace(self._path, self._path.with_name(self._path.name + ".1"))
            self.close()
            self._fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        if os.write(self._fd, text) != len(text):
            raise OSError("the copy of the events was cut")
        self._last = events[-1].offset


def _line(event: Event) -> str:
    fields = {
        "offset": event.offset,
        "at": event.at,
        "session_id": event.session_id,
        "kind": str(event.kind),
        "detail": event.detail,
    }
    return json.dumps(fields, ensure_ascii=True) + "\n"
