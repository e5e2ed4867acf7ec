"""An environment that breaks a promise is told by the check of that promise."""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace

import pytest

from sandlot.conformance import ENVIRONMENT_CHECKS, Verdict, conform_environment
from sandlot.contracts import ExecutionEnvironment, OnProgress
from sandlot.fakes.environment import FakeEnvironment, FakeProvider
from sandlot.model import (
    EnvironmentCapabilities,
    EnvironmentState,
    InvalidState,
    SandlotError,
    SessionNotFound,
    SessionSpec,
    Snapshot,
    SnapshotKind,
    Tool,
    ToolProgress,
    ToolRequest,
    ToolResult,
    Unavailable,
    new_session_id,
)

DEADLINE_S = 2.0  # of a check: some mutations hang


class Broken(FakeEnvironment):
    """Right in everything; each mutation is wrong in one thing."""

    def __init__(self, provider: FakeProvider) -> None:
        super().__init__(provider)
        self.provider = provider
        self.wrong_id: str | None = None

    def rebind(self, session_id: str | None) -> None:
        self._session_id = session_id


class RefusesBeforeSessionInOtherWords(Broken):
    async def pause(self) -> None:
        if self.session_id is None:
            raise Unavailable("nothing here")
        await super().pause()


class ForgetsTheIdAskedFor(Broken):
    async def create(self, spec: SessionSpec) -> str:
        return await super().create(replace(spec, session_id=None))


class TellsAnotherId(Broken):
    async def create(self, spec: SessionSpec) -> str:
        await super().create(spec)
        return new_session_id()


class TakesASecondSession(Broken):
    async def create(self, spec: SessionSpec) -> str:
        self.rebind(None)
        return await super().create(spec)


class MakesTwoAtOnce(Broken):
    async def create(self, spec: SessionSpec) -> str:
        if self.session_id is not None:
            raise InvalidState("it has one")
        made = self.provider.make(spec).session_id
        await asyncio.sleep(0)
        self.rebind(made)
        return made


class TakesAnIdThatIsTaken(Broken):
    async def create(self, spec: SessionSpec) -> str:
        if spec.session_id in self.provider.sessions:
            self.rebind(spec.session_id)
            return str(spec.session_id)
        return await super().create(spec)


class AttachesToAnything(Broken):
    async def attach_session(self, session_id: str) -> None:
        try:
            await super().attach_session(session_id)
        except SandlotError:
            self.rebind(session_id)


class AttachesToANewOne(Broken):
    async def attach_session(self, session_id: str) -> None:
        await super().attach_session(session_id)
        self.rebind(None)
        await super().create(SessionSpec())


class HasNoCommands(Broken):
    async def tools(self) -> Sequence[Tool]:
        return [tool for tool in await super().tools() if tool.name != "bash"]


class RaisesForAFailure(Broken):
    async def execute_tool(self, request: ToolRequest, on_progress: OnProgress | None = None) -> ToolResult:
        result = await super().execute_tool(request, on_progress)
        if result.exit_code == 7:
            raise Unavailable("the command failed")
        return result


class CallsEveryProblemAnError(Broken):
    async def execute_tool(self, request: ToolRequest, on_progress: OnProgress | None = None) -> ToolResult:
        result = await super().execute_tool(request, on_progress)
        if result.is_error and result.exit_code is None:
            raise Unavailable(result.text)
        return result


class DoesTheWorkOfOthers(Broken):
    async def execute_tool(self, request: ToolRequest, on_progress: OnProgress | None = None) -> ToolResult:
        if self.session_id:
            request = replace(request, session_id=self.session_id)
        return await super().execute_tool(request, on_progress)


class TellsProgressAtTheEnd(Broken):
    async def execute_tool(self, request: ToolRequest, on_progress: OnProgress | None = None) -> ToolResult:
        heard: list[ToolProgress] = []
        result = await super().execute_tool(request, heard.append)
        for said in heard if on_progress else ():
            answer = on_progress(said) if on_progress else None
            if asyncio.iscoroutine(answer):
                await answer
        return result


class OneCallAtATime(Broken):
    locks: "dict[str, asyncio.Lock]" = {}  # noqa: RUF012 - as a class that was written in a hurry has it

    async def execute_tool(self, request: ToolRequest, on_progress: OnProgress | None = None) -> ToolResult:
        async with self.locks.setdefault(request.session_id, asyncio.Lock()):
            return await super().execute_tool(request, on_progress)


class GoesOnWhenNobodyWaits(Broken):
    left: "set[asyncio.Task[ToolResult]]" = set()  # noqa: RUF012 - as a class that was written in a hurry has it

    async def execute_tool(self, request: ToolRequest, on_progress: OnProgress | None = None) -> ToolResult:
        task = asyncio.ensure_future(super().execute_tool(request, on_progress))
        self.left.add(task)
        return await asyncio.shield(task)


class SwallowsWhatListenersRaise(Broken):
    async def execute_tool(self, request: ToolRequest, on_progress: OnProgress | None = None) -> ToolResult:
        def quiet(said: ToolProgress) -> object:
            with suppress(Exception):
                return on_progress(said) if on_progress else None
            raise Unavailable("it was not heard")

        return await super().execute_tool(request, quiet)


class DoesItAgain(Broken):
    async def execute_tool(self, request: ToolRequest, on_progress: OnProgress | None = None) -> ToolResult:
        return await super().execute_tool(replace(request, call_id=None), on_progress)


class KnowsNoTimeLimit(Broken):
    async def execute_tool(self, request: ToolRequest, on_progress: OnProgress | None = None) -> ToolResult:
        return await super().execute_tool(replace(request, timeout_s=None), on_progress)


class PausesInNameOnly(Broken):
    async def execute_tool(self, request: ToolRequest, on_progress: OnProgress | None = None) -> ToolResult:
        paused = await self.state() is EnvironmentState.PAUSED
        if paused:
            await super().resume()
        try:
            return await super().execute_tool(request, on_progress)
        finally:
            if paused:
                await super().pause()


class RemembersTheState(Broken):
    async def state(self) -> EnvironmentState:
        true = await super().state()
        return EnvironmentState.ACTIVE if true is EnvironmentState.PAUSED else true


class PausesWhereItCannot(Broken):
    async def capabilities(self) -> EnvironmentCapabilities:
        return replace(await super().capabilities(), pause=False)


class SnapshotsWhereItCannot(Broken):
    async def capabilities(self) -> EnvironmentCapabilities:
        return replace(await super().capabilities(), snapshots=False)


class RollsNothingBack(Broken):
    async def rollback(self, snapshot: str) -> None:
        return


class FailsForAWrongTarget(Broken):
    async def rollback(self, snapshot: str) -> None:
        session_id = self.session_id
        try:
            await super().rollback(snapshot)
        except SandlotError:
            self.provider.remove(self.provider.find(str(session_id)))
            raise


class GivesANameTwice(Broken):
    async def create_snapshot(self, name: str) -> Snapshot:
        with suppress(SandlotError):
            return await super().create_snapshot(name)
        return Snapshot(str(self.session_id), name, SnapshotKind.NAMED, 0.0)


class DestroysOnlyOnce(Broken):
    async def destroy(self) -> None:
        if await self.state() is EnvironmentState.DESTROYED:
            raise SessionNotFound("it is gone")
        await super().destroy()


class DestroysInNameOnly(Broken):
    async def destroy(self) -> None:
        kept = dict(self.provider.sessions)
        await super().destroy()
        self.provider.sessions |= kept


class IsFailedWhenItIsGone(Broken):
    async def state(self) -> EnvironmentState:
        true = await super().state()
        gone = self.session_id is not None and self.session_id not in self.provider.sessions
        return EnvironmentState.FAILED if gone else true


class LetsCallsHang(Broken):
    async def execute_tool(self, request: ToolRequest, on_progress: OnProgress | None = None) -> ToolResult:
        session = self.provider.sessions.get(request.session_id)
        try:
            return await super().execute_tool(request, on_progress)
        finally:
            if session is not None and session.is_gone:
                await asyncio.sleep(DEADLINE_S * 2)


class LivesForEver(Broken):
    async def create(self, spec: SessionSpec) -> str:
        made = await super().create(spec)
        self.provider.sessions[made].ends += 1e9
        return made


class DeclaresLessThanItGives(Broken):
    async def capabilities(self) -> EnvironmentCapabilities:
        return replace(await super().capabilities(), max_session_duration_s=60.0)


class CountsNoSessions(Broken):
    async def capabilities(self) -> EnvironmentCapabilities:
        return replace(await super().capabilities(), concurrent_sessions=2)


MUTATIONS: tuple[tuple[type[Broken], str], ...] = (
    (RefusesBeforeSessionInOtherWords, "without_a_session_nothing_is_done"),
    (ForgetsTheIdAskedFor, "a_session_is_made_with_the_id_that_was_asked_for"),
    (TellsAnotherId, "a_session_is_made_with_the_id_that_was_asked_for"),
    (TakesASecondSession, "a_second_create_is_refused"),
    (MakesTwoAtOnce, "of_two_creates_at_once_one_is_refused"),
    (TakesAnIdThatIsTaken, "an_id_that_is_taken_is_refused"),
    (AttachesToAnything, "an_unknown_session_is_not_attached"),
    (AttachesToANewOne, "one_provisions_and_another_executes"),
    (HasNoCommands, "the_catalogue_has_what_agents_need"),
    (RaisesForAFailure, "a_command_that_fails_is_a_result"),
    (CallsEveryProblemAnError, "what_a_tool_cannot_do_is_a_result"),
    (DoesTheWorkOfOthers, "a_request_of_another_session_is_refused"),
    (TellsProgressAtTheEnd, "progress_is_heard_while_a_tool_works"),
    (OneCallAtATime, "calls_do_not_wait_for_each_other"),
    (GoesOnWhenNobodyWaits, "whoever_gives_up_ends_the_call"),
    (SwallowsWhatListenersRaise, "what_a_listener_raises_comes_out"),
    (DoesItAgain, "a_call_with_a_known_id_is_not_done_again"),
    (KnowsNoTimeLimit, "a_call_ends_at_its_time_limit"),
    (PausesInNameOnly, "a_paused_session_takes_no_tools"),
    (RemembersTheState, "the_state_follows_others"),
    (PausesWhereItCannot, "a_pause_that_cannot_be_is_refused"),
    (SnapshotsWhereItCannot, "snapshots_that_cannot_be_are_refused"),
    (RollsNothingBack, "files_go_back_to_a_snapshot"),
    (FailsForAWrongTarget, "a_wrong_target_changes_nothing"),
    (GivesANameTwice, "a_wrong_target_changes_nothing"),
    (DestroysOnlyOnce, "destroying_again_does_nothing"),
    (DestroysInNameOnly, "destroying_again_does_nothing"),
    (IsFailedWhenItIsGone, "a_session_that_others_destroyed_is_gone"),
    (LetsCallsHang, "destroying_ends_what_runs"),
    (LivesForEver, "a_life_ends_when_its_time_is_up"),
    (DeclaresLessThanItGives, "no_life_is_longer_than_declared"),
    (CountsNoSessions, "no_more_sessions_than_declared"),
)


@pytest.mark.parametrize(("mutation", "check"), MUTATIONS, ids=[kind.__name__ for kind, _check in MUTATIONS])
async def test_each_mutation_fails_its_own_check(mutation: type[Broken], check: str) -> None:
    provider = FakeProvider()
    make: Callable[[], ExecutionEnvironment] = lambda: mutation(provider)  # noqa: E731 - a name for its type
    chosen = [each for each in ENVIRONMENT_CHECKS if each.name == check]
    outcomes = [one async for one in conform_environment(make, chosen, at_once=8, deadline_s=DEADLINE_S)]
    assert [one.verdict for one in outcomes] == [Verdict.FAILED]
    for task in GoesOnWhenNobodyWaits.left:
        task.cancel()


async def test_without_a_mutation_every_one_of_these_checks_passes() -> None:
    """With the same short deadline: it is not the deadline that fails."""
    provider = FakeProvider()
    broken = {check for _kind, check in MUTATIONS}
    chosen = [check for check in ENVIRONMENT_CHECKS if check.name in broken]
    assert len(chosen) == len(broken)
    outcomes = [
        one async for one in conform_environment(lambda: Broken(provider), chosen, at_once=8, deadline_s=DEADLINE_S)
    ]
    assert [(one.check, one.detail) for one in outcomes if not one.is_good] == []
