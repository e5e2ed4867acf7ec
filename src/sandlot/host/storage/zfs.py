"""Volumes as datasets of a ZFS pool, `<pool>/sessions/<id>`: points are snapshots, and a session goes on in a clone.

A state is the name of a dataset, a point is the short name of a snapshot; which dataset has it may change, because ZFS
moves snapshots when what was made from them outlives what they were made of. So a rollback and a fork are clones, and
what is destroyed goes when nothing needs it: a snapshot with clones or holds is destroyed later, by ZFS itself.

Where a dataset cannot carry the upper of an overlay, as with zfs-fuse, the volume is an ext4 image in it. Its size is
then the limit of what is there now; history does not count.
"""

import asyncio
import contextlib
import errno
import logging
import os
import time
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Generator, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from sandlot.contracts.storage import Shown, Taken, Volume
from sandlot.host.storage import lacks, zfs_daemon, zfs_images
from sandlot.host.storage.zfs_commands import INSTALL, ZfsManager
from sandlot.host.storage.zfs_mounts import Mounts
from sandlot.host.storage.zfs_pool import ZfsPool, ZfsSettings
from sandlot.model import (
    Capability,
    CapabilityNotSupported,
    Conflict,
    DeadlineExceeded,
    InvalidArgument,
    LimitReached,
    NotFound,
    Probe,
    SandlotError,
    StorageHealth,
    Unavailable,
    check_id,
)

_log = logging.getLogger("sandlot.host")
_BYTES = "sandlot:bytes"
_VOLUME = "sandlot:volume"
_EMPTY = "empty"
_MOUNT_PAUSES_S = (0.05, 0.2, 0.5, 1.0, 2.0)
_LOOK_S = 1.0  # how long figures are believed
_DISK_MIN = 16 << 20
_FULL_BYTES = 128 << 10  # with less left a write fails soon
_DEFAULT_BYTES = 64 << 30  # of a volume without a limit: only what is written takes space
_PATIENCE_S = 20.0  # for a filesystem to answer
_NO_FIGURES: Mapping[str, str] = {"used": "0", "referenced": "0"}
_Result = TypeVar("_Result")


class ZfsStorage:
    name = "zfs"
    capabilities: frozenset[Capability] = frozenset({Capability.SNAPSHOTS, Capability.LIMIT_DISK})
    lacks: Mapping[str, str] = lacks.ZFS
    is_atomic = True
    is_whole = True

    def __init__(self, data: Path, settings: ZfsSettings | None = None, manager: ZfsManager | None = None) -> None:
        self._settings = settings or ZfsSettings()
        self._zfs = manager or ZfsManager()
        self._place = ZfsPool(data, self._settings, self._zfs)
        self._mounts = Mounts(data / "mounts")
        self._sizes: dict[str, int] = {}  # of states and points that are there
        self._owners: dict[str, str] = {}  # of points
        self._uses: Counter[str] = Counter()
        self._held: Counter[str] = Counter()
        self._making: set[str] = set()
        self._carriers: set[str] = set()  # datasets that nobody needs, with snapshots in them that someone does
        self._bases = asyncio.Lock()
        self._sweeping = asyncio.Lock()
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
        await self._in_time(zfs_daemon.ensure)
        if not await self._place.is_there():
            await self._in_time(self._mounts.drop_all)  # nobody serves them any more
        await self._place.find()
        await self._in_time(self._mounts.prepare)
        await self._load()
        await self._mount_again()
        self.is_attached = True

    async def _load(self) -> None:
        """What is there. The folders of the pool are made where they are not."""
        found = await self._zfs.properties(self._place.name, (_BYTES, "origin", "mountpoint"))
        for parent in (self._settings.bases, self._settings.sessions):
            name = f"{self._place.name}/{parent}"
            place = str(self._mounts.datasets)
            if name not in found:
                await self._zfs.create(name, {"canmount": "off", "mountpoint": place, "atime": "off"})
            elif found[name]["mountpoint"] != place:
                await self._zfs.set(name, "mountpoint", place)
        self._sizes.clear()
        self._owners.clear()
        for name, values in found.items():
            self._learn(name, values[_BYTES])

    def _learn(self, name: str, size: str) -> None:
        short = name.removeprefix(f"{self._place.name}/{self._settings.sessions}/")
        if short == name or "/" in short:
            return
        owner, _at, point = short.partition("@")
        self._sizes[point or owner] = int(size) if size.isdigit() else _DEFAULT_BYTES
        if point:
            self._owners[point] = owner

    async def _mount_again(self) -> None:
        """After the pool was away: what is in use is mounted where it was."""
        for name in [name for name, count in self._uses.items() if count > 0 and name in self._sizes]:
            if name not in self._owners:
                await self._revive(name)

    async def detach(self) -> None:
        """A pool of ours that holds nothing any more goes."""
        self.is_attached = False
        if not self._place.is_own:
            return
        with contextlib.suppress(SandlotError, OSError):
            await self.sweep()
            found = await self._zfs.properties(self._place.name, ("type",))
            if any(name.startswith(f"{self._place.name}/{self._settings.sessions}/") for name in found):
                return
            for name in [name for name in found if name.startswith(f"{self._place.name}/{self._settings.bases}/")]:
                await self._in_time(lambda name=name: self._mounts.close_dataset(name.partition("@")[0].split("/")[-1]))
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
        if not point:
            size = _rounded(disk_bytes or _DEFAULT_BYTES)
            async with self._bases:
                base = await self._base(size)
            return await self._clone(name, f"{base}@{_EMPTY}", size)
        size = self._need(point)
        volume = await self._clone(name, self._full(point), size)
        if disk_bytes is not None and _rounded(disk_bytes) != size:
            try:
                await self.limit(volume, disk_bytes)
            except BaseException:  # undone, then raised again
                await self.release(volume.state)
                raise
        return volume

    async def _clone(self, volume: str, snapshot: str, size: int) -> Volume:
        name = f"z-{os.urandom(8).hex()}"
        self._making.add(name)
        try:
            await self._zfs.clone(snapshot, self._dataset(name), {_BYTES: str(size), _VOLUME: volume})
            self._sizes[name] = size
            await self._in_time(lambda: self._mounts.open(name))
        except BaseException:  # undone, then raised again
            self._sizes.pop(name, None)
            raise
        finally:
            self._making.discard(name)
        return self._use(volume, name)

    def _use(self, volume: str, name: str) -> Volume:
        self._uses[name] += 1
        return Volume(volume, self._mounts.volume(name), (), name)

    async def _base(self, size: int) -> str:
        """An empty filesystem of that size, made once."""
        short = f"ext4-{size}"
        base = f"{self._place.name}/{self._settings.bases}/{short}"
        if await self._zfs.exists(f"{base}@{_EMPTY}"):
            return base
        if await self._zfs.exists(base):  # its engine died before it was whole
            await self._in_time(lambda: self._mounts.close(short))
            await self._zfs.destroy(base)
        await self._zfs.create(base)
        await self._in_time(lambda: self._fill_base(short, size))
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
        if _checked(state) not in self._sizes or state in self._owners:
            raise NotFound(f"volume {name} is not in the pool {self._place.name}", volume=name)
        await self._revive(state)
        return self._use(name, state)

    async def _revive(self, name: str) -> None:
        """Its files can be read, whatever became of their mounts. What an engine froze that died is thawed."""
        point = self._mounts.point(name)
        if await self._in_time(lambda: self._mounts.is_mounted(point)):
            await self._in_time(lambda: zfs_images.thaw(point), known=True)
            if await self._in_time(lambda: self._mounts.is_alive(name)):
                return
        await self._in_time(lambda: self._mounts.drop(name))
        # A daemon that has just been started may still count a mount of the one before.
        for pause_s in _MOUNT_PAUSES_S:
            with contextlib.suppress(Conflict):
                await self._zfs.mount(self._dataset(name))
            if await self._in_time(lambda: self._mounts.has_image(name)):
                break
            await asyncio.sleep(pause_s)
        await self._in_time(lambda: self._mounts.open(name))

    async def limit(self, volume: Volume, disk_bytes: int | None) -> None:
        size = _rounded(disk_bytes or _DEFAULT_BYTES)
        name = _checked(volume.state)
        if size < self._sizes.get(name, 0):
            raise CapabilityNotSupported(
                "the filesystem of a volume of zfs can grow, and not shrink",
                next_step="make a session with the smaller limit",
                limit="disk_bytes",
            )
        if size > self._sizes.get(name, 0):
            if not await self._in_time(lambda: zfs_images.grow(self._mounts.point(name), size)):
                raise CapabilityNotSupported(
                    "this engine may not make filesystems larger",
                    next_step="run it with CAP_SYS_RESOURCE, or make a session with the larger limit",
                    limit="disk_bytes",
                )
            await self._zfs.set(self._dataset(name), _BYTES, str(size))
            self._sizes[name] = size

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
        name, point = _checked(volume.state), f"p-{os.urandom(8).hex()}"
        mount = self._mounts.point(name)
        await self._in_time(lambda: zfs_images.freeze(mount))
        try:
            await self._zfs.snapshot(f"{self._dataset(name)}@{point}", {_BYTES: str(self._sizes[name])})
        finally:
            await asyncio.shield(self._in_time(lambda: zfs_images.thaw(mount)))
        self._sizes[point], self._owners[point] = self._sizes[name], name
        self._uses[point] += 1
        self._figures = None
        return Taken(point, volume)

    async def restore(self, volume: Volume, point: str) -> Volume:
        size = self._need(point)
        return await self._clone(volume.name, self._full(point), size)

    @contextlib.asynccontextmanager
    async def showing(self, old: str | None, new: str) -> AsyncGenerator[Shown]:
        with self.holding(old or "", new):
            async with contextlib.AsyncExitStack() as stack:
                tops = [await stack.enter_async_context(self._showing(text)) for text in (old, new) if text]
                uppers = tuple(tops)
                yield Shown(uppers[:-1], uppers[-1:], uppers)

    @contextlib.asynccontextmanager
    async def _showing(self, text: str) -> AsyncGenerator[Path]:
        if text not in self._owners:
            self._need(text)
            yield self._mounts.volume(text) / "u"
            return
        name = f"z-{os.urandom(8).hex()}"
        self._making.add(name)
        try:
            await self._zfs.clone(self._full(text), self._dataset(name), {_VOLUME: "shown"})
            await self._in_time(lambda: self._mounts.open(name, read_only=True))
            yield self._mounts.volume(name) / "u"
        finally:
            self._making.discard(name)
            self._sizes[name] = 0  # the next sweep has it

    async def tidy(self, state: str) -> None:
        del state

    async def sync(self) -> None:
        """A snapshot of ZFS is on disk when it is told."""

    # ---- what is left ------------------------------------------------------------------------------------------

    async def release(self, *needless: str) -> None:
        for text in needless:
            if text:
                self._uses[_checked(text)] -= 1

    @contextlib.contextmanager
    def holding(self, *texts: str) -> Generator[None]:
        names = [_checked(text) for text in texts if text]
        self._held.update(names)
        try:
            yield
        finally:
            self._held.subtract(names)

    def _is_needed(self, name: str) -> bool:
        return self._uses[name] > 0 or self._held[name] > 0 or name in self._making

    async def settle(self, points: Iterable[str]) -> None:
        for text in points:
            if text in self._sizes:
                self._uses[text] = max(self._uses[text], 1)
        await self.sweep()

    async def sweep(self) -> None:
        if not self._place.name or all(map(self._is_settled, self._sizes)):
            return
        async with self._sweeping:
            gone = 0
            for point in [name for name in self._owners if not self._is_needed(name)]:
                gone += await self._remove_point(point)
            while True:
                needless = [name for name in self._sizes if name not in self._owners and not self._is_needed(name)]
                wanted = [name for name in needless if gone or name not in self._carriers]
                gone = sum([await self._remove_dataset(name) for name in wanted])
                if not gone:
                    return  # what is left carries something, or is in use

    def _is_settled(self, name: str) -> bool:
        return self._is_needed(name) or name in self._carriers

    async def _remove_point(self, point: str) -> bool:
        """What holds it or was made from it keeps it until that goes; then ZFS removes it by itself."""
        try:
            await self._zfs.destroy_snapshot(self._full(point), later=True)
        except NotFound:
            pass
        except SandlotError as error:
            _log.warning("snapshot %s cannot be removed now: %s", point, error.message)
            return False
        self._sizes.pop(point, None)
        self._owners.pop(point, None)
        self._uses.pop(point, None)
        return True

    async def _remove_dataset(self, name: str) -> bool:
        try:
            await self._in_time(lambda: self._mounts.close(name))
            try:
                await self._zfs.destroy(self._dataset(name))
            except Conflict:
                if not await self._hand_over(name):
                    self._carriers.add(name)
                    return False
                await self._zfs.destroy(self._dataset(name))
        except NotFound:
            pass
        except SandlotError as error:
            _log.debug("volume %s cannot be removed now: %s", name, error.message)
            return False
        self._sizes.pop(name, None)
        self._uses.pop(name, None)
        self._carriers.discard(name)
        return True

    async def _hand_over(self, name: str) -> bool:
        """Snapshots that nobody asks for any more, to the newest dataset that was made from one of them. So what
        outlives its origin does not drag it along. Not where one is asked for, or held by someone."""
        sessions = f"{self._place.name}/{self._settings.sessions}"
        found = await self._zfs.properties(sessions, ("origin", "userrefs"))
        prefix = f"{self._dataset(name)}@"
        snapshots = [full for full in found if full.startswith(prefix)]
        held = [full for full in snapshots if found[full]["userrefs"] not in ("0", "-")]
        if held:
            _log.info("volume %s stays, because %s is held (`zfs holds`)", name, held[0])
        if held or any(full.removeprefix(prefix) in self._owners for full in snapshots):
            return False
        heirs = {values["origin"]: full for full, values in found.items() if values["origin"].startswith(prefix)}
        for full in reversed(snapshots):
            if full in heirs:
                await self._zfs.promote(heirs[full])
                return True
        return False

    async def missing(self, text: str) -> Sequence[str]:
        return [] if text in self._sizes else [text]

    async def strays(self, needed: Iterable[str]) -> Sequence[str]:
        known = set(needed)
        return sorted(name for name in self._sizes if name not in known and not self._is_settled(name))

    async def remove_stray(self, name: str) -> None:
        if not self._is_needed(check_id("volume", name)):
            await self.sweep()

    async def usage(self, text: str, without: str = "") -> int:
        """ZFS of zfs-fuse does not tell what two snapshots have in common; what it tells is a lower bound."""
        self._need(text)
        figures = await self._read_figures()
        own = figures.get(self._full(text), _NO_FIGURES)
        if without not in self._sizes:
            return _number(own["referenced"])
        other = figures.get(self._full(without), _NO_FIGURES)
        return max(_number(own["referenced"]) - _number(other["referenced"]), _number(own["used"]), 0)

    async def _read_figures(self) -> Mapping[str, Mapping[str, str]]:
        if self._figures is None or time.monotonic() - self._figures[0] > _LOOK_S:
            sessions = f"{self._place.name}/{self._settings.sessions}"
            self._figures = (time.monotonic(), await self._zfs.properties(sessions, ("used", "referenced")))
        return self._figures[1]

    # ---- names and time ----------------------------------------------------------------------------------------

    def _dataset(self, name: str) -> str:
        return f"{self._place.name}/{self._settings.sessions}/{name}"

    def _full(self, text: str) -> str:
        owner = self._owners.get(text)
        return self._dataset(text) if owner is None else f"{self._dataset(owner)}@{text}"

    def _need(self, text: str) -> int:
        """Its size. Raises NotFound."""
        if _checked(text) not in self._sizes:
            raise NotFound(f"the pool {self._place.name} has no {text}")
        return self._sizes[text]

    async def _in_time(self, work: Callable[[], _Result], *, known: bool = False) -> _Result:
        """In a thread, with a deadline: a filesystem whose daemon hangs answers nobody. `known`: may fail."""
        try:
            async with asyncio.timeout(_PATIENCE_S):
                return await asyncio.to_thread(work)
        except TimeoutError:
            raise DeadlineExceeded(
                f"the files of the pool do not answer within {_PATIENCE_S:g} s", next_step="run `sandlot doctor`"
            ) from None
        except OSError as error:
            if isinstance(error, SandlotError):
                raise
            if known:
                # Who expects the failure does not look at the answer.
                return None  # pyright: ignore[reportReturnType]
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise LimitReached("the pool is full", next_step="free space", limit="disk") from error
            raise Unavailable(f"files of the pool: {error.strerror or error}") from error


def _checked(text: str) -> str:
    """The text comes from the journal, and becomes paths and names."""
    return check_id("volume", text)


def _rounded(size: int) -> int:
    return size >> 12 << 12


def _number(text: str) -> int:
    return int(text) if text.isdigit() else 0
