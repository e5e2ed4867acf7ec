"""Snapshots and turns in the journal. Each method is one transaction, and durable when it returns."""

import json
import sqlite3
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass

from sandlot.host.journal import CallRow, Journal, SessionRow, write_calls
from sandlot.host.repeats import Verb
from sandlot.model import (
    ChangeCounts,
    EventKind,
    ForkRequest,
    PauseReason,
    SessionState,
    Snapshot,
    SnapshotKind,
)

REPLACED = "replaced"  # what is under way: its guest is to end, because it sleeps at another point

_ADD_SNAPSHOT = "INSERT INTO snapshots VALUES (?,?,?,?,?,?,?,?,?,?)"
_ADD_TURN = "INSERT INTO turns VALUES (?,?,?,?,?,?,?)"


@dataclass(frozen=True, slots=True)
class SnapshotRow:
    session_id: str
    name: str
    serial: int  # grows with every snapshot of its session
    kind: SnapshotKind
    turn: int | None
    parent: str | None
    created: float
    point: str  # what the storage needs
    last_process_id: int  # the newest call that the snapshot knows
    memory: str = ""  # the image of the processes that ran, if it has one

    def told(self, space_bytes: int | None = None) -> Snapshot:
        about = (self.kind, self.created, self.turn, self.parent, space_bytes, bool(self.memory))
        return Snapshot(self.session_id, self.name, *about)


@dataclass(frozen=True, slots=True)
class TurnRow:
    session_id: str
    number: int
    closed: float
    snapshot: str | None
    first_process_id: int
    last_process_id: int
    changes: ChangeCounts | None = None


class History:
    def __init__(self, journal: Journal) -> None:
        self._journal = journal

    async def begin(self, session_id: str, what: str) -> None:
        """Something is about to be done with the session's root; an engine that comes later must put it right."""
        sql = "UPDATE sessions SET changing = ? WHERE session_id = ?"
        await self._journal.begin(lambda db: db.execute(sql, (what, session_id)), full=False, quick=True)

    async def end(self, session_id: str) -> None:
        """It was given up, and everything is as before."""
        await self._run("UPDATE sessions SET changing = '' WHERE session_id = ?", (session_id,), full=False)

    async def add(
        self, row: SnapshotRow, volume_state: str, turn: TurnRow | None, request_id: str | None = None
    ) -> None:
        """A snapshot, the turn that it closes, and where the session goes on."""

        def write(db: sqlite3.Connection) -> None:
            db.execute(_ADD_SNAPSHOT, _snapshot_values(row))
            sql = "UPDATE sessions SET volume_state = ?, head = ?, changing = '' WHERE session_id = ?"
            db.execute(sql, (volume_state, row.name, row.session_id))
            self._write_turn(db, turn)
            verb, answer = (Verb.TURN, str(turn.number)) if turn else (Verb.SNAPSHOT, row.name)
            _write_answer(db, verb, row.session_id, request_id, answer)

        await self._journal.transact(write, full=True)

    async def add_turn(self, turn: TurnRow, request_id: str | None = None) -> None:
        """A turn without a snapshot."""

        def write(db: sqlite3.Connection) -> None:
            self._write_turn(db, turn)
            _write_answer(db, Verb.TURN, turn.session_id, request_id, str(turn.number))

        await self._journal.transact(write, full=True)

    async def roll_back(
        self, to: SnapshotRow, volume_state: str, *, forget: tuple[str, ...], calls_until: int | None, memory: str = ""
    ) -> None:
        """The session goes on from a snapshot. What `forget` names is gone, with its turns. With `calls_until`, so are
        the calls that came later, up to that one: their ids are free again, their numbers are not. With `memory`, it
        sleeps from now on, and the guest that it has is nobody's."""

        def write(db: sqlite3.Connection) -> None:
            sql = "UPDATE sessions SET volume_state = ?, head = ?, changing = '' WHERE session_id = ?"
            db.execute(sql, (volume_state, to.name, to.session_id))
            _forget_answers(db, to.session_id, forget)
            for name in forget:
                db.execute("DELETE FROM turns WHERE session_id = ? AND snapshot = ?", (to.session_id, name))
                db.execute("DELETE FROM snapshots WHERE session_id = ? AND name = ?", (to.session_id, name))
            if calls_until is not None:
                sql = "DELETE FROM calls WHERE session_id = ? AND process_id > ?"
                db.execute(sql, (to.session_id, to.last_process_id))
                sql = "UPDATE sessions SET forgotten = ? WHERE session_id = ?"
                db.execute(sql, (calls_until, to.session_id))
            if memory:
                columns = "state = ?, reason = ?, paused_at = ?, memory = ?, changing = ?"
                sql = f"UPDATE sessions SET {columns} WHERE session_id = ?"
                asleep = (str(SessionState.PAUSED), str(PauseReason.MOMENT), time.time(), memory, REPLACED)
                db.execute(sql, (*asleep, to.session_id))
            self._journal.events.write(db, to.session_id, EventKind.ROLLED_BACK, to.name)

        await self._journal.transact(write, full=True)

    async def remove(self, session_id: str, *names: str) -> None:
        """Snapshots alone; their turns stay, without one."""

        def write(db: sqlite3.Connection) -> None:
            _forget_answers(db, session_id, names)
            for name in names:
                found = db.execute(
                    "SELECT parent FROM snapshots WHERE session_id = ? AND name = ?", (session_id, name)
                ).fetchone()
                parent = found[0] if found else None
                # What grew from it grew from what it grew from.
                for table, column in (("snapshots", "parent"), ("sessions", "head")):
                    sql = f"UPDATE {table} SET {column} = ? WHERE session_id = ? AND {column} = ?"
                    db.execute(sql, (parent, session_id, name))
                sql = "UPDATE turns SET snapshot = NULL WHERE session_id = ? AND snapshot = ?"
                db.execute(sql, (session_id, name))
                db.execute("DELETE FROM snapshots WHERE session_id = ? AND name = ?", (session_id, name))

        await self._journal.transact(write, full=True)

    async def move(
        self, session_id: str, storage: str, volume: str, volume_state: str, snapshots: Sequence[SnapshotRow]
    ) -> None:
        """All of it is on another storage."""

        def write(db: sqlite3.Connection) -> None:
            sql = "UPDATE sessions SET storage = ?, volume = ?, volume_state = ?, changing = '' WHERE session_id = ?"
            db.execute(sql, (storage, volume, volume_state, session_id))
            sql = "UPDATE snapshots SET point = ? WHERE session_id = ? AND name = ?"
            db.executemany(sql, [(row.point, session_id, row.name) for row in snapshots])
            self._journal.events.write(db, session_id, EventKind.MOVED, storage)

        await self._journal.transact(write, full=True)

    async def arrive(
        self, row: SessionRow, snapshots: Sequence[SnapshotRow], turns: Sequence[TurnRow], calls: Sequence[CallRow]
    ) -> None:
        """All that belongs to a session that came from elsewhere; from now on it is one like others."""

        def write(db: sqlite3.Connection) -> None:
            db.executemany(_ADD_SNAPSHOT, map(_snapshot_values, snapshots))
            db.executemany(_ADD_TURN, map(_turn_values, turns))
            write_calls(db, calls)
            sql = "UPDATE sessions SET head = ?, last_turn = ?, forgotten = ?, changing = '' WHERE session_id = ?"
            db.execute(sql, (row.head, row.last_turn, row.forgotten, row.session_id))

        await self._journal.transact(write, full=True)

    async def find_again(self, found: Sequence[tuple[SessionRow, Sequence[SnapshotRow], Sequence[TurnRow]]]) -> None:
        """Sessions that another journal knew, all of them at once."""

        def write(db: sqlite3.Connection) -> None:
            for row, snapshots, turns in found:
                self._journal.write_session(db, row)
                db.executemany(_ADD_SNAPSHOT, map(_snapshot_values, snapshots))
                db.executemany(_ADD_TURN, map(_turn_values, turns))

        await self._journal.transact(write, full=True)

    async def count_changes(self, session_id: str, number: int, changes: ChangeCounts) -> None:
        values = (json.dumps(asdict(changes)), session_id, number)
        await self._run("UPDATE turns SET changes = ? WHERE session_id = ? AND number = ?", values, full=False)

    async def snapshots(self, session_id: str | None = None) -> list[SnapshotRow]:
        """Those of one session, or all; oldest first."""
        where, values = ("WHERE session_id = ?", (session_id,)) if session_id else ("", ())
        sql = f"SELECT * FROM snapshots {where} ORDER BY session_id, serial"
        return await self._journal.transact(lambda db: [_snapshot(row) for row in db.execute(sql, values)])

    async def last_process_id(self, session_id: str) -> int:
        """The newest call that a turn has."""
        sql = "SELECT last_process_id FROM turns WHERE session_id = ? ORDER BY number DESC LIMIT 1"

        def find(db: sqlite3.Connection) -> int:
            found = db.execute(sql, (session_id,)).fetchone()
            return found[0] if found else 0

        return await self._journal.transact(find, quick=True)

    async def turns(self, session_id: str) -> list[TurnRow]:
        sql = "SELECT * FROM turns WHERE session_id = ? ORDER BY number"
        return await self._journal.transact(lambda db: [_turn(row) for row in db.execute(sql, (session_id,))])

    async def answer(self, verb: Verb, session_id: str, request_id: str | None) -> str | None:
        """What a request was answered with when it came the first time; empty, when that is gone."""
        if request_id is None:
            return None
        sql = "SELECT answer FROM answers WHERE session_id = ? AND verb = ? AND request_id = ?"

        def find(db: sqlite3.Connection) -> str | None:
            found = db.execute(sql, (session_id, str(verb), request_id)).fetchone()
            return found[0] if found else None

        return await self._journal.transact(find, quick=True)

    async def finish_fork(self, request: ForkRequest, made: Sequence[str]) -> None:
        """All of them are there: from now on they are sessions like others."""

        def write(db: sqlite3.Connection) -> None:
            sql = "UPDATE sessions SET changing = '' WHERE session_id = ?"
            db.executemany(sql, [(session_id,) for session_id in made])
            self._journal.events.write(db, request.session_id, EventKind.FORKED, " ".join(made))
            _write_answer(db, Verb.FORK, request.session_id, request.request_id, ",".join(made))

        await self._journal.transact(write, full=True)

    def _write_turn(self, db: sqlite3.Connection, turn: TurnRow | None) -> None:
        if turn is None:
            return
        values = (turn.session_id, turn.number, turn.closed, turn.snapshot, turn.first_process_id, turn.last_process_id)
        db.execute("INSERT INTO turns VALUES (?,?,?,?,?,?,NULL)", values)
        db.execute("UPDATE sessions SET last_turn = ? WHERE session_id = ?", (turn.number, turn.session_id))
        self._journal.events.write(db, turn.session_id, EventKind.TURN, str(turn.number))

    async def _run(self, sql: str, values: tuple[object, ...], *, full: bool) -> None:
        await self._journal.transact(lambda db: db.execute(sql, values), full=full)


def _write_answer(db: sqlite3.Connection, verb: Verb, session_id: str, request_id: str | None, answer: str) -> None:
    if request_id is not None:
        # A session that is gone took its answers with it; a fork of it may end later.
        sql = "INSERT OR REPLACE INTO answers SELECT session_id, ?, ?, ? FROM sessions WHERE session_id = ?"
        db.execute(sql, (str(verb), request_id, answer, session_id))


def _forget_answers(db: sqlite3.Connection, session_id: str, names: Iterable[str]) -> None:
    """Whoever asks again for a snapshot that was removed is told so, and does not get another of the same name."""
    sql = "UPDATE answers SET answer = '' WHERE session_id = ? AND verb = ? AND answer = ?"
    db.executemany(sql, [(session_id, str(Verb.SNAPSHOT), name) for name in names])


def _snapshot_values(row: SnapshotRow) -> tuple[object, ...]:
    head = (row.session_id, row.name, row.serial, str(row.kind), row.turn, row.parent, row.created)
    return (*head, row.point, row.last_process_id, row.memory)


def _turn_values(row: TurnRow) -> tuple[object, ...]:
    changes = json.dumps(asdict(row.changes)) if row.changes else None
    numbers = (row.first_process_id, row.last_process_id)
    return (row.session_id, row.number, row.closed, row.snapshot, *numbers, changes)


def _snapshot(row: tuple[object, ...]) -> SnapshotRow:
    fields: dict[str, object] = dict(zip(SnapshotRow.__dataclass_fields__, row, strict=True))
    return SnapshotRow(**fields | {"kind": SnapshotKind(str(fields["kind"]))})  # pyright: ignore[reportArgumentType]


def _turn(row: tuple[object, ...]) -> TurnRow:
    fields: dict[str, object] = dict(zip(TurnRow.__dataclass_fields__, row, strict=True))
    changes = fields["changes"]
    counted = ChangeCounts(**json.loads(str(changes))) if changes else None
    return TurnRow(**fields | {"changes": counted})  # pyright: ignore[reportArgumentType]
