"""Hosts whose terminals break one promise each, and keep all others."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace

from sandlot.contracts import TerminalStream
from sandlot.model import (
    CallNotFound,
    Conflict,
    InputMode,
    Terminal,
    TerminalAttach,
    TerminalEnded,
    TerminalEvent,
    TerminalInput,
    TerminalKill,
    TerminalOutput,
    TerminalRequest,
    TerminalResize,
    TerminalResized,
    TerminalSize,
    TerminalTaken,
    limits,
)
from tests.conformance.broken_hosts import Below


class Filtered:
    """A stream that leaves events out, or changes them."""

    def __init__(self, below: TerminalStream, *without: type[TerminalEvent], shift: int = 0) -> None:
        self.client_id = below.client_id
        self.terminal = below.terminal
        self._below = below
        self._without = without
        self._shift = shift

    async def __aiter__(self) -> AsyncIterator[TerminalEvent]:
        async for event in self._below:
            if isinstance(event, self._without):
                continue
            yield replace(event, offset=event.offset + self._shift) if isinstance(event, TerminalOutput) else event


class IgnoresSizes(Below):
    async def open_terminal(self, request: TerminalRequest) -> Terminal:
        return await self.below.open_terminal(replace(request, size=TerminalSize()))


class OpensTwice(Below):
    async def open_terminal(self, request: TerminalRequest) -> Terminal:
        return await self.below.open_terminal(replace(request, terminal_id=None))


class ResizesNothing(Below):
    async def resize_terminal(self, request: TerminalResize) -> None:
        await self.below.get_terminal(request.session_id, request.terminal_id)


class TellsNoSizes(Below):
    @asynccontextmanager
    async def attach_terminal(self, request: TerminalAttach) -> AsyncGenerator[TerminalStream]:
        async with self.below.attach_terminal(request) as stream:
            yield Filtered(stream, TerminalResized)


class TellsNoEnd(Below):
    @asynccontextmanager
    async def attach_terminal(self, request: TerminalAttach) -> AsyncGenerator[TerminalStream]:
        async with self.below.attach_terminal(request) as stream:
            yield Filtered(stream, TerminalEnded)


class TellsNobodyOfTakers(Below):
    @asynccontextmanager
    async def attach_terminal(self, request: TerminalAttach) -> AsyncGenerator[TerminalStream]:
        async with self.below.attach_terminal(request) as stream:
            yield Filtered(stream, TerminalTaken)


class ReplaysFromNow(Below):
    """Who comes again has lost what came before."""

    @asynccontextmanager
    async def attach_terminal(self, request: TerminalAttach) -> AsyncGenerator[TerminalStream]:
        async with self.below.attach_terminal(replace(request, offset=None)) as stream:
            yield stream


class ReplaysAll(Below):
    """Who comes again from a byte on hears all of it again."""

    @asynccontextmanager
    async def attach_terminal(self, request: TerminalAttach) -> AsyncGenerator[TerminalStream]:
        async with self.below.attach_terminal(replace(request, offset=0)) as stream:
            yield stream


class CountsFromOne(Below):
    @asynccontextmanager
    async def attach_terminal(self, request: TerminalAttach) -> AsyncGenerator[TerminalStream]:
        async with self.below.attach_terminal(request) as stream:
            yield Filtered(stream, shift=1)


class EndsWithItsClient(Below):
    @asynccontextmanager
    async def attach_terminal(self, request: TerminalAttach) -> AsyncGenerator[TerminalStream]:
        async with self.below.attach_terminal(request) as stream:
            yield stream
        await self.below.kill_terminal(TerminalKill(request.session_id, request.terminal_id))


class OneReaderAlone(Below):
    """The second one hears nothing but the end."""

    count = 0

    @asynccontextmanager
    async def attach_terminal(self, request: TerminalAttach) -> AsyncGenerator[TerminalStream]:
        async with self.below.attach_terminal(request) as stream:
            self.count += 1
            yield Filtered(stream, TerminalOutput) if self.count > 1 else stream


class KeepsEverything(Below):
    async def open_terminal(self, request: TerminalRequest) -> Terminal:
        return await self.below.open_terminal(replace(request, window_bytes=limits.WINDOW_BYTES_MAX))


class LetsEveryoneWrite(Below):
    async def write_terminal(self, request: TerminalInput) -> None:
        told = await self.below.get_terminal(request.session_id, request.terminal_id)
        await self.below.write_terminal(replace(request, client_id=told.holder))


class LetsEveryoneResize(Below):
    async def resize_terminal(self, request: TerminalResize) -> None:
        told = await self.below.get_terminal(request.session_id, request.terminal_id)
        await self.below.resize_terminal(replace(request, client_id=told.holder))


class TakesInsteadOfHolding(Below):
    @asynccontextmanager
    async def attach_terminal(self, request: TerminalAttach) -> AsyncGenerator[TerminalStream]:
        mode = InputMode.TAKE if request.input is InputMode.HOLD else request.input
        async with self.below.attach_terminal(replace(request, input=mode)) as stream:
            yield stream


class NeverTakesOver(Below):
    @asynccontextmanager
    async def attach_terminal(self, request: TerminalAttach) -> AsyncGenerator[TerminalStream]:
        mode = InputMode.HOLD if request.input is InputMode.TAKE else request.input
        async with self.below.attach_terminal(replace(request, input=mode)) as stream:
            yield stream


class HoldsAgainstItself(Below):
    @asynccontextmanager
    async def attach_terminal(self, request: TerminalAttach) -> AsyncGenerator[TerminalStream]:
        told = await self.below.get_terminal(request.session_id, request.terminal_id)
        if request.input is InputMode.HOLD and told.holder:
            raise Conflict("somebody holds it")
        async with self.below.attach_terminal(request) as stream:
            yield stream


class KillsByASignal(Below):
    """What it started is left."""

    async def kill_terminal(self, request: TerminalKill) -> None:
        await self.below.kill_terminal(replace(request, signal=request.signal or 9))


class SignalsAreKills(Below):
    async def kill_terminal(self, request: TerminalKill) -> None:
        await self.below.kill_terminal(replace(request, signal=None))


class ForgetsTheEnded(Below):
    async def get_terminal(self, session_id: str, terminal_id: str) -> Terminal:
        told = await self.below.get_terminal(session_id, terminal_id)
        if told.result is not None:
            raise CallNotFound("it has ended")
        return told


class ListsNewestFirst(Below):
    async def terminals(self, session_id: str) -> Sequence[Terminal]:
        return list(await self.below.terminals(session_id))[::-1]


class DropsKeysThatWait(Below):
    """Rather than make whoever types them wait."""

    async def write_terminal(self, request: TerminalInput) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(0.01):
                await self.below.write_terminal(request)


class KnowsNoTerminals(Below):
    """One that is not there takes keys for nothing."""

    async def write_terminal(self, request: TerminalInput) -> None:
        with suppress(CallNotFound):
            await self.below.write_terminal(request)


BROKEN: dict[type[Below], str] = {
    IgnoresSizes: "a_program_has_a_terminal_of_the_size_that_was_asked_for",
    OpensTwice: "a_terminal_id_is_opened_once",
    ResizesNothing: "its_size_can_be_changed",
    TellsNoSizes: "its_size_can_be_changed",
    TellsNoEnd: "its_end_is_told",
    TellsNobodyOfTakers: "the_input_can_be_taken_over",
    ReplaysFromNow: "it_outlives_its_clients",
    ReplaysAll: "it_outlives_its_clients",
    CountsFromOne: "it_outlives_its_clients",
    EndsWithItsClient: "it_outlives_its_clients",
    OneReaderAlone: "many_read_the_same",
    KeepsEverything: "only_the_newest_is_kept",
    LetsEveryoneWrite: "the_input_can_be_held",
    LetsEveryoneResize: "the_input_can_be_held",
    TakesInsteadOfHolding: "the_input_can_be_held",
    NeverTakesOver: "the_input_can_be_taken_over",
    HoldsAgainstItself: "a_client_that_comes_again_has_its_input",
    KillsByASignal: "it_is_killed_with_all_that_it_started",
    SignalsAreKills: "a_signal_is_sent_alone",
    ForgetsTheEnded: "its_end_is_told",
    ListsNewestFirst: "those_that_live_are_listed",
    DropsKeysThatWait: "a_write_waits_while_nobody_reads",
    KnowsNoTerminals: "what_is_no_terminal_is_refused",
}
