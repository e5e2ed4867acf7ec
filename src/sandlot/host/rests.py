"""Pauses, their ends, and when sessions are due, in the journal."""

import asyncio
import sqlite3
import time
from collections.abc import Mapping

from sandlot.host.journal import Journal
from sandlot.model import CallState, EventKind, PauseReason, SessionState

CHECKPOINT = "checkpoint"  # what is under way with its processes, as the journal has it


class Rests:
    def __init__(self, journal: Journal) -> None:
        self._journal = journal

    def set_paused(self, session_id: str, reason: str, at: float) -> asyncio.Future[None]:
        """Begins at once; the death of a process does not undo it when the future is done."""
        sql = "UPDATE sessions SET state = ?, reason = ?, paused_at = ? WHERE session_id = ?"

        def write(db: sqlite3.Connection) -> None:
            db.execute(sql, (str(SessionState.PAUSED), reason, at, session_id))
            if reason == PauseReason.EXPIRED:
                self._journal.events.write(db, session_id, EventKind.EXPIRED)
            self._journal.events.write(db, session_id, EventKind.PAUSED, reason)

        return self._journal.begin(write, full=False, quick=True)

    def set_resumed(self, session_id: str, paused_s: float, why: str) -> asyncio.Future[None]:
        """The same. Calls that ran do not age by the time that they stood still."""

        def write(db: sqlite3.Connection) -> None:
            rest = "reason = '', paused_at = 0, memory = ''"
            sql = f"UPDATE sessions SET state = ?, active_at = ?, {rest} WHERE session_id = ?"
            db.execute(sql, (str(SessionState.ACTIVE), time.time(), session_id))
            sql = "UPDATE calls SET paused_s = paused_s + ? WHERE session_id = ? AND state = ?"
            db.execute(sql, (paused_s, session_id, str(CallState.RUNNING)))
            self._journal.events.write(db, session_id, EventKind.RESUMED, why)

        return self._journal.begin(write, full=False, quick=True)

    async def begin_checkpoint(self, session_id: str, image: str) -> None:
        """From now on its guest may end, and its processes with it be in the image."""
        sql = "UPDATE sessions SET changing = ?, memory = ? WHERE session_id = ?"
        await self._journal.begin(lambda db: db.execute(sql, (CHECKPOINT, image, session_id)), full=False, quick=True)

    async def set_asleep(self, session_id: str, reason: str, at: float) -> None:
        """Its processes are in the image that was begun. Durable when it returns."""
        sql = "UPDATE sessions SET state = ?, reason = ?, paused_at = ?, changing = '' WHERE session_id = ?"

        def write(db: sqlite3.Connection) -> None:
            db.execute(sql, (str(SessionState.PAUSED), reason, at, session_id))
            if reason == PauseReason.EXPIRED:
                self._journal.events.write(db, session_id, EventKind.EXPIRED)
            self._journal.events.write(db, session_id, EventKind.PAUSED, reason)

        await self._journal.begin(write, full=True)

    async def forget_memory(self, session_id: str) -> None:
        sql = "UPDATE sessions SET changing = '', memory = '' WHERE session_id = ?"
        await self._journal.begin(lambda db: db.execute(sql, (session_id,)), full=False)

    async def set_expires(self, session_id: str, expires: float, detail: str) -> None:
        """Durable when it returns."""

        def write(db: sqlite3.Connection) -> None:
            db.execute("UPDATE sessions SET expires = ? WHERE session_id = ?", (expires, session_id))
            self._journal.events.write(db, session_id, EventKind.EXTENDED, detail)

        await self._journal.begin(write, full=True)

    async def set_spec(self, session_id: str, spec: str) -> None:
        """Durable when it returns."""

        def write(db: sqlite3.Connection) -> None:
            db.execute("UPDATE sessions SET spec = ? WHERE session_id = ?", (spec, session_id))
            self._journal.events.write(db, session_id, EventKind.RELABELED)

        await self._journal.begin(write, full=True)

    async def note_activity(self, at: Mapping[str, float]) -> None:
        """When something was last done in each of these sessions."""
        values = [(moment, session_id) for session_id, moment in at.items()]
        await self._journal.begin(
            lambda db: db.executemany("UPDATE sessions SET active_at = ? WHERE session_id = ?", values), full=False
        )

    async def last_activity(self, session_id: str) -> float:
        """As the records of calls tell."""
        ended = "started + coalesce(json_extract(result, '$.duration_s'), 0) + paused_s"
        sql = f"SELECT coalesce(max({ended}), 0) FROM calls WHERE session_id = ?"
        return await self._journal.begin(lambda db: db.execute(sql, (session_id,)).fetchone()[0], full=False)
