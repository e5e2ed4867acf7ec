"""Volumes as datasets of a ZFS pool, `<pool>/sessions/<id>`: points are snapshots, and a session goes on in a clone.

A state is the name of a dataset, a point is the short name of a snapshot; which dataset has it may change, because ZFS
moves snapshots when what was made from them outlives what they were made of. So a rollback and a fork are clones, and
what is destroyed goes when nothing needs it: a snapshot with clones or holds is destroyed later, by ZFS itself.

The volume is an ext4 image in the dataset, because a dataset of zfs-fuse cannot carry the upper of an overlay. Its size
is the limit of what is there now; history does not count.
"""

import asyncio
import contextlib
import os
import time
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

from sandlot.contracts.storage import Shown, Taken, Volume
from sandlot.host.storage import lacks, zfs_daemon, zfs_images
from sandlot.host.storage.zfs_commands import INSTALL, ZfsManager
from sandlot.host.storage.zfs_kept import BYTES, USED, VOLUME, ZfsKept
from sandlot.host.storage.zfs_mounts import Mounts, in_time
from sandlot.host.storage.zfs_notebook import ZfsNotebook
from sandlot.host.storage.zfs_pool import ZfsPool, ZfsSettings
from sandlot.host.storage.zfs_words import read_number
from sandlot.model import (
    Capability,
    CapabilityNotSupported,
    Conflict,
    InvalidArgument,
    NotFound,
    Probe,
    SandlotError,
    StorageHealth,
    Unavailable,
    check_id,
)

_EMPTY, _SHOWN = "empty", "shown"
_MOUNT_PAUSES_S = (0.05, 0.2, 0.5, 1.0, 2.0)
_LOOK_S = 1.0  # how long figures are believed
_DISK_MIN = 16 << 20
_FULL_BYTES = 128 << 10  # with less left a write fails soon
_DEFAULT_BYTES = 64 << 30  # of a volume without a limit: only what is written takes space
_NO_FIGURES: Mapping[str, str] = {"used": "0", "referenced": "0"}


class ZfsStorage:
    name = "zfs"
    capabilities: frozenset[Capability] = frozenset({Capability.SNAPSHOTS, Capability.LIMIT_DISK})
    lacks: Mapping[str, str] = lacks.ZFS
    is_atomic = True
    is_in_place = True
    is_whole = True
    is_broken = False

    def __init__(self, data: Path, settings: ZfsSettings | None = None, manager: ZfsManager | None = None) -> None:
        self._settings = settings or ZfsSettings()
        self._zfs = manager or ZfsManager()
        self._place = ZfsPool(data, self._settings, self._zfs)
        self._mounts = Mounts(data / "mounts")
        self._kept = ZfsKept(self._place, self._zfs, self._mounts)
        self.notebook = ZfsNotebook(self._place, self._zfs, self._kept)
        self._bases = asyncio.Lock()
        self._figures: tuple[float, Mapping[str, Mapping[str, str]]] | None = None
        self.is_attached = False

    # ---- the pool ----------------------------------------------------------------------------------------------

    def was_used(self) -> bool:
        return self._place.was_used()

    async def probe(self) -> Probe:
        if not self._zfs.is_installed:
            return Probe(self.name, False, "zfs is not installed", INSTALL)
        if os.geteuid() != 0:
            return Probe(self.name, False, "zfs needs root", "run as root")
        trouble = await asyncio.to_thread(zfs_daemon.trouble)
        return Probe(self.name, not trouble, trouble, INSTALL if trouble else "")

    async def attach(self) -> None:
        probe = await self.probe()
        if not probe.ready:
            raise CapabilityNotSupported(probe.reason, next_step=probe.next_step)
        await in_time(zfs_daemon.ensure)
        if not await self._place.is_there():
            await in_time(self._mounts.drop_all)  # nobody serves them any more
        await self._place.find()
        await in_time(self._mounts.prepare)
        await self._load()
        await self._mount_again()
        self.is_attached = True

    async def _load(self) -> None:
        """What is there. The folders of the pool are made where they are not."""
        found = await self._zfs.properties(self._place.name, (BYTES, USED, VOLUME, "mountpoint"))
        place = str(self._mounts.datasets)
        for name in (self._place.bases, self._place.sessions):
            if name not in found:
                await self._zfs.create(name, {"canmount": "off", "mountpoint": place, "atime": "off"})
            elif found[name]["mountpoint"] != place:
                await self._zfs.set(name, "mountpoint", place)
        self._kept.learn(found, _DEFAULT_BYTES)

    async def _mount_again(self) -> None:
        """After the pool was away: what is in use is mounted where it was."""
        for name in [*self._kept.in_use()]:
            if name not in self._kept.owners:
                await self._revive(name)

    async def detach(self) -> None:
        """A pool of ours that holds nothing any more goes."""
        self.is_attached = False
        with contextlib.suppress(SandlotError):
            await self._kept.sweep()
        await self._kept.close()
        if not self._place.is_own:
            return
        with contextlib.suppress(SandlotError, OSError):
            found = await self._zfs.properties(self._place.name, ("type",))
            if any(name.startswith(f"{self._place.sessions}/") for name in found):
                return
            for name in [name for name in found if name.startswith(f"{self._place.bases}/")]:
                await in_time(lambda name=name: self._mounts.close_dataset(name.partition("@")[0].split("/")[-1]))
            await self._place.destroy()

    async def health(self) -> StorageHealth:
        try:
            return await self._place.health()
        except Unavailable:
            self.is_attached = False  # whoever needs it next attaches it again
            raise

    # ---- volumes -----------------------------------------------------------------------------------------------

    async def create(self, name: str, point: str = "", disk_bytes: int | None = None) -> Volume:
        check_id("volume", name)
        if disk_bytes is not None and disk_bytes < _DISK_MIN:
            raise InvalidArgument(f"a volume of zfs has at least {_DISK_MIN} bytes", limit="disk_bytes")
        if self._kept.has_volume(name):
            raise Conflict(f"a volume {name} is there already", volume=name)
        if not point:
            size, state = _rounded(disk_bytes or _DEFAULT_BYTES), self._begin(name)
            try:
                async with self._bases:
                    base = await self._base(size)
            except BaseException:  # undone, then raised again
                self._give_up(state)
                raise
            return await self._clone(name, state, f"{base}@{_EMPTY}", size)
        size = self._kept.size(point)
        with self.holding(point):
            volume = await self._clone(name, self._begin(name), self._kept.full(point), size)
        if disk_bytes is not None and _rounded(disk_bytes) != size:
            try:
                await self.limit(volume, disk_bytes)
            except BaseException:  # undone, then raised again
                await self.release(volume.state)
                raise
        return volume

    def _begin(self, volume: str) -> str:
        """The name of a dataset to be; that of its volume is taken from now on."""
        state = f"z-{os.urandom(8).hex()}"
        self._kept.making.add(state)
        self._kept.volumes[state] = volume
        return state

    def _give_up(self, state: str) -> None:
        self._kept.making.discard(state)
        self._kept.drop(state)  # a command that was given up may have come to its end all the same

    async def _clone(self, volume: str, state: str, snapshot: str, size: int, *, read_only: bool = False) -> Volume:
        try:
            await self._zfs.clone(snapshot, self._place.dataset(state), {BYTES: str(size), VOLUME: volume})
            await in_time(lambda: self._mounts.open(state, read_only=read_only))
        except BaseException:  # undone, then raised again
            self._give_up(state)
            raise
        self._kept.sizes[state] = size
        self._kept.making.discard(state)
        return self._use(volume, state)

    def _use(self, volume: str, state: str) -> Volume:
        self._kept.use(state)
        return Volume(volume, self._mounts.volume(state), (), state)

    async def _base(self, size: int) -> str:
        """An empty filesystem of that size, made once."""
        short = f"ext4-{size}"
        base = f"{self._place.bases}/{short}"
        if await self._zfs.exists(f"{base}@{_EMPTY}"):
            return base
        if await self._zfs.exists(base):  # its engine died before it was whole
            await in_time(lambda: self._mounts.close(short))
            await self._zfs.destroy(base)
        await self._zfs.create(base)
        await in_time(lambda: self._fill_base(short, size))
        await self._zfs.snapshot(f"{base}@{_EMPTY}")
        return base

    def _fill_base(self, short: str, size: int) -> None:
        zfs_images.make_filesystem(self._mounts.dataset(short), size)
        self._mounts.open(short)
        try:
            zfs_images.make_places(self._mounts.point(short))
        finally:
            self._mounts.close(short)

    async def open(self, name: str, state: str) -> Volume:
        self._kept.size(state)
        if state in self._kept.owners:
            raise NotFound(f"volume {name} is not in the pool {self._place.name}", volume=name)
        await self._revive(state)
        return self._use(name, state)

    async def _revive(self, name: str) -> None:
        """Its files can be read, whatever became of their mounts. What an engine froze that died is thawed."""
        point = self._mounts.point(name)
        if await in_time(lambda: self._mounts.is_mounted(point)):
            with contextlib.suppress(Unavailable):  # it is dead, then
                await in_time(lambda: zfs_images.thaw(point))
            if await in_time(lambda: self._mounts.is_alive(name)):
                return
        await in_time(lambda: self._mounts.drop(name))
        # A daemon that has just been started may still count a mount of the one before.
        for pause_s in _MOUNT_PAUSES_S:
            with contextlib.suppress(Conflict):
                await self._zfs.mount(self._place.dataset(name))
            if await in_time(lambda: self._mounts.has_image(name)):
                break
            await asyncio.sleep(pause_s)
        await in_time(lambda: self._mounts.open(name))

    async def limit(self, volume: Volume, disk_bytes: int | None) -> None:
        size = _rounded(disk_bytes or _DEFAULT_BYTES)
        name = volume.state
        now = self._kept.size(name)
        if size < now:
            raise CapabilityNotSupported(
                "the filesystem of a volume of zfs can grow, and not shrink",
                next_step="make a session with the smaller limit",
                limit="disk_bytes",
            )
        if size > now:
            if not await in_time(lambda: zfs_images.grow(self._mounts.point(name), size)):
                raise CapabilityNotSupported(
                    "this engine may not make filesystems larger",
                    next_step="run it with CAP_SYS_RESOURCE, or make a session with the larger limit",
                    limit="disk_bytes",
                )
            await self._zfs.set(self._place.dataset(name), BYTES, str(size))
            self._kept.sizes[name] = size

    @contextlib.asynccontextmanager
    async def roomy(self, volume: Volume) -> AsyncGenerator[None]:
        del volume  # a filesystem keeps what it needs for that to itself
        yield

    def is_full(self, volume: Volume) -> bool:
        try:
            told = os.statvfs(volume.path)
        except OSError:
            return False
        return told.f_bavail * told.f_frsize < _FULL_BYTES or (told.f_files > 0 and told.f_favail == 0)

    # ---- points ------------------------------------------------------------------------------------------------

    async def snapshot(self, volume: Volume, *, alone: bool) -> Taken:
        del alone  # one moment of the files either way
        name, point = volume.state, f"p-{os.urandom(8).hex()}"
        size, mount = self._kept.size(name), self._mounts.point(name)
        await in_time(lambda: zfs_images.freeze(mount))
        try:
            used = await in_time(lambda: self._mounts.used(name))
            facts = {BYTES: str(size), USED: str(used)}
            await self._zfs.snapshot(f"{self._place.dataset(name)}@{point}", facts)
        except BaseException:  # undone, then raised again
            self._kept.owners[point] = name
            self._kept.drop(point)
            raise
        finally:
            await asyncio.shield(in_time(lambda: zfs_images.thaw(mount)))
        self._kept.sizes[point], self._kept.owners[point], self._kept.used[point] = size, name, used
        self._kept.use(point)
        self._figures = None
        return Taken(point, volume)

    async def restore(self, volume: Volume, point: str) -> Volume:
        size = self._kept.size(point)
        with self.holding(point):
            return await self._clone(volume.name, self._begin(volume.name), self._kept.full(point), size)

    @contextlib.asynccontextmanager
    async def showing(self, old: str | None, new: str) -> AsyncGenerator[Shown]:
        with self.holding(old or "", new):
            async with contextlib.AsyncExitStack() as stack:
                tops = [await stack.enter_async_context(self._showing(text)) for text in (old, new) if text]
                uppers = tuple(tops)
                yield Shown(uppers[:-1], uppers[-1:], uppers)

    @contextlib.asynccontextmanager
    async def _showing(self, text: str) -> AsyncGenerator[Path]:
        size = self._kept.size(text)
        if text not in self._kept.owners:
            yield self._mounts.volume(text) / "u"
            return
        shown = await self._clone(_SHOWN, self._begin(_SHOWN), self._kept.full(text), size, read_only=True)
        try:
            yield shown.path / "u"
        finally:
            self._kept.release(shown.state)

    async def tidy(self, state: str) -> None:
        del state

    async def sync(self) -> None:
        """A snapshot of ZFS is on disk when it is told."""

    # ---- what is left ------------------------------------------------------------------------------------------

    async def release(self, *needless: str) -> None:
        for text in filter(None, needless):
            self._kept.release(text)

    def holding(self, *texts: str) -> AbstractContextManager[None]:
        return self._kept.holding(*texts)

    async def settle(self, points: Iterable[str]) -> None:
        self._kept.settle(points)
        await self._kept.sweep()

    async def sweep(self) -> None:
        if self.is_attached:
            await self._kept.sweep()

    async def missing(self, text: str) -> Sequence[str]:
        return [] if text in self._kept.sizes else [text]

    async def strays(self, needed: Iterable[str]) -> Sequence[str]:
        return self._kept.strays(needed)

    async def remove_stray(self, name: str) -> None:
        if not self._kept.is_needed(check_id("volume", name)):
            self._kept.drop(name)
            await self._kept.sweep()

    # ---- figures -----------------------------------------------------------------------------------------------

    async def usage(self, text: str, without: str = "") -> int:
        """What the files take. What two snapshots have in common zfs-fuse does not tell: then it is a lower bound."""
        self._kept.size(text)
        if text not in self._kept.owners:
            return await in_time(lambda: self._mounts.used(text))
        if without not in self._kept.sizes:
            return self._kept.used[text]
        figures = await self._read_figures()
        own = figures.get(self._kept.full(text), _NO_FIGURES)
        other = figures.get(self._kept.full(without), _NO_FIGURES)
        more = read_number(own["referenced"], 0) - read_number(other["referenced"], 0)
        return max(more, read_number(own["used"], 0), 0)

    async def _read_figures(self) -> Mapping[str, Mapping[str, str]]:
        if self._figures is None or time.monotonic() - self._figures[0] > _LOOK_S:
            told = await self._zfs.properties(self._place.sessions, ("used", "referenced"))
            self._figures = (time.monotonic(), told)
        return self._figures[1]


def _rounded(size: int) -> int:
    return size >> 12 << 12
