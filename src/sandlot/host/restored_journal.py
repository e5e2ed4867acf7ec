"""What of the journal in a backup its sessions do not bring themselves: events, requests that were answered, volumes.

The file is anyone's: it is opened to be read alone, without what a schema could do, checked whole, and every value is
taken by its type."""

import contextlib
import json
import sqlite3
import time
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from sandlot.host.archives.reading import damaged
from sandlot.host.repeats import Verb
from sandlot.model import EventKind, InvalidArgument, Mount, SandlotError, check_id, check_session_id, limits

_DEADLINE_S = 120.0
_STEPS = 10_000  # of SQLite's machine between two looks at the clock
_NEVER_GIVEN = 1000  # offsets of events that happened after the backup, and that someone may have seen
_TEXT_MAX = 1 << 20
_VERBS = frozenset(str(verb) for verb in Verb)
_Row = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Told:
    """Of one session."""

    created: float
    request_id: str | None
    origin: str | None
    mounts: Sequence[Mount]


@dataclass(frozen=True, slots=True)
class OldJournal:
    sessions: Mapping[str, Told]
    answers: Sequence[tuple[str, str, str, str]]
    events: Sequence[tuple[int, float, str, str, str]]


def read(path: Path) -> OldJournal:
    """Blocking. Raises InvalidArgument for what no engine of ours has written."""
    try:
        with _opened(path) as db:
            return OldJournal(
                dict(map(_session, db.execute("SELECT session_id, created, request_id, origin, spec FROM sessions"))),
                [_answer(row) for row in db.execute("SELECT session_id, verb, request_id, answer FROM answers")],
                [
                    _event(row)
                    for row in db.execute(
                        "SELECT number, at, session_id, kind, detail FROM events ORDER BY number DESC LIMIT ?",
                        (limits.EVENTS_KEPT,),
                    )
                ][::-1],
            )
    except (sqlite3.Error, ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError) as error:
        if isinstance(error, InvalidArgument):
            raise
        raise damaged(f"its journal cannot be read ({type(error).__name__})") from None


@contextlib.contextmanager
def _opened(path: Path) -> Generator[sqlite3.Connection]:
    give_up = time.monotonic() + _DEADLINE_S
    uri = f"file:{path}?mode=ro&immutable=1"
    with contextlib.closing(sqlite3.connect(uri, uri=True, isolation_level=None)) as db:
        db.set_progress_handler(lambda: time.monotonic() > give_up, _STEPS)
        db.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, 64 * limits.MIB)
        for pragma in ("trusted_schema = OFF", "cell_size_check = ON", "query_only = ON", "mmap_size = 0"):
            db.execute(f"PRAGMA {pragma}")
        kinds = dict(db.execute("SELECT name, type FROM sqlite_master"))
        if any(kinds.get(name) != "table" for name in ("sessions", "answers", "events")):
            raise damaged("its journal has other tables")
        if [row[0] for row in db.execute("PRAGMA quick_check(1)")] != ["ok"]:
            raise damaged("its journal is not whole")
        yield db


def _text(value: object) -> str:
    if not isinstance(value, str) or len(value) > _TEXT_MAX or "\0" in value:
        raise damaged("a text of its journal is none")
    return value


def _number(value: object) -> float:
    if not isinstance(value, int | float) or not abs(value) < 1e15:
        raise damaged("a number of its journal is none")
    return float(value)


def _session(row: _Row) -> tuple[str, Told]:
    session_id, created, request_id, origin, spec = row
    wishes = cast("dict[str, Any]", json.loads(_text(spec)))
    mounts: list[Mount] = []
    for plan in cast("list[dict[str, Any]]", wishes.get("mounts", [])):
        # A directory of the machine is another one on another machine: who wants it asks for it again.
        if not plan["is_of_host"]:
            with contextlib.suppress(SandlotError):
                mount = Mount(_text(plan["source"]), _text(plan["target"]), plan["read_only"] is True)
                if not mount.is_of_host:
                    mounts.append(mount)
    asked = None if request_id is None else check_id("request", _text(request_id))
    told = Told(_number(created), asked, None if origin is None else _text(origin)[:500], mounts)
    return check_session_id(_text(session_id)), told


def _answer(row: _Row) -> tuple[str, str, str, str]:
    session_id, verb, request_id, answer = (_text(value) for value in row)
    if verb not in _VERBS:
        raise damaged("its journal has an answer to something else")
    return check_session_id(session_id), verb, request_id, answer


def _event(row: _Row) -> tuple[int, float, str, str, str]:
    number, at, session_id, kind, detail = row
    if not isinstance(number, int) or not 0 < number < 1 << 53:
        raise damaged("its journal has an event without an offset")
    return number, _number(at), _text(session_id), str(EventKind(_text(kind))), _text(detail)[:500]


# ---- written into the new one --------------------------------------------------------------------------------------


def write_events(db: sqlite3.Connection, old: OldJournal, taken: float) -> None:
    """Before anything happens here: what comes gets other offsets than what happened after the backup."""
    columns = "INSERT INTO events (number, at, session_id, kind, detail) VALUES (?,?,?,?,?)"
    db.executemany(columns, old.events)
    last = old.events[-1][0] if old.events else 0
    detail = f"the host was restored from a backup of {time.strftime('%Y-%m-%d %H:%M:%S', time.gmtime(taken))} UTC"
    db.execute(columns, (last + _NEVER_GIVEN, time.time(), "", str(EventKind.GAP), detail))


def write_sessions(db: sqlite3.Connection, old: OldJournal, expires: Mapping[str, float]) -> None:
    """Of those that are there again."""
    for session_id, until in expires.items():
        db.execute("UPDATE sessions SET expires = ? WHERE session_id = ?", (until, session_id))
        if (told := old.sessions.get(session_id)) is not None:
            values = (told.created, told.request_id, told.origin, session_id)
            db.execute("UPDATE sessions SET created = ?, request_id = ?, origin = ? WHERE session_id = ?", values)
    known = [answer for answer in old.answers if answer[0] in expires]
    db.executemany("INSERT OR REPLACE INTO answers (session_id, verb, request_id, answer) VALUES (?,?,?,?)", known)
