"""The Connect protocol on bare ASGI, for requests that are not compressed. The library speaks everything else."""

import asyncio
import json
import logging
import types
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any, TypeVar

from sandlot.model import DeadlineExceeded, InvalidArgument, LimitReached, SandlotError, Unavailable, limits
from sandlot.rpc import errors
from sandlot.rpc.asgi import Receive, Send
from sandlot.rpc.codec import Codec
from sandlot.rpc.messages import AnyMessage, Procedure
from sandlot.rpc.rounds import Rounds
from sandlot.rpc.services import Stream, Unary, Upload, unforeseen

_T = TypeVar("_T")
_HIGH_WATER = 64 * limits.KIB
_END = 2  # flag of the last envelope
_HEAD = 5

_log = logging.getLogger("sandlot.rpc")
VERSION_HEADER = (b"x-api-version", b"1")
_FOLLOWS = "sandlot.follows"  # a server of ours writes the head and the body that comes at once together
_SETTLE_S = 0.002  # at least so long the beginning of a call waits for what comes right behind it
_WATCH_S = 0.05  # a request that takes longer is watched: whoever asked may leave


class Patience:
    """What requests of one application wait for before something is done, all of them together."""

    def __init__(self) -> None:
        self.settle = Rounds(_SETTLE_S)
        self.watch = Rounds(_WATCH_S)


@dataclass(slots=True)
class Request:
    """What came, and whether whoever sent it is still there."""

    receive: Receive
    codec: Codec
    rounds: "Patience"
    deadline: float | None = None  # of the loop's clock
    is_read: bool = False
    has_left: bool = False
    _is_worked_on: bool = False
    _scope: asyncio.Timeout = field(default_factory=lambda: asyncio.Timeout(None))
    _watch: "asyncio.Task[None] | None" = None

    async def chunk(self) -> bytes:
        """The next part of the body; nothing at its end. Raises Unavailable, DeadlineExceeded."""
        if self.is_read:
            return b""
        try:
            message = await _patiently(self.receive(), limits.BODY_IDLE_S)
        except TimeoutError:
            raise DeadlineExceeded(f"nothing came for {limits.BODY_IDLE_S:g} s", limit="body_idle_s") from None
        if message["type"] != "http.request":
            self.has_left = True
            self.is_read = True
            raise Unavailable("whoever asked has left")
        if not message.get("more_body", False):
            self.is_read = True
            self._watch_soon()
        return message.get("body", b"")

    async def body(self) -> bytes:
        """All of it. Raises LimitReached."""
        first = await self.chunk()
        if self.is_read:
            check_size(len(first))
            return first
        content = bytearray(first)
        while not self.is_read:
            check_size(len(content))
            content += await self.chunk()
        check_size(len(content))
        return bytes(content)

    async def only(self, procedure: Procedure) -> AnyMessage:
        """The one message of a stream that has one. Raises InvalidArgument, LimitReached."""
        begin = await self.chunk()
        size = int.from_bytes(begin[1:_HEAD], "big")
        if self.is_read and len(begin) == _HEAD + size and not begin[0]:  # most of the time this is all of it
            check_size(size)
            return self.codec.decode(begin[_HEAD:], procedure.request)
        found: AnyMessage | None = None
        async with aclosing(self.messages(procedure.request, begin)) as messages:
            async for message in messages:
                if found is not None:
                    raise InvalidArgument(f"{procedure.name} takes one message, not more")
                found = message
        if found is None:
            raise InvalidArgument(f"{procedure.name} takes one message, not none")
        return found

    async def messages(self, kind: type[AnyMessage], begin: bytes = b"") -> AsyncGenerator[AnyMessage]:
        """Those of a stream. Raises InvalidArgument, LimitReached."""
        waiting = bytearray(begin)
        while not self.is_read or waiting:
            if len(waiting) >= _HEAD:
                size = int.from_bytes(waiting[1:_HEAD], "big")
                if waiting[0]:
                    raise InvalidArgument("a message of this stream has flags that it cannot have")
                check_size(size)
                if len(waiting) >= _HEAD + size:
                    data = bytes(memoryview(waiting)[_HEAD : _HEAD + size])
                    del waiting[: _HEAD + size]
                    yield self.codec.decode(data, kind)
                    continue
            if self.is_read:
                raise InvalidArgument("the stream ends in the middle of a message")
            waiting += await self.chunk()

    async def within(self, work: Awaitable[_T]) -> _T:
        """As long as the deadline has not passed, and whoever asked is there. Raises DeadlineExceeded, Unavailable."""
        self._is_worked_on = True
        try:
            async with self._scope as scope:
                self._watch_soon()
                if self.deadline is not None:
                    scope.reschedule(self.deadline)
                return await work
        except TimeoutError:
            if not self._scope.expired():
                raise
            if self.has_left:
                raise Unavailable("whoever asked has left") from None
            raise DeadlineExceeded("the deadline of the request has passed") from None
        finally:
            self._is_worked_on = False
            self.rounds.watch.discard(self._begin_watch)
            if self._watch is not None:
                self._watch.cancel()

    def _watch_soon(self) -> None:
        """Once its body is read and while it is worked on, what comes next can only be that whoever asked leaves."""
        if self.is_read and self._is_worked_on and self._watch is None and not self.has_left:
            self.rounds.watch.add(self._begin_watch)

    def _begin_watch(self) -> None:
        self._watch = asyncio.get_running_loop().create_task(self._look())

    async def _look(self) -> None:
        while (await self.receive())["type"] != "http.disconnect":
            pass
        self.has_left = True
        if not self._scope.expired():
            self._scope.reschedule(asyncio.get_running_loop().time())


def check_size(size: int) -> None:
    if size > limits.MESSAGE_BYTES_MAX:
        raise LimitReached(
            f"a message has more than {limits.MESSAGE_BYTES_MAX} bytes",
            next_step="send a stream",
            limit="message_bytes",
        )


class Answer:
    """A stream on its way out. What is ready at once is sent at once; a slow reader makes the sender wait."""

    def __init__(self, send: Send, request: Request) -> None:
        self._send = send
        self._codec = request.codec
        self._settling = request.rounds.settle
        self._ready = bytearray()
        self._has_begun = False
        self._is_settling = False
        self._late: asyncio.Task[None] | None = None
        self.is_patient = False  # the first messages may wait for those behind them

    def put(self, message: AnyMessage) -> bool:
        """Whether there is enough of it to be sent."""
        data = self._codec.encode(message)
        self._ready += b"\0" + len(data).to_bytes(4, "big")
        self._ready += data
        return len(self._ready) > _HIGH_WATER

    async def settle(self) -> None:
        """Nothing more is ready."""
        if self.is_patient and not self._has_begun:
            if not self._is_settling:
                self._is_settling = True
                self._settling.add(self._begin)
        else:
            await self.flush()

    def _begin(self) -> None:
        if not self._has_begun:
            self._late = asyncio.get_running_loop().create_task(self._flush(b""))

    async def flush(self) -> None:
        if self._late is not None:
            await self._late
        if self._ready:
            await self._flush(b"")

    async def end(self, error: SandlotError | None = None) -> None:
        told = json.dumps({"error": errors.to_wire(error)}).encode() if error is not None else b"{}"
        if self._is_settling:
            self._settling.discard(self._begin)
        if self._late is not None:
            await self._late
        await self._flush(bytes([_END]) + len(told).to_bytes(4, "big") + told)

    async def _flush(self, last: bytes) -> None:
        body, self._ready = bytes(self._ready) + last, bytearray()
        if not self._has_begun:
            self._has_begun = True
            kind = f"application/connect+{self._codec.name}".encode()
            headers = [(b"content-type", kind), VERSION_HEADER]
            if last:
                headers.append((b"content-length", str(len(body)).encode()))
            await self._send({"type": "http.response.start", "status": 200, "headers": headers, _FOLLOWS: True})
        await self._send({"type": "http.response.body", "body": body, "more_body": not last})


@types.coroutine
def _step(ready: Awaitable[_T], before_waiting: Callable[[], Awaitable[None]]) -> Generator[Any, Any, _T]:
    """Await, and do something first if that has to wait. Without a task: most of the time it does not have to."""
    inner = ready.__await__()
    error: BaseException | None = None
    sent: Any = None
    try:
        waits = inner.send(None)
    except StopIteration as done:
        return done.value
    try:
        yield from before_waiting().__await__()
    except BaseException as raised:  # noqa: BLE001 - it is handed on to what waits, which cleans up
        error = raised
    while True:
        try:
            if error is None:
                sent = yield waits
        except BaseException as raised:  # noqa: BLE001 - the same
            error = raised
        try:
            if error is not None:
                given, error = error, None
                waits = inner.throw(given)
            else:
                waits = inner.send(sent)
        except StopIteration as done:
            return done.value


async def _patiently(ready: Awaitable[_T], patience_s: float) -> _T:
    """Await, with a deadline if that has to wait at all. Raises TimeoutError."""
    scope: asyncio.Timeout | None = None

    async def limit() -> None:
        nonlocal scope
        scope = asyncio.timeout(patience_s)
        await scope.__aenter__()

    try:
        value = await _step(ready, limit)
    except BaseException as error:  # raised again, or as what it is when the time was up
        if scope is not None:
            await scope.__aexit__(type(error), error, error.__traceback__)
        raise
    if scope is not None:
        await scope.__aexit__(None, None, None)
    return value


async def serve_unary(procedure: Procedure, work: Unary, request: Request, send: Send) -> None:
    try:
        asked = request.codec.decode(await request.body(), procedure.request)
        body = request.codec.encode(await request.within(work(asked)))
    except SandlotError as error:
        await refuse(request, send, error)
    except Exception as error:  # noqa: BLE001 - a defect, told as one
        await refuse(request, send, unforeseen(procedure.name, error))
    else:
        headers = [
            (b"content-type", f"application/{request.codec.name}".encode()),
            (b"content-length", str(len(body)).encode()),
            VERSION_HEADER,
        ]
        await send({"type": "http.response.start", "status": 200, "headers": headers, _FOLLOWS: True})
        await send({"type": "http.response.body", "body": body})


async def serve_stream(procedure: Procedure, work: Stream, request: Request, send: Send) -> None:
    answer = Answer(send, request)
    answer.is_patient = procedure.name == "Call"

    async def pump() -> None:
        async with aclosing(work(await request.only(procedure))) as told:
            while True:
                try:
                    message = await _step(told.__anext__(), answer.settle)
                except StopAsyncIteration:
                    return
                if answer.put(message):
                    await answer.flush()

    await _ended(procedure, request, answer, pump())


async def serve_upload(procedure: Procedure, work: Upload, request: Request, send: Send) -> None:
    answer = Answer(send, request)

    async def take() -> None:
        async with aclosing(request.messages(procedure.request)) as messages:
            answer.put(await work(messages))

    await _ended(procedure, request, answer, take())


async def _ended(procedure: Procedure, request: Request, answer: Answer, work: Awaitable[None]) -> None:
    error: SandlotError | None = None
    try:
        await request.within(work)
    except SandlotError as raised:
        error = raised
    except Exception as raised:  # noqa: BLE001 - a defect, told as one
        error = unforeseen(procedure.name, raised)
    if not request.has_left:
        await drain(request)
        await answer.end(error)


async def refuse(request: Request, send: Send, error: SandlotError) -> None:
    """An error instead of an answer."""
    await drain(request)
    if request.has_left:
        return
    told = errors.to_wire(error)
    body = json.dumps(told).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode()), VERSION_HEADER]
    status = errors.STATUS.get(str(told["code"]), 500)
    await send({"type": "http.response.start", "status": status, "headers": headers, _FOLLOWS: True})
    await send({"type": "http.response.body", "body": body})


async def drain(request: Request) -> None:
    """Some servers end a connection whose client goes on sending: what is on its way is read, up to a limit."""
    if request.is_read:
        return
    left = 4 * limits.MESSAGE_BYTES_MAX
    try:
        async with asyncio.timeout(1.0):
            while not request.is_read and left > 0:
                left -= len(await request.chunk()) + 1
    except (TimeoutError, SandlotError):
        return
