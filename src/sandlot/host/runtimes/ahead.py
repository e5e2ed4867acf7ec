"""Which guest is likely to be started next. Much of what it costs is a network of its own, and that can be made early:
the keeper makes it when it has nothing else to do. A guess that is wrong costs what it would have saved."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Collection
from contextlib import suppress

from sandlot.model import SandlotError

_PROBES = 0  # the range of guests that tell about the machine, and are nobody's
MADE_MAX = 4  # the keeper forgets the oldest beyond that
_AT_ONCE_MAX = 2
_AFTER_S = 0.05  # whoever has a new guest is about to run his first command


class Ahead:
    def __init__(self, make: Callable[[str], Awaitable[object]], held: Callable[[], Collection[int]]) -> None:
        """`make` tells the keeper, in the words of a start; `held` are the ranges of those who live."""
        self._make = make
        self._held = held
        self._limit = ""  # what stands behind the range in those words
        self._started = 0
        self._stopped: int | None = None
        self._made: deque[int] = deque(maxlen=MADE_MAX)
        self._timer: asyncio.TimerHandle | None = None
        self._making: asyncio.Task[None] | None = None

    def started(self, id_range: int, word: str) -> None:
        """A guest, with this range, in these words."""
        if id_range == _PROBES:
            return
        limit = word.removeprefix(str(id_range))
        if limit != self._limit:
            self._limit = limit
            self._made.clear()
        with suppress(ValueError):
            self._made.remove(id_range)
        self._started = id_range
        self._wait()

    def stopped(self, id_range: int) -> None:
        """Ranges that are free again are given out first. The first ones at once: what is left to be done for their
        sessions is not the keeper's. Where many end together, others may wait."""
        if id_range == _PROBES:
            return
        self._stopped = id_range
        if len(self._made) < _AT_ONCE_MAX:
            self._begin()
        else:
            self._wait()

    def forget(self) -> None:
        """The keeper is another one."""
        self._made.clear()

    def close(self) -> None:
        for running in (self._timer, self._making):
            if running is not None:
                running.cancel()

    def _wait(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(_AFTER_S, self._begin)

    def _begin(self) -> None:
        if self._making is None or self._making.done():
            self._making = asyncio.get_running_loop().create_task(self._fill(), name="namespaces ahead")

    async def _fill(self) -> None:
        while wanted := self.wanted():
            id_range, limit = wanted[0], self._limit
            try:
                await self._make(f"{id_range}{limit}")
            except SandlotError:
                return  # whoever starts a guest meets what is wrong
            if limit == self._limit and id_range not in (*self._made, *self._held()):
                self._made.append(id_range)

    def wanted(self) -> list[int]:
        """The one that became free last, and the next one that was never used."""
        held = self._held()
        fresh = self._started + 1
        while fresh in held:
            fresh += 1
        likely = [fresh] if self._stopped is None or self._stopped in held else [self._stopped, fresh]
        return [one for one in likely if one not in self._made]
