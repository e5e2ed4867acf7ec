"""Calls of tools: each is done once, whoever asks how often, and is told to all who ask.

A contained tool is a call of the session, and everything that holds for calls holds for it. A direct one is done here,
in a task of its own, and recorded among the calls. One that changes files and may be asked for again, because it has a
call id, is recorded before it begins and before it is told: if the engine dies between, nobody does it a second time.
"""

import asyncio
import codecs
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary

from sandlot.contracts.host import CallStream, Host
from sandlot.contracts.tool_stream import ToolStream
from sandlot.contracts.tools import CustomTool, ToolSetting
from sandlot.host.calls import LiveCall
from sandlot.host.journal import CallRow
from sandlot.host.output import OutputLog
from sandlot.host.session import Session
from sandlot.host.tool_rows import ToolRows, is_tool, told_again, words_of
from sandlot.host.turns import Turns
from sandlot.model import (
    CallNotFound,
    CallOutput,
    CallRequest,
    CallResult,
    CallState,
    Conflict,
    DeadlineExceeded,
    InvalidArgument,
    LimitReached,
    SandlotError,
    Stream,
    TextBlock,
    Tool,
    ToolEvent,
    ToolProblem,
    ToolProgress,
    ToolRequest,
    ToolResult,
    Unavailable,
    limits,
    new_call_id,
)
from sandlot.tools.arguments import check_arguments
from sandlot.tools.contained.command import Command, ContainedTool, Listening
from sandlot.tools.direct.hands import DirectTool
from sandlot.tools.outcome import ANSWERS, Outcome
from sandlot.tools.toolbox import Entry, toolbox

_SAID_MAX = 1000
_RECORD_S = 10.0


@dataclass
class _Doing:
    """A direct call under way."""

    call_id: str
    task: "asyncio.Task[ToolResult]" = field(init=False)
    is_cancelled: bool = False  # by someone who asked for that
    said: list[ToolProgress] = field(default_factory=list[ToolProgress])
    readers: int = 0
    listeners: list["asyncio.Future[None]"] = field(default_factory=list["asyncio.Future[None]"])

    def say(self, text: str) -> None:
        if len(self.said) < _SAID_MAX:
            self.said.append(ToolProgress(Stream.STDOUT, text))
        self.wake()

    def wake(self, _task: object = None) -> None:
        listeners, self.listeners = self.listeners, []
        for listener in listeners:
            if not listener.done():
                listener.set_result(None)


class _DoingStream:
    def __init__(self, doing: _Doing) -> None:
        self._doing = doing
        self.call_id = doing.call_id

    async def __aiter__(self) -> AsyncIterator[ToolEvent]:
        doing, at = self._doing, 0
        while True:
            while at < len(doing.said):
                at += 1
                yield doing.said[at - 1]
            if doing.task.done():
                yield await self.result()
                return
            listener: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            doing.listeners.append(listener)
            await listener

    async def result(self) -> ToolResult:
        await asyncio.wait([self._doing.task])
        if self._doing.task.cancelled():
            raise Unavailable("the engine is closing", next_step="call it again when an engine is there")
        return self._doing.task.result()


@dataclass(frozen=True, slots=True)
class _ToldStream:
    """One that has ended."""

    told: ToolResult

    @property
    def call_id(self) -> str:
        return self.told.call_id

    async def __aiter__(self) -> AsyncIterator[ToolEvent]:
        yield self.told

    async def result(self) -> ToolResult:
        return self.told


class _ContainedStream:
    """A command, told as its tool tells it."""

    def __init__(self, stream: CallStream, entry: ContainedTool, command: Command, live: LiveCall | None) -> None:
        self._stream = stream
        self._live = live  # one that can be asked for again: it is told when it will be told in the same words
        self._entry = entry
        self._command = command
        self.call_id = stream.call_id

    async def __aiter__(self) -> AsyncIterator[ToolEvent]:
        heard = Listening(self._command.bytes_max)
        decoders = {stream: codecs.getincrementaldecoder("utf-8")(errors="replace") for stream in Stream}
        async for event in self._stream:
            if isinstance(event, CallOutput):
                heard.add(event.stream, event.data)
                if text := decoders[event.stream].decode(event.data):
                    yield ToolProgress(event.stream, text)
            elif isinstance(event, CallResult):
                if self._live:
                    with suppress(TimeoutError):  # a disk that is full: what was done is told all the same
                        async with asyncio.timeout(_RECORD_S):
                            await self._live.recorded()
                yield self._told(heard, event)

    async def result(self) -> ToolResult:
        async for event in self:
            if isinstance(event, ToolResult):
                return event
        raise Unavailable(f"call {self.call_id} ended without a result", call_id=self.call_id)

    def _told(self, heard: Listening, result: CallResult) -> ToolResult:
        outcome = self._entry.tell(heard.end(result))
        return outcome.result(self._entry.tool, self.call_id, result.duration_s, result.snapshot)


class ToolCalls:
    def __init__(
        self, host: Host, find: Callable[[str], Session], rows: ToolRows, turns: Turns, timeout_s_max: float
    ) -> None:
        self._host = host
        self._timeout_s_max = timeout_s_max or limits.CALL_TIMEOUT_S_MAX
        self._find = find
        self._rows = rows
        self._turns = turns
        self._own: tuple[CustomTool, ...] = ()
        self._box = toolbox()
        self._doing: dict[tuple[str, str], _Doing] = {}
        self._alone: WeakKeyDictionary[Session, asyncio.Lock] = WeakKeyDictionary()

    def add(self, own: Iterable[CustomTool]) -> None:
        """Tools of a user of the library; those that are there already are left. Raises InvalidArgument for a name that
        another one has."""
        self._own = (*self._own, *(each for each in own if each not in self._own))
        self._box = toolbox(self._own)

    async def catalogue(self) -> Sequence[Tool]:
        return [entry.tool for entry in self._box.values()]

    async def close(self) -> None:
        """What is under way is broken off; whoever waits is told."""
        tasks = [doing.task for doing in self._doing.values()]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=limits.KILL_DEADLINE_S)

    @asynccontextmanager
    async def execute(self, request: ToolRequest) -> AsyncGenerator[ToolStream]:
        session = self._find(request.session_id)
        entry = self._entry(request.tool)
        known = await self._known(session, entry, request.call_id)
        if isinstance(known, ToolResult):
            yield _ToldStream(known)
            return
        if known is not None:
            async with self._attending(known) as stream:
                yield stream
            return
        try:
            opened = self._opened(session, entry, request)
        except ToolProblem as problem:
            yield _ToldStream(Outcome.of_problem(problem).result(entry.tool, request.call_id or new_call_id()))
            return
        async with opened as stream:
            yield stream

    def _opened(self, session: Session, entry: Entry, request: ToolRequest) -> AbstractAsyncContextManager[ToolStream]:
        """Raises ToolProblem; then nothing has begun."""
        arguments = check_arguments(request.tool, entry.tool.parameters, request.arguments)
        if isinstance(entry, ContainedTool):
            command = entry.plan(arguments)
            return self._contained(session, entry, command, _call(command, request, self._timeout_s_max))
        return self._attending(self._begin(session, entry, request, arguments))

    @asynccontextmanager
    async def _contained(
        self, session: Session, entry: ContainedTool, command: Command, call: CallRequest
    ) -> AsyncGenerator[ToolStream]:
        async with self._host.call(call) as stream:
            live = session.live.get(call.call_id) if call.call_id else None
            if live:
                live.is_record_awaited = True
            yield _ContainedStream(stream, entry, command, live)

    async def cancel(self, session_id: str, call_id: str) -> bool:
        session = self._find(session_id)
        doing = self._doing.get((session.row.session_id, call_id))
        if doing is not None:
            doing.is_cancelled = True
            return doing.task.cancel()
        live = session.live.get(call_id)
        if live is None:
            if await self._rows.find(session_id, call_id) is None:
                raise CallNotFound(f"session {session_id} has no call {call_id}", call_id=call_id)
            return False
        live.terminate()
        return live.result is None

    def _entry(self, name: str) -> Entry:
        entry = self._box.get(name)
        if entry is None:
            raise InvalidArgument(f"there is no tool {name!r}", next_step=f"use one of: {', '.join(self._box)}")
        return entry

    # ---- calls that came before --------------------------------------------------------------------------------

    async def _known(self, session: Session, entry: Entry, call_id: str | None) -> _Doing | ToolResult | None:
        if call_id is None:
            return None
        key = (session.row.session_id, call_id)
        if key not in self._doing:
            row = await self._rows.find(*key)
            if row is not None and is_tool(row.record):
                return await self._told(session, row)
            if isinstance(entry, DirectTool) and (row is not None or call_id in session.live):
                raise _taken(call_id)
        return self._doing.get(key)

    async def _told(self, session: Session, row: CallRow) -> ToolResult:
        call_id = row.record.call_id
        if row.record.state is not CallState.ENDED:
            raise Unavailable(
                f"the engine ended during call {call_id}, and whether it was done is not known",
                next_step="look at the files, and call again with another id",
                call_id=call_id,
            )
        log = OutputLog(lambda: session.output_path(row.process_id))
        await asyncio.to_thread(log.restore, row.output)
        told = await asyncio.to_thread(told_again, log, call_id)
        log.close()
        if told is None:
            raise Unavailable(
                f"call {call_id} was done, and what it gave is not kept any more",
                next_step="call again with another id",
                call_id=call_id,
            )
        return told

    # ---- direct calls ------------------------------------------------------------------------------------------

    def _begin(
        self, session: Session, entry: DirectTool[ToolSetting], request: ToolRequest, arguments: Mapping[str, Any]
    ) -> _Doing:
        key = (session.row.session_id, request.call_id or new_call_id())
        if key in self._doing:  # it began while we looked
            return self._doing[key]
        doing = _Doing(key[1])
        setting = ToolSetting(self._host, key[0], request.user, key[1], doing.say)
        work = self._do(session, entry, request, setting, arguments, doing)
        doing.task = asyncio.create_task(work, name=f"tool {key[1]}")
        doing.task.add_done_callback(doing.wake)
        doing.task.add_done_callback(lambda _task: self._doing.pop(key, None))
        self._doing[key] = doing
        return doing

    @asynccontextmanager
    async def _attending(self, doing: _Doing) -> AsyncGenerator[ToolStream]:
        doing.readers += 1
        try:
            yield _DoingStream(doing)
        finally:
            doing.readers -= 1
            if not doing.readers and not doing.task.done():
                doing.task.cancel()
                await asyncio.wait([doing.task], timeout=limits.KILL_DEADLINE_S)

    async def _do(
        self,
        session: Session,
        entry: DirectTool[ToolSetting],
        request: ToolRequest,
        setting: ToolSetting,
        arguments: Mapping[str, Any],
        doing: _Doing,
    ) -> ToolResult:
        started, began, words = time.time(), time.perf_counter(), words_of(request)
        session.last_process_id += 1
        number = session.last_process_id
        once = request.call_id is not None and entry.tool.changes
        if once and not await self._rows.start(session, number, setting.call_id, started, words):
            return await self._done_meanwhile(session, setting.call_id)
        try:
            outcome = await self._outcome(session, entry, self._allowed(request), setting, arguments)
        except asyncio.CancelledError:
            if not doing.is_cancelled:
                raise
            outcome = Outcome((TextBlock("it was cancelled"),), is_error=True)
        except DeadlineExceeded:  # nobody knows what became of it
            raise
        except SandlotError:  # nothing was done, then raised again
            if once:
                await self._rows.give_up(session, number)
            raise
        snapshot = None
        if session.call_snapshots and entry.tool.changes:
            snapshot = await self._turns.snapshot_call(session, setting.call_id)
        result = outcome.result(entry.tool, setting.call_id, time.perf_counter() - began, snapshot)
        await self._rows.end(session, number, started, words, result, keep=request.call_id is not None)
        return result

    async def _done_meanwhile(self, session: Session, call_id: str) -> ToolResult:
        """By another one with the same id, who came and went while we looked for it."""
        row = await self._rows.find(session.row.session_id, call_id)
        if row is None or not is_tool(row.record):
            raise _taken(call_id)
        return await self._told(session, row)

    def _allowed(self, request: ToolRequest) -> float:
        return min(request.timeout_s or limits.TOOL_TIMEOUT_S, self._timeout_s_max)

    async def _outcome(
        self,
        session: Session,
        entry: DirectTool[ToolSetting],
        timeout_s: float,
        setting: ToolSetting,
        arguments: Mapping[str, Any],
    ) -> Outcome:
        try:
            async with asyncio.timeout(timeout_s):
                if not entry.tool.changes:
                    return await entry.run(setting, arguments)
                async with self._alone.setdefault(session, asyncio.Lock()):
                    return await entry.run(setting, arguments)
        except ToolProblem as problem:
            return Outcome.of_problem(problem)
        except DeadlineExceeded:  # is a TimeoutError too, but of what is below the tool
            raise
        except TimeoutError:
            return Outcome.of_timeout(timeout_s)
        except ANSWERS as error:
            return Outcome.of_answer(error)


def _taken(call_id: str) -> Conflict:
    return Conflict(f"call {call_id} is a command", next_step="give the tool's call an id of its own", call_id=call_id)


def _call(command: Command, request: ToolRequest, timeout_s_max: float) -> CallRequest:
    """Raises ToolProblem."""
    timeout_s = min(command.timeout_s, timeout_s_max if request.timeout_s is None else request.timeout_s, timeout_s_max)
    try:
        return CallRequest(
            request.session_id,
            command.argv,
            envs=command.envs,
            user=request.user,
            timeout_s=timeout_s,
            call_id=request.call_id,
            resources=request.resources,
        )
    except (InvalidArgument, LimitReached) as error:
        raise ToolProblem(error.message) from error
