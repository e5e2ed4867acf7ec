"""A websocket as a client has it, over one socket."""

import asyncio
import base64
import os
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager, suppress

from wsproto.connection import Connection, ConnectionType
from wsproto.events import BytesMessage, CloseConnection, Ping, TextMessage

PATIENCE_S = 60.0


class NoSocket(Exception):
    """It was answered by HTTP."""

    def __init__(self, head: bytes) -> None:
        super().__init__(head)
        self.status = int(head.split(b" ")[1])


class Client:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._protocol = Connection(ConnectionType.CLIENT)
        self._heard: list[bytes | str] = []
        self._part = b""
        self.closed: tuple[int, str] | None = None

    async def say(self, message: bytes | str) -> None:
        event = BytesMessage(message) if isinstance(message, bytes) else TextMessage(message)
        await self.raw(self._protocol.send(event))

    async def raw(self, data: bytes) -> None:
        self._writer.write(data)
        await self._writer.drain()

    async def hear(self) -> bytes | str | None:
        """The next message; None at the end."""
        async with asyncio.timeout(PATIENCE_S):
            while not self._heard and self.closed is None:
                data = await self._reader.read(1 << 16)
                if not data:
                    self.closed = (1006, "")
                    break
                self._protocol.receive_data(data)
                for event in self._protocol.events():
                    if isinstance(event, TextMessage | BytesMessage):
                        self._part += event.data.encode() if isinstance(event, TextMessage) else bytes(event.data)
                        if event.message_finished:
                            whole, self._part = self._part, b""
                            self._heard.append(whole.decode() if isinstance(event, TextMessage) else whole)
                    elif isinstance(event, Ping):
                        await self.raw(self._protocol.send(event.response()))
                    elif isinstance(event, CloseConnection):
                        self.closed = (event.code, event.reason or "")
        return self._heard.pop(0) if self._heard else None


@asynccontextmanager
async def connect(address: str, headers: Mapping[str, str] | None = None) -> AsyncGenerator[Client]:
    """`HOST:PORT/PATH`. Raises NoSocket."""
    place, slash, path = address.partition("/")
    host, _, port = place.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    key = base64.b64encode(os.urandom(16)).decode()
    lines = {"host": place, "upgrade": "websocket", "connection": "Upgrade", "sec-websocket-version": "13"}
    lines |= {"sec-websocket-key": key, **(headers or {})}
    try:
        head = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
        writer.write(f"GET {slash}{path} HTTP/1.1\r\n{head}\r\n".encode())
        async with asyncio.timeout(PATIENCE_S):
            answer = await reader.readuntil(b"\r\n\r\n")
        if not answer.startswith(b"HTTP/1.1 101"):
            raise NoSocket(answer)
        yield Client(reader, writer)
    finally:
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()
