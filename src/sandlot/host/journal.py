"""What the engine remembers, in SQLite. One thread writes; everything that is acknowledged was committed first.

State changes are committed with synchronous=FULL: they survive a power cut. Records of calls are committed with NORMAL:
they survive the death of the process, and until they are committed the guest remembers the call itself.
"""

import asyncio
import json
import sqlite3
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sandlot.host.journal_writer import JournalWriter, Work
from sandlot.model import (
    CallRecord,
    CallResult,
    CallState,
    EventKind,
    LimitHit,
    SessionState,
    limits,
)

_RETRY_S = 2.0
_PROBLEMS_MAX = 10
_GATHER_S = 0.01
_RESULT_FIELDS = tuple(CallResult.__dataclass_fields__)
_ALL = 1 << 62


@dataclass(frozen=True, slots=True)
class SessionRow:
    session_id: str
    serial: int  # grows with every session ever made: the order of lists
    state: SessionState
    reason: str
    volume: str
    id_range: int
    storage: str
    runtime: str
    template: str
    template_path: str
    created: float
    expires: float
    request_id: str | None
    spec: str  # labels, envs and user, as JSON
    volume_state: str = ""  # what the storage needs to open its volume
    head: str | None = None  # the snapshot that its files grew from
    origin: str | None = None  # SESSION/SNAPSHOT that it was forked from
    last_turn: int = 0  # the last number that was given to a turn
    changing: str = ""  # what was begun with its root and not finished
    forgotten: int = 0  # the newest call that a rollback may have removed: numbers up to it are not given again
    paused_at: float = 0.0  # 0: it is not paused
    active_at: float = 0.0  # when something was last done in it, as far as that was written down
    memory: str = ""  # the image of its processes, while it sleeps


@dataclass(frozen=True, slots=True)
class CallRow:
    process_id: int
    record: CallRecord
    output: bytes | None
    paused_s: float = 0.0  # for how long it stood still with its session


class Journal:
    def __init__(self, path: Path) -> None:
        self._writer = JournalWriter(path)
        self.reserve = self._writer.reserve
        self._loop = asyncio.get_running_loop()
        self._ended: list[tuple[CallRow, Callable[[], None]]] = []
        self._flush: asyncio.TimerHandle | None = None
        self.events = self._writer.events  # for work in a transaction
        self.begun = 0  # calls, since it was made

    async def open(self) -> None:
        """Raises JournalError when the file is not ours or of a later version."""
        await self._writer.open()

    async def close(self) -> None:
        self._flush_now()
        await self._writer.close()

    @property
    def on_events(self) -> Callable[[], None] | None:
        """Called on the loop, after the commit."""
        return self._writer.on_events

    @on_events.setter
    def on_events(self, callback: Callable[[], None] | None) -> None:
        self._writer.on_events = callback

    async def identity(self) -> str:
        """What tells this journal from any other."""
        sql = "SELECT value FROM meta WHERE key = 'identity'"
        return await self._do(lambda db: str(db.execute(sql).fetchone()[0]), quick=True)

    # ---- sessions ----------------------------------------------------------------------------------------------

    async def sessions(self) -> list[SessionRow]:
        """All of them, oldest first. Calls whose session is gone are forgotten on the way."""

        def read(db: sqlite3.Connection) -> list[SessionRow]:
            db.execute("DELETE FROM calls WHERE session_id NOT IN (SELECT session_id FROM sessions)")
            rows = db.execute("SELECT * FROM sessions ORDER BY serial")
            return [_session(row) for row in rows]

        return await self._do(read)

    def add_session(self, row: SessionRow) -> asyncio.Future[None]:
        """Begins without being waited for. When the future is done it is durable, but for one that is marked: its mark
        goes in a transaction that is, and one that is lost before that was to be removed."""
        return self._writer.begin_soon(lambda db: self.write_session(db, row), full=not row.changing)

    def write_session(self, db: sqlite3.Connection, row: SessionRow) -> None:
        values = [str(value) if isinstance(value, SessionState) else value for value in _values(row)]
        db.execute(f"INSERT INTO sessions VALUES ({','.join('?' * len(values))})", values)
        self.events.write(db, row.session_id, EventKind.CREATED, row.origin or row.template)

    def note(self, session_id: str, kind: EventKind) -> None:
        """Not waited for: it tells of what has happened, and nothing depends on it."""
        self._writer.put_later(lambda db: self.events.write(db, session_id, kind))

    async def set_state(
        self, session_id: str, state: SessionState, reason: str = "", event: EventKind | None = None
    ) -> None:
        """Durable when it returns. The event has the reason for its detail; where nothing changes there is none."""
        sql = "UPDATE sessions SET state = ?, reason = ? WHERE session_id = ? AND (state != ? OR reason != ?)"

        def write(db: sqlite3.Connection) -> None:
            changed = db.execute(sql, (str(state), reason, session_id, str(state), reason)).rowcount
            if changed and event is not None:
                self.events.write(db, session_id, event, reason)

        await self._do(write, full=True)

    async def remove_session(self, session_id: str) -> None:
        self._flush_now()  # or a late record would outlive its session

        def remove(db: sqlite3.Connection) -> None:
            if db.execute("SELECT 1 FROM sessions WHERE session_id = ?", (session_id,)).fetchone():
                self.events.write(db, session_id, EventKind.DESTROYED)
            for table in ("calls", "snapshots", "turns", "answers", "processes", "ports", "sessions"):
                db.execute(f"DELETE FROM {table} WHERE session_id = ?", (session_id,))

        await self._do(remove)

    # ---- calls -------------------------------------------------------------------------------------------------

    def call_started(self, session_id: str, process_id: int, call_id: str, started: float, argv: Iterable[str]) -> None:
        """Not waited for: the guest knows of the call too."""
        values = (session_id, process_id, call_id, str(CallState.RUNNING), started, json.dumps(list(argv)))
        sql = "INSERT OR IGNORE INTO calls (session_id, process_id, call_id, state, started, argv) VALUES (?,?,?,?,?,?)"
        self._writer.put(lambda db: db.execute(sql, values), full=False)

    def call_ended(self, row: CallRow, done: Callable[[], None]) -> None:
        """`output` None: it is in a file. `done` is called on the loop when the record is safe and the guest may
        forget the call. Records are brought home together, a moment later: nobody waits for them."""
        self._ended.append((row, done))
        if self._flush is None:
            self._flush = self._loop.call_later(_GATHER_S, self._flush_ended)

    def hurry(self) -> None:
        """Records that were to be brought home a moment later are, now."""
        self._flush_now()

    def _flush_now(self) -> None:
        if self._flush:
            self._flush.cancel()
            self._flush_ended()

    def _flush_ended(self) -> None:
        self._flush = None
        ended, self._ended = self._ended, []
        if not ended:
            return

        def finish(_value: Any, error: BaseException | None) -> None:
            if error is None:
                for _row, done in ended:
                    done()
            elif not self._writer.is_closed:
                # The guest keeps the calls until then; a disk that was full may have room again.
                self._ended += ended
                self._flush = self._flush or self._loop.call_later(_RETRY_S, self._flush_ended)

        self._writer.put(lambda db: write_ended(db, [row for row, _done in ended]), full=False, done=finish)

    async def calls_lost(self, session_id: str, alive: tuple[int, ...] = ()) -> None:
        """All calls of the session that have not ended, but those alive, are gone with their guest."""
        marks = ",".join("?" * len(alive))
        sql = f"UPDATE calls SET state = ? WHERE session_id = ? AND state = ? AND process_id NOT IN ({marks})"
        values = (str(CallState.LOST), session_id, str(CallState.RUNNING), *alive)
        await self._do(lambda db: db.execute(sql, values))

    async def whole_calls(self, session_id: str) -> list[CallRow]:
        """With their output, where it is short."""
        self._flush_now()
        columns = "process_id, call_id, state, started, argv, result, output, paused_s"
        sql = f"SELECT {columns} FROM calls WHERE session_id = ? ORDER BY 1"
        return await self._do(lambda db: [_call(session_id, row) for row in db.execute(sql, (session_id,))])

    async def calls(self, session_id: str, first: int = 0, last: int = _ALL) -> list[CallRow]:
        self._flush_now()
        columns = "process_id, call_id, state, started, argv, result, NULL, paused_s"
        sql = f"SELECT {columns} FROM calls WHERE session_id = ? AND process_id BETWEEN ? AND ? ORDER BY 1"
        values = (session_id, first, last)
        return await self._do(lambda db: [_call(session_id, row) for row in db.execute(sql, values)], quick=last < _ALL)

    async def find_call(self, session_id: str, call_id: str) -> CallRow | None:
        self._flush_now()
        columns = "process_id, call_id, state, started, argv, result, output, paused_s"
        sql = f"SELECT {columns} FROM calls WHERE session_id = ? AND call_id = ?"

        def find(db: sqlite3.Connection) -> CallRow | None:
            row = db.execute(sql, (session_id, call_id)).fetchone()
            return _call(session_id, row) if row else None

        return await self._do(find)

    async def call_ids(self, session_id: str, count: int) -> list[str]:
        sql = "SELECT call_id FROM calls WHERE session_id = ? LIMIT ?"
        return await self._do(lambda db: [row[0] for row in db.execute(sql, (session_id, count))])

    async def last_process_id(self, session_id: str) -> int:
        sql = "SELECT coalesce(max(process_id), 0) FROM calls WHERE session_id = ?"
        return await self._do(lambda db: db.execute(sql, (session_id,)).fetchone()[0])

    async def prune_outputs(self, session_id: str) -> list[int]:
        self._flush_now()
        """Forget the output of old calls; gives the process ids whose files may go too."""
        newest = "SELECT process_id FROM calls WHERE session_id = ? ORDER BY process_id DESC LIMIT 1 OFFSET ?"
        old = "session_id = ? AND process_id <= ? AND state != 'running'"

        def prune(db: sqlite3.Connection) -> list[int]:
            edge = db.execute(newest, (session_id, limits.CALLS_KEPT)).fetchone()
            if edge is None:
                return []
            values = (session_id, edge[0])
            files = [row[0] for row in db.execute(f"SELECT process_id FROM calls WHERE {old} AND has_file", values)]
            sql = f"UPDATE calls SET output = NULL, has_file = 0 WHERE {old} AND (has_file OR output IS NOT NULL)"
            db.execute(sql, values)
            return files

        return await self._do(prune)

    async def rows(self) -> list[SessionRow]:
        """As `sessions`, and nothing is changed."""
        return await self._do(
            lambda db: [_session(row) for row in db.execute("SELECT * FROM sessions ORDER BY serial")]
        )

    async def problems(self) -> list[str]:
        """What SQLite says of its file; nothing when it is whole."""
        told = await self._do(lambda db: [str(row[0]) for row in db.execute(f"PRAGMA quick_check({_PROBLEMS_MAX})")])
        return [] if told == ["ok"] else told

    async def copy_to(self, path: Path) -> None:
        """As it is now, into a new file. Raises JournalError."""
        self._flush_now()
        await self._do(lambda _db: None)  # what was asked for before is in it
        await asyncio.to_thread(self._writer.copy_to, path)

    async def check(self) -> None:
        """Whether it can be written, found out by writing. Raises JournalError."""
        sql = "INSERT OR REPLACE INTO meta VALUES ('checked', ?)"
        await self._do(lambda db: db.execute(sql, (str(time.time()),)))

    # ---- how it is written -------------------------------------------------------------------------------------

    async def _do(self, work: Work, *, full: bool = False, quick: bool = False) -> Any:
        return await self._writer.begin(work, full=full, quick=quick)

    async def transact(self, work: Work, *, full: bool = False, quick: bool = False) -> Any:
        """For what belongs to the journal and has a file of its own, after the records of calls that have ended.
        `full`: it survives a power cut. `quick`: it needs little time and no disk."""
        self._flush_now()
        return await self._do(work, full=full, quick=quick)

    def begin(self, work: Work, *, full: bool, quick: bool = False) -> asyncio.Future[Any]:
        """The same without those records, and not waited for here: it has begun when this returns."""
        return self._writer.begin(work, full=full, quick=quick)


def write_ended(db: sqlite3.Connection, rows: list[CallRow]) -> None:
    """Whole, because the start of a short call is not recorded, and that of a long one may have met a full disk. What
    is there stays: a ticket that came back from a guest may be shortened."""
    columns = "session_id, process_id, call_id, state, started, argv, result, output, has_file"
    changes = ", ".join(f"{name} = excluded.{name}" for name in ("state", "result", "output", "has_file"))
    sql = f"INSERT INTO calls ({columns}) VALUES (?,?,?,?,?,?,?,?,?) ON CONFLICT DO UPDATE SET {changes}"
    db.executemany(sql, map(_ended_values, rows))


def write_calls(db: sqlite3.Connection, rows: Iterable[CallRow]) -> None:
    """Calls that ended elsewhere; their long output is not here."""
    columns = "session_id, process_id, call_id, state, started, argv, result, output, has_file, paused_s"
    values = [
        (
            row.record.session_id,
            row.process_id,
            row.record.call_id,
            str(row.record.state),
            row.record.started,
            json.dumps(row.record.argv),
            json.dumps(_result_values(row.record.result)) if row.record.result else None,
            row.output,
            False,
            row.paused_s,
        )
        for row in rows
    ]
    db.executemany(f"INSERT INTO calls ({columns}) VALUES (?,?,?,?,?,?,?,?,?,?)", values)


def _ended_values(row: CallRow) -> tuple[Any, ...]:
    record = row.record
    assert record.result is not None
    head = (record.session_id, row.process_id, record.call_id, str(CallState.ENDED), record.started)
    return (*head, json.dumps(record.argv), json.dumps(_result_values(record.result)), row.output, row.output is None)


def _result_values(result: CallResult) -> dict[str, Any]:
    """As `asdict`, which copies what nobody changes and takes ten times as long: one is written for every call."""
    return {name: getattr(result, name) for name in _RESULT_FIELDS}


def _session(row: tuple[Any, ...]) -> SessionRow:
    fields: dict[str, Any] = dict(zip(SessionRow.__dataclass_fields__, row, strict=True))
    fields["state"] = SessionState(fields["state"])
    return SessionRow(**fields)


def _values(row: SessionRow) -> list[Any]:
    return [getattr(row, name) for name in SessionRow.__dataclass_fields__]


def _call(session_id: str, row: tuple[Any, ...]) -> CallRow:
    process_id, call_id, state, started, argv, result, output, paused_s = row
    ended = None
    if result:
        fields = json.loads(result)
        fields["limit"] = LimitHit(fields["limit"]) if fields["limit"] else None
        ended = CallResult(**fields)
    record = CallRecord(session_id, call_id, tuple(json.loads(argv)), CallState(state), started, ended)
    return CallRow(process_id, record, output, paused_s)
