"""That a host makes no sessions because someone said so: written into the journal, so that the next engine knows."""

import json
import logging
import sqlite3
import time
from contextlib import suppress

from sandlot.host.journal import Journal
from sandlot.model import CordonRequest, HealthReason, HealthStatus, HostUnhealthy

_log = logging.getLogger("sandlot.host")
_KEY = "cordon"
_LIFT = "run `sandlot uncordon` when it is to make sessions again, or ask another host"


class Cordon:
    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._reason = ""
        self.since = 0.0  # 0: there is none

    async def load(self) -> None:
        """What an earlier engine was told. Raises JournalError."""

        def read(db: sqlite3.Connection) -> str:
            row = db.execute("SELECT value FROM meta WHERE key = ?", (_KEY,)).fetchone()
            return str(row[0]) if row else ""

        told = await self._journal.transact(read, quick=True)
        if told:
            self.since = time.time()  # should what was written not be understood: a host that was cordoned stays so
            with suppress(ValueError, KeyError, TypeError):
                document = json.loads(told)
                self._reason, self.since = str(document["reason"]), float(document["since"])

    async def put(self, request: CordonRequest) -> None:
        """Whoever asks for a session from now on is refused, also should it not be written. Raises JournalError."""
        self._reason, self.since = request.reason, self.since or time.time()
        _log.info("this host makes no sessions from now on: %s", self._told())
        value = json.dumps({"reason": self._reason, "since": self.since})
        sql = "INSERT OR REPLACE INTO meta VALUES (?, ?)"
        await self._journal.transact(lambda db: db.execute(sql, (_KEY, value)), full=True)

    async def lift(self) -> None:
        """Durable before a session is made. Raises JournalError."""
        if self.since:
            await self._journal.transact(lambda db: db.execute("DELETE FROM meta WHERE key = ?", (_KEY,)), full=True)
            self._reason, self.since = "", 0.0
            _log.info("this host makes sessions again")

    def check(self) -> None:
        """Before a session is made. Raises HostUnhealthy."""
        for reason in self.reasons():
            raise HostUnhealthy(
                f"this host makes no sessions now: {reason.message}", next_step=reason.next_step, reason=reason.what
            )

    def reasons(self) -> list[HealthReason]:
        if not self.since:
            return []
        return [HealthReason(_KEY, HealthStatus.UNHEALTHY, 1.0, 1.0, self._told(), _LIFT)]

    def _told(self) -> str:
        return f"it is cordoned: {self._reason}" if self._reason else "it is cordoned"
