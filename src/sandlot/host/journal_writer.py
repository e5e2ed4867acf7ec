"""The journal's connection, and who writes with it: a thread, with one transaction for all that has come together.

What needs no disk to answer, and comes when nobody else is at it, is done at once by whoever asks: waking a thread and
being woken by it costs more than the work.
"""

import asyncio
import contextlib
import queue
import secrets
import sqlite3
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from sandlot.host.event_rows import EventCopy, EventRows, note_boot
from sandlot.host.reserve import Reserve
from sandlot.host.schema import VERSION, statements
from sandlot.model import Event, SandlotError, Unavailable

_GATHER_S = 0.01
_UNCOPIED_MAX = 64  # a journal that is never idle
_BATCH_MAX = 64
_CHECKPOINT_PAGES = 250


class JournalError(SandlotError):
    code = "internal"


Work = Callable[[sqlite3.Connection], Any]
Done = Callable[[Any, BaseException | None], None]
_Item = tuple[Work, bool, Done | None]
_Told = tuple[Done | None, Any, BaseException | None]


class JournalWriter:
    def __init__(self, path: Path) -> None:
        self._path = path
        self.reserve = Reserve(path.with_name("reserve"))
        self._work: queue.SimpleQueue[_Item | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="sandlot-journal", daemon=True)
        self._loop = asyncio.get_running_loop()
        self._opened: asyncio.Future[None] = self._loop.create_future()
        self._db: sqlite3.Connection | None = None
        self._using = threading.Lock()  # the connection
        self._late: list[_Item] = []
        self._hurrying: asyncio.TimerHandle | None = None
        self._asked = 0  # pieces of work that the thread was given, counted by the loop
        self._answered = 0  # and that it is done with, counted by the thread
        self._copy = EventCopy(path.with_name("events.jsonl"))
        self._uncopied: list[Event] = []
        self._copying: asyncio.TimerHandle | None = None
        self._is_full: bool | None = None  # what the connection was last told to wait for
        self.is_closed = False
        self._broken: JournalError | None = None
        self.events = EventRows()  # for work in a transaction
        self.on_events: Callable[[], None] | None = None  # called on the loop, after the commit

    async def open(self) -> None:
        """Raises JournalError when the file is not ours or of a later version."""
        self._thread.start()
        await self._opened

    async def close(self) -> None:
        self._hurry()
        self.is_closed = True
        if self._copying:
            self._copying.cancel()
        self._work.put(None)
        await asyncio.to_thread(self._thread.join)

    def put(self, work: Work, *, full: bool, done: Done | None = None) -> None:
        """`full`: it survives a power cut when `done` is called, on the loop."""
        self._hurry()
        self._put((work, full, done))

    def _put(self, item: _Item) -> None:
        self._asked += 1
        self._work.put(item)

    def put_later(self, work: Work) -> None:
        """Nobody waits for it: done a moment later, or before the next thing that is asked for. Whoever asked for what
        it tells of goes on at once, and the thread would take the processor from him."""
        self._late.append((work, False, None))
        if self._hurrying is None:
            self._hurrying = self._loop.call_later(_GATHER_S, self._hurry)

    def _hurry(self) -> None:
        if self._hurrying is not None:
            self._hurrying.cancel()
            self._hurrying = None
            late, self._late = self._late, []
            for item in late:
                self._put(item)

    def begin_soon(self, work: Work, *, full: bool) -> asyncio.Future[Any]:
        """As `begin`, when this turn of the loop is over: the thread does not take the processor from whoever has more
        to do in it. Raises Unavailable."""
        if self.is_closed:
            raise _closed()
        future: asyncio.Future[Any] = self._loop.create_future()
        self._loop.call_soon(self._begin, work, full, future)
        return future

    def _begin(self, work: Work, full: bool, future: asyncio.Future[Any]) -> None:
        if self.is_closed:
            _settle(future, None, _closed())
        else:
            self.put(work, full=full, done=partial(_settle, future))

    def begin(self, work: Work, *, full: bool, quick: bool = False) -> asyncio.Future[Any]:
        """It has begun when this returns, and ends without anyone waiting. `quick`: it needs little time and no disk,
        so that it may be done at once. Raises Unavailable."""
        if self.is_closed:
            raise _closed()
        self._hurry()
        future: asyncio.Future[Any] = self._loop.create_future()
        done = partial(_settle, future)
        # In order: nothing may be waiting that was asked for before.
        is_idle = self._asked == self._answered and not self._broken
        if quick and not full and is_idle and self._using.acquire(blocking=False):
            try:
                self._do_at_once((work, False, done))
            finally:
                self._using.release()
        else:
            self._put((work, full, done))
        return future

    def _do_at_once(self, item: _Item) -> None:
        db = self._db
        assert db is not None, "it is open"
        db.execute("PRAGMA wal_autocheckpoint = 0")  # that would be work for the disk
        told = self._transact_or_tell(db, [item])
        db.execute(f"PRAGMA wal_autocheckpoint = {_CHECKPOINT_PAGES}")
        for done, value, error in told:
            if done:
                done(value, error)
        if self._take_events() and self._copying is None:
            self._copying = self._loop.call_later(_GATHER_S, self._copy_later)

    def _copy_later(self) -> None:
        self._copying = None
        if not self.is_closed:
            self.put(lambda _db: None, full=False)

    def _take_events(self) -> bool:
        written = self.events.take()
        self._uncopied += written
        if written and self.on_events:
            self._tell(self.on_events)
        return bool(written)

    def copy_to(self, path: Path) -> None:
        """All of it, as it is now, into a new file. What is to be written waits meanwhile. Blocking; raises
        JournalError."""
        with self._using, contextlib.closing(sqlite3.connect(path, isolation_level=None)) as target:
            db = self._db
            if db is None or self.is_closed:
                raise JournalError("the journal is closed")
            try:
                target.execute("PRAGMA journal_mode = OFF")
                target.execute("PRAGMA synchronous = OFF")  # it is read and removed
                db.backup(target)
            except sqlite3.Error as error:
                raise JournalError(f"the journal cannot be copied: {error}", next_step="free space") from error

    # ---- the thread --------------------------------------------------------------------------------------------

    def _tell(self, callback: Callable[..., None], *values: object) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
            self._loop.call_soon_threadsafe(callback, *values)

    def _run(self) -> None:
        try:
            self._db = db = self._open()
        except Exception as error:  # noqa: BLE001 - the root of a thread: whoever waits for it must hear
            wrapped = error if isinstance(error, JournalError) else JournalError(f"journal {self._path}: {error}")
            self._tell(self._opened.set_exception, wrapped)
            return
        self._copy.append(db, ())
        self._tell(self._opened.set_result, None)
        while self._batch(db):
            pass
        if not self._broken:
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

    def _next(self, db: sqlite3.Connection) -> _Item | None:
        """The next piece of work. The copy of the events is brought up to date when nobody waits for anything."""
        while self._uncopied:
            try:
                return self._work.get(timeout=_GATHER_S)
            except queue.Empty:
                with self._using:
                    self._copy_events(db)
        return self._work.get()

    def _copy_events(self, db: sqlite3.Connection) -> None:
        uncopied, self._uncopied = self._uncopied, []
        if uncopied:
            self._copy.append(db, uncopied)

    def _batch(self, db: sqlite3.Connection) -> bool:
        """One transaction for all that has come together meanwhile. Returns False at the end."""
        items = [self._next(db)]
        while items[-1] is not None and len(items) < _BATCH_MAX:
            try:
                items.append(self._work.get_nowait())
            except queue.Empty:
                break
        todo = [item for item in items if item is not None]
        try:
            with self._using:
                told = self._transact_or_tell(db, todo)
        except Exception as error:  # noqa: BLE001 - the root of a thread: whoever waits for it must hear
            self._broken = JournalError(
                f"the journal cannot be written any more: {error}", next_step="start the engine again"
            )
            told = [(done, None, self._broken) for _work, _full, done in todo]
        self._answered += len(todo)
        for done, value, error in told:
            if done:
                self._tell(done, value, error)
        with self._using:
            self._take_events()
            if len(self._uncopied) >= _UNCOPIED_MAX:
                self._copy_events(db)
        return items[-1] is not None

    def _transact_or_tell(self, db: sqlite3.Connection, todo: list[_Item]) -> list[_Told]:
        if self._broken:
            return [(done, None, self._broken) for _work, _full, done in todo]
        told = self._transact(db, todo)
        if isinstance(told, sqlite3.Error) and _is_full(told) and self.reserve.give_up():
            told = self._transact(db, todo)
        if isinstance(told, sqlite3.Error):
            # One that does not fit must not take the others with it.
            told = [one for item in todo for one in self._alone(db, item)]
        return told

    def _transact(self, db: sqlite3.Connection, items: list[_Item]) -> list[_Told] | sqlite3.Error:
        """All of it in one transaction, or the error that prevented that."""
        before = self.events.count
        is_full = any(full for _work, full, _done in items)
        try:
            if is_full is not self._is_full:
                db.execute(f"PRAGMA synchronous = {'FULL' if is_full else 'NORMAL'}")
                self._is_full = is_full
            db.execute("BEGIN IMMEDIATE")
            told = [(done, *_attempt(db, work, self.events)) for work, _full, done in items]
            db.execute("COMMIT")
        except sqlite3.Error as error:
            self.events.forget_from(before)
            if db.in_transaction:
                db.execute("ROLLBACK")
            return error
        return told

    def _alone(self, db: sqlite3.Connection, item: _Item) -> list[_Told]:
        told = self._transact(db, [item])
        if isinstance(told, sqlite3.Error):
            failed = JournalError(f"the journal cannot be written: {told}", next_step="free space on its disk")
            return [(item[2], None, failed)]
        return told


def _closed() -> Unavailable:
    return Unavailable("the journal is closed")


def _settle(future: asyncio.Future[Any], value: Any, error: BaseException | None) -> None:
    if future.done():
        return
    if error is None:
        future.set_result(value)
    else:
        future.set_exception(error)


def _is_full(error: sqlite3.Error) -> bool:
    """Also what a full disk looks like to whoever cannot lengthen a file."""
    return error.sqlite_errorcode & 0xFF in (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN)


def _attempt(db: sqlite3.Connection, work: Work, events: EventRows) -> tuple[Any, BaseException | None]:
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
    db.execute(f"PRAGMA wal_autocheckpoint = {_CHECKPOINT_PAGES}")
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
    db.execute("INSERT OR IGNORE INTO meta VALUES ('identity', ?)", (secrets.token_hex(8),))
    note_boot(db)
    db.execute("COMMIT")
