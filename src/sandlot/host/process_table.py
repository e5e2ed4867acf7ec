"""The managed processes of every session: found by id or name, taken up from an earlier engine, kept within bounds."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from weakref import WeakValueDictionary

from sandlot.contracts.runtime import Guest, KnownProcess
from sandlot.host.background import Background
from sandlot.host.process_rows import ProcessRow, ProcessRows
from sandlot.host.process_run import FIRST_CONTEXT, serial_of
from sandlot.host.processes import Around, ManagedProcess
from sandlot.host.session import Session
from sandlot.host.unheard import Unheard
from sandlot.model import Conflict, LimitReached, ProcessNotFound, ProcessSpec, SessionState, limits

_WRITE_AFTER_S = 1.0  # what a process prints is in a file by then, however little it is


class ProcessTable:
    """Those of one session. It is what the session knows of them."""

    def __init__(
        self, session: Session, rows: ProcessRows, background: Background, all_of_them: "ProcessTables"
    ) -> None:
        self._session = session
        self._rows = rows
        self._background = background
        self._tables = all_of_them
        self._around = Around(session, rows, background, all_of_them.printed, self._ended)
        self._by_id: dict[str, ManagedProcess] = {}  # oldest first
        self._last_serial = 0
        self.on_process_ended: Callable[[ManagedProcess], None] | None = None

    def all(self) -> tuple[ManagedProcess, ...]:
        return tuple(self._by_id.values())

    def take_up(self, rows: Sequence[ProcessRow]) -> None:
        for row in rows:
            process = ManagedProcess(row, self._around)
            process.is_log_read = False
            self._by_id[row.process_id] = process
            self._last_serial = max(self._last_serial, row.serial)

    def known(self, spec: ProcessSpec) -> ManagedProcess | None:
        """What an id was given to before. Raises Conflict when that is another program."""
        found = self._by_id.get(spec.process_id or "")
        if found is not None and found.spec.argv != spec.argv:
            raise Conflict(
                f"process {spec.process_id} is another program",
                next_step="choose another id",
                session_id=spec.session_id,
            )
        return found

    def by_id(self, process_id: str) -> ManagedProcess | None:
        return self._by_id.get(process_id)

    def find(self, asked: str) -> ManagedProcess:
        """By its id, or by its name: the one that has it, or that had it last."""
        found = self._by_id.get(asked)
        if found is None:
            found = next((each for each in reversed(self.all()) if each.spec.name == asked), None)
        if found is None:
            session_id = self._session.row.session_id
            raise ProcessNotFound(
                f"session {session_id} has no process {asked}",
                next_step="`sandlot ps` lists them",
                session_id=session_id,
            )
        return found

    def add(self, row: ProcessRow) -> ManagedProcess:
        """Raises Conflict, LimitReached."""
        living = [each for each in self.all() if not each.is_ended]
        if row.spec.name is not None and any(row.spec.name in (each.spec.name, each.row.process_id) for each in living):
            raise Conflict(
                f"session {row.session_id} has a process of the name {row.spec.name}, which has not ended",
                next_step="kill it, or choose another name",
                session_id=row.session_id,
            )
        if len(living) >= limits.PROCESSES_MAX:
            raise LimitReached(
                f"session {row.session_id} has {limits.PROCESSES_MAX} processes already",
                next_step="kill one",
                limit="processes",
            )
        self._last_serial += 1
        process = ManagedProcess(replace(row, serial=self._last_serial), self._around)
        self._by_id[row.process_id] = process
        return process

    def remove(self, process: ManagedProcess) -> None:
        """It has never been."""
        self._by_id.pop(process.row.process_id, None)

    def _ended(self, process: ManagedProcess) -> None:
        if self.on_process_ended:
            self.on_process_ended(process)
        ended = [each for each in self.all() if each.is_ended]
        if old := ended[: -limits.PROCESSES_KEPT]:
            for each in old:
                self.remove(each)
            self._background.spawn("forget processes", self._forget(old))

    async def _forget(self, old: Sequence[ManagedProcess]) -> None:
        await self._rows.forget(self._session.row.session_id, [each.row.serial for each in old])
        for each in old:
            await asyncio.to_thread(each.log.remove)

    # ---- what the session tells --------------------------------------------------------------------------------

    def adopt(self, guest: Guest, known: KnownProcess) -> bool:
        if known.process_id >= FIRST_CONTEXT:
            return False
        serial, _run = serial_of(known.process_id)
        process = next((each for each in self._by_id.values() if each.row.serial == serial), None)
        if process is not None:
            return process.adopt(guest, known)
        self._last_serial = max(self._last_serial, serial)
        if known.tag == self._session.row.session_id.encode() and not known.is_over:
            # Its engine died before anybody was told of it.
            Unheard(guest, known).kill()
            return True
        return False  # what ran in the session that this one was forked from

    def heard(self) -> None:
        for process in self.all():
            process.lose("it was not there any more when the engine came back")
            process.again()

    def go_on(self) -> None:
        for process in self.all():
            process.go_on()

    def lose(self, reason: str) -> None:
        for process in self.all():
            process.lose(reason)
        if self._session.row.state is SessionState.DESTROYING:
            self._tables.forget(self, self._session)

    def expect_ends(self, why: str) -> None:
        for process in self.all():
            process.expect_end(why)

    def again(self) -> None:
        for process in self.all():
            process.again()

    def give_up(self, why: str) -> None:
        for process in self.all():
            process.give_up(why)


class ProcessTables:
    """Of all sessions of one host."""

    def __init__(self, rows: ProcessRows, background: Background) -> None:
        self._rows = rows
        self._background = background
        self._tables: WeakValueDictionary[str, ProcessTable] = WeakValueDictionary()
        self._found: dict[str, list[ProcessRow]] = {}  # of an earlier engine, until their session is there
        self._printed: set[ManagedProcess] = set()
        self._writing: asyncio.TimerHandle | None = None
        self.on_process_ended: Callable[[ManagedProcess], None] | None = None
        self.on_session_gone: Callable[[Session], None] | None = None

    async def load(self) -> None:
        for row in await self._rows.all():
            self._found.setdefault(row.session_id, []).append(row)

    def attach(self, session: Session) -> ProcessTable:
        """Of a session that comes to be, or is found."""
        table = ProcessTable(session, self._rows, self._background, self)
        table.on_process_ended = self.on_process_ended
        table.take_up(self._found.pop(session.row.session_id, ()))
        self._tables[session.row.session_id] = table
        return table

    def of(self, session: Session) -> ProcessTable:
        return self._tables[session.row.session_id]

    def forget(self, table: ProcessTable, session: Session) -> None:
        if self._tables.get(session.row.session_id) is table:
            del self._tables[session.row.session_id]
        if self.on_session_gone:
            self.on_session_gone(session)

    # ---- what they print -------------------------------------------------------------------------------------------

    def printed(self, process: ManagedProcess) -> None:
        self._printed.add(process)
        if self._writing is None:
            self._writing = asyncio.get_running_loop().call_later(_WRITE_AFTER_S, self._write)

    def _write(self) -> None:
        self._writing = None
        printed, self._printed = self._printed, set()
        for process in printed:
            if process.run is not None:
                process.run.live.write_soon()

    def leave(self) -> None:
        """The engine goes; their guests remember them."""
        if self._writing:
            self._writing.cancel()
        for table in tuple(self._tables.values()):
            table.give_up("the engine is closing")
