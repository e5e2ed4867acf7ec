"""Calls of tools where no host does them: the catalogue of Sandlot, on files and commands that an environment gives.

Each call is done once, whoever asks how often, and ends when nobody waits for it any more. What is known of calls is
known to this process alone.
"""

import asyncio
import codecs
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from sandlot.contracts import Heard, OnProgress
from sandlot.contracts.tools import FileSetting, ToolFiles
from sandlot.environments.progress import tell
from sandlot.model import (
    CallResult,
    InvalidArgument,
    SandlotError,
    SessionDestroying,
    Stream,
    Tool,
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
from sandlot.tools.toolbox import BUILT_IN

Run = Callable[[Command, ToolRequest, Heard], Awaitable[CallResult]]
_SAID_MAX = 64  # pieces that wait for a listener

Entry = DirectTool[FileSetting] | ContainedTool
CATALOGUE: Mapping[str, Entry] = {entry.tool.name: entry for entry in BUILT_IN}


@dataclass(frozen=True, slots=True)
class _Setting:
    host: ToolFiles
    session_id: str
    user: str | None


@dataclass(eq=False)
class _Doing:
    """One call. Who hears what it says is whoever came first, as long as he is there."""

    said: "asyncio.Queue[ToolProgress] | None"
    task: "asyncio.Task[ToolResult]" = field(init=False)
    readers: int = 0

    def deaf(self) -> None:
        """Nobody hears it any more, and it waits for nobody."""
        said, self.said = self.said, None
        while said is not None and not said.empty():
            said.get_nowait()


def catalogue() -> Sequence[Tool]:
    return [entry.tool for entry in CATALOGUE.values()]


class ToolCalls:
    """Those of one session."""

    def __init__(self, session_id: str, files: ToolFiles, run: Run) -> None:
        self._session_id = session_id
        self._files = files
        self._run = run
        self._known: OrderedDict[str, _Doing] = OrderedDict()
        self._doing: set[_Doing] = set()
        self._alone = asyncio.Lock()
        self._is_over = False

    async def end(self) -> None:
        """The session is: whatever runs is ended, and whoever waits is told."""
        self._is_over = True
        tasks = [doing.task for doing in self._doing]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=limits.KILL_DEADLINE_S)

    async def execute(self, request: ToolRequest, on_progress: OnProgress | None = None) -> ToolResult:
        if request.session_id != self._session_id:
            raise InvalidArgument(
                f"this environment is session {self._session_id}, and the request is for {request.session_id}",
                next_step="give it to the environment of that session",
            )
        entry = CATALOGUE.get(request.tool)
        if entry is None:
            names = ", ".join(CATALOGUE)
            raise InvalidArgument(f"there is no tool {request.tool!r}", next_step=f"use one of: {names}")
        known = self._known.get(request.call_id or "")
        doing = known or self._begin(entry, request, is_heard=on_progress is not None)
        doing.readers += 1
        try:
            if known is None and on_progress is not None:
                await _listen(doing, on_progress)
            await asyncio.wait([doing.task])
        finally:
            doing.readers -= 1
            if known is None:
                doing.deaf()
            if not doing.readers and not doing.task.done():
                doing.task.cancel()
                await asyncio.wait([doing.task], timeout=limits.KILL_DEADLINE_S)
        if doing.task.cancelled():
            if self._is_over:
                raise SessionDestroying(f"session {self._session_id} was destroyed meanwhile")
            raise Unavailable(
                "the call was given up by whoever made it", next_step="look what it did, and call with another id"
            )
        return doing.task.result()

    def _begin(self, entry: Entry, request: ToolRequest, *, is_heard: bool) -> _Doing:
        doing = _Doing(asyncio.Queue(_SAID_MAX) if is_heard else None)
        call_id = request.call_id or new_call_id()
        doing.task = asyncio.create_task(self._do(entry, call_id, request, doing), name=f"tool {call_id}")
        self._doing.add(doing)
        doing.task.add_done_callback(lambda task: task.cancelled() or task.exception())  # nobody may wait any more
        doing.task.add_done_callback(lambda _task: self._doing.discard(doing))
        if request.call_id is not None:
            self._known[request.call_id] = doing
            while len(self._known) > limits.CALLS_KEPT:
                self._known.popitem(last=False)
        return doing

    async def _do(self, entry: Entry, call_id: str, request: ToolRequest, doing: _Doing) -> ToolResult:
        began = time.perf_counter()
        try:
            arguments = check_arguments(request.tool, entry.tool.parameters, request.arguments)
            if isinstance(entry, ContainedTool):
                return await self._contained(entry, call_id, request, arguments, doing)
            outcome = await self._direct(entry, request, arguments)
        except ToolProblem as problem:
            outcome = Outcome.of_problem(problem)
        except ANSWERS as error:
            outcome = Outcome.of_answer(error)
        return outcome.result(entry.tool, call_id, time.perf_counter() - began)

    async def _direct(
        self, entry: DirectTool[FileSetting], request: ToolRequest, arguments: Mapping[str, Any]
    ) -> Outcome:
        setting = _Setting(self._files, self._session_id, request.user)
        timeout_s = limits.TOOL_TIMEOUT_S if request.timeout_s is None else request.timeout_s
        try:
            async with asyncio.timeout(timeout_s):
                if not entry.tool.changes:
                    return await entry.run(setting, arguments)
                async with self._alone:  # what it read must be what it changes
                    return await entry.run(setting, arguments)
        except TimeoutError as error:
            if isinstance(error, SandlotError):  # of what is below the tool
                raise
            return Outcome.of_timeout(timeout_s)

    async def _contained(
        self, entry: ContainedTool, call_id: str, request: ToolRequest, arguments: Mapping[str, Any], doing: _Doing
    ) -> ToolResult:
        planned = entry.plan(arguments)
        timeout_s = planned.timeout_s if request.timeout_s is None else min(planned.timeout_s, request.timeout_s)
        command = Command(planned.argv, planned.envs, timeout_s, planned.bytes_max)
        listening = Listening(command.bytes_max)
        decoders = {stream: codecs.getincrementaldecoder("utf-8")(errors="replace") for stream in Stream}

        async def hear(stream: Stream, data: bytes) -> None:
            listening.add(stream, data)
            text = decoders[stream].decode(data)
            # It may become deaf while it waits: then the queue is emptied, and nobody looks into it again.
            if text and doing.said is not None:
                await doing.said.put(ToolProgress(stream, text))

        result = await self._run(command, request, hear)
        return entry.tell(listening.end(result)).result(entry.tool, call_id, result.duration_s)


async def _listen(doing: _Doing, on_progress: OnProgress) -> None:
    """Until the call has ended and all that it said was heard."""
    said = doing.said
    while said is not None:
        while not said.empty():
            await tell(on_progress, said.get_nowait())
        if doing.task.done():
            return
        getting = asyncio.ensure_future(said.get())
        try:
            await asyncio.wait([doing.task, getting], return_when=asyncio.FIRST_COMPLETED)
            if getting.done():
                await tell(on_progress, getting.result())
        finally:
            if not getting.done():
                getting.cancel()
                with suppress(asyncio.CancelledError):
                    await getting
