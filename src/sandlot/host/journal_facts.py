"""What a journal says of itself, read beside whoever has it open: counts, sizes, states. Nothing that anyone wrote."""

import json
import shutil
import sqlite3
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sandlot.model import Unavailable

_BYTES_MAX = 1 << 30
_ATTEMPTS = 20
_AGAIN_S = 0.05
_CHECK_S = 30.0
_STEPS = 100_000  # of SQLite between two looks at the clock
_FINDINGS_MAX = 10
_SECRET_CHARS_MIN = 6  # what is shorter stands in words that are no secrets
_SESSION = ("session_id", "state", "reason", "storage", "runtime", "created", "expires")
_EVENT = ("number", "at", "session_id", "kind")


@dataclass(frozen=True, slots=True)
class JournalFacts:
    document: dict[str, Any]
    sessions: list[dict[str, Any]]
    events: list[dict[str, Any]]  # the last ones, oldest first, without their details
    secrets: frozenset[str]  # texts that callers gave: not to be told, wherever else they may stand


def read_facts(path: Path, sessions_max: int, events_max: int) -> JournalFacts:
    """Changes nothing, and takes nothing from the engine that has it. Raises Unavailable."""
    try:
        with tempfile.TemporaryDirectory(prefix="sandlot-support-") as folder:
            copy = Path(folder) / path.name
            return _read(copy, _copy(path, copy), sessions_max, events_max)
    except FileNotFoundError:
        raise Unavailable("there is none: no engine ever began here") from None
    except (OSError, sqlite3.Error, TypeError) as error:
        raise Unavailable(f"it cannot be read: {error}") from error


def _copy(path: Path, copy: Path) -> tuple[int, int]:
    """Of one moment: as long as the file itself stays as it is, its log has only become longer, and what is half
    written there does not count."""
    log, log_copy = (one.with_name(one.name + "-wal") for one in (path, copy))
    for _attempt in range(_ATTEMPTS):
        before = path.stat()
        sizes = (before.st_size, _size(log))
        if sum(sizes) > _BYTES_MAX:
            raise Unavailable(f"it is too large to be copied: {sum(sizes)} bytes")
        shutil.copyfile(path, copy)
        log_copy.unlink(missing_ok=True)
        with suppress(FileNotFoundError):
            shutil.copyfile(log, log_copy)
        after = path.stat()
        if (before.st_mtime_ns, before.st_size, before.st_ino) == (after.st_mtime_ns, after.st_size, after.st_ino):
            return sizes
        time.sleep(_AGAIN_S)
    raise Unavailable("it changes too quickly to be copied", next_step="try again")


def _read(copy: Path, sizes: tuple[int, int], sessions_max: int, events_max: int) -> JournalFacts:
    db = sqlite3.connect(copy)
    try:
        db.execute("PRAGMA query_only = ON")
        tables = [str(name) for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        document: dict[str, Any] = {
            "sqlite": sqlite3.sqlite_version,
            "size_bytes": sizes[0],
            "wal_bytes": sizes[1],
            "version": str(db.execute("SELECT value FROM meta WHERE key = 'version'").fetchone()[0]),
            "pages": db.execute("PRAGMA page_count").fetchone()[0],
            "pages_free": db.execute("PRAGMA freelist_count").fetchone()[0],
            "rows": {name: db.execute(f'SELECT count(*) FROM "{name}"').fetchone()[0] for name in sorted(tables)},
            "integrity": _integrity(db),
        }
        states = db.execute("SELECT state, count(*) FROM sessions GROUP BY state").fetchall()
        document["sessions_by_state"] = {str(state): count for state, count in states}
        sessions = _rows(db, "sessions", _SESSION, "serial", sessions_max)
        events = _rows(db, "events", _EVENT, "number", events_max)
        return JournalFacts(document, sessions, events, frozenset(_secrets(db)))
    finally:
        db.close()


def _rows(db: sqlite3.Connection, table: str, columns: tuple[str, ...], order: str, count: int) -> list[dict[str, Any]]:
    """The newest, oldest first."""
    found = db.execute(f"SELECT {','.join(columns)} FROM {table} ORDER BY {order} DESC LIMIT ?", (count,)).fetchall()
    return [dict(zip(columns, row, strict=True)) for row in reversed(found)]


def _integrity(db: sqlite3.Connection) -> str:
    """`ok`, or what is wrong."""
    give_up = time.monotonic() + _CHECK_S
    db.set_progress_handler(lambda: time.monotonic() > give_up, _STEPS)
    try:
        found = db.execute(f"PRAGMA quick_check({_FINDINGS_MAX})").fetchall()
        return "; ".join(str(row[0]) for row in found)
    except sqlite3.OperationalError as error:
        return f"not known: {error}"
    finally:
        db.set_progress_handler(None, 0)


def _secrets(db: sqlite3.Connection) -> Iterator[str]:
    """Values of variables and words of commands: a reason of a failure may repeat one."""
    asked = "SELECT spec FROM sessions UNION ALL SELECT spec FROM processes UNION ALL SELECT argv FROM calls"
    for (text,) in db.execute(asked):
        try:
            document = json.loads(text)
        except (TypeError, ValueError):
            continue
        if isinstance(document, list):
            yield from _texts(document)  # pyright: ignore[reportUnknownArgumentType] - of any type
        elif isinstance(document, dict):
            for name in ("envs", "secrets", "labels", "argv"):
                yield from _texts(document.get(name))  # pyright: ignore[reportUnknownArgumentType, reportUnknownMemberType] - the same


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield from (word for word in (value, *value.split()) if len(word) >= _SECRET_CHARS_MIN)
    elif isinstance(value, dict):
        for one in value.values():  # pyright: ignore[reportUnknownVariableType] - JSON of any type
            yield from _texts(one)
    elif isinstance(value, list):
        for one in value:  # pyright: ignore[reportUnknownVariableType]
            yield from _texts(one)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
