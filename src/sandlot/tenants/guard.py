"""What stands before every application of a server once there are keys: without a good one there is no answer but 401,
whatever the path, known or not.
"""

import asyncio
import json
import math
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Final

from sandlot.model import KeyInfo, SandlotError, TenantLimits
from sandlot.tenants.asgi import Application, Receive, Scope, Send
from sandlot.tenants.keys import KeyStore
from sandlot.tenants.rate import Bucket

LOOK_S: Final = 0.5  # so often what is under way is looked at: whether its key is still good
_HEADERS: Final = (b"authorization", b"x-api-key", b"open-sandbox-api-key")


class Guard:
    """`serve` gives the application of whoever shows a key, or a token of a session. `tokens` are asked about requests
    without one: on whose behalf they have another right to be there, such as the token of one endpoint. Whether it is
    the right one is for the application to say."""

    def __init__(
        self,
        keys: KeyStore,
        serve: Callable[[KeyInfo], Application],
        tokens: Callable[[Scope], KeyInfo | None] = lambda _scope: None,
    ) -> None:
        self._keys = keys
        self._serve = serve
        self._tokens = tokens
        self._buckets: dict[str, Bucket] = {}
        self._under_way: dict[asyncio.Task[None], KeyInfo] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            info = known = self._keys.check(given_key(scope["headers"]))
            if info is None:
                info = self._tokens(scope)
        except SandlotError as error:
            await refuse(scope, send, 503, "unavailable", error.message)
            return
        if info is None:
            await refuse(scope, send, 401, "unauthenticated", "this needs a key: Authorization: Bearer KEY")
            return
        bucket = self._bucket(info)
        wait_s = bucket.wait_s()
        if wait_s:
            told = [*bucket.headers(), (b"retry-after", b"%d" % math.ceil(wait_s))]
            await refuse(scope, send, 429, "resource_exhausted", "more requests than this tenant may send", told)
            return
        if known is not None:
            scope["sandlot.key"] = known
        await self._watched(info, scope, receive, send if bucket.rate is None else bucket.told(send))

    async def _watched(self, info: KeyInfo, scope: Scope, receive: Receive, send: Send) -> None:
        """A request ends when its key does."""
        task = asyncio.current_task()
        assert task is not None
        self._under_way[task] = info
        try:
            await self._serve(info)(scope, receive, send)
        finally:
            del self._under_way[task]

    async def watch(self) -> None:
        """As long as the server runs."""
        while True:
            await asyncio.sleep(LOOK_S)
            with suppress(SandlotError):
                self.end_what_may_not_go_on()

    def end_what_may_not_go_on(self) -> None:
        for info in set(self._under_way.values()):
            if not self._keys.is_good(info):
                for task in [task for task, of in self._under_way.items() if of == info]:
                    task.cancel()

    def _bucket(self, info: KeyInfo) -> Bucket:
        limits = self._keys.limits(info.tenant) if info.tenant else TenantLimits()
        bucket = self._buckets.get(info.tenant)
        if bucket is None or bucket.rate != limits.requests_per_s:
            bucket = self._buckets[info.tenant] = Bucket(limits.requests_per_s)
        return bucket


def given_key(headers: Iterable[tuple[bytes, bytes]]) -> str:
    """One that stands there twice is none: whoever stands before us may have looked at the other."""
    given: dict[bytes, bytes] = {}
    for name, value in headers:
        if name in _HEADERS:
            if name in given:
                return ""
            given[name] = value
    bearer = given.get(b"authorization", b"")
    if bearer[:7].lower() == b"bearer ":
        return bearer[7:].strip().decode("latin-1")
    return next((given[name].decode("latin-1") for name in _HEADERS[1:] if name in given), "")


async def refuse(
    scope: Scope, send: Send, status: int, code: str, message: str, headers: Iterable[tuple[bytes, bytes]] = ()
) -> None:
    if scope["type"] == "websocket":
        await send({"type": "websocket.close", "code": 1008})
        return
    body = json.dumps({"code": code, "message": message}).encode()
    told = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body)), *headers]
    if status == 401:
        told.append((b"www-authenticate", b"Bearer"))
    await send({"type": "http.response.start", "status": status, "headers": told})
    await send({"type": "http.response.body", "body": body})
