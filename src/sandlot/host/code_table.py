"""The contexts of every session: found by id, taken up from an earlier engine, kept within bounds."""

import asyncio
import posixpath
import time
from collections.abc import Sequence
from weakref import WeakValueDictionary

from sandlot.contracts.runtime import Guest, KnownProcess
from sandlot.host.background import Background
from sandlot.host.code_contexts import Context
from sandlot.host.code_log import new_mark
from sandlot.host.code_rows import ContextRow, new_serial, remove_others, serial_of
from sandlot.host.code_runs import Execution
from sandlot.host.errands import FIRST_ERRAND
from sandlot.host.process_run import FIRST_CONTEXT
from sandlot.host.session import Session
from sandlot.host.unheard import Unheard
from sandlot.model import ContextRequest, LimitReached, NotFound, SessionState, limits


class ContextTable:
    """Those of one session. It is what the session knows of them."""

    def __init__(self, session: Session, background: Background, tables: "ContextTables") -> None:
        self._session = session
        self._background = background
        self._tables = tables
        self._by_id: dict[str, Context] = {}
        self._last_serial = 0

    def all(self) -> Sequence[Context]:
        """Oldest first: guests tell of them in another order."""
        return sorted(self._by_id.values(), key=lambda context: context.row.serial)

    def get(self, context_id: str) -> Context | None:
        return self._by_id.get(context_id)

    def find(self, context_id: str) -> Context:
        if (found := self.get(context_id)) is None:
            session_id = self._session.row.session_id
            raise NotFound(
                f"session {session_id} has no context {context_id}",
                next_step="list those that there are, or make one",
                context_id=context_id,
            )
        return found

    def run(self, execution_id: str) -> tuple[Context, Execution] | None:
        for context in self.all():
            if (found := context.queue.runs.get(execution_id)) is not None:
                return context, found
        return None

    def add(self, request: ContextRequest, context_id: str) -> Context:
        """Raises LimitReached."""
        if sum(context.reason is None for context in self.all()) >= limits.CONTEXTS_MAX:
            raise LimitReached(
                f"session {request.session_id} has {limits.CONTEXTS_MAX} contexts already",
                next_step="delete one",
                limit="contexts",
            )
        self._last_serial = max(self._last_serial + 1, new_serial())
        cwd = posixpath.normpath(posixpath.join(self._session.workspace, request.cwd or ""))
        row = ContextRow(
            self._last_serial,
            context_id,
            request.language,
            cwd,
            dict(request.envs),
            request.user,
            request.cwd,
            time.time(),
            0,
            new_mark(),
        )
        context = self._by_id[context_id] = Context(row, self._session, self._background, self._lost)
        return context

    def remove(self, context: Context) -> None:
        if self._by_id.get(context.row.context_id) is context:
            del self._by_id[context.row.context_id]
        self._background.spawn("forget a context", asyncio.to_thread(context.remove_files))

    def _lost(self, context: Context) -> None:
        del context
        lost = [each for each in self.all() if each.reason is not None]
        for each in lost[: -limits.CONTEXTS_MAX]:
            self.remove(each)

    # ---- what the session tells --------------------------------------------------------------------------------

    def adopt(self, guest: Guest, known: KnownProcess) -> bool:
        if not FIRST_CONTEXT <= known.process_id < FIRST_ERRAND:
            return False
        if (run := self._session.runs.get(known.process_id)) is not None:
            run.rejoin(guest, known)
            return True
        self._last_serial = max(self._last_serial, serial_of(known.process_id))
        is_own = known.tag == self._session.row.session_id.encode()
        row = ContextRow.found(self._session.output_folder(), known.process_id) if is_own else None
        if row is not None:
            before = self._by_id.get(row.context_id)
            context = self._by_id[row.context_id] = Context(row, self._session, self._background, self._lost)
            if before is None:
                context.take_up(guest, known)
            else:
                context.take_back(guest, known, before)
            return True
        if is_own and not known.is_over:
            # Nobody was told of it, or it has been deleted.
            Unheard(guest, known).kill()
            return True
        return False  # what ran in the session that this one was forked from

    def heard(self) -> None:
        """What has no program any more is forgotten."""
        there = {context.row.serial for context in self.all()}
        removing = asyncio.to_thread(remove_others, self._session.output_folder(), there, new_serial())
        self._background.spawn("forget contexts", removing)

    def go_on(self) -> None:
        for context in self.all():
            context.queue.pump()

    def lose(self, reason: str) -> None:
        del reason  # each hears of its own process
        if self._session.row.state is SessionState.DESTROYING:
            self._tables.forget(self, self._session)

    def expect_ends(self, why: str) -> None:
        for context in self.all():
            context.expect_end(why)

    def again(self) -> None:
        """A context that was ended has forgotten everything: nobody begins it unasked."""

    def give_up(self) -> None:
        for context in self.all():
            context.give_up()


class ContextTables:
    """Of all sessions of one host."""

    def __init__(self, background: Background) -> None:
        self._background = background
        self._tables: WeakValueDictionary[str, ContextTable] = WeakValueDictionary()

    def attach(self, session: Session) -> ContextTable:
        """Of a session that comes to be, or is found."""
        table = self._tables[session.row.session_id] = ContextTable(session, self._background, self)
        return table

    def of(self, session: Session) -> ContextTable:
        return self._tables[session.row.session_id]

    def forget(self, table: ContextTable, session: Session) -> None:
        if self._tables.get(session.row.session_id) is table:
            del self._tables[session.row.session_id]

    def leave(self) -> None:
        """The engine goes; guests remember their contexts."""
        for table in tuple(self._tables.values()):
            table.give_up()
