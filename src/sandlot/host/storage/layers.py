"""Volumes as plain directories on any filesystem; the kernel stacks them over the template."""

import asyncio
import contextlib
import logging
import os
from collections.abc import Sequence
from pathlib import Path

from sandlot.contracts.storage import Volume
from sandlot.host.removal import remove_tree
from sandlot.host.storage.canonical import CANONICAL_ID
from sandlot.model import Capability, Conflict, NotFound, Probe, Unavailable
from sandlot.model.ids import check_id

_log = logging.getLogger("sandlot.host")


class LayersStorage:
    """`volumes/<name>/{u,w}`. A volume that is to go is first renamed into `trash`, which is swept at every start."""

    name = "layers"
    capabilities: frozenset[Capability] = frozenset()

    def __init__(self, data: Path) -> None:
        self._volumes = data / "volumes"
        self._trash = data / "trash"
        self._sweeping = asyncio.Lock()

    async def probe(self) -> Probe:
        try:
            self._volumes.mkdir(mode=0o700, exist_ok=True)
            self._trash.mkdir(mode=0o700, exist_ok=True)
        except OSError as error:
            return Probe(self.name, False, f"{self._volumes}: {error.strerror}", "choose another data directory")
        return Probe(self.name, True)

    async def create(self, name: str) -> Volume:
        path = self._volumes / check_id("volume", name)
        try:
            path.mkdir(mode=0o700)
            for part in ("u", "w"):
                (path / part).mkdir(mode=0o755)
            # The upper's own owner is the owner of `/` inside. Who may not give it away has no runtime that needs it.
            with contextlib.suppress(OSError):
                os.chown(path / "u", CANONICAL_ID, CANONICAL_ID)
        except FileExistsError:
            raise Conflict(f"a volume {name} is there already", volume=name) from None
        except OSError as error:
            raise Unavailable(f"volume {name} cannot be made: {error.strerror}", volume=name) from error
        return Volume(name, path)

    async def open(self, name: str) -> Volume:
        path = self._volumes / check_id("volume", name)
        if not (path / "u").is_dir():
            raise NotFound(f"there is no volume {name}", volume=name)
        return Volume(name, path)

    async def destroy(self, name: str) -> None:
        target = self._trash / f"{check_id('volume', name)}.{os.urandom(4).hex()}"
        try:
            (self._volumes / name).rename(target)
        except FileNotFoundError:
            return
        except OSError as error:
            raise Unavailable(f"volume {name} cannot be removed: {error.strerror}", volume=name) from error

    async def usage(self, name: str) -> int:
        volume = await self.open(name)
        return await asyncio.to_thread(_measure, volume.path)

    async def list(self) -> Sequence[str]:
        return sorted(entry.name for entry in os.scandir(self._volumes) if entry.is_dir(follow_symlinks=False))

    async def sweep(self) -> None:
        """Empty the trash; what a crash left in it too. Takes as long as the volumes are large."""
        async with self._sweeping:
            for entry in list(os.scandir(self._trash)):
                await self._remove(Path(entry.path))

    async def _remove(self, path: Path) -> None:
        try:
            await asyncio.to_thread(remove_tree, path)
        except OSError as error:
            # It is tried again at the next start; nobody's work depends on it.
            _log.warning("%s cannot be removed: %s", path, error.strerror)


def _measure(path: Path) -> int:
    total = 0
    pending = [str(path)]
    while pending:
        try:
            entries = list(os.scandir(pending.pop()))
        except OSError:
            continue  # removed by its session meanwhile
        for entry in entries:
            try:
                total += entry.stat(follow_symlinks=False).st_blocks * 512
            except OSError:
                continue
            if entry.is_dir(follow_symlinks=False):
                pending.append(entry.path)
    return total
