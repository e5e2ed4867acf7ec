"""What stands before every application of a server once there are keys: without a good one there is no answer but 401,
whatever the path, known or not.
"""

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, MutableMapping
from contextlib import suppress
from typing import Any, Final

from sandlot.model import KeyInfo, SandlotError, TenantLimits
from sandlot.tenants.keys import KeyStore

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]

LOOK_S: Final = 0.5  # so often what is under way is looked at: whether its key is still good
_HEADERS: Final = (b"x-api-key", b"open-sandbox-api-key")


class Guard:
    """`serve` gives the application of a key's tenant. `tokens` are asked about requests without a key: those that have
    another right to be there, such as the token of one endpoint."""

    def __init__(
        self,
        keys: KeyStore,
        serve: Callable[[KeyInfo], Application],
        tokens: Callable[[Scope], Application | None] = lambda _scope: None,
    ) -> None:
        self._keys = keys
        self._serve = serve
        self._tokens = tokens
        self._buckets: dict[str, _Bucket] = {}
        self._under_way: dict[asyncio.Task[None], str] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers: dict[bytes, bytes] = dict(scope["headers"])
        try:
            info = self._keys.check(given_key(headers))
        except SandlotError as error:
            await refuse(scope, send, 503, "unavailable", error.message)
            return
        if info is None:
            if (application := self._tokens(scope)) is not None:
                await application(scope, receive, send)
                return
            await refuse(scope, send, 401, "unauthenticated", "this needs a key: Authorization: Bearer KEY")
            return
        if wait_s := self._bucket(info).wait_s():
            headers_of_wait = [(b"retry-after", b"%d" % max(1, round(wait_s)))]
            await refuse(
                scope, send, 429, "resource_exhausted", "more requests than this tenant may send", headers_of_wait
            )
            return
        await self._watched(info, scope, receive, send)

    async def _watched(self, info: KeyInfo, scope: Scope, receive: Receive, send: Send) -> None:
        """A request ends when its key does."""
        task = asyncio.current_task()
        assert task is not None
        scope["sandlot.key"] = info
        self._under_way[task] = info.key_id
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
        for key_id in set(self._under_way.values()):
            if not self._keys.is_good(key_id):
                for task in [task for task, of in self._under_way.items() if of == key_id]:
                    task.cancel()

    def _bucket(self, info: KeyInfo) -> "_Bucket":
        limits = self._keys.limits(info.tenant) if info.tenant else TenantLimits()
        bucket = self._buckets.get(info.tenant)
        if bucket is None or bucket.rate != limits.requests_per_s:
            bucket = self._buckets[info.tenant] = _Bucket(limits.requests_per_s)
        return bucket


class _Bucket:
    """So many in a second, and a second's worth at once."""

    def __init__(self, rate: float | None) -> None:
        self.rate = rate
        self._left = max(1.0, rate or 0.0)
        self._at = time.monotonic()

    def wait_s(self) -> float:
        """0: go on."""
        if self.rate is None:
            return 0.0
        now = time.monotonic()
        self._left = min(max(1.0, self.rate), self._left + (now - self._at) * self.rate)
        self._at = now
        if self._left >= 1:
            self._left -= 1
            return 0.0
        return (1 - self._left) / self.rate


def given_key(headers: Mapping[bytes, bytes]) -> str:
    bearer = headers.get(b"authorization", b"")
    if bearer[:7].lower() == b"bearer ":
        return bearer[7:].strip().decode("latin-1")
    return next((headers[name].decode("latin-1") for name in _HEADERS if name in headers), "")


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
