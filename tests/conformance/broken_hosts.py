"""Hosts that break one promise each, and keep all others: what the suite must tell."""

from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from typing import Any

from sandlot.contracts import CallStream, Host
from sandlot.contracts.tool_stream import ToolStream
from sandlot.model import (
    BUILTIN,
    NO_LIMITS,
    CallRecord,
    CallRequest,
    Capability,
    Change,
    DiffRequest,
    Event,
    EventFilter,
    FileInfo,
    FileWrite,
    ForkRequest,
    PauseRequest,
    RelabelRequest,
    RollbackRequest,
    SessionFilter,
    SessionInfo,
    SessionNotFound,
    SessionPage,
    SessionSpec,
    SessionState,
    Snapshot,
    SnapshotRequest,
    ToolRequest,
    Turn,
    TurnRequest,
    limits,
)


class Below:
    """Everything as the host below does it."""

    def __init__(self, below: Host) -> None:
        self.below = below

    def __getattr__(self, name: str) -> Any:
        return getattr(self.below, name)


class ForgetsLabels(Below):
    async def create(self, spec: SessionSpec) -> SessionInfo:
        return await self.below.create(replace(spec, labels={}))


class ForgetsTimes(Below):
    async def create(self, spec: SessionSpec) -> SessionInfo:
        return await self.below.create(replace(spec, timeout_s=limits.SESSION_LIFETIME_S))


class ChoosesIds(Below):
    async def create(self, spec: SessionSpec) -> SessionInfo:
        return await self.below.create(replace(spec, session_id=None))


class MakesEachRequestAnew(Below):
    async def create(self, spec: SessionSpec) -> SessionInfo:
        return await self.below.create(replace(spec, request_id=None))


class TakesAnyTemplate(Below):
    async def create(self, spec: SessionSpec) -> SessionInfo:
        return await self.below.create(replace(spec, template=BUILTIN))


class ForgetsLimits(Below):
    async def create(self, spec: SessionSpec) -> SessionInfo:
        made = await self.below.create(replace(spec, resources=NO_LIMITS))
        return replace(made, resources=NO_LIMITS)


class TakesSecretsForNothing(Below):
    async def create(self, spec: SessionSpec) -> SessionInfo:
        return await self.below.create(replace(spec, secrets={}))


class FiltersByOneLabel(Below):
    async def list(self, query: SessionFilter) -> SessionPage:
        return await self.below.list(replace(query, labels=dict(list(query.labels.items())[:1])))


class HasOnePage(Below):
    async def list(self, query: SessionFilter) -> SessionPage:
        return replace(await self.below.list(query), next=None)


class TellsNewestFirst(Below):
    async def list(self, query: SessionFilter) -> SessionPage:
        page = await self.below.list(query)
        return replace(page, sessions=page.sessions[::-1])


class StartsAgainAtAnyCursor(Below):
    async def list(self, query: SessionFilter) -> SessionPage:
        return await self.below.list(replace(query, after=None) if query.after == "no such cursor" else query)


class KnowsNobody(Below):
    """A session that is not there has no calls, instead of being not found."""

    async def calls(self, session_id: str) -> Sequence[CallRecord]:
        with suppress(SessionNotFound):
            return await self.below.calls(session_id)
        return ()


class OnlySaysThatItPaused(Below):
    async def pause(self, request: PauseRequest) -> SessionInfo:
        return replace(await self.below.get(request.session_id), state=SessionState.PAUSED)


class FreezesAnyway(Below):
    async def pause(self, request: PauseRequest) -> SessionInfo:
        return await self.below.pause(replace(request, freeze=True))


class ExtendsNothing(Below):
    async def extend(self, session_id: str, timeout_s: float) -> SessionInfo:
        return await self.below.get(session_id)


class RelabelsFromNothing(Below):
    """What is not named is lost."""

    async def relabel(self, request: RelabelRequest) -> SessionInfo:
        others = [key for key in (await self.below.get(request.session_id)).labels if key not in request.labels]
        return await self.below.relabel(replace(request, remove=tuple(others)))


class DestroysTwice(Below):
    """The second one is told that all is well."""

    async def destroy(self, session_id: str) -> None:
        with suppress(SessionNotFound):
            await self.below.destroy(session_id)


class RecoversTheWell(Below):
    async def recover(self, session_id: str) -> SessionInfo:
        return await self.below.get(session_id)


class RunsTwice(Below):
    """A call id is not remembered."""

    @asynccontextmanager
    async def call(self, request: CallRequest) -> AsyncGenerator[CallStream]:
        async with self.below.call(replace(request, call_id=None)) as stream:
            yield stream


class DetachesAll(Below):
    @asynccontextmanager
    async def call(self, request: CallRequest) -> AsyncGenerator[CallStream]:
        async with self.below.call(replace(request, detach=True)) as stream:
            yield stream


class PrintsWithoutLimit(Below):
    @asynccontextmanager
    async def call(self, request: CallRequest) -> AsyncGenerator[CallStream]:
        async with self.below.call(replace(request, output_bytes_max=limits.CALL_OUTPUT_BYTES)) as stream:
            yield stream


class ForgetsVariables(Below):
    @asynccontextmanager
    async def call(self, request: CallRequest) -> AsyncGenerator[CallStream]:
        async with self.below.call(replace(request, envs={})) as stream:
            yield stream


class TellsCallsBackwards(Below):
    async def calls(self, session_id: str) -> Sequence[CallRecord]:
        return list(await self.below.calls(session_id))[::-1]


class WorksTwice(Below):
    """The id of a tool's call is not remembered."""

    @asynccontextmanager
    async def execute_tool(self, request: ToolRequest) -> AsyncGenerator[ToolStream]:
        async with self.below.execute_tool(replace(request, call_id=None)) as stream:
            yield stream


class WritesHalves(Below):
    async def write_file(self, request: FileWrite, content: AsyncIterable[bytes]) -> FileInfo:
        got: list[bytes] = []
        with suppress(ZeroDivisionError):
            got.extend([piece async for piece in content])

        async def all_of_it() -> AsyncIterator[bytes]:
            yield b"half".join([b"", *got])

        return await self.below.write_file(request, all_of_it())


class ClosesTurnsAnew(Below):
    async def turn_complete(self, request: TurnRequest) -> Turn:
        return await self.below.turn_complete(replace(request, request_id=None))


class OverwritesSnapshots(Below):
    async def create_snapshot(self, request: SnapshotRequest) -> Snapshot:
        names = [one.name for one in await self.below.list_snapshots(request.session_id)]
        if request.name in names:
            await self.below.delete_snapshot(request.session_id, request.name)
        return await self.below.create_snapshot(request)


class GoesNowhere(Below):
    async def rollback(self, request: RollbackRequest) -> SessionInfo:
        return await self.below.get(request.session_id)


class KeepsWhatIsNewer(Below):
    async def rollback(self, request: RollbackRequest) -> SessionInfo:
        return await self.below.rollback(replace(request, keep=True))


class DropsWhatIsNewer(Below):
    async def rollback(self, request: RollbackRequest) -> SessionInfo:
        return await self.below.rollback(replace(request, keep=False))


class SeesNoDifference(Below):
    @asynccontextmanager
    async def diff(self, request: DiffRequest) -> AsyncGenerator[AsyncIterator[Sequence[Change]]]:
        async def nothing() -> AsyncIterator[Sequence[Change]]:
            yield ()

        async with self.below.diff(request):
            yield nothing()


class ForksFromNow(Below):
    async def fork(self, request: ForkRequest) -> Sequence[SessionInfo]:
        return await self.below.fork(replace(request, at=None))


class ForksAgain(Below):
    async def fork(self, request: ForkRequest) -> Sequence[SessionInfo]:
        return await self.below.fork(replace(request, request_id=None))


class TellsEventsOfAll(Below):
    @asynccontextmanager
    async def events(self, request: EventFilter) -> AsyncGenerator[AsyncIterator[Event]]:
        async with self.below.events(replace(request, session_id=None)) as events:
            yield events


class TellsEventsFromTheBeginning(Below):
    @asynccontextmanager
    async def events(self, request: EventFilter) -> AsyncGenerator[AsyncIterator[Event]]:
        async with self.below.events(replace(request, after=None)) as events:
            yield events


class BoastsOfWhatNobodyKnows(Below):
    async def capabilities(self) -> frozenset[Any]:
        return frozenset[Any]({*await self.below.capabilities(), "flying"})


class ChangesItsMind(Below):
    turn = 0

    async def capabilities(self) -> frozenset[Capability]:
        self.turn += 1
        return frozenset(list(Capability)[: self.turn])


BROKEN: dict[type[Below], str] = {
    ForgetsLabels: "a_session_is_as_it_was_asked_for",
    ForgetsTimes: "a_session_is_as_it_was_asked_for",
    ChoosesIds: "an_id_is_given_once",
    MakesEachRequestAnew: "a_create_that_is_repeated_makes_one_session",
    TakesAnyTemplate: "what_cannot_be_had_makes_nothing",
    ForgetsLimits: "limits_are_held_or_refused",
    TakesSecretsForNothing: "secrets_are_refused_where_there_are_none",
    FiltersByOneLabel: "a_list_has_filters_and_pages",
    HasOnePage: "a_list_has_filters_and_pages",
    TellsNewestFirst: "a_list_has_filters_and_pages",
    StartsAgainAtAnyCursor: "a_cursor_that_is_none_is_refused",
    KnowsNobody: "a_session_that_is_not_there_is_not_found",
    OnlySaysThatItPaused: "a_paused_session_refuses_and_goes_on",
    FreezesAnyway: "a_pause_that_may_not_freeze_is_refused",
    ExtendsNothing: "its_time_is_counted_anew",
    RelabelsFromNothing: "labels_are_set_and_taken_away",
    DestroysTwice: "a_destroyed_session_is_gone",
    RecoversTheWell: "what_has_not_failed_needs_no_recovery",
    RunsTwice: "a_call_id_runs_once",
    DetachesAll: "leaving_a_call_ends_it",
    PrintsWithoutLimit: "output_beyond_its_limit_is_counted",
    ForgetsVariables: "variables_and_directories_are_those_of_the_call",
    TellsCallsBackwards: "calls_are_remembered",
    WorksTwice: "a_tool_with_an_id_works_once",
    WritesHalves: "a_write_that_breaks_off_changes_nothing",
    ClosesTurnsAnew: "a_turn_that_is_repeated_is_closed_once",
    OverwritesSnapshots: "snapshots_have_names",
    GoesNowhere: "a_rollback_brings_files_back",
    KeepsWhatIsNewer: "a_rollback_brings_files_back",
    DropsWhatIsNewer: "a_rollback_may_keep_what_is_newer",
    SeesNoDifference: "a_comparison_tells_every_change",
    ForksFromNow: "forks_are_sessions_of_their_own",
    ForksAgain: "a_fork_that_is_repeated_makes_no_more",
    TellsEventsOfAll: "events_tell_the_life_of_a_session",
    TellsEventsFromTheBeginning: "events_tell_the_life_of_a_session",
    BoastsOfWhatNobodyKnows: "capabilities_are_names_that_everyone_knows",
    ChangesItsMind: "capabilities_are_names_that_everyone_knows",
}
