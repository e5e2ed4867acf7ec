"""As much of a web framework as gateways need: a request, an answer, and a table of routes on plain ASGI.

The table is data, so that tests and documents can go through it.
"""

import asyncio
import json
import re
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Awaitable,
    Callable,
    Iterable,
    Mapping,
    MutableMapping,
    Sequence,
)
from dataclasses import dataclass, field
from typing import Any, Final, cast
from urllib.parse import parse_qsl, unquote

from sandlot.model import InvalidArgument, LimitReached, Unavailable

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]

BODY_BYTES_MAX: Final = 4 << 20
_PARAMETER: Final = re.compile(r"\{(\w+)\}")


@dataclass
class Request:
    """One request. Its body is read once: whole and bounded, or as a stream."""

    method: str
    path: str  # decoded
    segments: tuple[str, ...]  # of the path as it was sent, each decoded by itself: `%2F` is part of a name
    query: Sequence[tuple[str, str]]
    headers: Mapping[str, str]  # lower case; of several the last
    receive: Receive = field(repr=False)
    is_known: bool = False  # whoever stands before this looked at a key
    is_unproven: bool = False  # it has none, and was let through for a token that nobody has looked at yet
    values: dict[str, str] = field(default_factory=dict[str, str])  # what the path says, by name
    scope: Scope = field(default_factory=dict[str, Any], repr=False)

    @classmethod
    def of(cls, scope: Scope, receive: Receive) -> "Request":
        text = raw_path(scope).decode("ascii", "replace")
        headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}
        query = parse_qsl(scope.get("query_string", b"").decode("latin-1"), keep_blank_values=True, errors="replace")
        segments = tuple(unquote(part, errors="surrogateescape") for part in text.strip("/").split("/"))
        return cls(
            cast("str", scope.get("method", "GET")),
            unquote(text),
            segments,
            query,
            headers,
            receive,
            is_known="sandlot.key" in scope,
            is_unproven="sandlot.unproven" in scope,
            scope=scope,
        )

    @property
    def raw_path(self) -> bytes:
        return raw_path(self.scope)

    def all(self, name: str) -> list[str]:
        return [value for key, value in self.query if key == name]

    def one(self, name: str, default: str = "") -> str:
        return next(reversed(self.all(name)), default)

    async def stream(self) -> AsyncIterator[bytes]:
        """Raises Unavailable when whoever sends it goes away."""
        while True:
            message = await self.receive()
            if message["type"] == "http.disconnect":
                raise Unavailable("the client went away before its request was whole")
            if body := message.get("body", b""):
                yield body
            if not message.get("more_body", False):
                return

    async def body(self, at_most: int = BODY_BYTES_MAX) -> bytes:
        """Raises LimitReached."""
        said = self.headers.get("content-length", "")
        whole = bytearray()
        if not (said.isdecimal() and int(said) > at_most):
            async for piece in self.stream():
                whole += piece
                if len(whole) > at_most:
                    break
            else:
                return bytes(whole)
        raise LimitReached(f"the body is longer than {at_most} bytes", limit="body_bytes")

    async def document(self, *, empty: object = None) -> Any:
        """The body as JSON, strictly: no NaN, no key twice. Raises InvalidArgument, LimitReached."""
        body = await self.body()
        return read_json(body) if body.strip() or empty is None else empty

    async def wait_gone(self) -> None:
        """Until the client has gone away; what it still sends is dropped."""
        while (await self.receive())["type"] != "http.disconnect":
            pass


def raw_path(scope: Scope) -> bytes:
    """As it was sent."""
    raw: bytes | None = scope.get("raw_path")
    return (raw or cast("str", scope["path"]).encode()).split(b"?")[0]


def read_json(body: bytes) -> Any:
    try:
        found: Any = json.loads(body.decode(), object_pairs_hook=_once, parse_constant=_constant)
    except (ValueError, RecursionError) as error:
        raise InvalidArgument(f"the body is no JSON: {str(error)[:200]}") from None
    return found


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key stands there twice")
    return found


def _constant(name: str) -> None:
    raise ValueError(f"{name} is no number")


@dataclass(frozen=True)
class Answer:
    status: int = 200
    body: bytes | AsyncIterator[bytes] = b""
    headers: Mapping[str, str] = field(default_factory=dict[str, str])

    @classmethod
    def json(cls, document: object, status: int = 200, headers: Mapping[str, str] | None = None) -> "Answer":
        body = json.dumps(document, ensure_ascii=True, allow_nan=False).encode()
        return cls(status, body, {"content-type": "application/json", **(headers or {})})

    @classmethod
    def text(cls, text: str, status: int = 200, headers: Mapping[str, str] | None = None) -> "Answer":
        return cls(
            status, text.encode(errors="replace"), {"content-type": "text/plain; charset=utf-8", **(headers or {})}
        )

    async def send(self, send: Send, request: Request | None = None) -> None:
        """A body that comes in pieces ends when whoever asked has gone away."""
        headers = [(name.encode("latin-1"), _printable(value)) for name, value in self.headers.items()]
        if isinstance(self.body, bytes):
            if self.status != 204:
                headers.append((b"content-length", str(len(self.body)).encode()))
            await send({"type": "http.response.start", "status": self.status, "headers": headers})
            await send({"type": "http.response.body", "body": self.body})
            return
        await send({"type": "http.response.start", "status": self.status, "headers": headers})
        if request is None:
            await _send_pieces(self.body, send)
            return
        sending = asyncio.ensure_future(_send_pieces(self.body, send))
        gone = asyncio.ensure_future(request.wait_gone())
        try:
            await asyncio.wait([sending, gone], return_when=asyncio.FIRST_COMPLETED)
            if sending.done():
                sending.result()
        finally:
            for task in (sending, gone):
                task.cancel()
            await asyncio.gather(sending, gone, return_exceptions=True)


async def _send_pieces(body: AsyncIterator[bytes], send: Send) -> None:
    try:
        async for piece in body:
            await send({"type": "http.response.body", "body": piece, "more_body": True})
        await send({"type": "http.response.body", "body": b""})
    finally:
        if isinstance(body, AsyncGenerator):
            await cast("AsyncGenerator[bytes]", body).aclose()


def _printable(value: str) -> bytes:
    """A header is one line, whatever a name in it holds."""
    return re.sub(r"[^\x20-\x7e]", "_", value).encode("ascii")


@dataclass(frozen=True)
class Passage:
    """Somebody else answers, as ASGI has it. What it raises was raised before anything was said."""

    run: Application


Handler = Callable[[Request], Awaitable[Answer | Passage]]


@dataclass(frozen=True)
class Route:
    method: str
    pattern: str  # `/a/{b}/c`; a last `{name...}` takes the rest
    handler: Handler

    def match(self, segments: tuple[str, ...]) -> dict[str, str] | None:
        wanted = self.pattern.strip("/").split("/")
        if wanted[-1].endswith("...}"):
            rest, wanted = wanted[-1][1:-4], wanted[:-1]
            if len(segments) < len(wanted):
                return None
            values = {rest: "/".join(segments[len(wanted) :])}
            segments = segments[: len(wanted)]
        else:
            values = dict[str, str]()
        if len(wanted) != len(segments):
            return None
        for want, got in zip(wanted, segments, strict=True):
            if found := _PARAMETER.fullmatch(want):
                values[found[1]] = got
            elif want != got:
                return None
        return values


class Router:
    """Routes in order; the first that matches path and method is taken."""

    def __init__(self, routes: Iterable[Route]) -> None:
        self.routes = tuple(routes)

    def find(self, request: Request) -> Handler | None:
        """The handler; what its path says is in the request then."""
        for route in self.routes:
            if route.method in (request.method, "*") and (values := route.match(request.segments)) is not None:
                request.values |= values
                return route.handler
        return None

    def methods(self, request: Request) -> list[str]:
        """That this path has, maybe none."""
        return sorted({route.method for route in self.routes if route.match(request.segments) is not None})
