"""Procedures as a client asks them: what may be repeated is repeated, what was cut off is opened again."""

import asyncio
import json
import random
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable
from contextlib import suppress
from typing import Any, cast

from sandlot import tracing
from sandlot.model import DeadlineExceeded, NotFound, SandlotError, Unavailable, limits
from sandlot.rpc import errors
from sandlot.rpc.messages import PROCEDURES, AnyMessage
from sandlot.rpc.transport import Cut, Pool, Response, Unreached

_ANSWER_BYTES_MAX = 4 * limits.MESSAGE_BYTES_MAX
_HEAD = 5
_COMPRESSED, _END = 1, 2
_BACKOFF_S, _BACKOFF_S_MAX = 0.02, 1.0

# What is the same when it is done twice: because it only looks, because it has an id that the server remembers, or
# because it says how something shall be. Everything else is Unavailable when it is not known whether it was done.
REPEATABLE = frozenset(
    {
        *(name for name in PROCEDURES if name.startswith(("Get", "List"))),
        *("HealthCheck", "MeasureFiles", "StatFile", "SessionMetrics", "HostMetrics", "AllMetrics"),
        *("CreateSession", "CreateSnapshot", "TurnComplete", "ForkSession", "ExecuteTool"),
        *("LaunchProcess", "OpenTerminal", "CreateContext"),
        *("PauseSession", "ResumeSession", "ExtendSession", "RelabelSession", "PutFile", "SetAttributes", "ChangeFile"),
        *("WaitCall", "CancelCall", "CloseStdin", "ResizeCall", "LeaveTool", "LeaveCode", "WaitProcess"),
        *("CloseProcessStdin", "ResizeTerminal", "ExposePort", "WarmTemplate", "TagTemplate"),
        *("CordonHost", "UncordonHost"),
    }
)
# When it was done before the cut, there is nothing left that it could be done to.
GONE_IS_DONE = frozenset({"DestroySession", "DeleteSnapshot", "RemoveVolume", "UnexposePort", "DeleteContext"})
# They take as long as something else takes.
_WAITS = frozenset(
    {"WaitCall", "WaitProcess", "ExecuteTool", "WriteStdin", "WriteProcessStdin", "WriteTerminal", "WritePort"}
)


class Incoming:
    """Messages of one stream."""

    def __init__(self, response: Response, kind: type[AnyMessage]) -> None:
        self._response = response
        self._kind = kind
        self._waiting = bytearray()
        self._is_over = False

    async def next(self) -> AnyMessage | None:
        """None at the end. Raises what the server told, Cut."""
        waiting = self._waiting
        while not self._is_over:
            if len(waiting) >= _HEAD:
                size = int.from_bytes(waiting[1:_HEAD], "big")
                if size > _ANSWER_BYTES_MAX or waiting[0] & _COMPRESSED:
                    self.close()
                    raise Cut("this is no stream of ours")
                if len(waiting) >= _HEAD + size:
                    flags, data = waiting[0], bytes(memoryview(waiting)[_HEAD : _HEAD + size])
                    del waiting[: _HEAD + size]
                    if flags & _END:
                        await self._end(data)
                        return None
                    return _read(self._kind, data)
            chunk = await self._response.chunk()
            if not chunk:
                raise Cut("the stream ended too early")
            waiting += chunk
        return None

    async def _end(self, data: bytes) -> None:
        self._is_over = True
        told: Any = {}
        with suppress(ValueError):
            told = json.loads(data)
        await self._response.read(_ANSWER_BYTES_MAX)
        error = cast("dict[str, Any]", told).get("error") if isinstance(told, dict) else None
        if error is not None:
            raise errors.from_wire(error)

    async def rest(self, link: "Link") -> AsyncIterator[AnyMessage]:
        """All that is to come. Raises Unavailable instead of Cut."""
        try:
            while (message := await self.next()) is not None:
                yield message
        except Cut as error:
            raise link.lost(error) from None

    def close(self) -> None:
        self._response.abandon()


class Link:
    """One server."""

    def __init__(self, pool: Pool, where: str, reconnect_s: float) -> None:
        self._pool = pool
        self._where = where
        self._reconnect_s = reconnect_s
        self._was_reached = False

    async def ask(self, name: str, message: AnyMessage, timeout_s: float | None = None) -> AnyMessage:
        """Raises what the server told; Unavailable when it cannot be reached, or went away before it answered."""
        body, tries = message.to_binary(), Tries(self, name in REPEATABLE or name in GONE_IS_DONE)
        deadline = timeout_s if timeout_s is not None or name in _WAITS else limits.ANSWER_S
        try:
            async with asyncio.timeout(deadline):
                while True:
                    try:
                        return await self._ask_once(name, body)
                    except (Cut, Unreached) as error:
                        await tries.failed(error)
                    except NotFound:
                        if tries.was_cut and name in GONE_IS_DONE:
                            return PROCEDURES[name].response()
                        raise
        except SandlotError:
            raise  # one that tells of a deadline of the server is a TimeoutError, too
        except TimeoutError:
            raise DeadlineExceeded(f"{self._where} did not answer {name} in {deadline:g} s") from None

    async def _ask_once(self, name: str, body: bytes) -> AnyMessage:
        procedure = PROCEDURES[name]
        response = await self._pool.post(procedure.path, "application/proto", body, _traced())
        try:
            await response.begun()
            self._was_reached = True
            data = await response.read(_ANSWER_BYTES_MAX)
        finally:
            response.abandon()
        if response.status != 200:
            raise _refusal(response.status, data)
        return _read(procedure.response, data)

    async def open(self, name: str, message: AnyMessage) -> tuple[Incoming, AnyMessage]:
        """A stream, and the first message of it. Raises what the server told, Unreached, Cut."""
        procedure, data = PROCEDURES[name], message.to_binary()
        body = b"\0" + len(data).to_bytes(4, "big") + data
        response = await self._pool.post(procedure.path, "application/connect+proto", body, _traced())
        try:
            await response.begun()
            self._was_reached = True
            if response.status != 200:
                raise _refusal(response.status, await response.read(_ANSWER_BYTES_MAX))
            incoming = Incoming(response, procedure.response)
            first = await incoming.next()
        except BaseException:  # whatever it is: nobody reads on
            response.abandon()
            raise
        if first is None:
            raise SandlotError(f"{self._where} ended {name} without a word", next_step="see its log")
        return incoming, first

    async def begin(self, name: str, message: AnyMessage, *, repeatable: bool = True) -> tuple[Incoming, AnyMessage]:
        """The same, tried again where it may. Raises Unavailable instead of Unreached and Cut."""
        tries = Tries(self, repeatable)
        while True:
            try:
                return await self.open(name, message)
            except (Cut, Unreached) as error:
                await tries.failed(error)

    async def upload(self, name: str, first: AnyMessage, pieces: AsyncIterable[AnyMessage]) -> AnyMessage:
        """Raises what the server told, what `pieces` raises, Unavailable."""
        procedure = PROCEDURES[name]

        async def body() -> AsyncIterator[bytes]:
            yield _enveloped(first)
            async for piece in pieces:
                yield _enveloped(piece)

        try:
            response = await self._pool.post_stream(procedure.path, "application/connect+proto", body())
        except (Cut, Unreached) as error:
            raise self.lost(error) from None
        incoming = Incoming(response, procedure.response)
        try:
            await response.begun()
            self._was_reached = True
            if response.status != 200:
                raise _refusal(response.status, await response.read(_ANSWER_BYTES_MAX))
            answer = await incoming.next()
            if answer is not None:
                await incoming.next()
        except Cut as error:
            raise self.lost(error) from None
        finally:
            response.abandon()
        if answer is None:
            raise SandlotError(f"{self._where} ended {name} without an answer", next_step="see its log")
        return answer

    def lost(self, error: Exception) -> SandlotError:
        if isinstance(error, Unreached):
            return Unavailable(
                f"{self._where} cannot be reached: {error}", next_step="see whether `sandlot serve` runs there"
            )
        return Unavailable(
            f"{self._where} went away: {error}", next_step="look whether what was asked for was done; ask again"
        )

    def patience_s(self) -> float:
        """A server that was never there is not waited for."""
        return self._reconnect_s if self._was_reached else 0.0


class Tries:
    """How often, and how quickly, something is tried again."""

    def __init__(self, link: Link, repeatable: bool) -> None:
        self._link = link
        self._repeatable = repeatable
        self._until: float | None = None
        self._backoff_s = _BACKOFF_S
        self.was_cut = False

    async def failed(self, error: Cut | Unreached) -> None:
        """Wait before the next one. Raises Unavailable when there is none."""
        self.was_cut = self.was_cut or isinstance(error, Cut)
        now = asyncio.get_running_loop().time()
        if self._until is None:
            self._until = now + self._link.patience_s()
        if (isinstance(error, Cut) and not self._repeatable) or now >= self._until:
            raise self._link.lost(error) from None
        await asyncio.sleep(self._backoff_s * random.uniform(0.5, 1.0))
        self._backoff_s = min(self._backoff_s * 2, _BACKOFF_S_MAX)


async def follow(
    link: Link, name: str, incoming: Incoming, again: Callable[[], AnyMessage], known: Iterable[AnyMessage] = ()
) -> AsyncIterator[AnyMessage]:
    """Messages of a stream, which is opened again where it was cut: `again` says from where on. What is known of it
    comes first."""
    try:
        for message in known:
            yield message
        while True:
            try:
                message = await incoming.next()
            except Cut as error:
                incoming.close()
                incoming = await _again(link, name, again, error)
                continue
            if message is None:
                return
            yield message
    finally:
        incoming.close()


async def _again(link: Link, name: str, again: Callable[[], AnyMessage], error: Cut) -> Incoming:
    tries = Tries(link, repeatable=True)
    failure: Cut | Unreached = error
    while True:
        await tries.failed(failure)
        try:
            incoming, _ = await link.open(name, again())
        except (Cut, Unreached) as raised:
            failure = raised
        else:
            return incoming


def _traced() -> str:
    place = tracing.PLACE.get()
    return f"traceparent: {place}\r\n" if place else ""


def _enveloped(message: AnyMessage) -> bytes:
    data = message.to_binary()
    return b"\0" + len(data).to_bytes(4, "big") + data


def _read(kind: type[AnyMessage], data: bytes) -> AnyMessage:
    try:
        return kind.from_binary(data)
    except (ValueError, TypeError, OverflowError, RecursionError) as error:
        raise SandlotError(
            f"the server told what is no {kind.desc().name}: {str(error)[:100]}", next_step="see what answers there"
        ) from None


def _refusal(status: int, data: bytes) -> SandlotError:
    told: object = None
    with suppress(ValueError):
        told = json.loads(data)
    return errors.from_wire(told, status)
