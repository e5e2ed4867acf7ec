"""Servers that are none of ours, and servers that answer before they were asked to the end."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager

import pytest

from sandlot.fakes.host import FakeHost
from sandlot.model import (
    CallRequest,
    FileWrite,
    InvalidArgument,
    SandlotError,
    SessionNotFound,
    SessionSpec,
    Unavailable,
    limits,
)
from sandlot.rpc.client import HostClient
from tests.unit.rpc.raw_http import envelope
from tests.unit.rpc.serving import serving

DEADLINE_S = 60.0


@asynccontextmanager
async def listening(answer: bytes) -> AsyncGenerator[str]:
    """Whatever is asked, this is the answer."""

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(65536)
        writer.write(answer)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(talk, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


def http(body: bytes, status: str = "200 OK", kind: str = "application/proto") -> bytes:
    return f"HTTP/1.1 {status}\r\ncontent-type: {kind}\r\ncontent-length: {len(body)}\r\n\r\n".encode() + body


STRANGE = {
    "nothing": b"",
    "no http": b"SSH-2.0-OpenSSH\r\n",
    "half a head": b"HTTP/1.1 200 OK\r\ncontent-le",
    "half a body": http(b"x" * 100)[:-50],
    "noise": http(b"\xff" * 40),
    "html": http(b"<html>", "404 Not Found", "text/html"),
    "html of a proxy": http(b"<html>", "502 Bad Gateway", "text/html"),
    "an error that is none": http(b'{"code": 3}', "500 Internal Server Error", "application/json"),
    "many headers": b"HTTP/1.1 200 OK\r\n" + b"a: b\r\n" * 100_000 + b"\r\n",
    "an end that is none": http(envelope(b"not json", 2), kind="application/connect+proto"),
    "a list as an end": http(envelope(b"[1]", 2), kind="application/connect+proto"),
    "a frame that is too large": http(b"\0\xff\xff\xff\xff" + b"x" * 10, kind="application/connect+proto"),
    "a frame that is noise": http(envelope(b"\xff" * 9), kind="application/connect+proto"),
    "a compressed frame": http(envelope(b"x", 1), kind="application/connect+proto"),
}


@pytest.mark.parametrize("answer", STRANGE.values(), ids=STRANGE.keys())
async def test_what_strange_servers_say_is_an_error_of_ours(answer: bytes) -> None:
    async with listening(answer) as url, HostClient(url, reconnect_s=0.0) as client, asyncio.timeout(DEADLINE_S):
        with pytest.raises(SandlotError):
            await client.get("s")
        with pytest.raises(SandlotError):
            async with client.call(CallRequest("s", ("true",))) as stream:
                await stream.result()


async def zeros(pieces: int) -> AsyncIterator[bytes]:
    for _ in range(pieces):
        yield bytes(limits.PIECE_BYTES)


async def test_an_upload_that_is_refused_halfway_is_told_why_and_its_connection_is_not_used_again() -> None:
    async with serving(FakeHost()) as server, HostClient(server.url) as client, asyncio.timeout(DEADLINE_S):
        for _ in range(3):
            with pytest.raises((SessionNotFound, Unavailable)):
                await client.write_file(FileWrite("nobody", "a"), zeros(200))
            session = await client.create(SessionSpec())
            assert (await client.get(session.session_id)).session_id == session.session_id


async def test_an_error_of_the_content_is_heard_and_nothing_is_written() -> None:
    async def breaks() -> AsyncIterator[bytes]:
        async for piece in zeros(8):
            yield piece
        raise ZeroDivisionError

    async with serving(FakeHost()) as server, HostClient(server.url) as client, asyncio.timeout(DEADLINE_S):
        session = await client.create(SessionSpec())
        with pytest.raises(ZeroDivisionError):
            await client.write_file(FileWrite(session.session_id, "a"), breaks())
        await client.write_file(FileWrite(session.session_id, "b"), zeros(8))


@pytest.mark.parametrize("url", ["", "ftp://x", "127.0.0.1:80", "http://", "//x"])
def test_what_is_no_address_is_refused(url: str) -> None:
    with pytest.raises(InvalidArgument, match="no address"):
        HostClient(url)


def test_a_header_cannot_bring_another_one() -> None:
    with pytest.raises(InvalidArgument, match="header"):
        HostClient("http://127.0.0.1:1", api_key="a\r\nx: y")
