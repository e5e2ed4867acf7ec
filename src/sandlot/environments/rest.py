"""How adapters speak HTTP to vendors: with a deadline over all tries, bounds for what is read, and typed errors.

What may be done twice is tried again, with pauses that no two clients share; a vendor that says when to come back is
believed as far as the deadline goes. Redirects are not followed, because keys go along. No key is in an error.
"""

import asyncio
import email.utils
import json
import random
import time
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar, cast

from pyqwest import Client, Headers, HTTPTransport, ReadError, RemoteProtocolError, Response, WriteError

from sandlot.environments.server_events import ServerEvent, parse_events
from sandlot.model import (
    CapabilityNotSupported,
    Conflict,
    DeadlineExceeded,
    InvalidArgument,
    LimitReached,
    NotFound,
    PermissionDenied,
    SandlotError,
    Unavailable,
    limits,
)

_BROKEN = (OSError, RemoteProtocolError, ReadError, WriteError)
_TWICE = frozenset({"GET", "HEAD", "PUT", "DELETE"})  # doing them again comes to the same
_AGAIN = frozenset({502, 503, 504})
_TOO_MANY = 429
_SHOWN_CHARS = 300
_HIDDEN = "[hidden]"
_T = TypeVar("_T")
_KINDS: Mapping[int, type[SandlotError]] = {
    400: InvalidArgument,
    401: PermissionDenied,
    402: LimitReached,
    403: PermissionDenied,
    404: NotFound,
    405: CapabilityNotSupported,
    408: DeadlineExceeded,
    409: Conflict,
    410: NotFound,
    412: Conflict,
    413: LimitReached,
    415: InvalidArgument,
    422: InvalidArgument,
    501: CapabilityNotSupported,
    504: DeadlineExceeded,
}
_STEPS: Mapping[type[SandlotError], str] = {
    PermissionDenied: "look whether the key is right, and may do this",
    NotFound: "look whether it is still there",
    LimitReached: "free something, or ask the vendor for more",
    InvalidArgument: "mend the request",
    CapabilityNotSupported: "do without it",
    DeadlineExceeded: "try again, or give it more time",
    Conflict: "look in which state it is",
}


@dataclass(frozen=True, slots=True)
class RestConfig:
    base_url: str
    who: str  # as messages call the vendor
    secrets: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)  # headers whose values nobody sees
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    timeout_s: float = 60.0  # for an answer, with all tries
    silence_s: float = 60.0  # of a stream that has begun
    connect_s: float = 10.0
    tries: int = 4
    pause_s: float = 0.25  # before the second try; twice as long before each next one
    bytes_max: int = 16 * limits.MIB  # of an answer that is read at once
    kinds: Mapping[int, type[SandlotError]] = field(default_factory=dict[int, type[SandlotError]])  # beside ours


@dataclass(frozen=True, slots=True)
class RestRequest:
    method: str
    path: str  # below the base address, or an address of its own
    params: Sequence[tuple[str, str]] = ()
    body: object = None  # sent as JSON
    content: bytes | AsyncIterable[bytes] | None = None  # sent as it is; a stream is sent once
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    timeout_s: float | None = None
    twice: bool | None = None  # whether it may be done twice; None: as its method says
    kinds: Mapping[int, type[SandlotError]] = field(
        default_factory=dict[int, type[SandlotError]]
    )  # what a status means

    @property
    def may_be_repeated(self) -> bool:
        if self.content is not None and not isinstance(self.content, bytes):
            return False
        return self.method in _TWICE if self.twice is None else self.twice


@dataclass(frozen=True, slots=True)
class RestAnswer:
    status: int
    headers: Mapping[str, str]  # in lower case
    body: bytes


class RestStream:
    """An answer that is being read."""

    def __init__(self, rest: "RestClient", request: RestRequest, response: Response) -> None:
        self._rest = rest
        self._request = request
        self._response = response
        self.status = response.status
        self.headers = {name.lower(): value for name, value in response.headers.items()}

    async def __aiter__(self) -> AsyncIterator[bytes]:
        """Pieces, none of them empty. Raises Unavailable when it breaks off, DeadlineExceeded for a long silence."""
        pieces = aiter(self._response.content)
        silence_s = self._rest.config.silence_s
        while True:
            silence = asyncio.timeout(silence_s)
            try:
                async with silence:
                    piece = bytes(await anext(pieces))
            except StopAsyncIteration:
                return
            except _BROKEN as error:
                if silence.expired():
                    raise self._rest.error(
                        DeadlineExceeded, self._request, f"said nothing for {silence_s:g} s", next_step="try again"
                    ) from error
                raise self._rest.lost(self._request, error) from error
            if piece:
                yield piece

    async def read(self, bytes_max: int | None = None) -> RestAnswer:
        """Raises LimitReached for more than that."""
        most = self._rest.config.bytes_max if bytes_max is None else bytes_max
        body = bytearray()
        async for piece in self:
            body += piece
            if len(body) > most:
                raise self._rest.error(
                    LimitReached, self._request, f"answered with more than {most} bytes", next_step="ask for less"
                )
        return RestAnswer(self.status, self.headers, bytes(body))

    async def events(self) -> AsyncIterator[ServerEvent]:
        """Server-sent events, as they come. Raises LimitReached for one that does not end."""
        async for event in parse_events(self):
            yield event


class RestClient:
    """Close it at the end. Many requests may be made at once."""

    def __init__(self, config: RestConfig) -> None:
        self.config = config
        self._transport = HTTPTransport(
            tls_include_system_certs=True, connect_timeout=config.connect_s, follow_redirects=False, enable_otel=False
        )
        self._client = Client(self._transport)

    async def close(self) -> None:
        await self._transport.aclose()

    async def json(self, request: RestRequest) -> Any:
        """The answer as a value; None when it is empty. Raises what the status means."""
        answer = await self.send(request)
        if not answer.body.strip():
            return None
        try:
            return json.loads(answer.body)
        except (ValueError, RecursionError) as error:
            shown = self._hide(answer.body[:_SHOWN_CHARS].decode(errors="replace"))
            raise self.error(Unavailable, request, f"answered what is no JSON: {shown!r}") from error

    async def send(self, request: RestRequest) -> RestAnswer:
        """Raises what the status means."""
        timeout_s = self.config.timeout_s if request.timeout_s is None else request.timeout_s
        deadline = time.monotonic() + timeout_s
        for attempt in range(self.config.tries):
            left_s = max(0.001, deadline - time.monotonic())
            answer: RestAnswer | None = None
            wrong: SandlotError | None = None
            try:
                # What comes drop by drop is never silent, and never whole.
                async with asyncio.timeout(left_s), self._opened(replace(request, timeout_s=left_s)) as stream:
                    answer = await stream.read()
            except Unavailable as error:
                wrong = error
            except TimeoutError as error:
                if isinstance(error, SandlotError):
                    raise
                raise self._late(request, timeout_s) from error
            if answer is not None:
                if answer.status < 300:
                    return answer
                wrong = self.refused(request, answer)
            assert wrong is not None
            wait_s = self._wait_s(request, attempt, answer)
            if wait_s is None or time.monotonic() + wait_s >= deadline:
                raise wrong
            await asyncio.sleep(wait_s)
        raise AssertionError("behind the last try there is no pause")

    @asynccontextmanager
    async def stream(self, request: RestRequest) -> AsyncGenerator[RestStream]:
        """An answer in pieces; leaving early ends it. The deadline is for its head, and then for each silence. It is
        tried once. Raises what the status means."""
        async with self._opened(request) as stream:
            if stream.status >= 300:
                raise self.refused(request, await stream.read())
            yield stream

    @asynccontextmanager
    async def _opened(self, request: RestRequest) -> AsyncGenerator[RestStream]:
        """The deadline covers what is done inside only where a whole answer is read."""
        timeout_s = self.config.timeout_s if request.timeout_s is None else request.timeout_s
        headers = Headers((*self.config.headers.items(), *self.config.secrets.items(), *request.headers.items()))
        content = request.content
        if request.body is not None:
            headers["content-type"] = "application/json"
            content = json.dumps(request.body).encode()
        body = content if content is None or isinstance(content, bytes) else _pieces(content)
        async with AsyncExitStack() as stack:
            deadline = asyncio.timeout(timeout_s)
            try:
                async with deadline:
                    opening = self._client.stream(
                        request.method, self._address(request), headers, body, params=list(request.params)
                    )
                    response = await stack.enter_async_context(opening)
            except _BROKEN as error:
                if isinstance(error, SandlotError):  # of whoever gives the content
                    raise
                if deadline.expired():
                    raise self._late(request, timeout_s) from error
                raise self.lost(request, error) from error
            yield RestStream(self, request, response)

    # ---- errors ------------------------------------------------------------------------------------------------

    def refused(self, request: RestRequest, answer: RestAnswer) -> SandlotError:
        """What a status means. The words of the vendor are told in part."""
        kinds = {**_KINDS, **self.config.kinds, **request.kinds}
        kind = kinds.get(answer.status, InvalidArgument if 400 <= answer.status < 500 else Unavailable)
        if answer.status == _TOO_MANY and _TOO_MANY not in kinds:
            kind = Unavailable
        words = " ".join(answer.body[: 4 * _SHOWN_CHARS].decode(errors="replace").split())
        told = f"answered {answer.status}: {self._hide(words)[:_SHOWN_CHARS]}".rstrip(": ")
        context: dict[str, str | int] = {"status": answer.status}
        if (after := _retry_after_s(answer.headers)) is not None:
            context["retry_after_s"] = int(after)
        step = next((step for base, step in _STEPS.items() if issubclass(kind, base)), "try again later")
        return self.error(kind, request, told, next_step=step, **context)

    def _late(self, request: RestRequest, timeout_s: float) -> SandlotError:
        return self.error(
            DeadlineExceeded, request, f"did not answer within {timeout_s:g} s", next_step="give it more time"
        )

    def lost(self, request: RestRequest, error: Exception) -> SandlotError:
        kind = DeadlineExceeded if isinstance(error, TimeoutError) else Unavailable
        words = self._hide(str(error) or type(error).__name__)[:_SHOWN_CHARS]
        return self.error(kind, request, f"cannot be reached, or broke off: {words}", next_step="try again")

    def error(
        self, kind: type[SandlotError], request: RestRequest, what: str, *, next_step: str = "", **context: str | int
    ) -> SandlotError:
        where = self._hide(f"{request.method} {request.path.partition('?')[0]}")
        return kind(f"{self.config.who}: {where} {what}", next_step=next_step, **context)

    def _hide(self, words: str) -> str:
        for secret in self.config.secrets.values():
            for part in (secret, secret.rpartition(" ")[2]):  # without its scheme, too
                if len(part) >= 4:
                    words = words.replace(part, _HIDDEN)
        return words

    def _address(self, request: RestRequest) -> str:
        if request.path.startswith(("http://", "https://")):
            return request.path
        return f"{self.config.base_url.rstrip('/')}/{request.path.lstrip('/')}"

    def _wait_s(self, request: RestRequest, attempt: int, answer: RestAnswer | None) -> float | None:
        """Before the next try; None: there is none. What was refused for being too much was not done."""
        refused = answer is not None and answer.status == _TOO_MANY and not isinstance(request.content, AsyncIterable)
        again = request.may_be_repeated and (answer is None or answer.status in _AGAIN)
        if attempt + 1 >= self.config.tries or not (refused or again):
            return None
        asked = _retry_after_s(answer.headers) if answer is not None else None
        return (self.config.pause_s * 2**attempt if asked is None else asked) * random.uniform(1.0, 1.25)


def field_of(answer: object, name: str, kind: type[_T], who: str) -> _T:
    """A field of an object, of this type. Raises Unavailable: a vendor that answers otherwise is not understood."""
    found = cast("dict[str, object]", answer).get(name) if isinstance(answer, dict) else None
    if not isinstance(found, kind) or (isinstance(found, bool) and kind is not bool):
        told = "nothing" if found is None else type(found).__name__
        raise Unavailable(
            f"{who} answered with {told} for {name!r}, where {kind.__name__} was expected",
            next_step="look whether its interface is of another version",
        )
    return found


def _retry_after_s(headers: Mapping[str, str]) -> float | None:
    """Seconds, or a date. What is neither says nothing."""
    told = headers.get("retry-after", "").strip()
    if told.isascii() and told.isdigit():
        return float(told[:9])
    try:
        return max(0.0, email.utils.parsedate_to_datetime(told).timestamp() - time.time()) if told else None
    except (ValueError, TypeError, OverflowError):
        return None


async def _pieces(content: AsyncIterable[bytes]) -> AsyncIterator[bytes]:
    async for piece in content:
        yield piece
