"""Guests that wait for a session: started on the built-in template, with an empty volume and nothing run in them."""

import asyncio
import math
from collections.abc import Callable, Coroutine
from typing import Any

from sandlot.contracts.runtime import Runtime
from sandlot.contracts.storage import Storage
from sandlot.host.background import Background
from sandlot.host.storage.lacks import SHRINKING
from sandlot.host.vessels import Vessel
from sandlot.model import Resources, SandlotError, Template

_REFILL_AFTER_S = 0.05


def can_be_limited(storage: Storage, usual: Resources, wanted: Resources) -> bool:
    """Whether what waits can become what is wanted. A guest is born with the most that it can have; a volume that
    cannot shrink is born as large as it is."""
    if SHRINKING in storage.lacks and wanted.disk_bytes != usual.disk_bytes:
        return False
    return (wanted.pids or math.inf) <= (usual.pids or math.inf)


class WarmPool:
    """Holds `size` vessels of one kind. Refills behind the back of whoever took one."""

    def __init__(self, size: int, make: Callable[[], Coroutine[Any, Any, Vessel]], background: Background) -> None:
        self._size = size
        self._make = make
        self._background = background
        self._ready: list[Vessel] = []
        self._filling = False

    def take(self, storage: Storage, runtime: Runtime, template: Template) -> Vessel | None:
        self._ready = [vessel for vessel in self._ready if not vessel.lost]
        if not self._ready:
            self.refill()
            return None
        vessel = self._ready[-1]
        if (vessel.storage, vessel.runtime, vessel.template) != (storage, runtime, template):
            return None
        self._ready.pop()
        # Not at once: whoever took it is about to run his first command, and the two would fight for the processor.
        asyncio.get_running_loop().call_later(_REFILL_AFTER_S, self.refill)
        return vessel

    def refill(self) -> None:
        if not self._filling and len(self._ready) < self._size:
            self._filling = True
            self._background.spawn("warm pool", self._fill())

    async def _fill(self) -> None:
        try:
            while len(self._ready) < self._size:
                vessel = await self._make()
                self._ready.append(vessel)  # the list may be another one by now
        except SandlotError:
            return  # whoever creates a session meets the same error, and can act on it
        finally:
            self._filling = False

    def stop(self) -> None:
        """Make no more; what is ready stays to be drained."""
        self._size = 0

    def drain(self) -> list[Vessel]:
        ready, self._ready = self._ready, []
        return ready

    def templates(self) -> list[str]:
        """The paths that its guests stand on."""
        return [vessel.template.path for vessel in self._ready]

    @property
    def ready(self) -> int:
        return len(self._ready)
