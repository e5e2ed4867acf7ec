"""The verbs of code as the waist has them."""

import asyncio
import secrets
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress

from sandlot.contracts.code import CodeStream
from sandlot.host.code_contexts import Context
from sandlot.host.code_events import Telling
from sandlot.host.code_runs import Execution
from sandlot.host.code_story import RESULT
from sandlot.host.code_table import ContextTable, ContextTables
from sandlot.host.session import Session
from sandlot.model import (
    PYTHON,
    CodeContext,
    CodeEvent,
    CodeRequest,
    CodeResult,
    Conflict,
    ContextRequest,
    NotFound,
    SandlotError,
    SessionState,
    Unavailable,
    check_id,
    limits,
    new_call_id,
    refusal,
)

_LEAVE_S = limits.CODE_INTERRUPT_S + limits.KILL_DEADLINE_S


class _Stream:
    """One reader of a run, from its beginning."""

    def __init__(self, context: Context, execution: Execution) -> None:
        self._context = context
        self._execution = execution

    @property
    def execution_id(self) -> str:
        return self._execution.execution_id

    async def __aiter__(self) -> AsyncIterator[CodeEvent]:
        execution, context, position = self._execution, self._context, 0
        story, telling = execution.story, Telling(execution.execution_id, context.row.context_id)
        while True:
            try:
                near = story.is_near(position)
                found = story.read(position) if near else await asyncio.to_thread(story.read, position)
            except OSError as error:
                raise Unavailable(
                    f"what run {execution.execution_id} told is kept no longer: {error.strerror}"
                ) from error
            if found is None:
                context.check_left()
                await context.changed()
                continue
            record, position = found
            for event in telling.events(record):
                yield event
            if record.kind == RESULT:
                return

    async def result(self) -> CodeResult:
        while not self._execution.is_over:
            self._context.check_left()
            await self._context.changed()
        async for event in self:
            if isinstance(event, CodeResult):
                return event
        raise AssertionError("a story that is over ends with its result")


class CodeVerbs:
    def __init__(
        self,
        find: Callable[[str], Session],
        ready: Callable[[Session], Awaitable[None]],
        check_open: Callable[[], None],
        tables: ContextTables,
    ) -> None:
        self._find = find
        self._ready = ready  # wakes a session that rests
        self._check_open = check_open
        self._tables = tables

    def _table(self, session_id: str) -> ContextTable:
        session = self._find(session_id)
        if not session.is_heard:
            raise refusal(session_id, SessionState.PAUSED, "its contexts cannot be asked for yet")
        return self._tables.of(session)

    async def _usable(self, session_id: str) -> ContextTable:
        session = self._find(session_id)
        if not session.gate.is_open or session.row.state is SessionState.PAUSED:
            await self._ready(session)
        self._check_open()  # while it waited the engine may have left
        session.active_guest("it runs no code")
        return self._table(session_id)

    # ---- contexts --------------------------------------------------------------------------------------------------

    async def create_context(self, request: ContextRequest) -> CodeContext:
        return (await self._context(request, request.context_id)).told()

    async def _context(self, request: ContextRequest, context_id: str | None) -> Context:
        table = await self._usable(request.session_id)
        self._find(request.session_id).user_for(request.user)
        known = table.get(context_id) if context_id else None
        if known is not None:
            if known.row.language != request.language:
                raise Conflict(f"context {context_id} is one of {known.row.language}", next_step="choose another id")
            if known.reason is None:
                await known.until_ready()
            return known
        context = table.add(request, context_id or f"k-{secrets.token_hex(6)}")
        try:
            await self._begin(context)
        except asyncio.CancelledError:
            if request.context_id is None:
                context.end("nobody waited for it")
                table.remove(context)
            raise
        except SandlotError:
            table.remove(context)
            raise
        return context

    async def _begin(self, context: Context) -> None:
        try:
            await asyncio.to_thread(context.write_row)
        except OSError as error:
            raise Unavailable(f"a context cannot be kept: {error.strerror}") from error
        context.begin()
        await context.until_ready()

    async def contexts(self, session_id: str) -> Sequence[CodeContext]:
        return tuple(context.told() for context in self._table(session_id).all() if context.was_ready)

    async def interrupt_context(self, session_id: str, context_id: str) -> bool:
        return self._table(session_id).find(check_id("context", context_id)).queue.interrupt()

    async def restart_context(self, session_id: str, context_id: str) -> CodeContext:
        check_id("context", context_id)
        context = (await self._usable(session_id)).find(context_id)
        return (await self._restart(context)).told()

    async def _restart(self, context: Context, *, unless_alive: bool = False) -> Context:
        async with context.restarting:
            if unless_alive and context.reason is None:
                return context  # someone else was quicker
            context.end("it was restarted")
            await context.until_ended()
            context.again()
            await self._begin(context)
        return context

    async def delete_context(self, session_id: str, context_id: str) -> None:
        table = self._table(session_id)
        context = table.find(check_id("context", context_id))
        context.end("it was deleted")
        await context.until_ended()
        table.remove(context)

    # ---- runs ------------------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def run_code(self, request: CodeRequest) -> AsyncGenerator[CodeStream]:
        execution_id = request.execution_id or new_call_id()
        known = self._table(request.session_id).run(execution_id)
        if known is None:
            context = await self._context_for(request)
            known = self._table(request.session_id).run(execution_id)  # another request with it may have been quicker
        else:
            context = known[0]
        if known is not None:
            yield _Stream(*known)
            return
        session = self._find(request.session_id)
        execution = await context.queue.ask(request, execution_id)
        if request.detach:
            yield _Stream(context, execution)
            return
        session.attended += 1
        try:
            yield _Stream(context, execution)
        finally:
            session.attended -= 1
            if not execution.is_over:
                context.queue.leave(execution)
                await self._left(context, execution)

    async def _left(self, context: Context, execution: Execution) -> None:
        """In a paused session it ends when that is resumed."""
        with suppress(SandlotError, TimeoutError):
            async with asyncio.timeout(0 if context.is_held else _LEAVE_S):
                while not execution.is_over:
                    context.check_left()
                    await context.changed()

    async def _context_for(self, request: CodeRequest) -> Context:
        if request.context_id is not None:
            return (await self._usable(request.session_id)).find(request.context_id)
        language = request.language or PYTHON
        wanted = ContextRequest(request.session_id, language)
        context = await self._context(wanted, f"default-{language}")
        if context.reason is not None:  # whoever ran something in it was told so
            await self._restart(context, unless_alive=True)
        return context

    @asynccontextmanager
    async def attach_code(self, session_id: str, execution_id: str) -> AsyncGenerator[CodeStream]:
        found = self._table(session_id).run(check_id("execution", execution_id))
        if found is None:
            raise NotFound(
                f"session {session_id} has no run of code {execution_id}",
                next_step="it may be kept no longer",
                execution_id=execution_id,
            )
        yield _Stream(*found)
