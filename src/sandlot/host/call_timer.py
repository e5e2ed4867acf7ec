"""The one thing that a call waits for; while its session is paused, time stands still for it."""

import asyncio
from collections.abc import Callable


class CallTimer:
    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._handle: asyncio.TimerHandle | None = None
        self._then: Callable[[], None] | None = None
        self._left_s: float | None = None
        self.is_held = False

    def set(self, seconds: float, then: Callable[[], None]) -> None:
        """It takes the place of the one before."""
        self.cancel()
        self._then = then
        if self.is_held:
            self._left_s = seconds
        else:
            self._handle = self._loop.call_later(seconds, then)

    def waits_for(self, then: Callable[[], None]) -> bool:
        return self._handle is not None and not self._handle.cancelled() and self._then == then

    def cancel(self) -> None:
        self._left_s = None
        if self._handle:
            self._handle.cancel()
            self._handle = None

    def hold(self) -> None:
        if self.is_held:
            return
        left_s = max(0.0, self._handle.when() - self._loop.time()) if self._handle else None
        self.cancel()
        self.is_held, self._left_s = True, left_s

    def release(self) -> None:
        left_s, self.is_held = self._left_s, False
        if left_s is not None and self._then:
            self.set(left_s, self._then)
