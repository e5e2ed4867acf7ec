"""Clients that are slow, silent, greedy or wrong are bounded, and the others do not notice."""

import asyncio
import socket
import ssl
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from sandlot.config.service import TlsFiles
from sandlot.model import limits
from sandlot.server.crowd import Bounds
from sandlot.server.http import HttpServer, Message, Receive, Scope, Send
from sandlot.server.joining import HOLD
from sandlot.server.tls import server_context
from tests.serving import certificate
from tests.waiting import until

GET = b"GET /ok HTTP/1.1\r\nhost: x\r\n\r\n"
HOLD_ON = b"GET /hold HTTP/1.1\r\nhost: x\r\n\r\n"
POST = b"POST /read HTTP/1.1\r\nhost: x\r\n"
LONG_S = 3600.0


async def application(scope: Scope, receive: Receive, send: Send) -> None:
    """/read answers with the size of the body, /hold never; all else at once."""
    size = 0
    while scope["path"] == "/hold":
        if (await receive())["type"] == "http.disconnect":
            return
    if scope["path"] == "/read":
        message: Message = {"more_body": True}
        while message.get("more_body"):
            message = await receive()
            if message["type"] == "http.disconnect":
                return
            size += len(message["body"])
    body = str(size).encode()
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % len(body))]})
    await send({"type": "http.response.body", "body": body})


class Stage:
    def __init__(self, server: HttpServer, port: int) -> None:
        self.server = server
        self.crowd = server.crowd
        self.port = port

    async def open(self, data: bytes = b"") -> "tuple[asyncio.StreamReader, asyncio.StreamWriter]":
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        self.writers.append(writer)
        writer.write(data)
        await writer.drain()
        return reader, writer

    async def ask(self, data: bytes) -> bytes:
        """All that comes until the server closes."""
        reader, _writer = await self.open(data)
        async with asyncio.timeout(60):
            return await everything(reader)

    async def is_well(self) -> bool:
        """Whether a client with nothing special is answered."""
        return b"200 OK" in await self.ask(GET.replace(b"\r\n\r\n", b"\r\nconnection: close\r\n\r\n"))

    writers: "list[asyncio.StreamWriter]"


async def everything(reader: asyncio.StreamReader) -> bytes:
    found = b""
    try:
        while piece := await reader.read(65536):
            found += piece
    except ConnectionResetError:
        pass
    return found


@asynccontextmanager
async def stage(
    connections_max: int = 100,
    header_timeout_s: float = LONG_S,
    keep_alive_s: float = LONG_S,
    tls: ssl.SSLContext | None = None,
) -> AsyncGenerator[Stage]:
    server = HttpServer(Bounds(connections_max, header_timeout_s, keep_alive_s))
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        server.open(listening, application, tls=lambda: tls)
        found = Stage(server, listening.getsockname()[1])
        found.writers = []
        try:
            yield found
        finally:
            for writer in found.writers:
                writer.close()
            server.stop_listening()
            await server.drop()
            assert await until(lambda: server.crowd.count == 0), "connections are left"
            assert not server.crowd.waiting


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """As impatient as a test has to be."""
    monkeypatch.setattr(limits, "BODY_PAUSE_S", 0.4)


async def test_a_head_that_does_not_come_is_not_waited_for() -> None:
    async with stage(header_timeout_s=0.2) as here:
        assert await here.ask(b"") == b"", "who says nothing hears nothing"
        assert (await here.ask(b"GET / HTTP/1.1\r\nhost")).startswith(b"HTTP/1.1 408 ")
        assert (await here.ask(b"\r\n\r\n")).startswith(b"HTTP/1.1 408 ")
        said = await here.ask(GET + b"GET / HT")
        assert b"200 OK" in said
        assert b" 408 " in said
        assert here.crowd.late == 4


async def test_who_drips_is_not_waited_for_either() -> None:
    async with stage(header_timeout_s=0.3) as here:
        reader, writer = await here.open(b"GET / HTTP/1.1\r\n")
        said = asyncio.ensure_future(everything(reader))
        for number in range(3000):
            if said.done():
                break
            writer.write(b"x-%d: y\r\n" % number)
            await asyncio.sleep(0.02)
        assert (await said).startswith((b"HTTP/1.1 408 ", b"HTTP/1.1 431 "))


@pytest.mark.usefixtures("patient")
async def test_a_body_that_does_not_go_on_is_not_waited_for() -> None:
    async with stage() as here:
        for head in (b"content-length: 100\r\n\r\nabc", b"transfer-encoding: chunked\r\n\r\n3\r\nabc\r\n"):
            assert (await here.ask(POST + head)).startswith(b"HTTP/1.1 408 ")
        assert await here.is_well()


@pytest.mark.usefixtures("patient")
async def test_a_body_that_goes_on_may_take_long() -> None:
    async with stage() as here:
        reader, writer = await here.open(POST + b"connection: close\r\ncontent-length: 10\r\n\r\n")
        for _ in range(10):
            await asyncio.sleep(0.1)
            writer.write(b"x")
        assert (await everything(reader)).endswith(b"10")


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\nhost: x\r\nx: " + b"a" * (limits.HEADER_BYTES_MAX + 1),
        b"GET / HTTP/1.1\r\nhost: x\r\nx: " + b"a" * limits.HEADER_BYTES_MAX + b"\r\n\r\n",
        b"GET /" + b"a" * limits.HEADER_BYTES_MAX,
        b"GET / HTTP/1.1\r\n" + b"".join(b"x%d: y\r\n" % n for n in range(limits.HEADERS_MAX + 1)) + b"\r\n",
        POST + b"transfer-encoding: chunked\r\n\r\n1;" + b"a" * (1 << 20),
        POST + b"transfer-encoding: chunked\r\n\r\n0\r\nx: " + b"a" * (1 << 20),
    ],
    ids=["endless header", "large header", "endless address", "many headers", "extension", "trailer"],
)
async def test_a_head_is_bounded(data: bytes) -> None:
    async with stage() as here:
        status = (await here.ask(data)).split(b" ")[1]
        assert status in (b"431", b"400")
        assert await here.is_well()


@pytest.mark.parametrize(
    "data",
    [
        b"\x16\x03\x01\x02\x00\x01\x00",
        b"GET / HTTP/1.1\r\nhost: x\r\ncontent-length: 1\r\ntransfer-encoding: chunked\r\n\r\n",
        b"GET / HTTP/1.1\r\nhost: x\r\ncontent-length: -1\r\n\r\n",
        b"POST /read HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
        b"GET http://[ HTTP/1.1\r\nhost: x\r\n\r\n",
        b"GET /\xff HTTP/1.1\r\nhost: x\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
    ],
    ids=["tls", "two lengths", "negative", "no chunk", "no address", "no ascii", "version"],
)
async def test_what_is_no_http_is_refused(data: bytes) -> None:
    async with stage() as here:
        said = await here.ask(data)
        assert said.startswith(b"HTTP/1.1 400 "), said
        assert b'"code": "invalid_argument"' in said
        assert await here.is_well()


async def test_requests_that_come_before_an_answer_stand_in_turn_and_are_bounded() -> None:
    async with stage() as here:
        few = GET * 3 + GET.replace(b"\r\n\r\n", b"\r\nconnection: close\r\n\r\n")
        assert (await here.ask(few)).count(b"200 OK") == 4
        reader, writer = await here.open(POST + b"content-length: 1\r\n\r\n")
        writer.write(b"x" + GET * 5000)
        said = await everything(reader)
        assert said.count(b"HTTP/1.1") <= limits.PIPELINED_MAX + 2
        assert await here.is_well()


async def test_who_comes_when_all_are_at_work_is_told_so() -> None:
    async with stage(connections_max=2) as here:
        for _ in range(2):
            await here.open(HOLD_ON)
        assert await until(lambda: len(here.crowd.state.tasks) == 2)
        assert (await here.ask(GET)).startswith(b"HTTP/1.1 503 ")
        assert here.crowd.refused == 1


async def test_whoever_was_silent_longest_makes_room_at_once() -> None:
    async with stage(connections_max=3) as here:
        silent = [await here.open() for _ in range(3)]
        assert await until(lambda: here.crowd.waiting == 3)
        assert await here.is_well()
        async with asyncio.timeout(60):
            assert await everything(silent[0][0]) == b"", "who came first had to go"
        assert here.crowd.refused == 0
        assert here.crowd.late == 1


async def test_who_was_answered_rests_while_others_are_silent() -> None:
    async with stage(connections_max=8) as here:
        reader, writer = await here.open(GET)
        async with asyncio.timeout(60):
            await reader.readuntil(b"\r\n\r\n0")
            for number in range(40):
                await here.open(b"" if number % 2 else b"GET /")
            assert await here.is_well()
            writer.write(GET)
            assert (await reader.readuntil(b"\r\n\r\n0")).startswith(b"HTTP/1.1 200 ")


async def test_who_rests_makes_room_where_few_have_asked_nothing() -> None:
    async with stage(connections_max=8) as here:
        resting = [await here.open(GET) for _ in range(8)]
        assert await until(lambda: len(here.crowd.resting) == 8)
        newest = await here.open()
        async with asyncio.timeout(60):
            assert (await everything(resting[0][0])).endswith(b"\r\n\r\n0")
            newest[1].write(GET)
            assert b"200 OK" in await newest[0].readuntil(b"\r\n\r\n0")


async def test_a_body_that_goes_on_is_not_put_out() -> None:
    async with stage(connections_max=4) as here:
        piece, size = b"x" * 20_000, 40 * 20_000
        reader, writer = await here.open(POST + b"connection: close\r\ncontent-length: %d\r\n\r\n" % size)
        slow, _writer = await here.open(POST + b"content-length: 9\r\n\r\nx")
        assert await until(lambda: len(here.crowd.awaited) == 2)
        for _ in range(40):
            writer.write(piece)
            await writer.drain()
            await here.open()
        async with asyncio.timeout(60):
            assert (await everything(reader)).endswith(b"%d" % size)
            assert await everything(slow) == b""


async def test_who_says_no_hello_makes_room(tmp_path: Path) -> None:
    certificate(tmp_path, "own")
    context = server_context(TlsFiles(tmp_path / "own.pem", tmp_path / "own.key", None))
    async with stage(connections_max=3, tls=context) as here:
        silent = [await here.open() for _ in range(3)]
        assert await until(lambda: here.crowd.waiting == 3)
        trust = ssl.create_default_context(cafile=str(tmp_path / "own.pem"))
        async with asyncio.timeout(60):
            reader, writer = await asyncio.open_connection("localhost", here.port, ssl=trust)
            here.writers.append(writer)
            writer.write(GET)
            assert b"200 OK" in await reader.readuntil(b"\r\n\r\n0")
            assert await everything(silent[0][0]) == b""


async def test_hundreds_of_slow_clients_do_not_disturb_others() -> None:
    async with stage(connections_max=1000) as here:
        for _ in range(200):
            await here.open(b"GET / HTTP/1.1\r\nx")
            await here.open()
            await here.open(POST + b"content-length: 9\r\n\r\nx")
        assert await until(lambda: here.crowd.waiting == 600)
        for _ in range(20):
            assert await here.is_well()


async def test_an_answer_before_the_body_has_come_keeps_the_connection_in_order() -> None:
    async with stage() as here:
        early = b"POST /ok HTTP/1.1\r\nhost: x\r\ncontent-length: 200000\r\n\r\n"
        reader, writer = await here.open(early)
        async with asyncio.timeout(60):
            assert b"200 OK" in await reader.readuntil(b"\r\n\r\n0")
            writer.write(b"x" * 200000 + POST + b"connection: close\r\ncontent-length: 3\r\n\r\nabc")
            said = await everything(reader)
        assert said.startswith(b"HTTP/1.1 200 OK")
        assert said.endswith(b"3")


async def test_a_connection_that_rests_is_ended_and_one_that_works_is_not() -> None:
    async with stage(keep_alive_s=1.5) as here:
        loop = asyncio.get_running_loop()
        reader, writer = await here.open(GET)
        async with asyncio.timeout(60):
            for _ in range(2):  # each request begins the time anew
                assert (await reader.readuntil(b"\r\n\r\n0")).startswith(b"HTTP/1.1 200 ")
                await asyncio.sleep(0.8)
                writer.write(GET)
            assert (await reader.readuntil(b"\r\n\r\n0")).startswith(b"HTTP/1.1 200 ")
            since = loop.time()
            slow, writing = await here.open(POST + b"content-length: 3\r\n\r\na")
            assert await everything(reader) == b""
            assert loop.time() - since > 1.4
            await asyncio.sleep(0.5)
            writing.write(b"bc")
            assert (await slow.readuntil(b"\r\n\r\n3")).startswith(b"HTTP/1.1 200 ")
            assert await everything(slow) == b""


async def test_a_whole_answer_is_one_write() -> None:
    async def whole(scope: Scope, _receive: Receive, send: Send) -> None:
        scope[HOLD]()
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
        await send({"type": "http.response.body", "body": b"ok"})

    server = HttpServer(Bounds(10, LONG_S, LONG_S))
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        server.open(listening, whole)
        asking = socket.create_connection(listening.getsockname(), timeout=60)

        def pieces() -> set[bytes]:
            """What the kernel hands out at once, when nobody else in this process is in the way."""
            found: set[bytes] = set()
            for _ in range(200):
                asking.sendall(GET)
                found.add(asking.recv(65536).rpartition(b"\r\n")[2])
                if b"" in found:
                    break
            return found

        try:
            assert await asyncio.to_thread(pieces) == {b"ok"}
        finally:
            asking.close()
            server.stop_listening()
            await server.drop()


async def test_leaving_sends_off_who_is_idle_and_waits_for_who_is_not() -> None:
    async with stage() as here:
        idle, _ = await here.open()
        busy, writing = await here.open(POST + b"content-length: 3\r\n\r\na")
        assert await until(lambda: here.crowd.count == 2)
        await asyncio.sleep(0.1)
        here.server.stop_listening()
        async with asyncio.timeout(60):
            assert await everything(idle) == b""
            assert await here.server.drain(0.05) == 1
            writing.write(b"bc")
            said = await everything(busy)
        assert said.endswith(b"3")
        assert b"connection: close" in said
        assert await here.server.drain(60) == 0
