"""Guests that wait for a session: started, with an empty volume, and serving where their template says so."""

import asyncio
import math
import operator
from collections.abc import Callable, Coroutine, Mapping
from functools import partial
from typing import Any

from sandlot.contracts.runtime import Runtime
from sandlot.contracts.storage import Storage
from sandlot.host.background import Background
from sandlot.host.storage.lacks import SHRINKING
from sandlot.host.vessels import Vessel
from sandlot.model import BUILTIN, Resources, SandlotError, Template, Unavailable

_REFILL_AFTER_S = 0.05
Make = Callable[[], Coroutine[Any, Any, Vessel]]
Discard = Callable[[Vessel], Coroutine[Any, Any, None]]


def can_be_limited(storage: Storage, usual: Resources, wanted: Resources) -> bool:
    """Whether what waits can become what is wanted. A guest is born with the most that it can have; a volume that
    cannot shrink is born as large as it is."""
    if SHRINKING in storage.lacks and wanted.disk_bytes != usual.disk_bytes:
        return False
    return (wanted.pids or math.inf) <= (usual.pids or math.inf)


class WarmPool:
    """Holds `size` vessels of one template. Refills behind the back of whoever took one."""

    def __init__(self, name: str, size: int, make: Make, discard: Discard, background: Background) -> None:
        self._name = name
        self.size = size
        self._make = make
        self._discard = discard
        self._background = background
        self.ready: list[Vessel] = []
        self._filling = asyncio.Lock()

    def take(self, storage: Storage, runtime: Runtime, template: Template) -> Vessel | None:
        self.give_up(lambda vessel: vessel.lost)
        if not self.ready:
            self.refill()
            return None
        vessel = self.ready[-1]
        if (vessel.storage, vessel.runtime, vessel.template.path) != (storage, runtime, template.path):
            return None
        self.ready.pop()
        # Not at once: whoever took it is about to run his first command, and the two would fight for the processor.
        asyncio.get_running_loop().call_later(_REFILL_AFTER_S, self.refill)
        return vessel

    def refill(self) -> None:
        if not self._filling.locked() and len(self.ready) < self.size:
            self._background.spawn("warm pool", self._fill_behind())

    async def _fill_behind(self) -> None:
        try:
            await self.fill()
        except SandlotError as error:
            # Of the built-in template: whoever creates a session meets the same error, and can act on it. Others may be
            # asked for by nobody: health tells of it.
            if self._name != BUILTIN:
                raise Unavailable(f"no guest of {self._name} can be kept warm: {error.message}") from error

    async def fill(self) -> None:
        """Raises what making a session raises."""
        async with self._filling:
            while len(self.ready) < self.size:
                vessel = await self._make()
                self.ready.append(vessel)  # the list may be another one by now

    @property
    def is_filling(self) -> bool:
        return self._filling.locked()

    def give_up(self, unwanted: Callable[[Vessel], bool]) -> None:
        """Those that no session will get."""
        gone = [vessel for vessel in self.ready if unwanted(vessel)]
        self.ready = [vessel for vessel in self.ready if vessel not in gone]
        for vessel in gone:
            self._background.spawn("discard a warm guest", self._discard(vessel))

    def drain(self) -> list[Vessel]:
        ready, self.ready = self.ready, []
        return ready


class WarmPools:
    """One of each template that is kept warm, by the name that it was asked for."""

    def __init__(
        self,
        sizes: Mapping[str, int],
        make: Callable[[str], Coroutine[Any, Any, Vessel]],
        discard: Discard,
        background: Background,
    ) -> None:
        self._make = make
        self._discard = discard
        self._background = background
        self._pools = {name: self._pool(name, size) for name, size in sizes.items()}
        self._is_stopped = False

    def _pool(self, name: str, size: int) -> WarmPool:
        return WarmPool(name, size, lambda: self._make(name), self._discard, self._background)

    def take(self, storage: Storage, runtime: Runtime, template: Template) -> Vessel | None:
        found = (pool.take(storage, runtime, template) for pool in self._pools.values())
        return next(filter(None, found), None)

    def refill(self) -> None:
        for pool in self._pools.values():
            pool.refill()

    async def keep(self, name: str, size: int) -> None:
        """So many from now on; when it returns they are ready. Raises what making a session raises."""
        pool = self._pools.setdefault(name, self._pool(name, 0))
        pool.size = 0 if self._is_stopped else size
        for spare in pool.ready[pool.size :]:
            pool.give_up(partial(operator.is_, spare))
        if pool.size == 0 and name != BUILTIN:
            del self._pools[name]
        await pool.fill()

    def renew(self, name: str, path: str) -> None:
        """The name means another template now."""
        if pool := self._pools.get(name):
            pool.give_up(lambda vessel: vessel.template.path != path)
            pool.refill()

    def stop(self) -> None:
        """Make no more; what is ready stays to be drained."""
        self._is_stopped = True
        for pool in self._pools.values():
            pool.size = 0

    def drain(self) -> list[Vessel]:
        return [vessel for pool in self._pools.values() for vessel in pool.drain()]

    @property
    def is_filling(self) -> bool:
        return any(pool.is_filling for pool in self._pools.values())

    def templates(self) -> list[str]:
        """The paths that its guests stand on."""
        return [vessel.template.path for pool in self._pools.values() for vessel in pool.ready]
