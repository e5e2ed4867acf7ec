"""Guests that wait for a session: started on the built-in template, with an empty volume and nothing run in them."""

from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from sandlot.contracts.runtime import Guest
from sandlot.contracts.storage import Volume
from sandlot.host.background import Background
from sandlot.model import SandlotError, Template


@dataclass(slots=True)
class Vessel:
    """A volume with a guest, before it has a session or a name that anyone knows."""

    volume: Volume
    guest: Guest
    id_range: int
    template: Template
    storage: str
    runtime: str
    lost: bool = False
    on_end: Callable[[str], None] | None = None

    def ended(self, reason: str) -> None:
        self.lost = True
        if self.on_end:
            self.on_end(reason)


class WarmPool:
    """Holds `size` vessels of one kind. Refills behind the back of whoever took one."""

    def __init__(self, size: int, make: Callable[[], Coroutine[Any, Any, Vessel]], background: Background) -> None:
        self._size = size
        self._make = make
        self._background = background
        self._ready: list[Vessel] = []
        self._filling = False
        self.trouble: SandlotError | None = None

    def take(self, storage: str, runtime: str, template: Template) -> Vessel | None:
        while self._ready:
            vessel = self._ready.pop()
            if vessel.lost:
                continue
            if (vessel.storage, vessel.runtime, vessel.template) == (storage, runtime, template):
                self.refill()
                return vessel
            self._ready.append(vessel)
            return None
        return None

    def refill(self) -> None:
        if not self._filling and len(self._ready) < self._size:
            self._filling = True
            self._background.spawn("warm pool", self._fill())

    async def _fill(self) -> None:
        try:
            while len(self._ready) < self._size:
                self._ready.append(await self._make())
            self.trouble = None
        except SandlotError as error:
            self.trouble = error  # creating a session says the same, to someone who can act on it
        finally:
            self._filling = False

    def drain(self) -> list[Vessel]:
        ready, self._ready = self._ready, []
        return ready

    @property
    def ready(self) -> int:
        return len(self._ready)
