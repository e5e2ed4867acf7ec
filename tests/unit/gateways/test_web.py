"""What gateways stand on: requests as they come, routes, JSON, and bodies in parts."""

import json
from collections.abc import AsyncIterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandlot.gateways.multipart import boundary_of, read_parts
from sandlot.gateways.web import Answer, Message, Request, Route, Router, Scope, read_json
from sandlot.model import InvalidArgument, LimitReached, Unavailable


async def nothing(_request: Request) -> Answer:
    return Answer()


def request(path: str, method: str = "GET", body: tuple[bytes, ...] = (), query: bytes = b"") -> Request:
    waiting = [*body]

    async def receive() -> Message:
        if not waiting:
            return {"type": "http.disconnect"}
        return {"type": "http.request", "body": waiting.pop(0), "more_body": bool(waiting)}

    headers: list[tuple[bytes, bytes]] = []
    named: Scope = {
        "method": method,
        "path": path,
        "raw_path": path.encode(),
        "headers": headers,
        "query_string": query,
    }
    return Request.of(named, receive)


def test_a_route_takes_the_path_apart() -> None:
    router = Router([Route("GET", "/a/{b}/c", nothing), Route("*", "/p/{rest...}", nothing)])
    found = request("/a/x%2Fy%20z/c")
    assert router.find(found) is nothing
    assert found.values == {"b": "x/y z"}, "an escaped slash is part of a name"
    deep = request("/p/q/r", "POST")
    assert router.find(deep) is nothing
    assert deep.values == {"rest": "q/r"}
    assert router.find(request("/a/x/c", "PUT")) is None
    assert router.methods(request("/a/x/c", "PUT")) == ["GET"]
    assert router.methods(request("/nowhere")) == []


def test_a_query_keeps_what_stands_there_twice() -> None:
    found = request("/x", query=b"a=1&a=2&b=%26&c=")
    assert (found.all("a"), found.one("a"), found.one("b"), found.all("c")) == (["1", "2"], "2", "&", [""])


async def test_a_body_is_bounded() -> None:
    assert await request("/", body=(b"ab", b"cd")).body(4) == b"abcd"
    with pytest.raises(LimitReached):
        await request("/", body=(b"ab", b"cd", b"e")).body(4)
    with pytest.raises(Unavailable):
        await request("/").body()


@pytest.mark.parametrize(
    "text", [b"", b"{", b'{"a": NaN}', b'{"a": 1, "a": 2}', b"[" * 100_000, b"\xff", b'"\\ud800', b"Infinity", b"{}{}"]
)
def test_what_is_no_strict_json_is_refused(text: bytes) -> None:
    with pytest.raises(InvalidArgument):
        read_json(text)


async def test_a_header_is_one_line() -> None:
    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)

    await Answer.json({}, headers={"x": "a\r\nset-cookie: b\u2028"}).send(send)
    assert dict(sent[0]["headers"])[b"x"] == b"a__set-cookie: b_"


def form(boundary: str, *parts: tuple[str, bytes]) -> bytes:
    made = b""
    for name, content in parts:
        head = f'--{boundary}\r\nContent-Disposition: form-data; name="{name}"; filename="f"\r\n\r\n'
        made += head.encode() + content + b"\r\n"
    return made + f"--{boundary}--\r\n".encode()


async def pieces(data: bytes, size: int) -> AsyncIterator[bytes]:
    for at in range(0, len(data), size):
        yield data[at : at + size]


async def read(data: bytes, size: int = 7, boundary: bytes = b"xx") -> list[tuple[str, bytes]]:
    found: list[tuple[str, bytes]] = []
    async for part in read_parts(pieces(data, size), boundary):
        found.append((part.name, b"".join([piece async for piece in part.content])))
    return found


@pytest.mark.parametrize("size", [1, 2, 3, 5, 64, 10_000])
async def test_parts_are_read_however_they_come(size: int) -> None:
    parts = [("a", b""), ("b", b"\r\n--x"), ("c", b"\r\n\r\n--xy--" * 50), ('d"', b"\r\n")]
    told = [(name.replace('"', '\\"'), content) for name, content in parts]
    assert await read(form("xx", *told), size) == parts
    assert await read(b"before\r\n" + form("xx", ("a", b"1")) + b"behind", size) == [("a", b"1")]


@given(st.lists(st.binary(max_size=60), max_size=4), st.integers(1, 40))
async def test_any_content_comes_back(contents: list[bytes], size: int) -> None:
    contents = [content for content in contents if b"\r\n--boundary" not in content]
    body = form("boundary", *(("n", content) for content in contents))
    assert [content for _, content in await read(body, size, b"boundary")] == contents


async def test_a_part_that_is_not_read_is_skipped() -> None:
    body = form("xx", ("a", b"1" * 1000), ("b", b"2"))
    assert [part.name async for part in read_parts(pieces(body, 9), b"xx")] == ["a", "b"]


@pytest.mark.parametrize(
    "body", [b"", b"--xx", b"--xx\r\n\r\n", form("xx", ("a", b"1"))[:-9], b"--xxyy\r\n", b"rubbish"]
)
async def test_half_a_body_is_refused(body: bytes) -> None:
    with pytest.raises(InvalidArgument):
        await read(body)


async def test_a_head_is_bounded() -> None:
    with pytest.raises(LimitReached):
        await read(b"--xx\r\nx: " + b"y" * 100_000, 1000)


def test_a_boundary_is_said() -> None:
    assert boundary_of('multipart/form-data; boundary="a b"') == b"a b"
    assert boundary_of("multipart/form-data; charset=x; boundary=ab") == b"ab"
    for wrong in ("", "text/plain", "multipart/form-data", "multipart/form-data; boundary="):
        with pytest.raises(InvalidArgument):
            boundary_of(wrong)


def test_json_is_plain() -> None:
    assert json.loads(Answer.json({"a": "\ud800"}).body) == {"a": "\ud800"}  # type: ignore[arg-type]
