"""The pool of the storage `zfs`: one that is there, or one on a file in the data directory, made when it is needed."""

import asyncio
import os
import time
from dataclasses import dataclass
from pathlib import Path

from sandlot.host.storage.zfs_commands import ZfsManager
from sandlot.host.storage.zfs_words import PoolState, Space
from sandlot.model import NotFound, PoolSpace, Share, StorageHealth, Unavailable
from sandlot.model.health import DEGRADED, ONLINE

_LOOK_S = 1.0  # how long what a pool told is believed: asking costs more than most of what is done with it
_STATES = {PoolState.ONLINE: ONLINE, PoolState.DEGRADED: DEGRADED}
_BYTES_MIN, _SHARE = 512 << 20, 0.5


@dataclass(frozen=True, slots=True)
class ZfsSettings:
    pool: str = ""  # one that is there; empty: one on a file in the data directory
    bytes: int = 0  # of that file; 0: a share of what is free
    bases: str = "bases"
    sessions: str = "sessions"


class ZfsPool:
    def __init__(self, data: Path, settings: ZfsSettings, manager: ZfsManager) -> None:
        self._data = data
        self._settings = settings
        self._zfs = manager
        self._image = data / "zfs.img"
        self._name_file = data / "zfs.pool"
        self._looked: tuple[float, Space] | None = None
        self.name = settings.pool

    def was_used(self) -> bool:
        return self._name_file.exists()

    @property
    def is_own(self) -> bool:
        return not self._settings.pool

    @property
    def sessions(self) -> str:
        return f"{self.name}/{self._settings.sessions}"

    @property
    def bases(self) -> str:
        return f"{self.name}/{self._settings.bases}"

    def dataset(self, name: str) -> str:
        """Of a session."""
        return f"{self.sessions}/{name}"

    async def is_there(self) -> bool:
        name = self._name_file.read_text().strip() if self.was_used() else self.name
        return name in await self._zfs.pools()

    async def find(self) -> None:
        """Import it where it is not, make it where there is none. Raises Unavailable."""
        self._looked = None
        there = await self._zfs.pools()
        if not self.is_own:
            if self.name not in there:
                raise Unavailable(f"the pool {self.name} is not there", next_step="import it: `zpool import`")
            self._name_file.write_text(self.name)
            return
        if not self._name_file.exists():
            await self._make()
            return
        self.name = self._name_file.read_text().strip()
        if self.name in there:
            return
        try:
            await self._zfs.import_pool(self.name, str(self._data))
        except NotFound:
            if await asyncio.to_thread(self._was_made):
                raise Unavailable(f"the pool {self.name} cannot be found", next_step=f"see {self._image}") from None
            await self._make()  # its engine died before it was made

    def _was_made(self) -> bool:
        """Whether anything was ever written to its file."""
        return self._image.exists() and self._image.stat().st_blocks > 0

    async def _make(self) -> None:
        self.name = f"sandlot-{os.urandom(6).hex()}"
        # Its name first: who dies in between leaves an empty file, and no pool that nobody knows.
        fresh = self._name_file.with_suffix(".new")
        fresh.write_text(self.name)
        fresh.rename(self._name_file)
        told = os.statvfs(self._data)
        size = self._settings.bytes or max(_BYTES_MIN, int(told.f_bavail * told.f_frsize * _SHARE))
        self._image.unlink(missing_ok=True)
        with self._image.open("xb") as file:
            os.fchmod(file.fileno(), 0o600)
            file.truncate(size >> 20 << 20)
        await self._zfs.create_pool(self.name, str(self._image))

    async def destroy(self) -> None:
        await self._zfs.destroy_pool(self.name)
        self._name_file.unlink(missing_ok=True)
        self._image.unlink(missing_ok=True)

    async def health(self) -> StorageHealth:
        """Raises Unavailable where it is gone."""
        space = await self._space()
        state = _STATES.get(space.state, f"the pool {self.name} is {space.state.value}")
        told = PoolSpace(space.size, space.allocated, space.free, space.capacity, space.fragmentation)
        return StorageHealth(state, told, Share(0, 0))

    async def _space(self) -> Space:
        if self._looked is None or time.monotonic() - self._looked[0] > _LOOK_S:
            try:
                self._looked = (time.monotonic(), await self._zfs.space(self.name))
            except NotFound as error:
                step = "import it: `zpool import`" if not self.is_own else f"see {self._image}"
                raise Unavailable(f"the pool {self.name} is gone", next_step=step) from error
        return self._looked[1]
