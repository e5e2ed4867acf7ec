"""A request goes to a program and its answer comes back, as they come."""

import asyncio

import pytest

from sandlot.model import Unavailable
from tests.unit.previews.stage import echo_head, program, saying, staged
from tests.waiting import until

GET = b"GET /a/b?c=d%20e HTTP/1.1\r\nhost: x.test\r\nconnection: close\r\n\r\n"
CHUNKED = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
UPGRADE = b"GET /ws HTTP/1.1\r\nhost: x\r\nconnection: keep-alive, Upgrade\r\nupgrade: websocket\r\n"


async def test_a_request_and_its_answer() -> None:
    async with program(echo_head) as port, staged(port) as stage:
        answer = await stage.ask(GET)
    assert answer.startswith(b"HTTP/1.1 200 OK\r\n")
    assert b"\r\n\r\nGET /a/b?c=d%20e HTTP/1.1\r\nhost: x.test\r\n" in answer
    assert b"x-forwarded-for: 127.0.0.1\r\n" in answer
    assert b'forwarded: for=127.0.0.1;host="x.test";proto=http\r\n' in answer


async def test_requests_without_a_body_share_a_connection_and_others_do_not() -> None:
    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            head = await reader.readuntil(b"\r\n\r\n")
            if b"content-length: 3" in head:
                await reader.readexactly(3)
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok")

    async with program(handle) as port, staged(port) as stage:
        for _ in range(5):
            assert (await stage.ask(GET)).endswith(b"ok")
        assert stage.ports.dialled == 1
        post = b"POST / HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: 3\r\n\r\nabc"
        for _ in range(3):
            assert (await stage.ask(post)).endswith(b"ok")
        assert stage.ports.dialled == 4
        assert (await stage.ask(GET)).endswith(b"ok")
        assert stage.ports.dialled == 4


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello", b"\r\n\r\nhello"),
        (CHUNKED + b"2\r\nhe\r\n3;x=y\r\nllo\r\n0\r\nTrailer: no\r\n\r\n", b"3\r\nllo\r\n0\r\n\r\n"),
        (b"HTTP/1.1 200 OK\r\n\r\nhello", b"5\r\nhello\r\n0\r\n\r\n"),
        (b"HTTP/1.0 200 OK\r\n\r\nhello", b"5\r\nhello\r\n0\r\n\r\n"),
        (b"HTTP/1.1 103 Early\r\nlink: a\r\n\r\nHTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello", b"\r\n\r\nhello"),
        (b"HTTP/1.1 204 No Content\r\ncontent-length: 5\r\n\r\n", b"\r\n\r\n"),
        (b"HTTP/1.1 304 Not Modified\r\ncontent-length: 5\r\netag: x\r\n\r\n", b"\r\n\r\n"),
    ],
)  # fmt: skip
async def test_bodies_end_where_the_program_says(answer: bytes, told: bytes) -> None:
    async with program(saying(answer)) as port, staged(port) as stage:
        found = await stage.ask(GET)
        assert found.endswith(told), found
        assert b"railer" not in found
        assert stage.failures == []


async def test_head_has_a_length_and_no_body() -> None:
    async with program(saying(b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\n")) as port, staged(port) as stage:
        found = await stage.ask(GET.replace(b"GET", b"HEAD", 1))
    assert b"content-length: 5\r\n" in found
    assert found.endswith(b"\r\n\r\n")


@pytest.mark.parametrize(
    "answer",
    [
        b"hello\r\n\r\n",
        b"HTTP/1.1 200 OK\nContent-Length: 0\n\n\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nA: b\r\n folded\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nA : b\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nA: b\rSet-Cookie: x\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nA: b\nSet-Cookie: x\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nA: b\0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nnonsense\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\nContent-Length: 3\r\n\r\nabc",
        b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999999999999\r\n\r\n",
        b"HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"HTTP/2.0 200 OK\r\n\r\n",
        b"HTTP/1.1 600 OK\r\n\r\n",
        b"HTTP/1.1 101 Switching\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n",
        b"HTTP/1.1 100 Continue\r\n\r\n" * 20,
        b"HTTP/1.1 200 OK\r\nA: " + b"x" * 100_000 + b"\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n" + b"A: b\r\n" * 300 + b"\r\n",
        b"",
    ],
)
async def test_what_is_no_answer_is_told(answer: bytes) -> None:
    async with program(saying(answer)) as port, staged(port) as stage:
        found = await stage.ask(GET)
    assert found.startswith(b"HTTP/1.1 502 "), found
    assert b"et-Cookie" not in found.partition(b"\r\n\r\n")[0]
    assert [type(error) for error in stage.failures] == [Unavailable]


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\ncontent-length: 500\r\n\r\nhello",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhelloworld\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n-1\r\n\r\n0\r\n\r\n",
    ],
)
async def test_an_answer_that_breaks_off_breaks_off_for_the_client_too(answer: bytes) -> None:
    async with program(saying(answer)) as port, staged(port) as stage:
        found = await stage.ask(GET)
    assert b"hello" in found
    assert not found.endswith(b"0\r\n\r\n")
    assert stage.failures == []


async def test_events_are_not_held_back() -> None:
    ask = asyncio.Event()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n")
        for number in range(3):
            writer.write(b"data: %d\n\n" % number)
            await ask.wait()
            ask.clear()

    async with program(handle) as port, staged(port) as stage:
        reader, writer = await stage.connect()
        writer.write(GET)
        for number in range(3):
            async with asyncio.timeout(30):
                await reader.readuntil(b"data: %d\n\n" % number)
            ask.set()
        writer.close()


async def test_a_client_that_leaves_ends_the_connection_to_the_program() -> None:
    left = asyncio.Event()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\n\r\nhere it comes")
        await reader.read()
        left.set()

    async with program(handle) as port, staged(port) as stage:
        reader, writer = await stage.connect()
        writer.write(GET)
        await reader.readuntil(b"comes")
        writer.close()
        async with asyncio.timeout(30):
            await left.wait()
        assert await until(lambda: stage.ports.open == 0)


@pytest.mark.parametrize("form", ["sized", "chunked"])
async def test_bodies_of_any_size_go_both_ways(form: str) -> None:
    size = 24 << 20

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % size)
        left = size
        while left:
            if b"chunked" in head:
                count = int((await reader.readline()), 16)
                piece = (await reader.readexactly(count + 2))[:-2]
            else:
                piece = await reader.read(min(left, 65536))
            left -= len(piece)
            writer.write(piece)
            await writer.drain()

    async with program(handle) as port, staged(port) as stage:
        reader, writer = await stage.connect()
        framing = b"content-length: %d" % size if form == "sized" else b"transfer-encoding: chunked"
        writer.write(b"POST / HTTP/1.1\r\nhost: x\r\n%s\r\n\r\n" % framing)

        async def send() -> None:
            block = bytes(range(256)) * 256
            for _ in range(size // len(block)):
                writer.write(block if form == "sized" else b"%x\r\n%s\r\n" % (len(block), block))
                await writer.drain()
            if form == "chunked":
                writer.write(b"0\r\n\r\n")

        sending = asyncio.ensure_future(send())
        async with asyncio.timeout(120):
            await reader.readuntil(b"\r\n\r\n")
            got = await reader.readexactly(size)
        await sending
        assert got == bytes(range(256)) * (size // 256)
        writer.close()


async def test_a_program_that_does_not_read_stops_its_client() -> None:
    async def handle(reader: asyncio.StreamReader, _writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        await asyncio.sleep(3600)

    async with program(handle) as port, staged(port) as stage:
        _reader, writer = await stage.connect()
        writer.write(b"POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n")
        sent = 0
        block = b"10000\r\n" + b"x" * 65536 + b"\r\n"
        try:
            while sent < 1 << 30:
                writer.write(block)
                async with asyncio.timeout(2):
                    await writer.drain()
                sent += len(block)
        except TimeoutError:
            pass
        assert sent < 256 << 20, "all of it was held somewhere"
        writer.transport.abort()


async def test_a_body_is_asked_for_when_the_program_wants_it() -> None:
    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        assert b"expect: 100-continue" in head
        if head.startswith(b"POST /no"):
            writer.write(b"HTTP/1.1 413 Too large\r\ncontent-length: 0\r\n\r\n")
            return
        writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        body = await reader.readexactly(5)
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\n" + body)

    async with program(handle) as port, staged(port) as stage:
        for path, told in (
            (b"/yes", b"HTTP/1.1 100 "),
            (b"/no", b"HTTP/1.1 413 "),
        ):
            reader, writer = await stage.connect()
            writer.write(b"POST %s HTTP/1.1\r\nhost: x\r\nexpect: 100-continue\r\ncontent-length: 5\r\n\r\n" % path)
            async with asyncio.timeout(30):
                assert (await reader.readuntil(b"\r\n")).startswith(told)
                if path == b"/yes":
                    writer.write(b"hello")
                    await reader.readuntil(b"hello")
            writer.close()


async def test_a_connection_that_the_program_closed_is_not_used() -> None:
    closed = asyncio.Event()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok")
        await writer.drain()
        writer.close()
        closed.set()

    async with program(handle) as port, staged(port) as stage:
        for _ in range(3):
            assert (await stage.ask(GET)).endswith(b"ok")
            await closed.wait()
        assert stage.failures == []


async def test_what_a_program_says_unasked_is_nobodys_answer() -> None:
    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        ok = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"
        writer.write(ok + ok.replace(b"ok", b"no"))
        await reader.read()

    async with program(handle) as port, staged(port) as stage:
        for _ in range(3):
            assert (await stage.ask(GET)).endswith(b"ok")
        assert stage.ports.dialled == 3


async def test_upgrades_are_tunnels() -> None:
    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        assert b"connection: upgrade\r\nupgrade: websocket\r\n" in head
        assert b"sec-websocket-key: k\r\n" in head
        writer.write(
            b"HTTP/1.1 101 Yes\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Accept: a\r\n\r\nhi"
        )
        while data := await reader.read(65536):
            writer.write(data.upper())
            await writer.drain()
        writer.write(b"bye")
        await writer.drain()

    async with program(handle) as port, staged(port) as stage:
        reader, writer = await stage.connect()
        writer.write(UPGRADE + b"sec-websocket-key: k\r\n\r\nfirst ")
        async with asyncio.timeout(60):
            head = await reader.readuntil(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: websocket\r\n")
            assert b"sec-websocket-accept: a\r\n" in head
            await reader.readuntil(b"hiFIRST ")
            block = b"abcdefgh" * 8192
            writer.write(block * 64)
            assert await reader.readexactly(64 * len(block)) == block.upper() * 64
            writer.write_eof()
            assert await reader.read() == b"bye"
        writer.close()
        assert await until(lambda: stage.ports.open == 0)


async def test_an_upgrade_that_the_program_does_not_want_is_a_request() -> None:
    async with program(echo_head) as port, staged(port) as stage:
        for protocol in (b"websocket", b"h2c"):
            asked = b"GET / HTTP/1.1\r\nhost: x\r\nconnection: upgrade\r\nupgrade: %s\r\n\r\n" % protocol
            answer = await stage.ask(asked + b"PRI * HTTP/2.0")  # it ends with the answer
            assert answer.startswith(b"HTTP/1.1 200 OK\r\n")
            assert (b"upgrade: websocket" in answer.partition(b"\r\n\r\n")[2]) is (protocol == b"websocket")


@pytest.mark.parametrize("who", ["client", "program"])
async def test_a_tunnel_ends_with_either_side(who: str) -> None:
    ended = asyncio.Event()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 101 Yes\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n")
        if who == "program":
            return
        await reader.read()
        ended.set()

    async with program(handle) as port, staged(port) as stage:
        reader, writer = await stage.connect()
        writer.write(b"GET / HTTP/1.1\r\nhost: x\r\nconnection: upgrade\r\nupgrade: x\r\n\r\n")
        async with asyncio.timeout(30):
            await reader.readuntil(b"\r\n\r\n")
            if who == "client":
                writer.transport.abort()
                await ended.wait()
            else:
                assert await reader.read() == b""
        assert await until(lambda: stage.ports.open == 0)
        writer.close()


async def test_nobody_listens() -> None:
    async with program(echo_head) as port:
        pass
    async with staged(port) as stage:
        assert b"NotFound" in await stage.ask(GET)


async def test_a_location_leads_back_through_the_prefix() -> None:
    for said, told in (
        (b"/login?x", b"/p/login?x"),
        (b"http://inner:1/a", b"/p/a"),
        (b"//evil.test/", b"//evil.test/"),
        (b"https://elsewhere.test/", b"https://elsewhere.test/"),
        (b"next", b"next"),
    ):
        answer = b"HTTP/1.1 302 Found\r\ncontent-length: 0\r\nLocation: %s\r\n\r\n" % said
        async with program(saying(answer)) as port, staged(port, prefix=b"/p", said_host=b"x.test") as stage:
            found = await stage.ask(GET.replace(b"x.test", b"inner:1"))
            assert b"location: %s\r\n" % told in found
