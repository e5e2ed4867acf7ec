"""Requests for ports of sessions: which port, and whether whoever asks may; then they go on.

On a host of its own a preview is an origin like any other: its pages run as they were written, and a cookie of ours
lets their reader in. Below the server's own address, by path or by headers, it shares the origin of the API: there its
answers are shown in a sandbox that gives them an origin of nobody, and no cookie goes either way."""

import asyncio
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final, Protocol

from sandlot.contracts.host import Events
from sandlot.model import SandlotError, SessionInfo, SessionNotFound
from sandlot.previews import credentials
from sandlot.previews.addresses import PreviewAddress, is_below
from sandlot.previews.book import PreviewBook
from sandlot.previews.connections import Dialler
from sandlot.previews.credentials import Given
from sandlot.previews.forms import OWN, SHARED, Place
from sandlot.previews.heads import Header
from sandlot.previews.makings import Makings
from sandlot.previews.openings import Admission, Openings
from sandlot.previews.pages import refuse, say, tell
from sandlot.previews.proxy import Forwarding, Proxy, Receive, Scope, Send

_FOREVER: Final = float("inf")


class PreviewHost(Dialler, Events, Protocol):
    """Of the waist, what previews ask."""

    async def get(self, session_id: str) -> SessionInfo: ...


class Previews:
    """For one host and all of its sessions. `domain` is empty where previews have no hosts."""

    def __init__(self, host: PreviewHost, book: PreviewBook, domain: str, openings: Openings) -> None:
        self._book = book
        self._openings = openings
        self._domain = domain
        self._makings = Makings(host)
        self.proxy = Proxy(host)

    async def watch(self) -> None:
        await self._makings.watch()

    async def close(self) -> None:
        await self.proxy.close()

    def claims(self, host: bytes) -> bool:
        """Whether a host is for previews: nothing else is ever served there."""
        return is_below(host.decode("latin-1"), self._domain)

    # ---- on a host of its own ----------------------------------------------------------------------------------

    async def at_host(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope["sandlot.shown"] = True
        headers = dict[bytes, bytes](scope["headers"])
        host = headers.get(b"host", b"")
        place = OWN.read(_target(scope), scope["headers"], self._domain)
        if place is None or (address := place.address) is None:
            await say(send, scope, 404, "not_found", "No preview", "no sandbox has this address")
            return
        found = credentials.given(scope["headers"], _target(scope))
        counts = found.cookies if credentials.is_own_page(headers) else ()
        try:
            admission = await self._admission(address, found, counts)
        except SessionNotFound as error:
            await tell(send, scope, error)
            return
        if admission is None:
            await refuse(send, scope)
            return
        if found.query and self._book.read(address, found.query) and credentials.is_visit(scope["method"], headers):
            await _send_on(send, scope, found, admission.until, b"/")
            return
        way = Forwarding(
            address,
            found.target,
            host,
            headers=credentials.onward(scope["headers"], shares_origin=False),
            outward=credentials.back,
            whose=admission.whose,
        )
        await self._forward(scope, receive, send, way, admission)

    async def _admission(self, address: PreviewAddress, found: Given, cookies: Sequence[str]) -> Admission | None:
        """Why whoever asks may; None: he may not, which is also said of sessions that nobody has. Raises
        SessionNotFound to whoever had a token for one that is gone."""
        grants = [self._book.read(address, token) for token in (*found.from_anywhere, *cookies)]
        good = [grant for grant in grants if grant is not None and self._openings.is_good(grant)]
        public = self._book.public(address)
        if not good and public is None:
            return None
        try:
            made = await self._makings.of(address.session_id)
        except SessionNotFound:
            if good:
                raise
            return None
        alive = [grant for grant in good if grant.made_us == made]
        if public == made or alive:
            return Admission(address, made, public == made, alive)
        if good:
            raise SessionNotFound("the sandbox that this address was of is gone")
        return None

    # ---- on an origin that is shared ---------------------------------------------------------------------------

    def names(self, scope: Mapping[str, Any]) -> bool:
        """Whether a request on the server's own address is for a port."""
        return _shared_place(scope) is not None

    async def admits(self, scope: Mapping[str, Any]) -> bool:
        """Whether it may go on without a key: it has a token for that port, or everybody may."""
        place = _shared_place(scope)
        if place is None or place.address is None:
            return False
        found = credentials.given(scope["headers"], _target(scope))
        try:
            return await self._admission(place.address, found, found.cookies) is not None
        except SandlotError:
            return False

    async def at_path(self, scope: Scope, receive: Receive, send: Send, *, is_known: bool) -> None:
        """`is_known`: whoever asks may use this host anyway."""
        scope["sandlot.shown"] = True
        headers = dict[bytes, bytes](scope["headers"])
        place = _shared_place(scope) or Place(None)
        address, prefix = place.address, place.prefix
        if address is None:
            if not is_known:
                await refuse(send, scope)
                return
            await say(send, scope, 404, "not_found", "No preview", "this names no port of a sandbox")
            return
        found = credentials.given(scope["headers"], _target(scope))
        admission: Admission | None = None
        try:
            if not is_known:
                admission = await self._admission(address, found, found.cookies)
        except SessionNotFound as error:
            await tell(send, scope, error)
            return
        if admission is None and not is_known:
            await refuse(send, scope)
            return
        if headers.get(b"service-worker"):
            await say(send, scope, 403, "permission_denied", "Not here", "this origin is shared")
            return
        until = _FOREVER if admission is None else admission.until
        if prefix and found.query and until < _FOREVER and credentials.is_visit(scope["method"], headers):
            await _send_on(send, scope, found, until, prefix + b"/")
            return
        target = found.target[len(prefix) :] if prefix else found.target
        if not target.startswith(b"/"):
            rest = prefix + b"/" + target
            await _see(send, 308, rest)
            return
        way = Forwarding(
            address,
            target,
            b"localhost:%d" % address.port,
            prefix=prefix,
            headers=credentials.onward(scope["headers"], shares_origin=True),
            outward=credentials.back_shared,
            said_host=headers.get(b"host", b""),
            whose=admission.whose if admission else "",
        )
        await self._forward(scope, receive, send, way, admission)

    async def _forward(
        self, scope: Scope, receive: Receive, send: Send, way: Forwarding, admission: Admission | None
    ) -> None:
        sent = _Sent(send)
        until = _FOREVER if admission is None else admission.until
        try:
            # What a token opened ends with it: an answer without an end, a tunnel.
            async with asyncio.timeout(None if until == _FOREVER else max(0.0, until - time.time())) as patience:
                with self._openings.opened(admission, patience):
                    await self.proxy.forward(scope, receive, sent, way)
        except TimeoutError:
            tunnel = scope.get("sandlot.tunnel")
            if not sent.has_begun and not (tunnel is not None and tunnel.is_accepted):
                await refuse(send, scope)
        except SandlotError as error:
            self._makings.forget(way.address.session_id)
            await tell(send, scope, error)


class _Sent:
    __slots__ = ("_send", "has_begun")

    def __init__(self, send: Send) -> None:
        self._send = send
        self.has_begun = False

    async def __call__(self, message: Any) -> None:
        self.has_begun = True
        await self._send(message)


def _shared_place(scope: Mapping[str, Any]) -> Place | None:
    """None: it is for no port."""
    target, headers = _target(scope), scope["headers"]
    for form in SHARED:
        if (place := form.read(target, headers, "")) is not None:
            return place
    return None


def _target(scope: Mapping[str, Any]) -> bytes:
    """As it was sent."""
    found: bytes | None = scope.get("sandlot.target")
    if found is None:
        query: bytes = scope.get("query_string", b"")
        found = bytes(scope["raw_path"]) + (b"?" + query if query else b"")
    return found


async def _send_on(send: Send, scope: Scope, found: Given, until: float, path: bytes) -> None:
    """The token goes into a cookie and out of the address, where it would be seen and sent along."""
    token = found.query
    left = max(1, int(until - time.time()))
    kept = credentials.cookie(token, path, left, secure=scope.get("scheme") == "https")
    # Not `//elsewhere`, which is another host to a browser.
    target = b"/." + found.target if found.target[1:2] in (b"/", b"\\") else found.target
    await _see(send, 303, target, (b"set-cookie", kept))


async def _see(send: Send, status: int, place: bytes, *headers: Header) -> None:
    found = [
        (b"location", place),
        (b"content-length", b"0"),
        (b"cache-control", b"no-store"),
        (b"referrer-policy", b"no-referrer"),
        *headers,
    ]
    await send({"type": "http.response.start", "status": status, "headers": found})
    await send({"type": "http.response.body", "body": b""})
