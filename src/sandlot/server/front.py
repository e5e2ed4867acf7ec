"""What stands before the procedures: who may ask, request ids, health, readiness, metrics, and a line in the log.

What is refused here is told as Connect does it: a JSON document with a code and a message."""

import asyncio
import ipaddress
import json
import logging
import re
import time
from collections.abc import Callable, Mapping
from functools import partial
from random import getrandbits
from typing import Protocol

from sandlot import tracing
from sandlot.contracts import Host
from sandlot.model import Health, HealthStatus, SandlotError, limits
from sandlot.server.figures import CONTENT_TYPE, Figures
from sandlot.server.http import Application, Message, Receive, Scope, Send
from sandlot.server.joining import FOLLOWS, HOLD
from sandlot.server.logs import REQUEST
from sandlot.server.origins import Origins

_log = logging.getLogger("sandlot.server")
_access = logging.getLogger("sandlot.access")
_REQUEST_ID = re.compile(rb"[A-Za-z0-9._\-]{1,64}")
_LOOKED_AT = frozenset({b"host", b"origin", b"sec-fetch-site", b"x-request-id", b"traceparent"})
_JSON = b"application/json"
_FRESH_S = 1.0  # a look at the host that is younger is told again


class Previews(Protocol):
    """Ports of sessions, which are reached through the server too."""

    def claims(self, host: bytes) -> bool:
        """Whether nothing else is served under this name."""
        ...

    def names(self, scope: Scope) -> bool:
        """Whether a request under the server's own names is for a port."""
        ...

    async def admits(self, scope: Scope) -> bool:
        """Whether such a request may come from a page of anybody's."""
        ...

    async def at_host(self, scope: Scope, receive: Receive, send: Send) -> None: ...


class Front:
    def __init__(
        self,
        application: Application,
        host: Host,
        origins: Origins,
        figures: Figures | None,
        *,
        access_log: bool,
        previews: Previews | None = None,
    ) -> None:
        self._application = application
        self._host = host
        self._previews = previews
        self.origins = origins
        self._figures = figures
        self.access_log = access_log
        self.is_ready = False
        self._looked: tuple[float, Health] | None = None
        self._pages = {"/healthz": self._alive, "/readyz": self._ready, "/metrics": self._metrics}

    def exchange(self, application: Application, host: Host, previews: Previews | None = None) -> None:
        """For those who come from now on."""
        self._application, self._host, self._looked = application, host, None
        self._previews = previews

    def application(self, *, is_open: bool) -> Application:
        """`is_open`: a browser of this machine could reach it."""
        return partial(self._serve, is_open)

    async def _serve(self, is_open: bool, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        began = time.perf_counter()
        scope["sandlot.trusted"] = not is_open
        headers: dict[bytes, bytes] = {name: value for name, value in scope["headers"] if name in _LOOKED_AT}
        given = headers.get(b"x-request-id")
        request_id = given if given is not None and _REQUEST_ID.fullmatch(given) else b"%016x" % getrandbits(64)
        token = REQUEST.set(request_id.decode())
        answering = _Answering(send, request_id, scope.get(HOLD))
        if self._figures:
            self._figures.begin()
        try:
            fault = self._fault(headers) if is_open else ""
            if self._previews is not None and self._previews.claims(headers.get(b"host", b"")):
                # What a program answers is its own: no word of ours is in it.
                await self._previews.at_host(scope, receive, answering.unchanged)
            elif fault and not await self._lets_in(scope, headers):
                await say(answering.send, 403, "permission_denied", fault)
            elif (page := self._pages.get(scope["path"])) and (page != self._metrics or is_near(scope)):
                await page(scope, answering.send)
            else:
                place = headers.get(b"traceparent")
                if place is not None or tracing.is_on():
                    await self._trace((place or b"").decode("latin-1"), scope, receive, answering.send)
                else:
                    await self._application(scope, receive, answering.send)
        except Exception as error:  # noqa: BLE001 - the end of the request: there is nobody above to tell
            await self._defect(error, answering)
        finally:
            self._end(scope, answering.status, time.perf_counter() - began)
            REQUEST.reset(token)

    async def _trace(self, place: str, scope: Scope, receive: Receive, send: Send) -> None:
        token = tracing.PLACE.set(tracing.checked(place))
        with tracing.span(f"POST {scope['path']}"[:200], request=REQUEST.get()):
            await self._application(scope, receive, send)
        tracing.PLACE.reset(token)

    def _fault(self, headers: dict[bytes, bytes]) -> str:
        texts = (headers.get(name) for name in (b"host", b"origin", b"sec-fetch-site"))
        return self.origins.fault(*(None if text is None else text.decode("latin-1") for text in texts))

    async def _lets_in(self, scope: Scope, headers: dict[bytes, bytes]) -> bool:
        """A page that a program shows asks for more of it, and has the origin of nobody: it is let in with what it was
        given, and not for being here."""
        host = headers.get(b"host", b"").decode("latin-1")
        if self._previews is None or not self._previews.names(scope) or self.origins.fault(host, None, None):
            return False
        scope["sandlot.foreign"] = True
        return await self._previews.admits(scope)

    async def _defect(self, error: Exception, answering: "_Answering") -> None:
        _log.error("a request failed that should not: %s", error, exc_info=error)
        if not answering.status:
            await say(answering.send, 500, "internal", "something went wrong that should not; the log has more")

    def _end(self, scope: Scope, status: int, seconds: float) -> None:
        if self._figures:
            is_shown = "sandlot.shown" in scope  # a path of a program is no procedure
            self._figures.end("preview" if is_shown else scope["path"], status, seconds)
        if self.access_log:
            told = {"method": scope["method"], "path": scope["path"][:500], "status": status}
            _access.info("request", extra={**told, "ms": round(seconds * 1000, 3)})

    # ---- pages -------------------------------------------------------------------------------------------------

    async def _alive(self, scope: Scope, send: Send) -> None:
        """The process answers."""
        await _page(scope, send, 200, {"status": "ok"})

    async def _ready(self, scope: Scope, send: Send) -> None:
        """It is worth while to send requests: sessions can be made."""
        if not self.is_ready:
            await _page(scope, send, 503, {"status": "stopping"})
            return
        health = await self._health()
        if health is None:
            await _page(scope, send, 503, {"status": "unknown"})
            return
        document = {
            "status": health.status.value,
            "cordoned": health.cordoned_at > 0,
            "reasons": [reason.message for reason in health.reasons],
        }
        await _page(scope, send, 503 if health.status is HealthStatus.UNHEALTHY else 200, document)

    async def _metrics(self, scope: Scope, send: Send) -> None:
        if self._figures is None:
            await say(send, 404, "not_found", "metrics are off")
            return
        health = await self._health()
        if health is None:
            await say(send, 503, "unavailable", "the host does not tell how it is")
            return
        body = await asyncio.to_thread(self._figures.page, health)
        await _whole(send, 200, CONTENT_TYPE, body if scope["method"] != "HEAD" else b"")

    async def _health(self) -> Health | None:
        now = time.monotonic()
        if self._looked and now - self._looked[0] < _FRESH_S:
            return self._looked[1]
        try:
            async with asyncio.timeout(limits.HEALTH_DEADLINE_S * 2):
                health = await self._host.health()
        except (SandlotError, TimeoutError):
            return None
        self._looked = (now, health)
        return health


def is_near(scope: Scope) -> bool:
    """Whether it came in where only this machine can: figures are not for everybody."""
    host = (scope.get("server") or ("", None))[0]
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return True  # the path of a socket


class _Answering:
    """What goes to the client, with the id of its request."""

    __slots__ = ("_hold", "_id", "_send", "status")

    def __init__(self, send: Send, request_id: bytes, hold: Callable[[], None] | None) -> None:
        self._send = send
        self._hold = hold
        self._id = request_id
        self.status = 0

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            message = {**message, "headers": [*message.get("headers", ()), (b"x-request-id", self._id)]}
            if self._hold is not None and message.get(FOLLOWS):
                self._hold()
        await self._send(message)

    async def unchanged(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
        await self._send(message)


async def say(send: Send, status: int, code: str, message: str) -> None:
    """An error, as Connect has them."""
    await _whole(send, status, _JSON, json.dumps({"code": code, "message": message}).encode())


async def _page(scope: Scope, send: Send, status: int, document: Mapping[str, object]) -> None:
    body = json.dumps(document).encode()
    await _whole(send, status, _JSON, body if scope["method"] != "HEAD" else b"")


async def _whole(send: Send, status: int, content_type: bytes, body: bytes) -> None:
    headers = [(b"content-type", content_type), (b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": status, "headers": headers, FOLLOWS: True})
    await send({"type": "http.response.body", "body": body})
