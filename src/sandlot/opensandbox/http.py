"""How requests travel, async and sync: with a deadline, a bound for what is read at once, and typed errors."""

import asyncio
import random
import time
from collections.abc import AsyncGenerator, Generator, Mapping
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Final

from pyqwest import (
    Client,
    Headers,
    HTTPTransport,
    Multipart,
    ReadError,
    RemoteProtocolError,
    Response,
    SyncClient,
    SyncHTTPTransport,
    SyncMultipart,
    SyncResponse,
    WriteError,
)

from sandlot.model import DeadlineExceeded, LimitReached, SandlotError, Unavailable
from sandlot.opensandbox.answers import Answer, refusal

BODY_BYTES_MAX: Final = 64 << 20
CONNECT_TIMEOUT_S: Final = 10.0
SILENCE_S: Final = 60.0  # of a server that has begun to answer; one that runs a command says something every 3 s
TRIES: Final = 4
_TRY_AGAIN: Final = frozenset([502, 503])
_BROKEN: Final = (OSError, RemoteProtocolError, ReadError, WriteError)


@dataclass(frozen=True, slots=True)
class Sending:
    """One request as it goes out. `operation` names it in errors."""

    operation: str
    method: str
    url: str
    headers: Mapping[str, str]
    params: tuple[tuple[str, str], ...] = ()
    content: bytes | Multipart | SyncMultipart | None = None
    is_safe: bool = False  # doing it twice comes to the same

    def lost(self, error: Exception) -> SandlotError:
        if isinstance(error, TimeoutError):
            return DeadlineExceeded(
                f"{self.operation}: {self.url} does not answer in time", next_step="allow more time"
            )
        return Unavailable(
            f"{self.operation}: {self.url} cannot be reached: {str(error)[:300]}",
            next_step="see whether the server runs there",
        )

    def wait_s(self, attempt: int, answer: Answer | None, deadline: float) -> float | None:
        """Before the next try; None: there is none. What was refused for being too much was not done; of the rest only
        what may be done twice is tried again. The server may say when; no two clients come back at once."""
        status = answer.status if answer else 503
        if attempt + 1 >= TRIES or not (status == 429 or (self.is_safe and status in _TRY_AGAIN)):
            return None
        asked = answer.headers.get("retry-after", "") if answer else ""
        wanted = float(asked) if asked.isdecimal() and len(asked) < 6 else 0.25 * 2**attempt
        wait = wanted * random.uniform(1.0, 1.25)
        return wait if time.monotonic() + wait < deadline else None


class AsyncIncoming:
    """An answer that is being read."""

    def __init__(self, sending: Sending, response: Response) -> None:
        self._sending = sending
        self._response = response
        self.status = response.status
        self.headers = {name.lower(): value for name, value in response.headers.items()}

    async def chunks(self) -> AsyncGenerator[bytes]:
        try:
            async for chunk in self._response.content:
                yield bytes(chunk)
        except _BROKEN as error:
            raise self._sending.lost(error) from error

    async def read(self) -> Answer:
        body = bytearray()
        async for chunk in self.chunks():
            body += chunk
            _bounded(self._sending, body)
        return Answer(self.status, self.headers, bytes(body))

    async def check(self, *expected: int) -> None:
        if self.status not in expected:
            raise refusal(self._sending.operation, await self.read())


class AsyncHttp:
    def __init__(self, client: Client | None) -> None:
        self._transport: HTTPTransport | None = None
        if client is None:
            self._transport = HTTPTransport(
                tls_include_system_certs=True,
                connect_timeout=CONNECT_TIMEOUT_S,
                read_timeout=SILENCE_S,
                follow_redirects=False,  # a key is never sent where nobody said
            )
        self._client = client or Client(self._transport)

    @asynccontextmanager
    async def stream(self, sending: Sending, timeout_s: float | None) -> AsyncGenerator[AsyncIncoming]:
        assert not isinstance(sending.content, SyncMultipart)
        headers = Headers(sending.headers.items())
        deadline = asyncio.timeout(timeout_s)
        try:
            async with deadline, AsyncExitStack() as stack:
                try:
                    opening = self._client.stream(
                        sending.method, sending.url, headers, sending.content, params=sending.params
                    )
                    response = await stack.enter_async_context(opening)
                except _BROKEN as error:
                    raise sending.lost(error) from error
                yield AsyncIncoming(sending, response)
        except TimeoutError as error:
            if deadline.expired():
                raise sending.lost(error) from error
            raise

    async def send(self, sending: Sending, timeout_s: float) -> Answer:
        deadline = time.monotonic() + timeout_s
        for attempt in range(TRIES):
            answer: Answer | None = None
            try:
                async with self.stream(sending, max(0.001, deadline - time.monotonic())) as incoming:
                    answer = await incoming.read()
                if (wait := sending.wait_s(attempt, answer, deadline)) is None:
                    return answer
            except Unavailable:
                if (wait := sending.wait_s(attempt, answer, deadline)) is None:
                    raise
            await asyncio.sleep(wait)
        raise AssertionError("the last try has no wait behind it")

    async def aclose(self) -> None:
        """One that was given stays open."""
        if self._transport is not None:
            await self._transport.aclose()


class Incoming:
    """An answer that is being read."""

    def __init__(self, sending: Sending, response: SyncResponse) -> None:
        self._sending = sending
        self._response = response
        self.status = response.status
        self.headers = {name.lower(): value for name, value in response.headers.items()}

    def chunks(self) -> Generator[bytes]:
        try:
            for chunk in self._response.content:
                yield bytes(chunk)
        except _BROKEN as error:
            raise self._sending.lost(error) from error

    def read(self) -> Answer:
        body = bytearray()
        for chunk in self.chunks():
            body += chunk
            _bounded(self._sending, body)
        return Answer(self.status, self.headers, bytes(body))

    def check(self, *expected: int) -> None:
        if self.status not in expected:
            raise refusal(self._sending.operation, self.read())


class Http:
    def __init__(self, client: SyncClient | None) -> None:
        self._transport: SyncHTTPTransport | None = None
        if client is None:
            self._transport = SyncHTTPTransport(
                tls_include_system_certs=True,
                connect_timeout=CONNECT_TIMEOUT_S,
                read_timeout=SILENCE_S,
                follow_redirects=False,  # a key is never sent where nobody said
            )
        self._client = client or SyncClient(self._transport)

    @contextmanager
    def stream(self, sending: Sending, timeout_s: float | None) -> Generator[Incoming]:
        assert not isinstance(sending.content, Multipart)
        headers = Headers(sending.headers.items())
        with ExitStack() as stack:
            try:
                opening = self._client.stream(
                    sending.method, sending.url, headers, sending.content, timeout=timeout_s, params=sending.params
                )
                response = stack.enter_context(opening)
            except _BROKEN as error:
                raise sending.lost(error) from error
            yield Incoming(sending, response)

    def send(self, sending: Sending, timeout_s: float) -> Answer:
        deadline = time.monotonic() + timeout_s
        for attempt in range(TRIES):
            answer: Answer | None = None
            try:
                with self.stream(sending, max(0.001, deadline - time.monotonic())) as incoming:
                    answer = incoming.read()
                if (wait := sending.wait_s(attempt, answer, deadline)) is None:
                    return answer
            except Unavailable:
                if (wait := sending.wait_s(attempt, answer, deadline)) is None:
                    raise
            time.sleep(wait)
        raise AssertionError("the last try has no wait behind it")

    def close(self) -> None:
        """One that was given stays open."""
        if self._transport is not None:
            self._transport.close()


def _bounded(sending: Sending, body: bytearray) -> None:
    if len(body) > BODY_BYTES_MAX:
        raise LimitReached(f"{sending.operation}: the answer is longer than {BODY_BYTES_MAX} bytes")
