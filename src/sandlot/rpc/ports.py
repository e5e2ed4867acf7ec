"""Connections to ports of sessions over the wire: what comes is a stream, what goes is asked piece by piece."""

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from secrets import token_hex
from typing import Any

from sandlot.contracts import Host
from sandlot.contracts.ports import PortStream
from sandlot.model import Conflict, InvalidState, NotFound, Unavailable, limits
from sandlot.rpc.convert import from_text, to_text
from sandlot.rpc.gen.sandlot.v1 import common_pb, processes_pb
from sandlot.rpc.link import Incoming, Link
from sandlot.rpc.messages import AnyMessage
from sandlot.rpc.transport import Cut


@dataclass(slots=True)
class _Connection:
    session_id: str
    stream: PortStream
    is_writing: bool = False
    said_all: asyncio.Event = field(default_factory=asyncio.Event)


class ServedPorts:
    """Those of one host, for its clients."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._connections: dict[str, _Connection] = {}

    async def connect(self, asked: processes_pb.PortRef) -> AsyncGenerator[AnyMessage]:
        session_id, connection_id = from_text(asked.session_id), token_hex(16)
        async with self._host.connect_port(session_id, asked.port) as stream:
            connection = self._connections[connection_id] = _Connection(session_id, stream)
            try:
                yield processes_pb.PortContent(connection_id=connection_id)
                while data := await stream.read():
                    yield processes_pb.PortContent(data=data)
                yield processes_pb.PortContent(is_end=True)
                await connection.said_all.wait()
            finally:
                del self._connections[connection_id]

    async def write(self, asked: processes_pb.PortInput) -> AnyMessage:
        connection = self._connections.get(asked.connection_id)
        if connection is None or connection.session_id != from_text(asked.session_id):
            raise NotFound("there is no such connection", next_step="connect again")
        if connection.is_writing:
            raise Conflict("something is being written on this connection", next_step="wait until that is answered")
        if connection.said_all.is_set():
            raise InvalidState("it was said that nothing more comes on this connection", next_step="connect again")
        connection.is_writing = True
        try:
            if asked.data:
                await connection.stream.write(asked.data)
            if asked.is_end:
                await connection.stream.close_write()
                connection.said_all.set()
        finally:
            connection.is_writing = False
        return common_pb.Nothing()


class RemotePort:
    """A connection of a host that is elsewhere. It is not made anew when the server goes away: its bytes are gone."""

    def __init__(self, link: Link, session_id: str, port: int) -> None:
        self._link = link
        self._session_id = to_text(session_id)
        self._port = port
        self._incoming: Incoming | None = None
        self._connection_id = ""
        self._waiting = b""
        self._is_over = False

    async def enter(self) -> None:
        asked = processes_pb.PortRef(session_id=self._session_id, port=self._port)
        self._incoming, first = await self._link.begin("ConnectPort", asked)
        assert isinstance(first, processes_pb.PortContent)
        self._connection_id = first.connection_id

    def leave(self) -> None:
        if self._incoming is not None:
            self._incoming.close()

    async def read(self, size_max: int = limits.PIECE_BYTES) -> bytes:
        if not self._waiting and not self._is_over:
            self._waiting = await self._more()
        data, self._waiting = self._waiting[:size_max], self._waiting[size_max:]
        return data

    async def _more(self) -> bytes:
        assert self._incoming is not None, "it is given out when it was entered"
        try:
            message: Any = await self._incoming.next()
        except Cut as error:
            raise self._link.lost(error) from None
        if message is None:
            raise Unavailable("the server ended the connection", next_step="connect again")
        self._is_over = message.is_end
        return message.data

    async def write(self, data: bytes) -> None:
        for at in range(0, len(data), limits.MIB):
            await self._tell(data[at : at + limits.MIB])

    async def close_write(self) -> None:
        await self._tell(b"", is_end=True)

    async def _tell(self, data: bytes, *, is_end: bool = False) -> None:
        told = processes_pb.PortInput(
            session_id=self._session_id, connection_id=self._connection_id, data=data, is_end=is_end
        )
        try:
            await self._link.ask("WritePort", told)
        except NotFound:
            raise Unavailable("the connection has ended", next_step="connect again") from None
