"""HTTP to a vendor that misbehaves: slow, cut off, too much, too often, and wrong."""

import asyncio
import gzip
import json
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest

from sandlot.environments.rest import RestClient, RestConfig, RestRequest, field_of
from sandlot.environments.server_events import ServerEvent, parse_events
from sandlot.model import (
    Conflict,
    DeadlineExceeded,
    InvalidArgument,
    LimitReached,
    MaxSessionsReached,
    NotFound,
    PermissionDenied,
    SandlotError,
    SessionNotFound,
    Unavailable,
)

KEY = "k-3141592653589793"
Behave = Callable[["Conversation"], Awaitable[None]]


@dataclass
class Conversation:
    """One request, and the line that the answer goes to."""

    number: int
    head: str
    body: bytes
    out: asyncio.StreamWriter

    async def say(self, data: bytes | str) -> None:
        self.out.write(data if isinstance(data, bytes) else data.encode())
        await self.out.drain()

    async def answer(self, status: int, body: bytes | str = b"", *headers: str) -> None:
        content = body if isinstance(body, bytes) else body.encode()
        lines = (f"HTTP/1.1 {status} X", f"content-length: {len(content)}", "connection: close", *headers)
        await self.say("\r\n".join(lines).encode() + b"\r\n\r\n" + content)

    def reset(self) -> None:
        self.out.transport.abort()


@dataclass
class Server:
    port: int = 0
    requests: list[str] = field(default_factory=list[str])


@asynccontextmanager
async def serving(behave: Behave) -> AsyncGenerator[Server]:
    server = Server()
    tasks: set[asyncio.Task[None]] = set()
    lines: list[asyncio.StreamWriter] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task
        tasks.add(task)
        lines.append(writer)
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            length = next(
                (int(line[15:]) for line in head.lower().split("\r\n") if line.startswith("content-length:")), 0
            )
            body = await reader.readexactly(length)
            server.requests.append(head)
            await behave(Conversation(len(server.requests), head, body, writer))
            if "transfer-encoding: chunked" in head.lower():  # a line with unread bytes would be closed as broken
                await reader.readuntil(b"0\r\n\r\n")
        except (OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            tasks.discard(task)
            writer.close()

    listening = await asyncio.start_server(serve, "127.0.0.1", 0)
    server.port = listening.sockets[0].getsockname()[1]
    try:
        yield server
    finally:
        listening.close()
        for task in tuple(tasks):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for line in lines:
            line.transport.abort()
        while any(line.transport.get_extra_info("socket").fileno() >= 0 for line in lines):  # noqa: ASYNC110 - closing is not told of
            await asyncio.sleep(0.01)


@asynccontextmanager
async def asking(behave: Behave, **options: object) -> AsyncGenerator[tuple[RestClient, Server]]:
    async with serving(behave) as server:
        given = {"timeout_s": 30.0, "pause_s": 0.01, **options}
        secrets = {"authorization": f"Bearer {KEY}"}
        config = RestConfig(f"http://127.0.0.1:{server.port}/v1", "the vendor", secrets, **given)  # pyright: ignore[reportArgumentType]
        client = RestClient(config)
        try:
            yield client, server
        finally:
            await client.close()


GET = RestRequest("GET", "things")
POST = RestRequest("POST", "things", body={"a": 1})


async def test_a_request_arrives_with_its_key_and_its_body_and_the_answer_comes_back() -> None:
    async def echo(asked: Conversation) -> None:
        await asked.answer(200, json.dumps({"got": json.loads(asked.body), "is": "ä"}))

    async with asking(echo) as (client, server):
        assert await client.json(RestRequest("POST", "/a b", params=[("q", "ü&x")], body={"x": [1]})) == {
            "got": {"x": [1]},
            "is": "ä",
        }
        head = server.requests[0]
        assert head.startswith("POST /v1/a%20b?q=%C3%BC%26x HTTP/1.1")
        assert f"authorization: Bearer {KEY}" in head


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, InvalidArgument),
        (401, PermissionDenied),
        (403, PermissionDenied),
        (404, NotFound),
        (408, DeadlineExceeded),
        (409, Conflict),
        (413, LimitReached),
        (418, InvalidArgument),
        (429, Unavailable),
        (500, Unavailable),
        (502, Unavailable),
        (504, DeadlineExceeded),
        (302, Unavailable),
    ],
)
async def test_a_status_is_a_typed_error_with_its_words_and_no_key(status: int, kind: type[SandlotError]) -> None:
    async def refuse(asked: Conversation) -> None:
        await asked.answer(status, f"no, {KEY} may not " + "x" * 5000, "location: http://127.0.0.1:1/")

    async with asking(refuse, tries=2) as (client, _server):
        with pytest.raises(kind) as caught:
            await client.json(GET)
    assert type(caught.value) is kind
    assert caught.value.context["status"] == status
    for told in (str(caught.value), repr(caught.value), repr(client.config), repr(caught.value.context)):
        assert KEY not in told
        assert len(told) < 1000
    assert caught.value.next_step


async def test_an_adapter_says_what_a_status_means_to_it() -> None:
    async def refuse(asked: Conversation) -> None:
        await asked.answer(404 if "GET" in asked.head else 429)

    async with asking(refuse, kinds={429: MaxSessionsReached}, tries=1) as (client, _server):
        with pytest.raises(SessionNotFound):
            await client.send(RestRequest("GET", "x", kinds={404: SessionNotFound}))
        with pytest.raises(MaxSessionsReached):
            await client.send(POST)


@pytest.mark.parametrize("status", [502, 503, 504])
async def test_what_may_be_done_twice_is_tried_again_and_nothing_else(status: int) -> None:
    async def second_time(asked: Conversation) -> None:
        await asked.answer(200 if asked.number == 3 else status, "{}")

    async with asking(second_time) as (client, server):
        assert await client.json(GET) == {}
        assert len(server.requests) == 3
    async with asking(second_time) as (client, server):
        with pytest.raises((Unavailable, DeadlineExceeded)):
            await client.json(POST)
        assert len(server.requests) == 1
    async with asking(second_time) as (client, server):
        assert await client.json(RestRequest("POST", "x", twice=True)) == {}


async def test_a_connection_that_is_reset_is_tried_again_where_that_is_safe() -> None:
    async def reset(asked: Conversation) -> None:
        if asked.number == 2:
            return await asked.answer(200, "7")
        return asked.reset()

    async with asking(reset) as (client, server):
        assert await client.json(GET) == 7
    async with asking(reset) as (client, server):
        with pytest.raises(Unavailable):
            await client.json(POST)
        assert len(server.requests) == 1


async def test_a_vendor_says_when_to_come_back_and_is_believed_within_the_deadline() -> None:
    arrived: list[float] = []

    async def later(asked: Conversation) -> None:
        arrived.append(time.monotonic())
        if asked.number == 1:
            return await asked.answer(429, "", "retry-after: 1")
        return await asked.answer(200, "1")

    async with asking(later) as (client, _server):
        assert await client.json(POST) == 1  # what was refused for being too much was not done
    assert arrived[1] - arrived[0] >= 1

    async def much_later(asked: Conversation) -> None:
        await asked.answer(
            503, "", "retry-after: Wed, 21 Oct 2099 07:28:00 GMT" if "/d" in asked.head else "retry-after: 900"
        )

    async with asking(much_later) as (client, server):
        began = time.monotonic()
        for path in ("d", "s"):
            with pytest.raises(Unavailable) as caught:
                await client.json(RestRequest("GET", path))
            assert int(caught.value.context["retry_after_s"]) >= 900
        assert time.monotonic() - began < 25
        assert len(server.requests) == 2


async def test_the_deadline_is_for_all_tries_together() -> None:
    async def never(asked: Conversation) -> None:
        if asked.number % 2:
            return await asked.answer(503)
        return await asyncio.sleep(1000)

    async with asking(never, timeout_s=0.5) as (client, _server):
        began = time.monotonic()
        with pytest.raises((DeadlineExceeded, Unavailable)):
            await client.json(GET)
        assert time.monotonic() - began < 20


@pytest.mark.parametrize("how", ["head", "half", "drip"])
async def test_a_vendor_that_is_silent_or_slow_does_not_hold_anyone(how: str) -> None:
    async def slow(asked: Conversation) -> None:
        if how == "head":
            await asyncio.sleep(1000)
        await asked.say("HTTP/1.1 200 X\r\ncontent-length: 100000\r\n\r\n")
        for _ in range(100000 if how == "drip" else 1):
            await asked.say("x")
            await asyncio.sleep(0.05)
        await asyncio.sleep(1000)

    async with asking(slow, timeout_s=0.5, silence_s=0.5) as (client, _server):
        began = time.monotonic()
        with pytest.raises(DeadlineExceeded):
            await client.send(GET)
        assert time.monotonic() - began < 20


@pytest.mark.parametrize("chunked", [True, False])
async def test_half_an_answer_is_none(chunked: bool) -> None:
    async def half(asked: Conversation) -> None:
        head = "transfer-encoding: chunked\r\n\r\n5\r\n[1, 2" if chunked else "content-length: 100\r\n\r\n[1, 2"
        await asked.say(f"HTTP/1.1 200 X\r\n{head}")

    async with asking(half, tries=2) as (client, server):
        with pytest.raises(Unavailable):
            await client.json(GET)
        assert len(server.requests) == 2


@pytest.mark.parametrize("said", [b"\0\xff garbage\r\n\r\n", b"HTTP/1.1 99999 X\r\n\r\n", b"SSH-2.0-x\r\n", b""])
async def test_what_is_no_http_is_told_as_such(said: bytes) -> None:
    async def noise(asked: Conversation) -> None:
        await asked.say(said)

    async with asking(noise, tries=2) as (client, _server):
        with pytest.raises(Unavailable):
            await client.json(GET)


@pytest.mark.parametrize("body", ["<html>", "{", "[" * 100_000, "\xff", '{"a": nan1}', "1" * 5000])
async def test_what_is_no_json_is_told_as_such(body: str) -> None:
    async def wrong(asked: Conversation) -> None:
        await asked.answer(200, body.encode("latin-1"), "content-type: application/json")

    async with asking(wrong) as (client, _server):
        with pytest.raises(Unavailable, match="no JSON"):
            await client.json(GET)


async def test_an_empty_answer_is_nothing() -> None:
    async def empty(asked: Conversation) -> None:
        await asked.answer(204)

    async with asking(empty) as (client, _server):
        assert await client.json(RestRequest("DELETE", "x")) is None


def test_a_field_has_the_type_that_was_expected() -> None:
    assert field_of({"id": "x"}, "id", str, "the vendor") == "x"
    answers: tuple[object, ...] = ({"id": 7}, {"id": None}, {}, [], None, "id")
    for answer in answers:
        with pytest.raises(Unavailable, match="'id'"):
            field_of(answer, "id", str, "the vendor")
    with pytest.raises(Unavailable):
        field_of({"id": True}, "id", int, "the vendor")


@pytest.mark.parametrize("how", ["endless", "bomb", "declared"])
async def test_an_answer_without_an_end_is_cut_off(how: str) -> None:
    async def much(asked: Conversation) -> None:
        if how == "bomb":
            packed = gzip.compress(bytes(50_000_000))
            return await asked.answer(200, packed, "content-encoding: gzip")
        length = "content-length: 99999999999999\r\n" if how == "declared" else "connection: close\r\n"
        await asked.say(f"HTTP/1.1 200 X\r\n{length}\r\n")
        while True:
            await asked.say(b"x" * 65536)

    async with asking(much, bytes_max=1_000_000) as (client, _server):
        with pytest.raises(LimitReached):
            await client.send(GET)


async def test_a_body_is_streamed_in_both_directions() -> None:
    async def echo(asked: Conversation) -> None:
        await asked.say("HTTP/1.1 200 X\r\ntransfer-encoding: chunked\r\n\r\n")
        for number in range(3):
            await asked.say(f"1\r\n{number}\r\n")
        await asked.say("0\r\n\r\n")

    async def content() -> AsyncIterator[bytes]:
        for _ in range(3):
            yield b"x" * 10

    async with asking(echo) as (client, server):
        async with client.stream(RestRequest("POST", "x", content=content())) as stream:
            assert b"".join([piece async for piece in stream]) == b"012"
        assert "transfer-encoding: chunked" in server.requests[0].lower()


async def test_an_error_of_whoever_gives_the_content_comes_out() -> None:
    async def wait(asked: Conversation) -> None:
        await asyncio.sleep(1000)

    async def broken() -> AsyncIterator[bytes]:
        yield b"x"
        raise LimitReached("the file became too large")

    async with asking(wait) as (client, _server):
        with pytest.raises((LimitReached, Unavailable)):
            await client.send(RestRequest("PUT", "x", content=broken()))


async def test_a_stream_that_breaks_off_or_falls_silent_is_an_error_after_what_was_heard() -> None:
    async def events(asked: Conversation) -> None:
        await asked.say("HTTP/1.1 200 X\r\ntransfer-encoding: chunked\r\n\r\n")
        await asked.say("9\r\ndata: 1\n\n\r\n")
        if "silent" in asked.head:
            await asyncio.sleep(1000)
        asked.reset()

    async with asking(events, silence_s=3.0) as (client, _server):
        for path, kind in (("silent", DeadlineExceeded), ("broken", Unavailable)):
            heard: list[str] = []

            async def listen(path: str = path, heard: list[str] = heard) -> None:
                async with client.stream(RestRequest("GET", path)) as stream:
                    async for event in stream.events():
                        heard.append(event.data)

            with pytest.raises(kind):
                await listen()
            assert heard == ["1"]


async def test_whoever_leaves_a_stream_early_ends_it() -> None:
    gone = asyncio.Event()

    async def endless(asked: Conversation) -> None:
        await asked.say("HTTP/1.1 200 X\r\nconnection: close\r\n\r\n")
        try:
            while True:
                await asked.say(b"data: x\n\n" * 1000)
        finally:
            gone.set()

    async with asking(endless) as (client, _server):
        async with client.stream(GET) as stream:
            async for _event in stream.events():
                break
        async with asyncio.timeout(60):
            await gone.wait()


async def test_nobody_is_there() -> None:
    client = RestClient(RestConfig("http://127.0.0.1:1", "the vendor", tries=2, pause_s=0.01))
    with pytest.raises(Unavailable, match="cannot be reached"):
        await client.json(GET)
    await client.close()


# ---- events ------------------------------------------------------------------------------------------------------


SAID = (
    "\ufeffid: 1\nevent: kind\ndata: one\ndata:two\n: comment\n\n"
    "data\r\rdata: ä\r\n\r\nretry: 5\n\nother: x\ndata: last"
)


@pytest.mark.parametrize("size", [1, 2, 3, 5, 1000])
async def test_events_are_the_same_wherever_the_pieces_are_cut(size: int) -> None:
    whole = SAID.encode()

    async def pieces() -> AsyncIterator[bytes]:
        for at in range(0, len(whole), size):
            yield whole[at : at + size]

    assert [event async for event in parse_events(pieces())] == [
        ServerEvent("one\ntwo", "kind", "1"),
        ServerEvent("", "message", "1"),
        ServerEvent("ä", "message", "1"),
    ]


@pytest.mark.parametrize("line", [b"x" * 1000, b"data: x\n" * 200])
async def test_an_event_without_an_end_is_cut_off(line: bytes) -> None:
    async def pieces() -> AsyncIterator[bytes]:
        while True:
            yield line

    with pytest.raises(LimitReached):
        await anext(aiter(parse_events(pieces(), 10_000)))
