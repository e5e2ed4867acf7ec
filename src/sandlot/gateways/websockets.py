"""A websocket on a connection that has left HTTP: messages both ways, each bounded.

The connection is the tunnel that the server puts into the scope of a request that asks for another protocol."""

import asyncio
import base64
import binascii
import hashlib
from collections.abc import AsyncGenerator, Sequence
from contextlib import suppress
from typing import Final, Protocol, cast

from wsproto.connection import Connection, ConnectionType
from wsproto.events import BytesMessage, CloseConnection, Event, Ping, TextMessage
from wsproto.utilities import LocalProtocolError, RemoteProtocolError

from sandlot.gateways.web import Request
from sandlot.model import CapabilityNotSupported, InvalidArgument

MESSAGE_BYTES_MAX: Final = 64 << 10  # of one message of a client
PING_S: Final = 30.0
SILENCE_S: Final = 90.0  # of a client that does not answer pings any more
_GUID: Final = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"


class Tunnel(Protocol):
    def accept(self, headers: Sequence[tuple[bytes, bytes]]) -> None: ...
    async def read(self) -> bytes: ...
    async def write(self, data: bytes) -> None: ...


class WebSocket:
    """One reads, and any number write."""

    def __init__(self, tunnel: Tunnel) -> None:
        self._tunnel = tunnel
        self._protocol = Connection(ConnectionType.SERVER)
        self._writing = asyncio.Lock()
        self._is_closed = False

    async def messages(self) -> AsyncGenerator[bytes | str]:
        """Until the client is gone, is silent for too long, or has said what it must not."""
        whole = bytearray()
        try:
            while data := await self._read():
                self._protocol.receive_data(data)
                for event in self._protocol.events():
                    if isinstance(event, Ping):
                        await self._send(event.response())
                    elif isinstance(event, CloseConnection):
                        await self.close(event.code)  # as it said, or what is wrong with what it said
                        return
                    elif isinstance(event, TextMessage | BytesMessage):
                        whole += event.data.encode() if isinstance(event, TextMessage) else event.data
                        if len(whole) > MESSAGE_BYTES_MAX:
                            await self.close(1009, "the message is too long")
                            return
                        if event.message_finished:
                            message, whole = bytes(whole), bytearray()
                            yield message.decode() if isinstance(event, TextMessage) else message
        except RemoteProtocolError:
            await self.close(1002, "this is no websocket")
        except OSError:
            return  # it is gone

    async def _read(self) -> bytes:
        """With a question whether the client is there, when it says nothing."""
        for _ in range(int(SILENCE_S // PING_S)):
            with suppress(TimeoutError):
                async with asyncio.timeout(PING_S):
                    return await self._tunnel.read()
            await self._send(Ping())
        return b""

    async def send(self, message: bytes | str) -> None:
        """Waits while the client does not read. Raises ConnectionError when it is gone."""
        await self._send(BytesMessage(message) if isinstance(message, bytes) else TextMessage(message))

    async def close(self, code: int, reason: str = "") -> None:
        """Again does nothing."""
        if not self._is_closed:
            with suppress(OSError):
                await self._send(CloseConnection(code, reason))
            self._is_closed = True

    async def _send(self, event: Event) -> None:
        async with self._writing:
            try:
                data = self._protocol.send(event)
            except LocalProtocolError as error:
                raise ConnectionResetError("it was closed") from error
            await self._tunnel.write(data)


def accept(request: Request) -> WebSocket:
    """Raises InvalidArgument for what is no request for a websocket."""
    headers = request.headers
    if headers.get("upgrade", "").lower() != "websocket" or headers.get("sec-websocket-version") != "13":
        raise InvalidArgument("this path has a websocket alone", next_step="ask for one, of version 13")
    key = headers.get("sec-websocket-key", "").encode("latin-1")
    try:
        is_key = len(base64.b64decode(key, validate=True)) == 16
    except (binascii.Error, ValueError):
        is_key = False
    if not is_key:
        raise InvalidArgument("the key of the websocket is none")
    tunnel = cast("Tunnel | None", request.scope.get("sandlot.tunnel"))
    if tunnel is None:
        raise CapabilityNotSupported("this server passes no websockets on", next_step="use `sandlot serve`")
    answer = base64.b64encode(hashlib.sha1(key + _GUID).digest())
    tunnel.accept([(b"upgrade", b"websocket"), (b"connection", b"upgrade"), (b"sec-websocket-accept", answer)])
    return WebSocket(tunnel)
