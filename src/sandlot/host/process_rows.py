"""Managed processes and exposed ports in the journal."""

import asyncio
import json
import sqlite3
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from sandlot.host.journal import Journal
from sandlot.model import ProcessSpec, ProcessState

TABLES = ("processes", "ports")


@dataclass(frozen=True, slots=True)
class Status:
    """How a process is, as far as an engine that comes later must know."""

    state: ProcessState = ProcessState.STARTING
    run: int = 0  # which of its runs there is, or is to come
    base: tuple[int, int] = (0, 0)  # what earlier runs have printed
    started: float = 0.0
    ended: float | None = None
    exit_code: int | None = None
    signal: int | None = None
    reason: str = ""
    restarts: int = 0
    is_due: bool = False  # its run is to be started; False: its guest knows of it
    last_run: int = 0  # the highest number that was given to one
    was_ready: bool = False
    is_killed: bool = False  # it is not to be started again


@dataclass(frozen=True, slots=True)
class ProcessRow:
    session_id: str
    serial: int  # of its session's: the order of lists
    process_id: str
    spec: ProcessSpec
    status: Status


@dataclass(frozen=True, slots=True)
class PortRow:
    session_id: str
    port: int
    host_port: int
    process_id: str | None


class ProcessRows:
    def __init__(self, journal: Journal) -> None:
        self._journal = journal

    def add(self, row: ProcessRow) -> asyncio.Future[None]:
        """Begins at once; durable when the future is done."""
        spec = json.dumps(row.spec.to_document())
        values = (row.session_id, row.serial, row.process_id, spec, _text(row.status))
        sql = "INSERT INTO processes (session_id, serial, process_id, spec, status) VALUES (?,?,?,?,?)"
        return self._journal.begin(lambda db: _run(db, sql, values), full=True)

    def set(self, row: ProcessRow, status: Status) -> asyncio.Future[None]:
        """Begins at once. No death of a process undoes it when the future is done."""
        values = (_text(status), row.session_id, row.serial)
        sql = "UPDATE processes SET status = ? WHERE session_id = ? AND serial = ?"
        return self._journal.begin(lambda db: _run(db, sql, values), full=False)

    async def forget(self, session_id: str, serials: Iterable[int]) -> None:
        values = [(session_id, serial) for serial in serials]
        sql = "DELETE FROM processes WHERE session_id = ? AND serial = ?"
        await self._journal.begin(lambda db: db.executemany(sql, values).rowcount, full=False)

    async def all(self) -> list[ProcessRow]:
        """In the order in which they were launched. Those whose session is gone are forgotten on the way."""

        def read(db: sqlite3.Connection) -> list[ProcessRow]:
            for table in TABLES:
                db.execute(f"DELETE FROM {table} WHERE session_id NOT IN (SELECT session_id FROM sessions)")
            sql = "SELECT session_id, serial, process_id, spec, status FROM processes ORDER BY session_id, serial"
            return [_process(row) for row in db.execute(sql)]

        return await self._journal.begin(read, full=False)

    # ---- ports -------------------------------------------------------------------------------------------------

    def add_port(self, row: PortRow) -> asyncio.Future[None]:
        """Begins at once; durable when the future is done."""
        values = (row.session_id, row.port, row.host_port, row.process_id)
        sql = "INSERT OR REPLACE INTO ports (session_id, port, host_port, process_id) VALUES (?,?,?,?)"
        return self._journal.begin(lambda db: _run(db, sql, values), full=True)

    def remove_port(self, session_id: str, port: int) -> asyncio.Future[None]:
        sql = "DELETE FROM ports WHERE session_id = ? AND port = ?"
        return self._journal.begin(lambda db: _run(db, sql, (session_id, port)), full=True)

    async def ports(self) -> list[PortRow]:
        sql = "SELECT session_id, port, host_port, process_id FROM ports ORDER BY session_id, port"
        return await self._journal.begin(lambda db: [PortRow(*row) for row in db.execute(sql)], full=False)


def _run(db: sqlite3.Connection, sql: str, values: tuple[Any, ...]) -> None:
    db.execute(sql, values)


def _text(status: Status) -> str:
    return json.dumps(asdict(status) | {"state": str(status.state)})


def _process(row: tuple[Any, ...]) -> ProcessRow:
    session_id, serial, process_id, spec, status = row
    told: dict[str, Any] = json.loads(status)
    told["state"], told["base"] = ProcessState(told["state"]), tuple(told["base"])
    return ProcessRow(
        session_id, serial, process_id, ProcessSpec.from_document(session_id, json.loads(spec)), Status(**told)
    )
