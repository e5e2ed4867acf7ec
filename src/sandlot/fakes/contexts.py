"""Contexts of the fake: Python in this process, statement by statement, so that a test can wait in one and interrupt
it. There are no other languages, no files and no processes below them."""

import ast
import asyncio
import builtins
import io
import time
import traceback
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from sandlot.model import (
    PYTHON,
    CodeContext,
    CodeError,
    CodeEvent,
    CodeOutput,
    CodeRequest,
    CodeResult,
    CodeStarted,
    CodeStatus,
    CodeValue,
    ContextState,
    Stream,
)

_PAUSE_POLL_S = 0.01


class _Exit(BaseException):
    """Its program ends."""


class FakeRun:
    def __init__(self, request: CodeRequest, execution_id: str, context: "FakeContext") -> None:
        self.request = request
        self.execution_id = execution_id
        self.context = context
        self.events: list[CodeEvent] = []
        self.task: asyncio.Task[None] | None = None
        self.timed_out = False
        self._printed = 0
        self._truncated = False
        self._began = 0.0
        self._news = asyncio.Event()

    @property
    def is_over(self) -> bool:
        return bool(self.events) and isinstance(self.events[-1], CodeResult)

    def tell(self, event: CodeEvent) -> None:
        if self.is_over:
            return  # it was lost meanwhile
        self.events.append(event)
        news, self._news = self._news, asyncio.Event()
        news.set()

    def begin(self) -> None:
        self._began = time.monotonic()
        self.context.count += 1
        self.tell(CodeStarted(self.execution_id, self.context.context_id, self.context.count))

    def print(self, stream: Stream, text: str) -> None:
        room = self.request.output_bytes_max - self._printed
        kept = text.encode()[: max(0, room)].decode(errors="ignore")
        self._truncated = self._truncated or kept != text
        self._printed += len(text.encode())
        if kept:
            self.tell(CodeOutput(stream, kept))

    def end(self, status: CodeStatus, reason: str = "") -> None:
        if not self.is_over:
            status = CodeStatus.TIMEOUT if self.timed_out and status is CodeStatus.INTERRUPTED else status
            ids = self.execution_id, self.context.context_id
            lived_s = time.monotonic() - self._began if self._began else 0.0
            self.tell(CodeResult(*ids, self.context.count, status, lived_s, self._truncated, reason))

    async def __aiter__(self) -> AsyncIterator[CodeEvent]:
        at = 0
        while True:
            news = self._news
            while at < len(self.events):
                at += 1
                yield self.events[at - 1]
            if self.is_over:
                return
            await news.wait()

    async def result(self) -> CodeResult:
        async for event in self:
            if isinstance(event, CodeResult):
                return event
        raise AssertionError("a run ends with its result")


@dataclass(eq=False)
class FakeContext:
    session_id: str
    gate: asyncio.Event  # shut while its session stands still
    context_id: str
    cwd: str
    envs: dict[str, str]
    started: float = field(default_factory=time.time)
    count: int = 0
    reason: str | None = None
    waiting: list[FakeRun] = field(default_factory=list[FakeRun])
    runs: dict[str, FakeRun] = field(default_factory=dict[str, FakeRun])
    current: FakeRun | None = None
    names: dict[str, Any] = field(default_factory=dict[str, Any])

    def told(self) -> CodeContext:
        state = ContextState.BUSY if self.current or self.waiting else ContextState.IDLE
        state = state if self.reason is None else ContextState.LOST
        place = self.session_id, self.context_id, PYTHON, self.cwd
        return CodeContext(*place, state, self.started, self.count, self.reason or "")

    def pump(self) -> None:
        if self.current is None and self.waiting and self.reason is None:
            self.current = self.waiting.pop(0)
            self.current.task = asyncio.create_task(self._run(self.current))

    async def _run(self, run: FakeRun) -> None:
        if not self.gate.is_set():
            await self.gate.wait()
        run.begin()
        timer = asyncio.create_task(self._watch(run))
        envs = self.envs | dict(run.request.envs)
        try:
            await self._execute(run, envs)
            run.end(CodeStatus.OK)
        except asyncio.CancelledError:
            run.tell(CodeError("KeyboardInterrupt", "", "KeyboardInterrupt"))
            run.end(CodeStatus.INTERRUPTED)
        except _Exit as ended:
            self.lose(f"its program ended with {ended}")
        except BaseException as error:  # noqa: BLE001 - whatever code of others raises
            told = "".join(traceback.format_exception_only(error))
            run.tell(CodeError(type(error).__name__, str(error), told))
            run.end(CodeStatus.ERROR)
        finally:
            timer.cancel()
            if self.current is run:
                self.current = None
            self.pump()

    async def _watch(self, run: FakeRun) -> None:
        if run.request.timeout_s is None:
            return
        left_s = run.request.timeout_s
        while left_s > 0:
            step_s = min(left_s, _PAUSE_POLL_S)
            await asyncio.sleep(step_s)
            left_s -= step_s if self.gate.is_set() else 0
        run.timed_out = True
        if run.task is not None:
            run.task.cancel()

    async def _execute(self, run: FakeRun, envs: dict[str, str]) -> None:
        self.names.update(self._world(run, envs))
        tree = ast.parse(run.request.code, f"<cell {self.count}>")
        for at, statement in enumerate(tree.body):
            await self.gate.wait()
            await asyncio.sleep(0)
            if (waits := _waiting(statement)) is not None:
                await self._wait(waits)
            elif isinstance(statement, ast.Expr):
                value: Any = eval(compile(ast.Expression(statement.value), "<cell>", "eval"), self.names)
                if at == len(tree.body) - 1 and value is not None:
                    run.tell(CodeValue(_forms(value), is_main=True))
            elif not isinstance(statement, ast.Import):
                exec(compile(ast.Module([statement], []), "<cell>", "exec"), self.names)

    async def _wait(self, seconds: float) -> None:
        """Not while its session stands still."""
        while seconds > 0:
            await asyncio.sleep(min(_PAUSE_POLL_S, seconds))
            seconds -= _PAUSE_POLL_S if self.gate.is_set() else 0

    def _world(self, run: FakeRun, envs: dict[str, str]) -> dict[str, Any]:
        def leave(code: int) -> None:
            raise _Exit(code)

        def say(*values: object, file: object = None, **how: Any) -> None:
            out = io.StringIO()
            builtins.print(*values, file=out, **how)
            run.print(Stream.STDERR if file == "stderr" else Stream.STDOUT, out.getvalue())

        def refuse(*_given: object) -> None:
            raise PermissionError("code of the fake has no files")

        def display(value: Any, raw: bool = False) -> None:
            run.tell(CodeValue(dict(value) if raw else _forms(value)))

        return {
            "print": say,
            "display": display,
            "open": refuse,
            "time": SimpleNamespace(time=time.time),
            "sys": SimpleNamespace(stderr="stderr", stdout="stdout"),
            "os": SimpleNamespace(_exit=leave, getcwd=lambda: self.cwd, environ=envs),
        }

    def lose(self, reason: str) -> None:
        self.reason = reason
        current, waiting = self.current, self.waiting
        self.current, self.waiting = None, []
        for run in [*filter(None, [current]), *waiting]:
            run.end(CodeStatus.LOST, reason)
            if run.task is not None and run.task is not asyncio.current_task():
                run.task.cancel()

    def leave(self, run: FakeRun) -> None:
        if run in self.waiting:
            self.waiting.remove(run)
            run.end(CodeStatus.INTERRUPTED)
        elif run.task is not None and not run.is_over:
            run.task.cancel()


def _waiting(statement: ast.stmt) -> float | None:
    """How long a statement waits, when that is all that it does."""
    if isinstance(statement, ast.While) and isinstance(statement.test, ast.Constant) and statement.test.value:
        return float("inf")
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
        call = statement.value
        if ast.unparse(call.func) == "time.sleep" and isinstance(call.args[0], ast.Constant):
            return float(str(call.args[0].value))
    return None


def _forms(value: Any) -> dict[str, str]:
    html = getattr(value, "_repr_html_", None)
    return {"text/plain": repr(value), **({"text/html": html()} if html else {})}
