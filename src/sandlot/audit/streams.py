"""Streams of the waist whose bytes are counted on the way, and told when they end. What is in them is not looked at."""

from collections.abc import AsyncIterator
from typing import Final

from sandlot.contracts import PortStream
from sandlot.contracts.terminals import TerminalStream
from sandlot.model import Terminal, TerminalEvent, TerminalOutput, limits


class CountedPort:
    """A connection to a program."""

    __slots__ = ("_received", "_sent", "_stream")

    def __init__(self, stream: PortStream) -> None:
        self._stream = stream
        self._sent = self._received = 0

    @property
    def sent_bytes(self) -> int:
        """To the program."""
        return self._sent

    @property
    def received_bytes(self) -> int:
        return self._received

    async def read(self, size_max: int = limits.PIECE_BYTES) -> bytes:
        data = await self._stream.read(size_max)
        self._received += len(data)
        return data

    async def write(self, data: bytes) -> None:
        await self._stream.write(data)
        self._sent += len(data)

    async def close_write(self) -> None:
        await self._stream.close_write()


class CountedTerminal:
    """One client of a terminal."""

    __slots__ = ("_received", "_stream")

    def __init__(self, stream: TerminalStream) -> None:
        self._stream = stream
        self._received = 0

    @property
    def client_id(self) -> str:
        return self._stream.client_id

    @property
    def terminal(self) -> Terminal:
        return self._stream.terminal

    @property
    def received_bytes(self) -> int:
        return self._received

    async def __aiter__(self) -> AsyncIterator[TerminalEvent]:
        async for event in self._stream:
            if isinstance(event, TerminalOutput):
                self._received += len(event.data)
            yield event


COUNTED: Final = {"connect_port": CountedPort, "attach_terminal": CountedTerminal}
