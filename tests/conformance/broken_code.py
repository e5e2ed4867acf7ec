"""Hosts whose code breaks one promise each."""

from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

from sandlot.contracts import CodeStream
from sandlot.model import (
    CodeContext,
    CodeError,
    CodeEvent,
    CodeOutput,
    CodeRequest,
    CodeResult,
    CodeStarted,
    CodeStatus,
    CodeValue,
    ContextRequest,
    Stream,
)
from tests.conformance.broken_hosts import Below


class _Changed:
    def __init__(self, below: CodeStream, host: "ChangesEvents") -> None:
        self._below = below
        self._host = host

    @property
    def execution_id(self) -> str:
        return self._below.execution_id

    async def __aiter__(self) -> AsyncIterator[CodeEvent]:
        async for event in self._host.all(aiter(self._below)):
            yield event

    async def result(self) -> CodeResult:
        found = self._host.change(await self._below.result())
        assert isinstance(found, CodeResult)
        return found


class ChangesEvents(Below):
    """Tells every event a little differently; None: not at all."""

    def change(self, event: CodeEvent) -> CodeEvent | None:
        return event

    async def all(self, events: AsyncIterator[CodeEvent]) -> AsyncIterator[CodeEvent]:
        async for event in events:
            if (told := self.change(event)) is not None:
                yield told

    def asked(self, request: CodeRequest) -> CodeRequest:
        return request

    @asynccontextmanager
    async def run_code(self, request: CodeRequest) -> AsyncGenerator[CodeStream]:
        async with self.below.run_code(self.asked(request)) as stream:
            yield _Changed(stream, self)

    @asynccontextmanager
    async def attach_code(self, session_id: str, execution_id: str) -> AsyncGenerator[CodeStream]:
        async with self.below.attach_code(session_id, execution_id) as stream:
            yield _Changed(stream, self)


class TellsWhenItIsOver(ChangesEvents):
    async def all(self, events: AsyncIterator[CodeEvent]) -> AsyncIterator[CodeEvent]:
        for event in [event async for event in events]:
            yield event


class TellsValuesFirst(ChangesEvents):
    async def all(self, events: AsyncIterator[CodeEvent]) -> AsyncIterator[CodeEvent]:
        found = [event async for event in events]
        for event in sorted(found, key=lambda one: isinstance(one, CodeResult) * 2 - isinstance(one, CodeStarted)):
            if isinstance(event, CodeStarted | CodeValue | CodeResult):
                yield event
                continue
            yield event
            yield event


class MixesStreams(ChangesEvents):
    def change(self, event: CodeEvent) -> CodeEvent | None:
        return replace(event, stream=Stream.STDOUT) if isinstance(event, CodeOutput) else event


class ShowsNothingAsNone(ChangesEvents):
    async def all(self, events: AsyncIterator[CodeEvent]) -> AsyncIterator[CodeEvent]:
        async for event in events:
            if isinstance(event, CodeResult):
                yield CodeValue({"text/plain": "None"}, is_main=True)
            yield event


class HasNoErrors(ChangesEvents):
    def change(self, event: CodeEvent) -> CodeEvent | None:
        if isinstance(event, CodeResult) and event.status is CodeStatus.ERROR:
            return replace(event, status=CodeStatus.OK)
        return event


class HasNoTracebacks(ChangesEvents):
    def change(self, event: CodeEvent) -> CodeEvent | None:
        return replace(event, traceback="") if isinstance(event, CodeError) else event


class TellsOneForm(ChangesEvents):
    def change(self, event: CodeEvent) -> CodeEvent | None:
        return replace(event, data=dict(list(event.data.items())[:1])) if isinstance(event, CodeValue) else event


class CutsSilently(ChangesEvents):
    def change(self, event: CodeEvent) -> CodeEvent | None:
        return replace(event, truncated=False) if isinstance(event, CodeResult) else event


class IgnoresTheBound(ChangesEvents):
    def asked(self, request: CodeRequest) -> CodeRequest:
        return replace(request, output_bytes_max=1 << 20)


class IgnoresVariables(ChangesEvents):
    def asked(self, request: CodeRequest) -> CodeRequest:
        return replace(request, envs={})


class HasOneContext(ChangesEvents):
    def asked(self, request: CodeRequest) -> CodeRequest:
        return replace(request, context_id=None)


class RunsAgain(ChangesEvents):
    def asked(self, request: CodeRequest) -> CodeRequest:
        return replace(request, execution_id=None)


class HasNoTime(ChangesEvents):
    def asked(self, request: CodeRequest) -> CodeRequest:
        return replace(request, timeout_s=None)


class LetsGoOn(ChangesEvents):
    def asked(self, request: CodeRequest) -> CodeRequest:
        return replace(request, detach=True)


class LetsNothingGoOn(ChangesEvents):
    def asked(self, request: CodeRequest) -> CodeRequest:
        return replace(request, detach=False)


class LosesSilently(ChangesEvents):
    def change(self, event: CodeEvent) -> CodeEvent | None:
        return replace(event, reason="") if isinstance(event, CodeResult) else event


class ForgetsWhereItStarts(Below):
    async def create_context(self, request: ContextRequest) -> CodeContext:
        return await self.below.create_context(replace(request, cwd=None))


class MakesAnother(Below):
    async def create_context(self, request: ContextRequest) -> CodeContext:
        return await self.below.create_context(replace(request, context_id=None))


class ListsNoBusyOne(Below):
    async def contexts(self, session_id: str) -> Sequence[CodeContext]:
        return [replace(one, state="idle") for one in await self.below.contexts(session_id)]  # pyright: ignore[reportArgumentType]


class KeepsDeletedOnes(Below):
    async def delete_context(self, session_id: str, context_id: str) -> None:
        await self.below.restart_context(session_id, context_id)


class SaysThatItInterrupted(Below):
    async def interrupt_context(self, session_id: str, context_id: str) -> bool:
        await self.below.interrupt_context(session_id, context_id)
        return True


class InterruptsNothing(Below):
    async def interrupt_context(self, session_id: str, context_id: str) -> bool:
        return any(one.state == "busy" for one in await self.below.contexts(session_id))


class RestartsNothing(Below):
    async def restart_context(self, session_id: str, context_id: str) -> CodeContext:
        found = await self.below.contexts(session_id)
        return next(one for one in found if one.context_id == context_id)


BROKEN: Mapping[type[Any], str] = {
    TellsWhenItIsOver: "it_is_told_as_it_happens",
    TellsValuesFirst: "what_it_does_is_told_in_order",
    MixesStreams: "the_streams_are_apart",
    ShowsNothingAsNone: "nothing_is_no_value",
    HasNoErrors: "an_error_is_a_result",
    HasNoTracebacks: "an_error_is_a_result",
    TellsOneForm: "forms_are_told",
    CutsSilently: "output_has_a_bound",
    IgnoresTheBound: "output_has_a_bound",
    IgnoresVariables: "variables_of_a_run_are_taken_away",
    HasOneContext: "contexts_are_apart",
    RunsAgain: "a_run_is_done_once",
    HasNoTime: "a_run_has_a_time",
    LetsGoOn: "who_leaves_ends_it",
    LetsNothingGoOn: "what_is_detached_goes_on",
    LosesSilently: "a_context_that_ends_is_lost",
    ForgetsWhereItStarts: "a_context_has_a_directory_and_variables",
    MakesAnother: "a_context_is_made_once",
    ListsNoBusyOne: "contexts_are_listed",
    KeepsDeletedOnes: "contexts_are_listed",
    SaysThatItInterrupted: "an_interrupt_ends_a_run",
    InterruptsNothing: "an_interrupt_ends_a_run",
    RestartsNothing: "a_restart_forgets",
}
