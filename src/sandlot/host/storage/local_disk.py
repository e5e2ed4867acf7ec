"""Volumes as plain directories, whole: nothing of ours lies below or above them. Needs no root.

A volume is `volumes/<id>/{u,w}`, and so is a point. A state names one of them. Snapshots are an option, because each of
them, each rollback and each fork copies every file: where the filesystem can share blocks their content is not copied,
only names and attributes are. What is not wanted any more is renamed into `trash`, which is swept.

A copy is named by the journal when it is whole and on disk. Who finds one that nobody names removes it.
"""

import asyncio
import contextlib
import os
import re
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path

from sandlot.contracts.storage import Shown, Taken, Volume
from sandlot.host.kernel import sync_entry
from sandlot.host.storage import lacks
from sandlot.host.storage.canonical import CANONICAL_ID
from sandlot.host.storage.copying import can_clone, copy_volume
from sandlot.host.storage.filesystem import filesystem_health, sync, used_bytes
from sandlot.host.storage.held import Held
from sandlot.host.storage.trash import Trash
from sandlot.model import (
    Capability,
    CapabilityNotSupported,
    Conflict,
    NotFound,
    Probe,
    StorageHealth,
    Unavailable,
    check_id,
)

_OURS = re.compile(r"[vdp]-[0-9a-f]+")
_BEGAN = "began"  # in a volume that began at a point: its name
_SETTING = "SANDLOT_LOCAL_DISK_SNAPSHOTS"


class LocalDiskStorage:
    name = "local-disk"
    lacks: Mapping[str, str] = lacks.LOCAL_DISK
    is_atomic = False
    is_in_place = False
    is_whole = True
    notebook = None
    is_broken = False

    def __init__(self, data: Path, *, snapshots: bool) -> None:
        self.capabilities: frozenset[Capability] = frozenset({Capability.SNAPSHOTS} if snapshots else ())
        self._data = data
        self._volumes = data / self.name / "volumes"
        self._trash = Trash(data / self.name / "trash")
        self._needed: set[str] = set()  # by a session, a point, or whoever fills it
        self._held = Held()  # by whoever reads it now
        self.is_attached = False

    async def health(self) -> StorageHealth:
        try:
            return await asyncio.to_thread(filesystem_health, self._volumes)
        except OSError as error:
            raise Unavailable(f"{self._volumes}: {error.strerror}") from error

    def was_used(self) -> bool:
        return self._volumes.is_dir()

    async def probe(self) -> Probe:
        if not await asyncio.to_thread(os.access, self._data, os.W_OK | os.X_OK):
            return Probe(self.name, False, f"{self._data} cannot be written", "choose another data directory")
        if Capability.SNAPSHOTS not in self.capabilities:
            return Probe(self.name, True, "without snapshots", f"{_SETTING}=on adds them; each copies all files")
        with contextlib.suppress(OSError):  # who cannot say it cannot do it
            if await asyncio.to_thread(can_clone, self._data):
                return Probe(self.name, True, "a snapshot copies all names, and shares their content")
        step = "a data directory on btrfs or xfs shares their content"
        return Probe(self.name, True, "a snapshot copies all files of its session", step)

    async def attach(self) -> None:
        try:
            self._volumes.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._trash.path.mkdir(mode=0o700, exist_ok=True)
        except OSError as error:
            raise Unavailable(
                f"{self._volumes}: {error.strerror}", next_step="choose another data directory"
            ) from error
        self.is_attached = True

    async def detach(self) -> None:
        pass

    # ---- volumes -----------------------------------------------------------------------------------------------

    async def create(self, name: str, point: str = "", disk_bytes: int | None = None) -> Volume:
        assert disk_bytes is None, "directories have no limit, and say so"
        if point:
            self._path(point)  # before anything is made
        self._make(check_id("volume", name))
        if point:
            await self._fill(name, point)
        else:
            await self._keep_empty(name)
        return self._volume(name, name)

    async def _keep_empty(self, name: str) -> None:
        try:
            await asyncio.to_thread(_sync_folders, self._volumes / name, self._volumes)
        except OSError as error:
            self._discard(name)
            raise Unavailable(f"volume {name} cannot be made: {error.strerror}", volume=name) from error

    async def open(self, name: str, state: str) -> Volume:
        found = check_id("volume", state or name)
        if not all((self._volumes / found / part).is_dir() for part in ("u", "w")):
            raise NotFound(f"volume {name} is not on the disk", volume=name)
        self._needed.add(found)
        return self._volume(name, found)

    async def limit(self, volume: Volume, disk_bytes: int | None) -> None:
        raise CapabilityNotSupported(
            "plain directories have no limit", next_step="use the storage `btrfs`", limit="disk_bytes"
        )

    @contextlib.asynccontextmanager
    async def roomy(self, volume: Volume) -> AsyncGenerator[None]:
        del volume  # nothing limits it
        yield

    def is_full(self, volume: Volume) -> bool:
        del volume
        return False

    async def snapshot(self, volume: Volume, *, alone: bool) -> Taken:
        del alone  # frozen or alone: nobody writes
        point = _new_id("p-")
        self._make(point)
        await self._fill(point, volume.state, durable=False)  # whoever asked syncs
        return Taken(point, volume)

    async def restore(self, volume: Volume, point: str) -> Volume:
        self._path(point)  # before anything is made
        fresh = _new_id("d-")
        self._make(fresh)
        await self._fill(fresh, point)
        return self._volume(volume.name, fresh)

    @contextlib.asynccontextmanager
    async def showing(self, old: str | None, new: str) -> AsyncGenerator[Shown]:
        began = self._began(check_id("state", new)) if old is None else old
        with self.holding(new, began):
            after = self._path(new)
            if not began:
                yield Shown((), (after,), (after,))
                return
            before = self._path(began)
            yield Shown((before,), (after,), (before, after))

    def _began(self, name: str) -> str:
        """The point that a volume began with, if it is still there."""
        try:
            point = check_id("point", (self._volumes / name / _BEGAN).read_text())
        except FileNotFoundError:
            return ""
        return point if (self._volumes / point / "w").is_dir() else ""

    def _path(self, name: str) -> Path:
        path = self._volumes / check_id("state", name) / "u"
        if not path.is_dir():
            raise NotFound(f"{name} is not on the disk")
        return path

    def _volume(self, name: str, state: str) -> Volume:
        return Volume(name, self._volumes / state, (), state)

    def _make(self, name: str) -> None:
        path = self._volumes / name
        try:
            path.mkdir(mode=0o700)
            self._needed.add(name)
            (path / "u").mkdir(mode=0o755)
            # The upper's own owner is the owner of `/` inside. Who may not give it away has no runtime that needs it.
            with contextlib.suppress(OSError):
                os.chown(path / "u", CANONICAL_ID, CANONICAL_ID)
            (path / "w").mkdir(mode=0o755)
        except FileExistsError:
            raise Conflict(f"a volume {name} is there already", volume=name) from None
        except OSError as error:
            self._discard(name)
            raise Unavailable(f"volume {name} cannot be made: {error.strerror}", volume=name) from error

    async def _fill(self, name: str, source: str, *, durable: bool = True) -> None:
        """Make one like another. It is whole when this returns, and on disk if it is to be durable."""
        with self.holding(source):
            try:
                path = self._path(source)
                # Points tell what the first volume of their session began with, other volumes at which point they do.
                began = source if name.startswith("v-") else self._began(source)
                if began:
                    (self._volumes / name / _BEGAN).write_text(began)
            except OSError as error:
                self._discard(name)
                raise Unavailable(f"volume {name} cannot be made: {error.strerror}", volume=name) from error
            except NotFound:
                self._discard(name)
                raise
            await copy_volume(path, self._volumes / name / "u", partial(self._discard, name))
        if durable:
            await self._sync_or_discard(name)

    async def _sync_or_discard(self, name: str) -> None:
        done = False
        try:
            await self.sync()
            done = True
        finally:
            if not done:
                self._discard(name)

    # ---- what is left ------------------------------------------------------------------------------------------

    async def release(self, *needless: str) -> None:
        for name in needless:
            self._needed.discard(check_id("state", name))
            self._discard_needless(name)

    def holding(self, *texts: str) -> contextlib.AbstractContextManager[None]:
        return self._held.holding([check_id("state", text) for text in texts if text], self._discard_needless)

    def _is_needed(self, name: str) -> bool:
        return name in self._needed or name in self._held

    def _discard_needless(self, name: str) -> None:
        if not self._is_needed(name):
            self._discard(name)

    def _discard(self, name: str) -> None:
        self._needed.discard(name)
        self._trash.put(self._volumes / name)

    async def settle(self, points: Iterable[str]) -> None:
        self._needed.update(check_id("point", point) for point in points)
        for name in self._there():
            self._discard_needless(name)

    def _there(self) -> list[str]:
        """Whatever else lies there, as `lost+found` on a disk of its own, is not ours."""
        with os.scandir(self._volumes) as entries:
            return sorted(e.name for e in entries if _OURS.fullmatch(e.name) and e.is_dir(follow_symlinks=False))

    async def sweep(self) -> None:
        await self._trash.sweep()

    async def missing(self, text: str) -> Sequence[str]:
        return [] if (self._volumes / check_id("state", text) / "u").is_dir() else [text]

    async def strays(self, needed: Iterable[str]) -> Sequence[str]:
        known = set(needed)
        return [name for name in self._there() if name not in known and not self._is_needed(name)]

    async def remove_stray(self, name: str) -> None:
        if not self._is_needed(check_id("volume", name)):
            self._discard(name)
            await self.sweep()

    async def tidy(self, state: str) -> None:
        pass

    async def usage(self, text: str, without: str = "") -> int:
        """Blocks that copies share are counted with each of them: the filesystem does not tell whose they are."""
        del without
        return await asyncio.to_thread(used_bytes, self._path(text).parent)

    async def sync(self) -> None:
        await sync(self._volumes)


def _sync_folders(*paths: Path) -> None:
    for path in paths:
        sync_entry(path)


def _new_id(prefix: str) -> str:
    return prefix + os.urandom(8).hex()
