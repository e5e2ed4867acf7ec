"""A real server on a port or a socket of its own, around any host, on the loop of the test."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import uvicorn

from sandlot.contracts import Host
from sandlot.rpc.client import HostClient
from sandlot.rpc.server import application


class Server:
    """Stopped and started again on the same address, as a daemon is."""

    def __init__(self, host: object, path: Path | None = None) -> None:
        self._application = application(cast("Host", host))
        self._path = path
        self.port = 0
        self._server: uvicorn.Server | None = None
        self._task: asyncio.Task[None] | None = None

    @property
    def url(self) -> str:
        return f"unix://{self._path}" if self._path else f"http://127.0.0.1:{self.port}"

    async def start(self) -> None:
        where: dict[str, Any] = {"uds": str(self._path)} if self._path else {"host": "127.0.0.1", "port": self.port}
        config = uvicorn.Config(
            cast("Any", self._application), log_level="warning", access_log=False, lifespan="on", **where
        )
        self._server = server = uvicorn.Server(config)
        server.install_signal_handlers = lambda: None  # type: ignore[attr-defined,method-assign] # pyright: ignore[reportAttributeAccessIssue]
        self._task = asyncio.create_task(server._serve())  # pyright: ignore[reportPrivateUsage] # the signals are pytest's
        async with asyncio.timeout(30):
            while not server.started:  # noqa: ASYNC110 - uvicorn has no event for it
                await asyncio.sleep(0.01)
        if not self._path:
            self.port = server.servers[0].sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """At once: whoever is connected is cut off."""
        assert self._server is not None
        assert self._task is not None
        self._server.should_exit = True
        async with asyncio.timeout(30):
            while not self._task.done():
                self.cut()
                await asyncio.wait([self._task], timeout=0.05)
            await self._task

    def waiting(self) -> list[int]:
        """Bytes of each connection that its client did not take yet."""
        assert self._server is not None
        connections: list[Any] = list(self._server.server_state.connections)
        return [connection.transport.get_write_buffer_size() for connection in connections]

    def cut(self) -> int:
        """End every connection; tells how many."""
        assert self._server is not None
        connections = list(self._server.server_state.connections)
        for connection in connections:
            transport: Any = connection.transport
            transport.abort()
        return len(connections)


@asynccontextmanager
async def serving(host: object, path: Path | None = None) -> AsyncGenerator[Server]:
    server = Server(host, path)
    await server.start()
    try:
        yield server
    finally:
        await server.stop()


@asynccontextmanager
async def over_the_wire(host: object, path: Path | None = None) -> AsyncGenerator[HostClient]:
    async with serving(host, path) as server, HostClient(server.url) as client:
        yield client
