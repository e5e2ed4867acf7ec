"""A request of HTTP to a program in a session, and its answer, as they come.

`Proxy.forward` is for whoever stands before it: the previews of this package, and gateways that are given it. It knows
nothing of tokens, of names of hosts or of pages. What a caller decides stands in `Forwarding`:

- previews give the whole target and the host that the client said, take their own cookies out of the headers, and
  put what a shared origin needs into the answer;
- a gateway with a path of its own (`/v1/sandboxes/ID/proxy/PORT/REST`, or a path that a signed route begins with) gives
  the rest of the raw path with the raw query as `target`, `prefix` for what it took off (then a `Location` that leads
  to the program's own root leads back through it), its credentials as `dropped` (`authorization`, `cookie`), and tells
  the errors below in its own form.

A request that asks for another protocol (a websocket) becomes a tunnel when the program agrees; then nothing is sent
by ASGI. That needs the tunnel that the server puts into the scope; elsewhere the program is told of no upgrade."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable, MutableMapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass
from typing import Any, Final

from sandlot.model import DeadlineExceeded, SandlotError, Unavailable, limits
from sandlot.previews.addresses import PreviewAddress
from sandlot.previews.connections import Dialler, Line, Lines
from sandlot.previews.heads import Answered, Asked, Header, ask, forwarded, read_answer
from sandlot.previews.locations import led_back
from sandlot.previews.tunnels import Tunnel, join

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Knock = Callable[[PreviewAddress], Awaitable[None]]
Outward = Callable[[Sequence[Header]], Iterable[Header]]

_REPEATED: Final = frozenset(["GET", "HEAD", "OPTIONS"])
_LOOK_S: Final = 0.25  # then it is looked whether the client is still there
_KNOCK_S: Final = 1.0  # then a program on a kept connection that is silent is asked for anew: its session may be paused
_INTERIM_MAX: Final = 16  # answers before the answer


@dataclass(frozen=True, slots=True)
class Forwarding:
    """Where a request goes, and what of it."""

    address: PreviewAddress
    target: bytes  # path and query as the program gets them, raw
    host: bytes  # as the program gets it
    prefix: bytes = b""  # what stands before `target` for the client
    headers: Sequence[Header] | None = None  # None: those of the scope
    dropped: frozenset[bytes] = frozenset()  # beside those of connections, and ours
    outward: Outward | None = None  # what becomes of the headers of the answer
    said_host: bytes | None = None  # what the client called; None: `host`
    whose: str = ""  # on whose behalf: a connection that waits is for nobody else


class _Gone(Exception):
    """The client is."""


class _Stale(Exception):
    """A kept connection had ended before the program heard of the request."""


class Proxy:
    """Holds connections that wait for another request, until `close`."""

    def __init__(self, host: Dialler) -> None:
        self._host = host
        self._lines = Lines(host)

    async def close(self) -> None:
        await self._lines.close()

    async def forward(self, scope: Scope, receive: Receive, send: Send, way: Forwarding) -> None:
        """Raises, before anything was sent to the client: InvalidArgument for a request that cannot be passed on, what
        `connect_port` raises (NotFound: nobody listens there), Unavailable when what listens gives no answer of HTTP,
        DeadlineExceeded when it gives none in time. An answer that breaks off later is cut off: this returns without
        having sent its end. When the client goes, so does the connection to the program."""
        method: str = scope["method"]
        said = way.host if way.said_host is None else way.said_host
        asked = ask(
            method,
            way.target,
            way.host,
            scope["headers"] if way.headers is None else way.headers,
            forwarded(scope, said, way.prefix),
            way.dropped,
            version=str(scope.get("http_version", "1.1")),
            may_upgrade="sandlot.tunnel" in scope,
        )
        fresh = asked.has_body or bool(asked.upgrade) or method not in _REPEATED
        with suppress(_Gone):
            try:
                await self._exchange(scope, receive, send, way, asked, fresh=fresh)
            except _Stale:
                await self._exchange(scope, receive, send, way, asked, fresh=True)

    async def _exchange(
        self, scope: Scope, receive: Receive, send: Send, way: Forwarding, asked: Asked, *, fresh: bool
    ) -> None:
        async with self._lines.line(way.address, fresh=fresh, whose=way.whose) as line:
            await _Exchange(scope, receive, send, way, asked).run(line, self._knock)

    async def _knock(self, address: PreviewAddress) -> None:
        async with self._host.connect_port(address.session_id, address.port):
            pass


class _Exchange:
    """One request and its answer, on one connection."""

    def __init__(self, scope: Scope, receive: Receive, send: Send, way: Forwarding, asked: Asked) -> None:
        self._method: str = scope["method"]
        self._tunnel: Tunnel | None = scope.get("sandlot.tunnel")
        self._receive = receive
        self._send = send
        self.way = way
        self._asked = asked
        self._is_wanted = asyncio.Event()  # the body, by the program
        self._main: asyncio.Task[Any] | None = None
        self._aside: list[asyncio.Task[None]] = []
        self._timers: list[asyncio.TimerHandle] = []
        self._why: Exception | None = None  # it is given up

    async def run(self, line: Line, knock: Knock) -> None:
        self._main = asyncio.current_task()
        try:
            await self._say(line)
            loop = asyncio.get_running_loop()
            if self._asked.has_body:
                self._beside(self._pump(line))
            else:
                self._timers.append(loop.call_later(_LOOK_S, self._beside_soon, self._wait_gone))
            if line.is_used:
                self._timers.append(loop.call_later(_KNOCK_S, self._beside_soon, self._knocking(knock)))
            answered = await self._await_answer(line)
            if answered.status == 101:
                await self._switch(line, answered)
            else:
                await self._pass_on(line, answered)
        except asyncio.CancelledError:
            if self._why is None or self._main is None:
                raise
            self._main.uncancel()
            raise self._why from None
        finally:
            self._stop_aside()

    def _beside(self, work: Coroutine[Any, Any, None]) -> None:
        self._aside.append(asyncio.get_running_loop().create_task(work))

    def _beside_soon(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self._beside(work())

    def _stop_aside(self) -> None:
        self._main = None
        for one in (*self._timers, *self._aside):
            one.cancel()

    def _give_up(self, why: Exception) -> None:
        if self._main is not None:
            self._why = why
            self._main.cancel()

    # ---- to the program ----------------------------------------------------------------------------------------

    async def _say(self, line: Line) -> None:
        try:
            await line.stream.write(self._asked.head)
        except (SandlotError, OSError):
            if line.is_used:
                raise _Stale from None
            raise

    async def _pump(self, line: Line) -> None:
        """The body, as it comes: while the program does not read, the client is not read."""
        if self._asked.expects:
            with suppress(TimeoutError):
                async with asyncio.timeout(limits.PREVIEW_CONTINUE_S):
                    await self._is_wanted.wait()
        with suppress(SandlotError, OSError):  # it may answer before it took all, and what it says counts
            more = True
            while more:
                message = await self._receive()
                if message["type"] == "http.disconnect":
                    self._give_up(_Gone())
                    return
                body: bytes = message.get("body", b"")
                more = bool(message.get("more_body", False))
                if body:
                    await line.stream.write(b"%x\r\n%s\r\n" % (len(body), body) if self._asked.is_chunked else body)
            if self._asked.is_chunked:
                await line.stream.write(b"0\r\n\r\n")
        await self._wait_gone()

    async def _wait_gone(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self._give_up(_Gone())

    def _knocking(self, knock: Knock) -> Callable[[], Coroutine[Any, Any, None]]:
        """A connection that was open before tells nothing of what has become of its session."""

        async def ask_again() -> None:
            try:
                await knock(self.way.address)
            except SandlotError as error:
                if not self._has_answered:
                    self._give_up(error)

        return ask_again

    # ---- from the program --------------------------------------------------------------------------------------

    _has_answered = False

    async def _await_answer(self, line: Line) -> Answered:
        try:
            async with asyncio.timeout(limits.PREVIEW_ANSWER_S):
                answered = await self._answer(line)
        except TimeoutError:
            raise DeadlineExceeded(
                f"port {self.way.address.port} gave no answer in {limits.PREVIEW_ANSWER_S:g} seconds"
            ) from None
        self._has_answered = True
        return answered

    async def _answer(self, line: Line) -> Answered:
        for _ in range(_INTERIM_MAX):
            try:
                head = await line.answering.head()
            except (SandlotError, OSError):
                if line.is_used and not line.answering.has_said:
                    raise _Stale from None
                raise
            answered = read_answer(head, self._method, self._asked.upgrade)
            if answered.status == 101 or answered.status >= 200:
                return answered
            if answered.status == 100:
                self._is_wanted.set()
        raise Unavailable("its answer does not begin")

    def _headers(self, answered: Answered) -> list[Header]:
        headers = list(answered.headers)
        if self.way.prefix:
            headers = led_back(headers, self.way)
        return headers if self.way.outward is None else list(self.way.outward(headers))

    async def _switch(self, line: Line, answered: Answered) -> None:
        assert self._tunnel is not None
        self._stop_aside()  # the tunnel tells when the client is gone
        upgrade = [(b"connection", b"upgrade"), (b"upgrade", answered.upgrade)]
        await join(self._tunnel, [*upgrade, *self._headers(answered)], line)

    async def _pass_on(self, line: Line, answered: Answered) -> None:
        headers = self._headers(answered)
        if answered.length is not None and answered.status != 304:
            headers.append((b"content-length", b"%d" % answered.length))
        await self._send({"type": "http.response.start", "status": answered.status, "headers": headers})
        try:
            if answered.has_body:
                await self._body(line, answered)
        except (SandlotError, OSError, TimeoutError):
            return  # the client is cut off too: it must not take this for the end
        await self._send({"type": "http.response.body", "body": b""})
        line.keeps = answered.keeps and not self._asked.has_body

    async def _body(self, line: Line, answered: Answered) -> None:
        loop, answering = asyncio.get_running_loop(), line.answering
        if answered.is_chunked:
            pieces = answering.chunked()
        elif answered.length is not None:
            pieces = answering.sized(answered.length)
        else:
            pieces = answering.rest()
        async with asyncio.timeout(limits.PREVIEW_IDLE_S) as patience, aclosing(pieces):
            async for piece in pieces:
                await self._send({"type": "http.response.body", "body": piece, "more_body": True})
                patience.reschedule(loop.time() + limits.PREVIEW_IDLE_S)
