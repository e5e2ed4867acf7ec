"""The verbs of code, of the fake."""

import asyncio
import secrets
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager, suppress

from sandlot.fakes.contexts import FakeContext, FakeRun
from sandlot.fakes.session import FakeSession
from sandlot.fakes.tree import WORKSPACE
from sandlot.model import (
    PYTHON,
    CapabilityNotSupported,
    CodeContext,
    CodeRequest,
    Conflict,
    ContextRequest,
    InvalidState,
    LimitReached,
    NotFound,
    SessionNotFound,
    SessionState,
    check_id,
    limits,
    new_call_id,
)


class FakeCode:
    def __init__(self, find: Callable[[str], FakeSession]) -> None:
        self._find = find

    def _context(self, session_id: str, context_id: str) -> FakeContext:
        found = self._find(session_id).contexts.get(check_id("context", context_id))
        if found is None:
            raise NotFound(f"session {session_id} has no context {context_id}", context_id=context_id)
        return found

    def _run_of(self, session_id: str, execution_id: str) -> FakeRun | None:
        contexts = self._find(session_id).contexts.values()
        return next((each.runs[execution_id] for each in contexts if execution_id in each.runs), None)

    async def create_context(self, request: ContextRequest) -> CodeContext:
        return self._made(request, request.context_id or f"k-{secrets.token_hex(6)}").told()

    def _made(self, request: ContextRequest, context_id: str) -> FakeContext:
        session = self._find(request.session_id)
        session.check_use()
        if request.language != PYTHON:
            raise CapabilityNotSupported(f"the fake runs no {request.language}", next_step="use python")
        if request.user is not None:
            raise CapabilityNotSupported("the fake has no users", next_step="leave the user out")
        if (known := session.contexts.get(context_id)) is not None:
            return known
        if sum(each.reason is None for each in session.contexts.values()) >= limits.CONTEXTS_MAX:
            raise LimitReached(f"a session has {limits.CONTEXTS_MAX} contexts at most", limit="contexts")
        cwd = f"{WORKSPACE}/{request.cwd}" if request.cwd and not request.cwd.startswith("/") else request.cwd
        context = FakeContext(request.session_id, session.gate, context_id, cwd or WORKSPACE, dict(request.envs))
        session.contexts[context_id] = context
        return context

    async def contexts(self, session_id: str) -> Sequence[CodeContext]:
        return tuple(each.told() for each in self._find(session_id).contexts.values())

    async def interrupt_context(self, session_id: str, context_id: str) -> bool:
        current = self._context(session_id, context_id).current
        if current is None or current.task is None:
            return False
        current.task.cancel()
        return True

    async def restart_context(self, session_id: str, context_id: str) -> CodeContext:
        context = self._context(session_id, context_id)
        self._find(session_id).check_use()
        context.lose("it was restarted")
        context.reason, context.count, context.names, context.started = None, 0, {}, time.time()
        return context.told()

    async def delete_context(self, session_id: str, context_id: str) -> None:
        self._context(session_id, context_id).lose("it was deleted")
        del self._find(session_id).contexts[context_id]

    @asynccontextmanager
    async def run_code(self, request: CodeRequest) -> AsyncGenerator[FakeRun]:
        execution_id = request.execution_id or new_call_id()
        if (known := self._run_of(request.session_id, execution_id)) is not None:
            yield known
            return
        self._find(request.session_id).check_use()
        run = self._begun(request, execution_id)
        try:
            yield run
        finally:
            if not request.detach and not run.is_over:
                run.context.leave(run)
                with suppress(TimeoutError, SessionNotFound):
                    if self._find(request.session_id).state is SessionState.ACTIVE:
                        await asyncio.wait_for(run.result(), limits.CODE_INTERRUPT_S)

    def _begun(self, request: CodeRequest, execution_id: str) -> FakeRun:
        if request.context_id is not None:
            context = self._context(request.session_id, request.context_id)
            if context.reason is not None:
                raise InvalidState(f"context {context.context_id} is lost: {context.reason}", next_step="restart it")
        else:
            language = request.language or PYTHON
            context = self._made(ContextRequest(request.session_id, language), f"default-{language}")
            if context.reason is not None:
                context.reason, context.count, context.names = None, 0, {}
        if len(context.waiting) >= limits.CODE_WAITING_MAX:
            raise LimitReached(f"{limits.CODE_WAITING_MAX} runs wait already", limit="code_waiting")
        if execution_id in context.runs:
            raise Conflict(f"run {execution_id} is there")
        run = context.runs[execution_id] = FakeRun(request, execution_id, context)
        context.waiting.append(run)
        context.pump()
        return run

    @asynccontextmanager
    async def attach_code(self, session_id: str, execution_id: str) -> AsyncGenerator[FakeRun]:
        found = self._run_of(session_id, check_id("execution", execution_id))
        if found is None:
            raise NotFound(f"session {session_id} has no run of code {execution_id}", execution_id=execution_id)
        yield found
