"""HTTP/1.1 as a client speaks it: over TCP, TLS and unix sockets, on connections that are kept for the next request.

A request that was never sent is told apart from one that may have arrived: only the caller knows which of them can be
repeated."""

import asyncio
import socket
import ssl
import time
from collections.abc import AsyncIterable, Mapping
from contextlib import suppress
from typing import cast
from urllib.parse import unquote, urlsplit

import httptools

from sandlot.model import InvalidArgument, limits

_HIGH_WATER = 1024 * limits.KIB
_LOW_WATER = 256 * limits.KIB
_IDLE_S = 4.0  # that a connection may have waited when it is used again; many servers end one after five seconds
_IDLE_MAX = 256  # connections that are kept
_HEADER_BYTES_MAX = 64 * limits.KIB
# A peer that has vanished is noticed within half a minute.
_KEEPALIVE = ((socket.TCP_KEEPIDLE, 15), (socket.TCP_KEEPINTVL, 5), (socket.TCP_KEEPCNT, 3))


class Unreached(Exception):
    """The request was not sent."""


class Cut(Exception):
    """The connection ended before the answer did; the request may have been carried out."""


class Response:
    """An answer on its way. Read to its end, its connection is used again."""

    def __init__(self, connection: "Connection") -> None:
        self._connection = connection
        self._chunks: list[bytes] = []
        self._size = 0
        self._is_paused = False
        self._error: Cut | None = None
        self._waiter: asyncio.Future[None] | None = None
        self.status = 0
        self.headers: dict[str, str] = {}
        self.is_complete = False

    async def begun(self) -> None:
        """Until its status and headers are there. Raises Cut."""
        while not self.status:
            await self._wait()

    async def chunk(self) -> bytes:
        """What has come; nothing at the end. Raises Cut."""
        while not self._chunks:
            if self.is_complete:
                return b""
            await self._wait()
        chunks, self._chunks, self._size = self._chunks, [], 0
        if self._is_paused:
            self._is_paused = False
            self._connection.resume_reading()
        return chunks[0] if len(chunks) == 1 else b"".join(chunks)

    async def read(self, size_max: int) -> bytes:
        """All of it. Raises Cut."""
        content = bytearray()
        while chunk := await self.chunk():
            content += chunk
            if len(content) > size_max:
                self.abandon()
                raise Cut("the answer is too large")
        return bytes(content)

    def abandon(self) -> None:
        """Nobody reads on. A connection that has more to tell is ended."""
        if not self.is_complete:
            self._connection.abort()

    async def _wait(self) -> None:
        if self._error is not None:
            raise self._error
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    # ---- for the connection ------------------------------------------------------------------------------------

    def feed(self, chunk: bytes) -> None:
        self._chunks.append(chunk)
        self._size += len(chunk)
        if self._size > _HIGH_WATER and not self._is_paused:
            self._is_paused = True
            self._connection.pause_reading()
        self.wake()

    def fail(self, error: Cut) -> None:
        self._error = error
        self.wake()

    def wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class Connection(asyncio.Protocol):
    def __init__(self, pool: "Pool") -> None:
        self._pool = pool
        self._transport: asyncio.Transport | None = None
        self._response: Response | None = None
        self._parser = httptools.HttpResponseParser(self)
        self._header_bytes = 0
        self._can_write: asyncio.Event | None = None
        self.is_lost = False
        self.is_sending = False  # a request that is not sent to its end: nothing can follow it
        self.idle_since = 0.0

    def send(self, data: bytes) -> Response:
        """Raises Unreached."""
        if self.is_lost or self._transport is None or self._transport.is_closing():
            raise Unreached("the connection has ended")
        self._response = response = Response(self)
        self._transport.write(data)
        return response

    async def send_more(self, data: bytes) -> None:
        """Raises Cut."""
        if self.is_lost or self._transport is None or self._transport.is_closing():
            raise Cut("the connection ended")
        self._transport.write(data)
        if self._can_write is None:
            await asyncio.sleep(0)  # what sends all that it has at once would never hear that the connection ended
        else:
            await self._can_write.wait()

    def abort(self) -> None:
        self.is_lost = True
        if self._transport is not None:
            self._transport.abort()

    def pause_reading(self) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()

    # ---- asyncio -----------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_lost = True
        self._pool.forget(self)
        self.resume_writing()
        if self._response is not None:
            self._response.fail(Cut(f"the connection ended: {exc}" if exc else "the connection ended"))
            self._response = None

    def pause_writing(self) -> None:
        self._can_write = asyncio.Event()

    def resume_writing(self) -> None:
        if self._can_write is not None:
            self._can_write.set()
            self._can_write = None

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            if self._response is not None:
                self._response.fail(Cut(f"this is no HTTP: {error}"))
            self.abort()

    # ---- httptools ---------------------------------------------------------------------------------------------

    def on_header(self, name: bytes, value: bytes) -> None:
        self._header_bytes += len(name) + len(value)
        if self._header_bytes > _HEADER_BYTES_MAX:
            raise httptools.HttpParserError("the headers are too large")
        if self._response is not None:
            self._response.headers[name.lower().decode("latin-1")] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        self._header_bytes = 0
        status = self._parser.get_status_code()
        if self._response is not None and status >= 200:
            self._response.status = status
            self._response.wake()

    def on_body(self, body: bytes) -> None:
        if self._response is not None:
            self._response.feed(body)

    def on_message_complete(self) -> None:
        response = self._response
        if response is None or not response.status:
            return
        self._response = None
        response.is_complete = True
        if self._parser.should_keep_alive() and not self.is_sending:
            self._pool.keep(self)
        elif self._transport is not None:
            self._transport.close()
        response.wake()


class Pool:
    """Connections to one server. `unix:///path`, `http://host:port` or `https://host:port`."""

    def __init__(self, url: str, headers: Mapping[str, str], tls: ssl.SSLContext | None = None) -> None:
        parts = urlsplit(url)
        self._path = ""
        self._ssl: ssl.SSLContext | None = None
        if parts.scheme == "unix":
            self._path = unquote(parts.netloc + parts.path)
            self._name, self._port = "localhost", 0
        elif parts.scheme in ("http", "https") and parts.hostname:
            self._name, self._port = parts.hostname, parts.port or {"http": 80, "https": 443}[parts.scheme]
            if parts.scheme == "https":
                self._ssl = tls or ssl.create_default_context()
        else:
            raise InvalidArgument(
                f"{url[:100]!r} is no address of a server",
                next_step="give http://HOST:PORT, https://HOST:PORT or unix:///PATH",
            )
        self._prefix = parts.path.rstrip("/") if not self._path else ""
        host = f"[{self._name}]" if ":" in self._name else self._name
        told = {"host": f"{host}:{self._port}" if self._port else host, "user-agent": "sandlot", **headers}
        self._headers = "".join(f"{name}: {_header(value)}\r\n" for name, value in told.items())
        self._idle: list[Connection] = []
        self._all: set[Connection] = set()
        self._heads: dict[tuple[str, str], bytes] = {}
        self._is_closed = False

    async def post(self, path: str, content_type: str, body: bytes, more: str = "") -> Response:
        """`more`: header lines. Raises Unreached, Cut."""
        head = self._heads.get((path, content_type))
        if head is None:
            head = self._heads[path, content_type] = self._head(path, content_type)
        data = b"%scontent-length: %d\r\n%s\r\n%s" % (head, len(body), more.encode(), body)
        while idle := self._take_idle():
            with suppress(Unreached):
                return idle.send(data)
        return (await self._connect()).send(data)

    async def post_stream(self, path: str, content_type: str, pieces: AsyncIterable[bytes]) -> Response:
        """Raises Unreached, Cut, and what `pieces` raises: then the request is broken off."""
        head = self._head(path, content_type) + b"transfer-encoding: chunked\r\n\r\n"
        connection = await self._connect()
        response = connection.send(head)
        connection.is_sending = True
        try:
            async for piece in pieces:
                await connection.send_more(b"%x\r\n%s\r\n" % (len(piece), piece))
                if response.status:
                    break  # it was answered before its end, which is a refusal
            else:
                connection.is_sending = False
                await connection.send_more(b"0\r\n\r\n")
        except Cut:
            if not response.status:  # otherwise it was refused before its end, and that is what is told
                raise
        except BaseException:  # whatever it is: the server must not take what came for all of it
            connection.abort()
            raise
        return response

    def _head(self, path: str, content_type: str) -> bytes:
        return f"POST {self._prefix}{path} HTTP/1.1\r\n{self._headers}content-type: {content_type}\r\n".encode()

    def _take_idle(self) -> Connection | None:
        while self._idle:
            connection = self._idle.pop()
            if not connection.is_lost:
                if time.monotonic() - connection.idle_since < _IDLE_S:
                    return connection
                connection.abort()
        return None

    async def _connect(self) -> Connection:
        """Raises Unreached."""
        if self._is_closed:
            raise Unreached("the client is closed")
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(limits.CONNECT_S):
                if self._path:
                    _, connection = await loop.create_unix_connection(lambda: Connection(self), self._path)
                else:
                    transport, connection = await loop.create_connection(
                        lambda: Connection(self), self._name, self._port, ssl=self._ssl
                    )
                    _tune(transport)
        except (OSError, TimeoutError) as error:
            raise Unreached(str(error) or "it does not take connections") from error
        self._all.add(connection)
        return connection

    def keep(self, connection: Connection) -> None:
        if self._is_closed or len(self._idle) >= _IDLE_MAX:
            connection.abort()
            return
        connection.idle_since = time.monotonic()
        self._idle.append(connection)

    def forget(self, connection: Connection) -> None:
        self._all.discard(connection)
        if connection in self._idle:
            self._idle.remove(connection)

    async def aclose(self) -> None:
        self._is_closed = True
        for connection in list(self._all):
            connection.abort()
        await asyncio.sleep(0)  # the transports hear of it


def _header(value: str) -> str:
    if not value.isascii() or not value.isprintable():
        raise InvalidArgument("a header has characters that it cannot have")
    return value


def _tune(transport: asyncio.BaseTransport) -> None:
    sock: socket.socket = transport.get_extra_info("socket")
    with suppress(OSError):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in _KEEPALIVE:
            sock.setsockopt(socket.IPPROTO_TCP, option, value)
