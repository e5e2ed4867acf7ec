"""Pieces that come on the loop, for a thread that waits for them."""

import asyncio
import time
from collections.abc import AsyncIterable

from sandlot.model import DeadlineExceeded, limits

_POLL_S = 0.5


class Feed:
    def __init__(self, content: AsyncIterable[bytes]) -> None:
        self._pieces = aiter(content)
        self._loop = asyncio.get_running_loop()
        self._stopped = False

    def stop(self) -> None:
        self._stopped = True

    def read(self) -> bytes:
        """The next one; nothing at the end. Raises DeadlineExceeded, and what the content raises."""
        coming = asyncio.run_coroutine_threadsafe(self._next(), self._loop)
        give_up = time.monotonic() + limits.IMPORT_IDLE_S
        while True:
            try:
                return coming.result(_POLL_S)
            except TimeoutError:
                if coming.done():
                    raise
            if self._stopped or time.monotonic() > give_up:
                coming.cancel()
                raise DeadlineExceeded(
                    f"the rest of the file did not come within {limits.IMPORT_IDLE_S:g} s", limit="import_idle"
                )

    async def _next(self) -> bytes:
        while not (piece := await anext(self._pieces, None)):
            if piece is None:
                return b""
        return piece
