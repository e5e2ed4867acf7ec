"""Others who come into a data directory: served by whoever has its engine. Loaded when the first of them knocks."""

import os
import socket

from sandlot.contracts import Host
from sandlot.model import limits
from sandlot.rpc.asgi import Application, Message
from sandlot.rpc.server import application
from sandlot.server.crowd import Bounds
from sandlot.server.http import HttpServer


class Door:
    """Open from the moment on when it is made, on the loop of the engine."""

    def __init__(self, host: Host, listening: socket.socket) -> None:
        self._server = HttpServer(
            Bounds(limits.SERVER_CONNECTIONS_MAX, limits.HEADER_TIMEOUT_S, limits.KEEP_ALIVE_S),
        )
        self._application = application(host)
        self._server.open(listening, self._application, owner=os.geteuid())

    async def close(self) -> None:
        """At once: whoever is there comes back to whoever has the directory next, and finds what he began."""
        self._server.stop_listening()
        await self._server.drop()
        await forget(self._application)


async def forget(served: Application) -> None:
    """What callers began is left as it is, and not ended as if they had left it."""
    events = iter(("lifespan.startup", "lifespan.shutdown"))

    async def receive() -> Message:
        return {"type": next(events)}

    async def send(_message: Message) -> None:
        pass

    await served({"type": "lifespan"}, receive, send)
