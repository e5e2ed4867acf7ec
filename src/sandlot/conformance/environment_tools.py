"""The suite of tools, on an environment instead of a host: the same checks, and so the same answers wherever a model
works."""

from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import cast

from sandlot.conformance.checks import Broken, Check, Outcome, Stage, judge
from sandlot.conformance.environment_stage import Fresh, session_of
from sandlot.conformance.tools import TOOL_CHECKS
from sandlot.contracts import ExecutionEnvironment, Host
from sandlot.model import (
    CallEvent,
    CallOutput,
    CallRequest,
    CallResult,
    Capability,
    SandlotError,
    SessionInfo,
    SessionSpec,
    SessionState,
    Stream,
    ToolEvent,
    ToolProgress,
    ToolRequest,
    ToolResult,
)

_NOTHING = "(no output)"


@dataclass(frozen=True, slots=True)
class _Told:
    """What was said, and the result."""

    call_id: str
    events: Sequence[CallEvent]
    ended: CallResult

    async def __aiter__(self) -> AsyncIterator[CallEvent]:
        for event in self.events:
            yield event

    async def result(self) -> CallResult:
        return self.ended


class _Stream:
    """A call of a tool that is told as it goes on."""

    def __init__(self, environment: ExecutionEnvironment, request: ToolRequest) -> None:
        self._environment = environment
        self._request = request

    async def __aiter__(self) -> AsyncIterator[ToolEvent]:
        raise Broken("an environment tells progress by calling back")
        yield  # which makes it an iterator

    async def result(self) -> ToolResult:
        return await self._environment.execute_tool(self._request)


class _AsHost:
    """As much of a host as the checks of tools touch."""

    def __init__(self, environment: ExecutionEnvironment) -> None:
        self._environment = environment

    @asynccontextmanager
    async def execute_tool(self, request: ToolRequest) -> AsyncGenerator[_Stream]:
        yield _Stream(self._environment, request)

    @asynccontextmanager
    async def call(self, request: CallRequest) -> AsyncGenerator[_Told]:
        """A script of `sh`, which the checks use to set the stage and to look."""
        script = {"cmd": request.argv[-1]}
        heard = {Stream.STDOUT: "", Stream.STDERR: ""}

        def hear(said: ToolProgress) -> None:
            heard[said.stream] += said.text

        result = await self._environment.execute_tool(ToolRequest(request.session_id, "bash", script), hear)
        if not any(heard.values()):  # one that tells nothing while it works
            text = result.text.rpartition("\nexit code ")[0]
            heard[Stream.STDOUT], _, heard[Stream.STDERR] = text.removesuffix(_NOTHING).partition("STDERR:\n")
        events = [CallOutput(stream, 0, text.encode()) for stream, text in heard.items() if text]
        yield _Told("", events, CallResult("", -1 if result.exit_code is None else result.exit_code))


TOOLS_OF_ENVIRONMENTS = tuple(
    check for check in TOOL_CHECKS if not check.needs and check.name != "progress_streams_while_a_command_runs"
)


async def conform_environment_tools(
    fresh: Fresh, checks: Sequence[Check[Stage]] = TOOLS_OF_ENVIRONMENTS, deviations: Mapping[str, str] | None = None
) -> AsyncIterator[Outcome]:
    """Each check with an object and a session of its own. What needs snapshots is a host's; that progress is heard
    while a tool works is in the suite of environments."""

    async def attempt(check: Check[Stage]) -> None:
        environment = fresh()
        try:
            await environment.create(SessionSpec())
            session_id = session_of(environment)
            info = SessionInfo(session_id, SessionState.ACTIVE, "", 0.0, 0.0, {}, "", "", "", "")
            await check.run(Stage(cast("Host", _AsHost(environment)), "", info))
        finally:
            with suppress(SandlotError):
                await environment.destroy()

    have: frozenset[Capability] = frozenset()
    async for outcome in judge(checks, deviations or {}, have, attempt):
        yield outcome
