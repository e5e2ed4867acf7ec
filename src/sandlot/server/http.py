"""A server: doors, the connections that came through them, and their end."""

import asyncio
import os
import socket
from collections.abc import Awaitable, Callable, MutableMapping
from contextlib import suppress
from functools import partial
from typing import Any
from weakref import WeakSet

from uvicorn.config import Config

from sandlot.server.connections import Connection
from sandlot.server.crowd import Bounds, Crowd
from sandlot.server.listening import Door, Listening, Tls

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]
_LOOK_S = 0.02


_servers: "WeakSet[HttpServer]" = WeakSet()


class HttpServer:
    """Made on the loop that it serves on."""

    def __init__(self, bounds: Bounds) -> None:
        self.crowd = Crowd(bounds)
        _servers.add(self)
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
        for connection in self._connections():
            connection.drop()
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=5)

    def forget(self) -> None:
        """In a forked child: whoever is connected hears of the parent's end, not of the child's."""
        for connection in self._connections():
            with suppress(OSError, AttributeError):
                os.close(connection.transport.get_extra_info("socket").fileno())

    def _connections(self) -> list[Connection]:
        return [one for one in tuple(self.crowd.state.connections) if isinstance(one, Connection)]


def _after_fork() -> None:
    for server in tuple(_servers):
        server.forget()
    _servers.clear()


os.register_at_fork(after_in_child=_after_fork)
