"""What a pool of the storage `zfs` holds for sessions, who needs it, and how it goes when nobody does.

A dataset is a state, a snapshot in it a point. What is released is due from then on: it is no stray, and is removed by
the next sweep, or by a later one when the kernel or a clone still needs it.
"""

import asyncio
import contextlib
import logging
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum, auto

from sandlot.host.storage import zfs_words as words
from sandlot.host.storage.held import Held
from sandlot.host.storage.zfs_commands import ZfsManager
from sandlot.host.storage.zfs_mounts import Mounts, in_time
from sandlot.host.storage.zfs_pool import ZfsPool
from sandlot.model import Conflict, NotFound, SandlotError, check_id

_log = logging.getLogger("sandlot.host")
_PAUSES_S = (0.0, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)  # a filesystem ends when the last guest that saw it does
_AGAIN_S = 5.0
_LATE_S = 60.0  # what is in the way for longer is told
BYTES = "sandlot:bytes"  # the size of a filesystem
USED = "sandlot:used"  # what its files took when the snapshot was taken
VOLUME = "sandlot:volume"  # the name of a volume
GONE = "sandlot:gone"  # of a dataset that stays only for the snapshots in it


class _Outcome(Enum):
    REMOVED = auto()
    CARRIES = auto()
    BUSY = auto()


class ZfsKept:
    def __init__(self, place: ZfsPool, manager: ZfsManager, mounts: Mounts) -> None:
        self._place = place
        self._zfs = manager
        self._mounts = mounts
        self.sizes: dict[str, int] = {}  # of states and points that are there
        self.owners: dict[str, str] = {}  # of points: the states that have them
        self.volumes: dict[str, str] = {}  # of states: the names of volumes
        self.used: dict[str, int] = {}  # of points: bytes of their files
        self.making: set[str] = set()
        self._uses: Counter[str] = Counter()
        self._held = Held()
        self._due: set[str] = set()
        self._leaving: set[str] = set()  # due, and being removed now: too late to need it again
        self._busy: dict[str, float] = {}  # due, and could not be removed: since when
        self._carriers: set[str] = set()  # due, with snapshots in them that someone or something needs
        self._sweeping = asyncio.Lock()
        self._again: asyncio.TimerHandle | None = None
        self._later: asyncio.Task[None] | None = None

    # ---- what is there -----------------------------------------------------------------------------------------

    def learn(self, found: Mapping[str, Mapping[str, str]], default_bytes: int) -> None:
        """All that the pool told, by the names of datasets and snapshots. What was due is, where it is still there."""
        for known in (self.sizes, self.owners, self.volumes, self.used):
            known.clear()
        prefix = f"{self._place.sessions}/"
        for name, values in found.items():
            state, _at, point = name.removeprefix(prefix).partition("@")
            if not name.startswith(prefix) or "/" in state:
                continue
            self.sizes[point or state] = words.read_number(values[BYTES], default_bytes)
            if point:
                self.owners[point] = state
                self.used[point] = words.read_number(values[USED], 0)
            else:
                self.volumes[state] = values[VOLUME]
        self._due &= set(self.sizes)
        self._carriers &= set(self.sizes)

    def size(self, text: str) -> int:
        """Raises NotFound, InvalidArgument."""
        if checked(text) not in self.sizes or text in self._leaving:
            raise NotFound(f"the pool {self._place.name} has no {text}")
        return self.sizes[text]

    def full(self, text: str) -> str:
        owner = self.owners.get(text)
        return self._place.dataset(text) if owner is None else f"{self._place.dataset(owner)}@{text}"

    def has_volume(self, name: str) -> bool:
        return any(volume == name and state not in self._due for state, volume in self.volumes.items())

    # ---- who needs it ------------------------------------------------------------------------------------------

    def use(self, text: str) -> None:
        self._uses[text] += 1
        self._due.discard(text)

    def release(self, text: str) -> None:
        self._uses[checked(text)] -= 1
        self._note_needless(text)

    def holding(self, *texts: str) -> contextlib.AbstractContextManager[None]:
        return self._held.holding([checked(text) for text in texts if text], self._note_needless)

    def drop(self, text: str) -> None:
        """Whatever is there of it: nobody has heard of it, or wants it any more."""
        self.sizes.setdefault(text, 0)
        self._due.add(text)

    def _note_needless(self, name: str) -> None:
        if name in self.sizes and not self.is_needed(name):
            self._due.add(name)

    def is_needed(self, name: str) -> bool:
        return self._uses[name] > 0 or name in self._held or name in self.making

    def is_due(self, name: str) -> bool:
        return name in self._due

    def in_use(self) -> Iterator[str]:
        return (name for name, count in self._uses.items() if count > 0 and name in self.sizes)

    def settle(self, points: Iterable[str]) -> None:
        for text in points:
            if text in self.sizes:
                self._uses[text] = max(self._uses[text], 1)
        for name in self.sizes:
            self._note_needless(name)

    def strays(self, needed: Iterable[str]) -> list[str]:
        """What is due goes by itself; where it does not, it is told."""
        known = {*needed, *self._carriers}
        late = {name for name, since in self._busy.items() if time.monotonic() - since > _LATE_S}
        found = (name for name in self.sizes if not self.is_needed(name) and (name in late or name not in self._due))
        return sorted(name for name in found if name not in known and not self._carries_points(name))

    def _carries_points(self, name: str) -> bool:
        return name in self.owners.values()

    # ---- how it goes -------------------------------------------------------------------------------------------

    async def sweep(self) -> None:
        """All that is due; what someone still uses after a moment is tried again later."""
        for pause_s in _PAUSES_S:
            await asyncio.sleep(pause_s)
            if not self._due:
                return
            async with self._sweeping:
                if await self._sweep():
                    return
        if self._again is None:
            self._again = asyncio.get_running_loop().call_later(_AGAIN_S, self._sweep_again)

    def _sweep_again(self) -> None:
        self._again = None
        self._later = asyncio.ensure_future(self._sweep_quietly())

    async def _sweep_quietly(self) -> None:
        with contextlib.suppress(SandlotError):
            await self.sweep()

    async def close(self) -> None:
        """Nothing is tried again by itself any more."""
        if self._again is not None:
            self._again.cancel()
            self._again = None
        if self._later is not None:
            self._later.cancel()
            await asyncio.wait([self._later])
            self._later = None

    async def _sweep(self) -> bool:
        """Whether nothing is left that could go soon."""
        due = [name for name in self._due if not self.is_needed(name)]
        gone = sum([await self._remove_point(name) for name in due if name in self.owners])
        datasets = [name for name in due if name not in self.owners]
        for name in datasets:
            await in_time(lambda name=name: self._mounts.close_image(name))
        busy: set[str] = set()
        while True:
            wanted = [name for name in datasets if name in self.sizes and name not in busy]
            wanted = [name for name in wanted if not self._carries_points(name)]
            wanted = [name for name in wanted if gone or name not in self._carriers]
            gone = 0
            for name in wanted:
                outcome = await self._remove_dataset(name)
                gone += outcome is _Outcome.REMOVED
                if outcome is _Outcome.BUSY:
                    busy.add(name)
            if not gone:
                return not busy

    async def _remove_point(self, point: str) -> bool:
        """What holds it or was made from it keeps it until that goes; then ZFS removes it by itself."""
        if self.is_needed(point):
            return False
        self._leaving.add(point)
        try:
            await self._zfs.destroy_snapshot(self.full(point), later=True)
        except NotFound:
            pass
        except SandlotError as error:
            _log.warning("snapshot %s cannot be removed now: %s", point, error.message)
            return False
        finally:
            self._leaving.discard(point)
        self._removed(point)
        return True

    async def _remove_dataset(self, name: str) -> _Outcome:
        if self.is_needed(name):
            return _Outcome.CARRIES
        self._leaving.add(name)
        try:
            outcome = await self._try_dataset(name)
        finally:
            self._leaving.discard(name)
        if outcome is _Outcome.REMOVED:
            self._removed(name)
        elif outcome is _Outcome.BUSY:
            self._busy.setdefault(name, time.monotonic())
        return outcome

    async def _try_dataset(self, name: str) -> _Outcome:
        dataset = self._place.dataset(name)
        try:
            if not await in_time(lambda: self._mounts.close(name, patience_s=0)):
                return _Outcome.BUSY
            try:
                await self._zfs.destroy(dataset)
            except Conflict:
                snapshots = await self._snapshots(name)
                if not snapshots:
                    return _Outcome.BUSY
                if not await self._hand_over(name, snapshots):
                    if name not in self._carriers:
                        self._carriers.add(name)
                        await self._zfs.set(dataset, GONE, "on")
                    return _Outcome.CARRIES
                await self._zfs.destroy(dataset)
        except NotFound:
            pass
        except SandlotError as error:
            _log.info("volume %s cannot be removed now: %s", name, error.message)
            return _Outcome.BUSY
        return _Outcome.REMOVED

    def _removed(self, name: str) -> None:
        for known in (self.sizes, self.owners, self.volumes, self.used, self._uses, self._busy):
            known.pop(name, None)
        self._due.discard(name)
        self._carriers.discard(name)

    async def _snapshots(self, name: str) -> dict[str, "_Snapshot"]:
        """Of a dataset, oldest first, by their full names."""
        found = await self._zfs.properties(self._place.sessions, ("origin", "userrefs"))
        heirs = {values["origin"]: full for full, values in found.items()}
        prefix = f"{self._place.dataset(name)}@"
        return {
            full: _Snapshot(values["userrefs"] not in ("0", "-"), heirs.get(full, ""))
            for full, values in found.items()
            if full.startswith(prefix)
        }

    async def _hand_over(self, name: str, snapshots: dict[str, "_Snapshot"]) -> bool:
        """Snapshots that nobody asks for any more, to the newest dataset that was made from one of them. So what
        outlives its origin does not drag it along. Not where one is held by someone."""
        if held := [full for full, snapshot in snapshots.items() if snapshot.is_held]:
            _log.info("volume %s stays, because %s is held (`zfs holds`)", name, held[0])
            return False
        heir = next((snapshot.heir for snapshot in reversed(snapshots.values()) if snapshot.heir), "")
        if heir:
            await self._zfs.promote(heir)
        return bool(heir)


@dataclass(frozen=True, slots=True)
class _Snapshot:
    is_held: bool
    heir: str  # a dataset that was made from it


def checked(text: str) -> str:
    """The text comes from the journal, and becomes paths and names."""
    return check_id("volume", text)
