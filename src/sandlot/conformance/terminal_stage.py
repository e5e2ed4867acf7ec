"""What checks of terminals share: a reader that looks for holes, and short words for the verbs."""

from collections.abc import AsyncIterator
from typing import Any

from sandlot.conformance.checks import Broken, Stage, expect
from sandlot.contracts import TerminalStream
from sandlot.model import (
    CallResult,
    FileWrite,
    Terminal,
    TerminalAttach,
    TerminalEnded,
    TerminalEvent,
    TerminalInput,
    TerminalKill,
    TerminalOutput,
    TerminalRequest,
)


class Reader:
    """Hears one client of a terminal, and looks that no byte is told twice or out of order."""

    def __init__(self, stream: TerminalStream) -> None:
        self._events = aiter(stream)
        self.data = bytearray()
        self.first: int | None = None  # the offset that came first
        self.missed = 0  # bytes
        self.others: list[TerminalEvent] = []

    async def next(self) -> TerminalEvent:
        event = await anext(self._events)
        if not isinstance(event, TerminalOutput):
            self.others.append(event)
            return event
        if self.first is None:
            self.first = event.offset
        behind = self.first + self.missed + len(self.data)
        expect(event.offset >= behind, f"byte {event.offset} was told again, behind byte {behind}")
        self.missed += event.offset - behind
        self.data += event.data
        return event

    async def until(self, wanted: bytes) -> bytes:
        while wanted not in self.data:
            if isinstance(await self.next(), TerminalEnded) and wanted not in self.data:
                raise Broken(f"{bytes(self.data)!r} is all that came, {wanted!r} is not in it"[:2000])
        return bytes(self.data)

    async def other(self, kind: type[TerminalEvent]) -> Any:
        while not any(isinstance(one, kind) for one in self.others):
            await self.next()
        return next(one for one in self.others if isinstance(one, kind))

    async def to_end(self) -> CallResult:
        ended: TerminalEnded = await self.other(TerminalEnded)
        try:
            after = await anext(self._events)
        except StopAsyncIteration:
            return ended.result
        raise Broken(f"{after} came after its end")


async def open_terminal(stage: Stage, *argv: str, **options: Any) -> Terminal:
    return await stage.host.open_terminal(TerminalRequest(stage.session.session_id, argv, **options))


def attach(stage: Stage, terminal: Terminal, offset: int | None = 0, **options: Any) -> Any:
    return stage.host.attach_terminal(TerminalAttach(stage.session.session_id, terminal.terminal_id, offset, **options))


async def type_keys(stage: Stage, terminal: Terminal, data: bytes, client_id: str = "") -> None:
    await stage.host.write_terminal(TerminalInput(stage.session.session_id, terminal.terminal_id, data, client_id))


async def get(stage: Stage, terminal: Terminal) -> Terminal:
    return await stage.host.get_terminal(stage.session.session_id, terminal.terminal_id)


async def kill(stage: Stage, terminal: Terminal, signal: int | None = None) -> None:
    await stage.host.kill_terminal(TerminalKill(stage.session.session_id, terminal.terminal_id, signal))


async def output(stage: Stage, terminal: Terminal) -> tuple[Reader, CallResult]:
    async with attach(stage, terminal) as stream:
        reader = Reader(stream)
        return reader, await reader.to_end()


async def give_file(stage: Stage, path: str, content: bytes) -> None:
    async def one() -> AsyncIterator[bytes]:
        yield content

    await stage.host.write_file(FileWrite(stage.session.session_id, path), one())


def numbers(count: int) -> bytes:
    """Text whose every part is another, without an end of line."""
    return b"".join(b"%07d " % number for number in range(count))


async def entered(manager: Any) -> None:
    async with manager:
        pass
