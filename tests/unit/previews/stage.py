"""A proxy behind a real server, before programs on this machine's loopback."""

import asyncio
import socket
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from sandlot.contracts import PortStream
from sandlot.host.port_streams import SocketStream
from sandlot.model import NotFound, limits
from sandlot.previews.addresses import PreviewAddress
from sandlot.previews.proxy import Forwarding, Proxy, Receive, Scope, Send
from sandlot.server.crowd import Bounds
from sandlot.server.front import say
from sandlot.server.http import HttpServer

Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
PATIENCE_S = 60.0


class Loopback:
    """Sessions have one network here: the machine's."""

    def __init__(self) -> None:
        self.dialled = 0
        self.open = 0

    @asynccontextmanager
    async def connect_port(self, session_id: str, port: int) -> AsyncGenerator[PortStream]:
        made = socket.socket()
        made.setblocking(False)
        try:
            await asyncio.get_running_loop().sock_connect(made, ("127.0.0.1", port))
        except OSError as error:
            made.close()
            raise NotFound(f"nobody listens on port {port} of {session_id}") from error
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.dialled += 1
        self.open += 1
        stream = SocketStream(made)
        try:
            yield stream
        finally:
            await stream.leave()
            self.open -= 1


@dataclass
class Stage:
    port: int  # of the server
    ports: Loopback
    proxy: Proxy
    failures: list[Exception] = field(default_factory=list[Exception])

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection("127.0.0.1", self.port, limit=1 << 24)

    async def ask(self, request: bytes) -> bytes:
        """All that comes until the server closes, of a request that says so."""
        reader, writer = await self.connect()
        try:
            writer.write(request)
            async with asyncio.timeout(PATIENCE_S):
                return await reader.read()
        finally:
            writer.close()


@asynccontextmanager
async def program(handler: Handler) -> AsyncGenerator[int]:
    """A server on the loopback; its port."""
    tasks: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        try:
            await handler(reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass  # the test has what it wanted
        finally:
            tasks.discard(task)
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, limit=1 << 20)
    try:
        yield int(server.sockets[0].getsockname()[1])
    finally:
        server.close()
        for task in tuple(tasks):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def saying(answer: bytes, *, then_close: bool = True) -> Handler:
    """Reads a head, and says this."""

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(answer)
            await writer.drain()
            if then_close:
                return

    return handle


async def echo_head(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answers with the head of each request."""
    while True:
        head = await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%s" % (len(head), head))
        await writer.drain()


@asynccontextmanager
async def staged(program_port: int, **more: object) -> AsyncGenerator[Stage]:
    """Every path leads to the one program; what the proxy raises is told as a status."""
    ports = Loopback()
    proxy = Proxy(ports)

    async def application(scope: Scope, receive: Receive, send: Send) -> None:
        host: bytes = dict(scope["headers"]).get(b"host", b"")
        way = Forwarding(PreviewAddress("s", program_port), scope["sandlot.target"], host, **more)  # pyright: ignore[reportArgumentType]
        try:
            await proxy.forward(scope, receive, send, way)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is told
            stage.failures.append(error)
            await say(send, 502, type(error).__name__, str(error))

    server = HttpServer(Bounds(limits.SERVER_CONNECTIONS_MAX, limits.HEADER_TIMEOUT_S, limits.KEEP_ALIVE_S))
    listening = socket.create_server(("127.0.0.1", 0))
    stage = Stage(listening.getsockname()[1], ports, proxy)
    server.open(listening, application)
    try:
        yield stage
    finally:
        server.stop_listening()
        await server.drop()
        await proxy.close()
        listening.close()
