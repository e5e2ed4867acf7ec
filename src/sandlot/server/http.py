"""A server: doors, the connections that came through them, and their end."""

import asyncio
import socket
import ssl
from collections.abc import Awaitable, Callable, MutableMapping
from functools import partial
from typing import Any

from uvicorn.config import Config

from sandlot.server.connections import Bounds, Connection, Crowd
from sandlot.server.listening import Door, Listening, Tls

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]
_LOOK_S = 0.02


class HttpServer:
    """Made on the loop that it serves on."""

    def __init__(self, bounds: Bounds) -> None:
        self.crowd = Crowd(bounds)
        self._listening = Listening(self.crowd)

    def open(
        self, listening: socket.socket, application: Application, *, tls: Tls | None = None, owner: int | None = None
    ) -> None:
        """Let people in. With `owner` only this user and root, who may stay silent."""
        config = Config(
            application,  # pyright: ignore[reportArgumentType] - uvicorn has types of its own for what ASGI is
            http=Connection,
            ws="none",
            lifespan="off",
            interface="asgi3",
            log_config=None,
            proxy_headers=False,
            server_header=False,
            date_header=False,
        )
        config.load()
        protocol = partial(Connection, config, self.crowd, is_trusted=owner is not None)
        self._listening.open(Door(listening, protocol, owner, tls))

    def stop_listening(self) -> None:
        """Nobody else comes in; whoever has nothing under way is sent off, the others when they were answered."""
        self._listening.close()
        for connection in self._connections():
            connection.shutdown()

    async def drain(self, within_s: float) -> int:
        """How many are still there when the time is up."""
        loop = asyncio.get_running_loop()
        give_up = loop.time() + within_s
        while self.crowd.count and loop.time() < give_up:  # noqa: ASYNC110 - once in the life of a server
            await asyncio.sleep(_LOOK_S)
        return self.crowd.count

    async def drop(self) -> None:
        """End what is still there."""
        tasks = tuple(self.crowd.state.tasks)
        for task in tasks:
            task.cancel()
        for connection in self._connections():
            connection.drop()
        if tasks:
            await asyncio.wait(tasks, timeout=5)

    def _connections(self) -> list[Connection]:
        return [one for one in tuple(self.crowd.state.connections) if isinstance(one, Connection)]


__all__ = ["Application", "Bounds", "HttpServer", "Message", "Receive", "Scope", "Send", "ssl"]
