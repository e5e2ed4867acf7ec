"""How many requests a tenant sends, and what it is told of that."""

import math
import time
from collections.abc import Callable

from sandlot.tenants.asgi import Message, Send


class Bucket:
    """So many in a second, and a second's worth at once."""

    def __init__(self, rate: float | None, clock: Callable[[], float] = time.monotonic) -> None:
        self.rate = rate
        self._clock = clock
        self._most = max(1.0, rate or 0.0)
        self._left = self._most
        self._at = clock()

    def wait_s(self) -> float:
        """0: go on."""
        if self.rate is None:
            return 0.0
        now = self._clock()
        self._left = min(self._most, self._left + (now - self._at) * self.rate)
        self._at = now
        if self._left >= 1:
            self._left -= 1
            return 0.0
        return (1 - self._left) / self.rate

    def headers(self) -> list[tuple[bytes, bytes]]:
        """How many at once, how many of them are left, and in how many seconds all of them are again."""
        if self.rate is None:
            return []
        full_s = math.ceil((self._most - self._left) / self.rate)
        return [
            (b"ratelimit-limit", b"%d" % self._most),
            (b"ratelimit-remaining", b"%d" % self._left),
            (b"ratelimit-reset", b"%d" % full_s),
        ]

    def told(self, send: Send) -> Send:
        """The same, with these headers in the answer."""

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": [*message.get("headers", ()), *self.headers()]}
            await send(message)

        return with_headers
