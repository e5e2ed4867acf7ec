"""What the engine remembers, in SQLite. One thread writes; everything that is acknowledged was committed first.

State changes are committed with synchronous=FULL: they survive a power cut. Records of calls are committed with NORMAL:
they survive the death of the process, and until they are committed the guest remembers the call itself.
"""

import asyncio
import contextlib
import json
import queue
import sqlite3
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from sandlot.host.event_rows import EventCopy, EventRows, note_boot
from sandlot.host.reserve import Reserve
from sandlot.host.schema import VERSION, statements
from sandlot.model import (
    CallRecord,
    CallResult,
    CallState,
    Event,
    EventKind,
    LimitHit,
    SandlotError,
    SessionState,
    Unavailable,
    limits,
)

_RETRY_S = 2.0
_PROBLEMS_MAX = 10
_GATHER_S = 0.01
_UNCOPIED_MAX = 64  # a journal that is never idle


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


@dataclass(frozen=True, slots=True)
class CallRow:
    process_id: int
    record: CallRecord
    output: bytes | None
    paused_s: float = 0.0  # for how long it stood still with its session


class JournalError(SandlotError):
    code = "internal"


_Work = Callable[[sqlite3.Connection], Any]
_Done = Callable[[Any, BaseException | None], None]


class Journal:
    def __init__(self, path: Path) -> None:
        self._path = path
        self.reserve = Reserve(path.with_name("reserve"))
        self._work: queue.SimpleQueue[tuple[_Work, bool, _Done | None] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="sandlot-journal", daemon=True)
        self._loop = asyncio.get_running_loop()
        self._closed = False
        self._ended: list[tuple[CallRow, Callable[[], None]]] = []
        self._flush: asyncio.TimerHandle | None = None
        self._opened: asyncio.Future[None] = self._loop.create_future()
        self._copy = EventCopy(path.with_name("events.jsonl"))
        self._uncopied: list[Event] = []
        self.events = EventRows()  # for work in a transaction
        self.on_events: Callable[[], None] | None = None  # called on the loop, after the commit

    async def open(self) -> None:
        """Raises JournalError when the file is not ours or of a later version."""
        self._thread.start()
        await self._opened

    async def close(self) -> None:
        self._flush_now()
        self._closed = True
        self._work.put(None)
        await asyncio.to_thread(self._thread.join)

    # ---- sessions ----------------------------------------------------------------------------------------------

    async def sessions(self) -> list[SessionRow]:
        """All of them, oldest first. Calls whose session is gone are forgotten on the way."""

        def read(db: sqlite3.Connection) -> list[SessionRow]:
            db.execute("DELETE FROM calls WHERE session_id NOT IN (SELECT session_id FROM sessions)")
            rows = db.execute("SELECT * FROM sessions ORDER BY serial")
            return [_session(row) for row in rows]

        return await self._do(read)

    def add_session(self, row: SessionRow) -> asyncio.Future[None]:
        """Begins at once; durable when the future is done."""
        values = [str(value) if isinstance(value, SessionState) else value for value in _values(row)]
        marks = ",".join("?" * len(values))

        def add(db: sqlite3.Connection) -> None:
            db.execute(f"INSERT INTO sessions VALUES ({marks})", values)
            self.events.write(db, row.session_id, EventKind.CREATED, row.origin or row.template)

        return self.begin(add, full=True)

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
            for table in ("calls", "snapshots", "turns", "answers", "sessions"):
                db.execute(f"DELETE FROM {table} WHERE session_id = ?", (session_id,))

        await self._do(remove)

    # ---- calls -------------------------------------------------------------------------------------------------

    def call_started(self, session_id: str, process_id: int, call_id: str, started: float, argv: Iterable[str]) -> None:
        """Not waited for: the guest knows of the call too."""
        values = (session_id, process_id, call_id, str(CallState.RUNNING), started, json.dumps(list(argv)))
        sql = "INSERT OR IGNORE INTO calls (session_id, process_id, call_id, state, started, argv) VALUES (?,?,?,?,?,?)"
        self._work.put((lambda db: db.execute(sql, values), False, None))

    def call_ended(self, row: CallRow, done: Callable[[], None]) -> None:
        """`output` None: it is in a file. `done` is called on the loop when the record is safe and the guest may
        forget the call. Records are brought home together, a moment later: nobody waits for them."""
        self._ended.append((row, done))
        if self._flush is None:
            self._flush = self._loop.call_later(_GATHER_S, self._flush_ended)

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
            elif not self._closed:
                # The guest keeps the calls until then; a disk that was full may have room again.
                self._ended += ended
                self._flush = self._flush or self._loop.call_later(_RETRY_S, self._flush_ended)

        self._work.put((lambda db: _write_ended(db, [row for row, _done in ended]), False, finish))

    async def calls_lost(self, session_id: str, alive: tuple[int, ...] = ()) -> None:
        """All calls of the session that have not ended, but those alive, are gone with their guest."""
        marks = ",".join("?" * len(alive))
        sql = f"UPDATE calls SET state = ? WHERE session_id = ? AND state = ? AND process_id NOT IN ({marks})"
        values = (str(CallState.LOST), session_id, str(CallState.RUNNING), *alive)
        await self._do(lambda db: db.execute(sql, values))

    async def calls(self, session_id: str, first: int = 0, last: int = 1 << 62) -> list[CallRow]:
        self._flush_now()
        columns = "process_id, call_id, state, started, argv, result, NULL, paused_s"
        sql = f"SELECT {columns} FROM calls WHERE session_id = ? AND process_id BETWEEN ? AND ? ORDER BY 1"
        values = (session_id, first, last)
        return await self._do(lambda db: [_call(session_id, row) for row in db.execute(sql, values)])

    async def find_call(self, session_id: str, call_id: str) -> CallRow | None:
        self._flush_now()
        columns = "process_id, call_id, state, started, argv, result, output, paused_s"
        sql = f"SELECT {columns} FROM calls WHERE session_id = ? AND call_id = ?"

        def find(db: sqlite3.Connection) -> CallRow | None:
            row = db.execute(sql, (session_id, call_id)).fetchone()
            return _call(session_id, row) if row else None

        return await self._do(find)

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

    async def check(self) -> None:
        """Whether it can be written, found out by writing. Raises JournalError."""
        sql = "INSERT OR REPLACE INTO meta VALUES ('checked', ?)"
        await self._do(lambda db: db.execute(sql, (str(time.time()),)))

    # ---- the thread --------------------------------------------------------------------------------------------

    async def _do(self, work: _Work, *, full: bool = False) -> Any:
        return await self.begin(work, full=full)

    async def transact(self, work: Callable[[sqlite3.Connection], Any], *, full: bool = False) -> Any:
        """For what belongs to the journal and has a file of its own. `full`: it survives a power cut."""
        self._flush_now()
        return await self._do(work, full=full)

    def begin(self, work: _Work, *, full: bool) -> asyncio.Future[Any]:
        """The same, not waited for here: it has begun when this returns."""
        if self._closed:
            raise Unavailable("the journal is closed")
        future: asyncio.Future[Any] = self._loop.create_future()

        def done(value: Any, error: BaseException | None) -> None:
            if future.done():
                return
            if error is None:
                future.set_result(value)
            else:
                future.set_exception(error)

        self._work.put((work, full, done))
        return future

    def _tell(self, callback: Callable[..., None], *values: object) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
            self._loop.call_soon_threadsafe(callback, *values)

    def _run(self) -> None:
        try:
            db = self._open()
        except Exception as error:  # noqa: BLE001 - the root of a thread: whoever waits for it must hear
            wrapped = error if isinstance(error, JournalError) else JournalError(f"journal {self._path}: {error}")
            self._tell(self._opened.set_exception, wrapped)
            return
        self._copy.append(db, ())
        self._tell(self._opened.set_result, None)
        while self._batch(db):
            pass
        self._copy_events(db)
        self._copy.close()
        db.close()

    def _open(self) -> sqlite3.Connection:
        try:
            db = _open(self._path)
        except sqlite3.OperationalError as error:
            if not (_is_full(error) and self.reserve.give_up()):
                raise
            db = _open(self._path)
        self.reserve.take()
        return db

    def _next(self, db: sqlite3.Connection) -> "_Item | None":
        """The next piece of work. The copy of the events is brought up to date when nobody waits for anything."""
        while self._uncopied:
            try:
                return self._work.get(timeout=_GATHER_S)
            except queue.Empty:
                self._copy_events(db)
        return self._work.get()

    def _copy_events(self, db: sqlite3.Connection) -> None:
        uncopied, self._uncopied = self._uncopied, []
        if uncopied:
            self._copy.append(db, uncopied)

    def _batch(self, db: sqlite3.Connection) -> bool:
        """One transaction for all that has come together meanwhile. Returns False at the end."""
        items = [self._next(db)]
        while items[-1] is not None and len(items) < 64:
            try:
                items.append(self._work.get_nowait())
            except queue.Empty:
                break
        todo = [item for item in items if item is not None]
        told = _transact(db, todo, self.events)
        if isinstance(told, sqlite3.Error) and _is_full(told) and self.reserve.give_up():
            told = _transact(db, todo, self.events)
        if isinstance(told, sqlite3.Error):
            # One that does not fit must not take the others with it.
            told = [one for item in todo for one in _alone(db, item, self.events)]
        for done, value, error in told:
            if done:
                self._tell(done, value, error)
        if written := self.events.take():
            if self.on_events:
                self._tell(self.on_events)
            self._uncopied += written
            if len(self._uncopied) >= _UNCOPIED_MAX:
                self._copy_events(db)
        return items[-1] is not None


_Item = tuple[_Work, bool, _Done | None]
_Told = tuple[_Done | None, Any, BaseException | None]


def _transact(db: sqlite3.Connection, items: list[_Item], events: EventRows) -> list[_Told] | sqlite3.Error:
    """All of it in one transaction, or the error that prevented that."""
    before = events.count
    try:
        db.execute(f"PRAGMA synchronous = {'FULL' if any(full for _work, full, _done in items) else 'NORMAL'}")
        db.execute("BEGIN IMMEDIATE")
        told = [(done, *_attempt(db, work, events)) for work, _full, done in items]
        db.execute("COMMIT")
    except sqlite3.Error as error:
        events.forget_from(before)
        if db.in_transaction:
            db.execute("ROLLBACK")
        return error
    return told


def _is_full(error: sqlite3.Error) -> bool:
    """Also what a full disk looks like to whoever cannot lengthen a file."""
    return error.sqlite_errorcode & 0xFF in (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN)


def _alone(db: sqlite3.Connection, item: _Item, events: EventRows) -> list[_Told]:
    told = _transact(db, [item], events)
    if isinstance(told, sqlite3.Error):
        return [
            (item[2], None, JournalError(f"the journal cannot be written: {told}", next_step="free space on its disk"))
        ]
    return told


def _write_ended(db: sqlite3.Connection, rows: list[CallRow]) -> None:
    """Whole, because the start of a short call is not recorded, and that of a long one may have met a full disk. What
    is there stays: a ticket that came back from a guest may be shortened."""
    columns = "session_id, process_id, call_id, state, started, argv, result, output, has_file"
    changes = ", ".join(f"{name} = excluded.{name}" for name in ("state", "result", "output", "has_file"))
    sql = f"INSERT INTO calls ({columns}) VALUES (?,?,?,?,?,?,?,?,?) ON CONFLICT DO UPDATE SET {changes}"
    db.executemany(sql, map(_ended_values, rows))


def _ended_values(row: CallRow) -> tuple[Any, ...]:
    record = row.record
    assert record.result is not None
    head = (record.session_id, row.process_id, record.call_id, str(CallState.ENDED), record.started)
    return (*head, json.dumps(record.argv), json.dumps(asdict(record.result)), row.output, row.output is None)


def _attempt(db: sqlite3.Connection, work: _Work, events: EventRows) -> tuple[Any, BaseException | None]:
    """One piece of work of a batch: its failure is its own, unless it is the disk's."""
    before = events.count
    db.execute("SAVEPOINT work")
    try:
        value = work(db)
    except sqlite3.OperationalError:
        raise
    except Exception as error:  # noqa: BLE001 - the root of a thread: one bad value must not end it for all
        events.forget_from(before)
        db.execute("ROLLBACK TO work")
        db.execute("RELEASE work")
        return None, error
    db.execute("RELEASE work")
    return (None if isinstance(value, sqlite3.Cursor) else value), None


def _open(path: Path) -> sqlite3.Connection:
    db = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    try:
        _prepare(db, path)
    except BaseException:  # closed, then raised again: it would hold the file
        db.close()
        raise
    return db


def _prepare(db: sqlite3.Connection, path: Path) -> None:
    # The data directory's lock already keeps others out; without shared memory a commit costs less.
    db.execute("PRAGMA locking_mode = EXCLUSIVE")
    db.execute("PRAGMA journal_mode = WAL")
    # Early: a log that starts over is written in place, and syncing a file that does not grow costs less.
    db.execute("PRAGMA wal_autocheckpoint = 250")
    db.execute("BEGIN IMMEDIATE")
    known = db.execute("SELECT name FROM sqlite_master WHERE name = 'meta'").fetchone()
    found = db.execute("SELECT value FROM meta WHERE key = 'version'").fetchone() if known else ("0",)
    if found is None or not str(found[0]).isdigit():
        raise JournalError(f"{path} is not a journal of ours", next_step="give this engine another data directory")
    version = int(found[0])
    if version > VERSION:
        raise JournalError(
            f"the journal is of version {version}, and this engine reads up to {VERSION}",
            next_step="use the newer release that wrote it",
        )
    for statement in statements(version):
        db.execute(statement)
    if version != VERSION:
        db.execute("INSERT OR REPLACE INTO meta VALUES ('version', ?)", (str(VERSION),))
    note_boot(db)
    db.execute("COMMIT")


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
