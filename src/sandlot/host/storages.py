"""The storages of an engine, by name. Most engines need one of those that there are."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import suppress

from sandlot.contracts.storage import Storage
from sandlot.host.background import Background
from sandlot.model import SandlotError


class Storages(Mapping[str, Storage]):
    """A storage is attached when a session needs it, and not before; whoever knows the sessions then takes it over."""

    def __init__(self, *storages: Storage) -> None:
        self._storages = {storage.name: storage for storage in storages}
        self._attaching = asyncio.Lock()
        self.take_over: Callable[[Storage], Awaitable[None]] | None = None
        self.give_up: Callable[[str], None] | None = None  # end all that stands on it
        self.away: dict[str, str] = {}  # what is wrong with those that sessions need and that are not there
        self._attached: set[str] = set()

    def __getitem__(self, name: str) -> Storage:
        return self._storages[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._storages)

    def __len__(self) -> int:
        return len(self._storages)

    def at_work(self) -> tuple[Storage, ...]:
        return tuple(storage for storage in self._storages.values() if storage.is_attached)

    async def attach(self, name: str) -> None:
        """Raises Unavailable, CapabilityNotSupported."""
        storage = self._storages[name]
        if name in self._attached and storage.is_attached and not self._attaching.locked():
            return
        async with self._attaching:
            if storage.is_attached:
                return
            try:
                await storage.attach()
                if self.take_over:
                    await self.take_over(storage)
            except SandlotError as error:
                self.away[name] = error.message
                raise
            self.away.pop(name, None)
            self._attached.add(name)

    def missing(self) -> dict[str, str]:
        """Those that are needed and not there, and why."""
        lost = {name: "it was there, and is gone" for name in self._attached if not self._storages[name].is_attached}
        return lost | self.away

    async def find_again(self) -> None:
        """What was not there, or was lost, may be back."""
        for name in self.missing():
            if self._storages[name].is_broken and self.give_up:
                self.give_up(name)
            with suppress(SandlotError):
                await self.attach(name)

    async def detach(self) -> None:
        self._attached.clear()
        for storage in self.at_work():
            await storage.detach()


class Sweeper:
    """Has what was released removed, behind everyone's back."""

    def __init__(self, storages: Storages, background: Background) -> None:
        self._storages = storages
        self._background = background
        self._is_due = False

    def soon(self) -> None:
        if not self._is_due:
            self._is_due = True
            self._background.spawn("sweep", self.now())

    async def now(self) -> None:
        self._is_due = False
        for storage in self._storages.at_work():
            await storage.sweep()
