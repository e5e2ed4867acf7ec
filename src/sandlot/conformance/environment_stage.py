"""An environment with a session, where promises are tried out, and how checks are run on it."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from sandlot.conformance.checks import Broken, Check, Outcome, equal, judge
from sandlot.contracts import ExecutionEnvironment, OnProgress
from sandlot.model import (
    Capability,
    EnvironmentCapabilities,
    EnvironmentState,
    SandlotError,
    SessionSpec,
    ToolRequest,
    ToolResult,
)

Fresh = Callable[[], ExecutionEnvironment]  # another object of the same kind, without a session
DEADLINE_S = 60.0  # for a check; whoever waits for nothing is slower than that
AT_ONCE = 50


@dataclass(slots=True)
class EnvironmentStage:
    environment: ExecutionEnvironment  # it has a session that nobody else knows
    fresh: Fresh
    at_once: int = AT_ONCE
    made: list[ExecutionEnvironment] = field(default_factory=list[ExecutionEnvironment])

    def another(self) -> ExecutionEnvironment:
        """Without a session; what it makes goes with the stage."""
        found = self.fresh()
        self.made.append(found)
        return found

    @property
    def id(self) -> str:
        return session_of(self.environment)

    async def tool(self, name: str, /, on_progress: OnProgress | None = None, **arguments: Any) -> ToolResult:
        return await call(self.environment, name, on_progress, **arguments)

    async def sh(self, script: str) -> str:
        """Of a command that ends well: what it says."""
        result = await self.tool("bash", cmd=script)
        equal((result.exit_code, result.is_error), (0, False))
        return told(result)


def session_of(environment: ExecutionEnvironment) -> str:
    if environment.session_id is None:
        raise Broken("it has no session id")
    return environment.session_id


async def call(
    environment: ExecutionEnvironment,
    tool: str,
    on_progress: OnProgress | None = None,
    call_id: str | None = None,
    timeout_s: float | None = None,
    /,
    **arguments: Any,
) -> ToolResult:
    request = ToolRequest(session_of(environment), tool, arguments, call_id, timeout_s=timeout_s)
    return await environment.execute_tool(request, on_progress)


def told(result: ToolResult) -> str:
    """Without the last line, which tells how a command ended."""
    return result.text.rpartition("\nexit code")[0]


async def refuses(work: Awaitable[object], *kinds: type[SandlotError]) -> None:
    try:
        await work
    except kinds:
        return
    except SandlotError as error:
        raise Broken(f"{type(error).__name__} instead of {kinds[0].__name__}: {error}") from error
    raise Broken(f"{kinds[0].__name__} was expected, and nothing was raised")


async def is_state(environment: ExecutionEnvironment, wanted: EnvironmentState) -> None:
    equal(await environment.state(), wanted)


def abilities(told: EnvironmentCapabilities) -> frozenset[Capability]:
    """Those that decide which checks are run."""
    found = {Capability.PAUSE} if told.pause else set[Capability]()
    return frozenset(found | {Capability.SNAPSHOTS} if told.snapshots and told.rollback else found)


async def run_checks(
    fresh: Fresh,
    checks: Sequence[Check[EnvironmentStage]],
    deviations: Mapping[str, str] | None = None,
    *,
    at_once: int = AT_ONCE,
    deadline_s: float = DEADLINE_S,
) -> AsyncIterator[Outcome]:
    """Each check with an object and a session of its own. `fresh` makes an object without a session, of one and the
    same provider. Nothing is left of the checks."""

    async def attempt(check: Check[EnvironmentStage]) -> None:
        stage = EnvironmentStage(fresh(), fresh, at_once)
        try:
            async with asyncio.timeout(deadline_s):
                await stage.environment.create(SessionSpec())
                await check.run(stage)
        except TimeoutError as error:
            if isinstance(error, SandlotError):
                raise
            raise Broken(f"it took longer than {deadline_s:g} s") from error
        finally:
            for environment in (stage.environment, *stage.made):
                with suppress(SandlotError, TimeoutError):
                    async with asyncio.timeout(deadline_s):
                        await environment.destroy()

    try:
        have = await _declared(fresh, deadline_s)
    except (SandlotError, TimeoutError) as error:
        raise Broken(f"no session can be made, or it does not tell what it can do: {error!r}") from error
    async for outcome in judge(checks, deviations or {}, have, attempt):
        yield outcome


async def _declared(fresh: Fresh, deadline_s: float) -> frozenset[Capability]:
    """What a session of it can do is known when there is one."""
    environment = fresh()
    async with asyncio.timeout(deadline_s):
        await environment.create(SessionSpec())
        try:
            return abilities(await environment.capabilities())
        finally:
            await environment.destroy()
