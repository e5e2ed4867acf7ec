"""A connection that has left HTTP: bytes, as they come and go."""

import asyncio
from collections.abc import Callable, Sequence
from http import HTTPStatus

from uvicorn.protocols.http.flow_control import FlowControl

from sandlot.model import limits

_SWITCHING = b"HTTP/1.1 %d %s\r\n" % (HTTPStatus.SWITCHING_PROTOCOLS, HTTPStatus.SWITCHING_PROTOCOLS.phrase.encode())


class ClientTunnel:
    """Offered with a request that asks for another protocol. What comes behind its head waits here; when the request is
    answered by HTTP instead, it was for nobody, and the connection ends."""

    __slots__ = (
        "_accepted",
        "_active_at",
        "_flow",
        "_has_ended",
        "_held",
        "_loop",
        "_transport",
        "_wake",
        "is_accepted",
        "is_gone",
    )

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        transport: asyncio.Transport,
        flow: FlowControl,
        accepted: Callable[[], None],
    ) -> None:
        self._loop = loop
        self._accepted = accepted
        self._transport = transport
        self._flow = flow
        self._held = bytearray()
        self._has_ended = False
        self._wake: asyncio.Future[None] | None = None
        self._active_at = loop.time()
        self.is_accepted = False
        self.is_gone = False

    # ---- for the connection ------------------------------------------------------------------------------------

    def feed(self, data: bytes) -> None:
        self._held += data
        self._active_at = self._loop.time()
        if len(self._held) > limits.TUNNEL_HELD_BYTES:
            self._flow.pause_reading()
        self._wake_up()

    def end(self) -> None:
        """The client says no more."""
        self._has_ended = True
        self._wake_up()

    def lose(self) -> None:
        """The client is gone."""
        self.is_gone = True
        self.end()

    def _wake_up(self) -> None:
        if self._wake is not None and not self._wake.done():
            self._wake.set_result(None)

    # ---- for whoever accepts it --------------------------------------------------------------------------------

    def accept(self, headers: Sequence[tuple[bytes, bytes]]) -> None:
        self.is_accepted = True
        self._accepted()
        lines = [b"%s: %s\r\n" % header for header in headers]
        self._transport.write(b"".join([_SWITCHING, *lines, b"\r\n"]))

    async def read(self) -> bytes:
        while not self._held and not self._has_ended:
            self._wake = self._loop.create_future()
            await self._wake
        found = bytes(self._held)
        self._held.clear()
        if not self.is_gone:
            self._flow.resume_reading()
        return found

    async def write(self, data: bytes) -> None:
        if self._flow.write_paused:
            await self._flow.drain()
        if self.is_gone or self._transport.is_closing():
            raise ConnectionResetError("the client is gone")
        self._transport.write(data)
        self._active_at = self._loop.time()

    def is_idle(self, since: float) -> bool:
        return self._active_at < since
