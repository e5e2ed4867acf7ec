"""Volumes as subvolumes of a btrfs; points as read-only snapshots of them.

A volume's state is the name of its subvolume, and the number of its quota group where it has one: `v-…:group`. Every
subvolume that is made for a volume counts in that group, so a limit holds for all that the session wrote and keeps, and
stays when it is rolled back. A rollback and a fork are writable snapshots of a point.

A snapshot is one transaction of the filesystem: it holds one moment, whoever writes meanwhile, and it is on disk when
the kernel answers. Only a volume that begins empty is on disk later.
"""

import asyncio
import contextlib
import errno
import logging
import os
import re
from collections.abc import AsyncGenerator, Callable, Generator, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from sandlot.contracts.storage import Shown, Taken, Volume
from sandlot.host.storage import btrfs_emptying, btrfs_kernel, lacks
from sandlot.host.storage.btrfs_changes import Family
from sandlot.host.storage.btrfs_names import group_of, new_id, state_text, subvolume_of
from sandlot.host.storage.btrfs_place import BtrfsPlace, has_program
from sandlot.host.storage.canonical import CANONICAL_ID
from sandlot.host.storage.held import Held
from sandlot.model import (
    Capability,
    Conflict,
    DeadlineExceeded,
    LimitReached,
    NotFound,
    Probe,
    SandlotError,
    StorageHealth,
    Unavailable,
    check_id,
    limits,
)

_log = logging.getLogger("sandlot.host")
_OURS = re.compile(r"[vsp]-[0-9a-f]+")
_GROUP_MARK, _GROUP_BITS = 0x5A1D, 32  # groups of ours, among those of others on the same filesystem
# Beyond the limit, all together less than a mebibyte: what a root takes when it is assembled, with what the kernel sets
# aside meanwhile; and what snapshots may take. Within the limit: what is left where the kernel refuses a page.
_ROOT_BYTES, _SNAPSHOTS_BYTES, _FULL_BYTES = 512 << 10, 256 << 10, 128 << 10
_FREE_AFTER_S = 0.1
_SOON_FREED_PAUSES_S = (0.03, 0.05, 0.1)
_FREED_PAUSES_S = (0.03, 0.05, 0.1, 0.2, 0.3, 0.5, 0.8, 1.0, 1.0)
_LOOK = "see `sandlot health`, and that its disk is there and has room"
_T = TypeVar("_T")


class BtrfsStorage:
    name = "btrfs"
    lacks = lacks.BTRFS
    is_atomic = False  # what is not written yet is, file by file
    is_in_place = True
    is_whole = True
    notebook = None

    def __init__(self, data: Path, image_bytes: int = 0) -> None:
        self.capabilities: frozenset[Capability] = frozenset({Capability.SNAPSHOTS, Capability.LIMIT_DISK})
        self._data = data
        self._place = BtrfsPlace(data, image_bytes)
        self._needed: set[str] = set()  # subvolumes; each is named by one state or one point
        self._held = Held()  # by whoever reads it now
        self._due: set[str] = set()  # to be destroyed
        self._groups_due: set[int] = set()
        self._groups: dict[str, int] = {}  # of volumes in use, by their subvolumes
        self._family = Family()
        self._freeing: asyncio.Future[None] | None = None
        self._is_freed_later = False
        self._sweeping = asyncio.Lock()
        self._sizes: dict[tuple[str, str], int] = {}  # of points, without others

    # ---- the place ---------------------------------------------------------------------------------------------

    @property
    def is_attached(self) -> bool:
        return self._place.is_there()

    @property
    def is_broken(self) -> bool:
        return self._place.is_broken()

    def is_native(self) -> bool:
        """Whether the data directory is on btrfs: then nothing has to be made for it."""
        return self._place.is_native()

    def was_used(self) -> bool:
        return self._place.was_used()

    async def probe(self) -> Probe:
        if self.is_attached or self.was_used():
            return Probe(self.name, True)
        if os.geteuid() != 0:
            return Probe(self.name, False, "it needs root", "run as root, or use the storage `layers`")
        if not self.is_native() and not has_program():
            return Probe(self.name, False, "mkfs.btrfs is not there", "install btrfs-progs")
        try:
            await self._kernel(self._place.try_out)
        except (OSError, DeadlineExceeded) as error:
            told = getattr(error, "strerror", None) or error
            return Probe(self.name, False, f"a try failed: {told}", "use the storage `layers`")
        return Probe(self.name, True)

    async def attach(self) -> None:
        try:
            await self._kernel(self._place.attach)
        except OSError as error:
            raise Unavailable(
                f"the btrfs of {self._data} cannot be used: {error.strerror or error}",
                next_step="run `sandlot doctor`, or use the storage `layers`",
            ) from error
        if not self._place.can_have_quotas():
            self.capabilities -= {Capability.LIMIT_DISK}

    async def detach(self) -> None:
        if self._freeing:
            self._freeing.cancel()
            await asyncio.wait([self._freeing])
        try:
            await self._kernel(self._place.detach)
        except OSError as error:
            _log.warning("the btrfs of %s stays mounted: %s", self._data, error.strerror)

    async def health(self) -> StorageHealth:
        try:
            return await asyncio.to_thread(self._place.health)
        except OSError as error:
            raise Unavailable(error.strerror or str(error)) from error

    async def _kernel(self, work: Callable[..., _T], *args: object) -> _T:
        """In a thread: most of it waits for the disk. Who is cancelled meanwhile still waits for its end. Raises
        OSError, DeadlineExceeded."""
        done = asyncio.ensure_future(asyncio.to_thread(work, *args))
        try:
            async with asyncio.timeout(limits.SYNC_DEADLINE_S):
                return await asyncio.shield(done)
        except TimeoutError:
            raise DeadlineExceeded(f"the disk took longer than {limits.SYNC_DEADLINE_S:g} s", limit="sync") from None
        except asyncio.CancelledError:
            await asyncio.wait([done], timeout=limits.SYNC_DEADLINE_S)
            raise

    @contextlib.contextmanager
    def _making(self, subvolume: str, group: int = 0) -> Generator[None]:
        """What was made for someone who did not get it is nobody's."""
        try:
            yield
        except FileExistsError:
            raise
        except BaseException:  # undone, then raised again
            self._due.add(subvolume)
            if group:
                self._groups_due.add(group)
            raise

    # ---- volumes -----------------------------------------------------------------------------------------------

    async def create(self, name: str, point: str = "", disk_bytes: int | None = None) -> Volume:
        check_id("volume", name)
        source = subvolume_of(point) if point else ""
        made = new_id("s-") if point else name  # one that begins empty is known by its name: see `open`
        if made in self._due:
            await self.sweep()  # the name of what was released is free
        group = 0
        if disk_bytes is not None or self._place.has_quotas():
            group = _GROUP_MARK << _GROUP_BITS | int.from_bytes(os.urandom(_GROUP_BITS // 8))
        try:
            with self._making(made, group):
                await self._kernel(self._create, made, source, group, disk_bytes)
        except FileExistsError:
            raise Conflict(f"a volume {name} is there already", volume=name) from None
        except FileNotFoundError:
            raise self._lost("the snapshot is gone") from None
        except OSError as error:
            raise self._trouble(f"volume {name} cannot be made", error) from error
        return self._use(name, state_text(made, group))

    def _create(self, made: str, source: str, group: int, disk_bytes: int | None) -> None:
        folder = self._place.volumes
        if group:
            if not self._place.has_quotas():
                self._place.enable_quotas()
            btrfs_kernel.make_group(folder, group)
            btrfs_kernel.limit_group(folder, group, disk_bytes)
        if source:
            btrfs_kernel.take_snapshot(folder / source, folder, made, group)
        else:
            btrfs_kernel.make_subvolume(folder, made, group)
            _fill(folder / made)

    async def open(self, name: str, state: str) -> Volume:
        subvolume = subvolume_of(state)
        path = self._place.volumes / subvolume
        if not (path / "w").is_dir() and subvolume == name and not self._place.is_fresh:
            # The machine lost power before an empty volume reached the disk; all that it was to hold went with it.
            _log.warning("volume %s is not on the disk; it begins empty", name)
            try:
                await self._kernel(self._make_again, subvolume, group_of(state))
            except OSError as error:
                raise self._trouble(f"volume {name} cannot be made", error) from error
        if not (path / "u").is_dir():
            raise NotFound(f"volume {name} is gone", volume=name)
        return self._use(name, state)

    def _make_again(self, subvolume: str, group: int) -> None:
        folder = self._place.volumes
        if not (folder / subvolume).is_dir():
            if group and group not in self._place.groups():
                btrfs_kernel.make_group(folder, group)
            btrfs_kernel.make_subvolume(folder, subvolume, group)
        _fill(folder / subvolume)

    async def limit(self, volume: Volume, disk_bytes: int | None) -> None:
        group = group_of(volume.state)
        if not group:
            raise Unavailable("the volume was made without a quota group", volume=volume.name)
        try:
            await self._kernel(btrfs_kernel.limit_group, self._place.volumes, group, disk_bytes)
        except OSError as error:
            raise self._trouble("the volume cannot be limited", error) from error

    @contextlib.asynccontextmanager
    async def roomy(self, volume: Volume) -> AsyncGenerator[None]:
        group = group_of(volume.state)
        try:
            most = await self._kernel(self._place.limit, group) if group else None
            if most is not None:
                room = max(most, self._place.held(group)) + _ROOT_BYTES
                await self._kernel(btrfs_kernel.limit_group, self._place.volumes, group, room)
        except OSError as error:
            raise self._trouble("the volume cannot be given room", error) from error
        try:
            yield
        finally:
            if most is not None:
                await self.limit(volume, most)

    def is_full(self, volume: Volume) -> bool:
        group = group_of(volume.state)
        try:
            most = self._place.limit(group) if group else None
            return most is not None and self._place.used(group) > most - _FULL_BYTES
        except OSError:
            return False

    def _use(self, name: str, state: str) -> Volume:
        subvolume = subvolume_of(state)
        self._needed.add(subvolume)
        self._groups[subvolume] = group_of(state)
        return Volume(name, self._place.volumes / subvolume, (), state)

    def _lost(self, what: str) -> NotFound | Unavailable:
        return NotFound(what) if self.is_attached else Unavailable(self._place.trouble(), next_step=_LOOK)

    def _trouble(self, what: str, error: OSError) -> Unavailable | LimitReached:
        if error.errno == errno.ENOSPC:
            return LimitReached(
                f"{what}: the btrfs is full", next_step="destroy sessions or delete snapshots", limit="space"
            )
        if not self.is_attached:
            return Unavailable(f"{what}: {self._place.trouble()}", next_step=_LOOK)
        return Unavailable(f"{what}: {error.strerror or error}")

    # ---- points ------------------------------------------------------------------------------------------------

    async def snapshot(self, volume: Volume, *, alone: bool) -> Taken:
        del alone  # it is the same work
        point = new_id("p-")
        try:
            if not await self._take(volume.path.name, point, group_of(volume.state), read_only=True):
                raise LimitReached(
                    "the session has reached its disk limit", next_step="delete snapshots or files", limit="disk_bytes"
                )
        except OSError as error:
            raise self._trouble("no snapshot can be taken", error) from error
        self._needed.add(point)
        return Taken(point, volume, is_on_disk=True)

    async def restore(self, volume: Volume, point: str) -> Volume:
        fresh, group = new_id("s-"), group_of(volume.state)
        try:
            await self._take(subvolume_of(point), fresh, group, read_only=False)
        except FileNotFoundError:
            raise self._lost("the snapshot is missing") from None
        except OSError as error:
            raise self._trouble("the snapshot cannot be restored", error) from error
        return self._use(volume.name, state_text(fresh, group))

    async def _take(self, source: str, made: str, group: int, *, read_only: bool) -> bool:
        """The kernel lets a snapshot begin beyond the limit, with a few pages each time; so many would be too many. Of
        what was destroyed the pages come back in a moment. Going back is no reason to refuse: it gives back more than
        it takes. Raises OSError."""
        with self._making(made):
            if await self._kernel(self._take_now, source, made, group, read_only, True):
                return True
            has_room = await self._make_room(group, _SNAPSHOTS_BYTES)
            return (has_room or not read_only) and await self._kernel(
                self._take_now, source, made, group, read_only, False
            )

    def _take_now(self, source: str, made: str, group: int, read_only: bool, within: bool) -> bool:
        if within and group and self._is_over(group, _SNAPSHOTS_BYTES):
            return False
        folder = self._place.volumes
        btrfs_kernel.take_snapshot(folder / source, folder, made, group, read_only=read_only)
        return True

    async def _make_room(self, group: int, beyond: int, pauses_s: Sequence[float] = _FREED_PAUSES_S) -> bool:
        """Wait a moment for what was destroyed, until no more than that is used beyond the limit. Raises OSError."""
        for number, pause_s in enumerate(pauses_s):
            if not await self._kernel(self._is_over, group, beyond):
                return True
            if number == 0:
                await self.sweep()
            await self._kernel(btrfs_kernel.free_destroyed, self._place.volumes)
            await asyncio.sleep(pause_s)
        return not await self._kernel(self._is_over, group, beyond)

    def _is_over(self, group: int, beyond: int) -> bool:
        most = self._place.limit(group)
        return most is not None and self._place.used(group) > most + beyond

    @contextlib.asynccontextmanager
    async def showing(self, old: str | None, new: str) -> AsyncGenerator[Shown]:
        folder = self._place.volumes
        if old is None:
            source = await asyncio.to_thread(self._family.began_with, folder, subvolume_of(new))
            old = source if source in self._needed else None
        with self.holding(old or "", new):
            after = self._upper(new)
            before = self._upper(old) if old else ()
            places = None
            if old is not None:
                if not new.startswith("p-"):
                    await self.sync()  # what the kernel has not written yet is not in its trees
                places = await asyncio.to_thread(self._family.places, folder, subvolume_of(old), subvolume_of(new), "u")
            yield Shown(before, after, (*before, *after), places)

    def _upper(self, text: str) -> tuple[Path, ...]:
        path = self._place.volumes / subvolume_of(text) / "u"
        if not path.is_dir():
            raise NotFound("the snapshot is gone")
        return (path,)

    async def tidy(self, state: str) -> None:
        del state  # every state is one subvolume, and costs what it costs

    async def sync(self) -> None:
        try:
            await self._kernel(btrfs_kernel.sync, self._place.volumes)
        except OSError as error:
            raise self._trouble("files cannot be brought to disk", error) from error

    # ---- what is left ------------------------------------------------------------------------------------------

    async def release(self, *needless: str) -> None:
        texts = [text for text in needless if text]
        states = [subvolume_of(text) for text in texts if group_of(text)]
        with btrfs_emptying.held(self._place.volumes, states) as open_ones:
            for text in texts:
                self._needed.discard(subvolume_of(text))
                self._groups.pop(subvolume_of(text), None)
                if group := group_of(text):
                    self._groups_due.add(group)
                self._discard_needless(subvolume_of(text))
            # Who goes back because nothing fits any more expects room.
            for group in {group_of(text) for text in texts} & set(self._groups.values()) - {0}:
                with contextlib.suppress(OSError, SandlotError):
                    await self._give_back(group, open_ones)

    async def _give_back(self, group: int, open_ones: Mapping[str, int]) -> None:
        """Files that something outside still has open, as gVisor has, are emptied by hand. Raises OSError."""
        if await self._make_room(group, -_ROOT_BYTES, _SOON_FREED_PAUSES_S):
            return
        gone = [fd for name, fd in open_ones.items() if name not in self._due and not self._is_needed(name)]
        if gone and (most := await self._kernel(self._place.limit, group)) is not None:
            room = max(most, self._place.held(group)) + _ROOT_BYTES
            await self._kernel(btrfs_emptying.empty, self._place.volumes, gone, group, room, most)
        await self._make_room(group, -_ROOT_BYTES)

    def holding(self, *texts: str) -> contextlib.AbstractContextManager[None]:
        return self._held.holding([subvolume_of(text) for text in texts if text], self._discard_needless)

    def _is_needed(self, name: str) -> bool:
        return name in self._needed or name in self._held

    def _discard_needless(self, name: str) -> None:
        if not self._is_needed(name):
            self._due.add(name)
            for key in [key for key in self._sizes if name in key]:
                del self._sizes[key]

    async def settle(self, points: Iterable[str]) -> None:
        self._needed.update(map(subvolume_of, points))
        self._due.update(name for name in await self._names() if not self._is_needed(name))
        self._groups_due.update(group for group in self._place.groups() if group >> _GROUP_BITS == _GROUP_MARK)

    async def _names(self) -> list[str]:
        try:
            found = await asyncio.to_thread(os.listdir, self._place.volumes)
        except OSError as error:
            raise self._trouble("volumes cannot be listed", error) from error
        return sorted(name for name in found if _OURS.fullmatch(name))

    async def missing(self, text: str) -> Sequence[str]:
        name = subvolume_of(text)
        return [] if (self._place.volumes / name / "u").is_dir() else [name]

    async def strays(self, needed: Iterable[str]) -> Sequence[str]:
        known = {subvolume_of(text) for text in needed if text} | self._due  # which goes with the next sweep
        return [name for name in await self._names() if name not in known and not self._is_needed(name)]

    async def remove_stray(self, name: str) -> None:
        if not self._is_needed(check_id("volume", name)):
            self._due.add(name)
            await self.sweep()

    async def sweep(self) -> None:
        """Destroy what was released. The kernel frees the space behind our back, when no guest stands on it."""
        async with self._sweeping:
            if self.is_attached and (self._due or self._groups_due):
                await asyncio.to_thread(self._sweep)
                self._freeing = self._freeing or asyncio.ensure_future(self._free())

    async def _free(self) -> None:
        """A moment later, and once for many: all that is to be written is written for it, and whoever destroyed
        something often goes on at once."""
        try:
            while self._is_freed_later:
                await asyncio.sleep(_FREE_AFTER_S)
                self._is_freed_later = False
                with contextlib.suppress(OSError, DeadlineExceeded):
                    await self._kernel(btrfs_kernel.free_destroyed, self._place.volumes)
        finally:
            self._freeing = None

    def _sweep(self) -> None:
        folder = self._place.volumes
        for name in tuple(self._due):
            try:
                btrfs_kernel.destroy_subvolume(folder, name)
                self._is_freed_later = True
            except FileNotFoundError:
                pass
            except OSError as error:
                # It is tried again with the next sweep, and at the next start; nobody's work depends on it.
                _log.warning("%s cannot be destroyed: %s", name, error.strerror)
                continue
            self._due.discard(name)
        for group in tuple(self._groups_due):
            # As long as anything of it is kept, by a fork too, it stays: it is tried again with the next sweep.
            with contextlib.suppress(OSError):
                btrfs_kernel.remove_group(folder, group)
                self._groups_due.discard(group)

    # ---- figures -----------------------------------------------------------------------------------------------

    async def usage(self, text: str, without: str = "") -> int:
        """Of a state: all that its group has, history included. Of a point: what its files hold, or what was written
        since the other one."""
        key = (text, without)
        if (known := self._sizes.get(key)) is not None:
            return known
        try:
            if (group := group_of(text)) and not without and not await self.missing(text):
                return await asyncio.to_thread(self._place.used, group)
            size = await asyncio.to_thread(self._measure, text, without)
        except OSError as error:
            raise self._lost("what is to be measured is gone") from error
        if text.startswith("p-"):  # it never changes
            self._sizes[key] = size
        return size

    def _measure(self, text: str, without: str) -> int:
        folder = self._place.volumes
        since = btrfs_kernel.describe(folder / subvolume_of(without)).made_at if without else 0
        return btrfs_kernel.data_bytes(folder / subvolume_of(text), since)


def _fill(path: Path) -> None:
    path.chmod(0o700)
    (path / "u").mkdir(mode=0o755, exist_ok=True)
    # The upper's own owner is the owner of `/` inside.
    os.chown(path / "u", CANONICAL_ID, CANONICAL_ID)
    (path / "w").mkdir(mode=0o755, exist_ok=True)
