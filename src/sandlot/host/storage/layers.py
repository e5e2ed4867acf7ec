"""Volumes as plain directories on any filesystem; the kernel stacks them over the template.

A *layer* is `volumes/<id>/{u,w}`. A volume's state is a row of layers, newest first: the first is open, the others are
closed and never written again. A point is such a row with closed layers only. A snapshot closes the open layer and
opens another, or, where something may still write, copies it. Layers are shared; one that no state and no point names
is renamed into `trash`, which is swept.

What layers cannot do: a hard link to a file of an earlier turn breaks when one of the names is written, inode numbers
change when a file of an earlier turn is written, and a snapshot with living processes costs what was written since the
last one without.
"""

import asyncio
import contextlib
import logging
import os
from collections import Counter
from collections.abc import Generator, Iterable
from pathlib import Path

from sandlot.contracts.storage import Taken, Volume
from sandlot.host.kernel import sync_filesystem
from sandlot.host.removal import remove_tree
from sandlot.host.storage.canonical import CANONICAL_ID
from sandlot.host.storage.copying import copy_tree
from sandlot.host.storage.filesystem import filesystem_health
from sandlot.model import (
    Capability,
    Conflict,
    DeadlineExceeded,
    LimitReached,
    NotFound,
    Probe,
    StorageHealth,
    Unavailable,
    check_id,
    limits,
)

_log = logging.getLogger("sandlot.host")
_REMOVE_PAUSES_S = (0.05, 0.2, 0.5, 1.0)


class LayersStorage:
    name = "layers"
    capabilities: frozenset[Capability] = frozenset({Capability.SNAPSHOTS})

    def __init__(self, data: Path) -> None:
        self._data = data
        self._volumes = data / "volumes"
        self._trash = data / "trash"
        self._uses: Counter[str] = Counter()  # by how many states and points each layer is named
        self._held: Counter[str] = Counter()  # by whoever reads or copies it now
        self._sweeping = asyncio.Lock()
        self._sizes: dict[str, int] = {}  # of closed layers, which do not change

    async def health(self) -> StorageHealth:
        try:
            return await asyncio.to_thread(filesystem_health, self._volumes)
        except OSError as error:
            raise Unavailable(f"{self._volumes}: {error.strerror}") from error

    async def probe(self) -> Probe:
        try:
            self._volumes.mkdir(mode=0o700, exist_ok=True)
            self._trash.mkdir(mode=0o700, exist_ok=True)
        except OSError as error:
            return Probe(self.name, False, f"{self._volumes}: {error.strerror}", "choose another data directory")
        return Probe(self.name, True)

    # ---- volumes -----------------------------------------------------------------------------------------------

    async def create(self, name: str, point: str = "") -> Volume:
        self._make_layer(check_id("volume", name))
        return self._use(name, f"{name},{point}" if point else name)

    async def open(self, name: str, state: str) -> Volume:
        # A journal of the first version knows no states: its volumes have one layer, of the same name.
        volume = self._use(name, state or name)
        if not (volume.path / "w").is_dir():
            # The machine lost power before an empty layer reached the disk; all that it was to hold went with it.
            _log.warning("layer %s is not on the disk; it begins empty", volume.path.name)
            self._make_layer(volume.path.name, again=True)
        if not all(path.is_dir() for path in (volume.path / "u", *volume.layers)):
            self._uses.subtract(_layers(volume.state))
            raise NotFound(f"volume {name} lacks a layer", volume=name)
        return volume

    async def snapshot(self, volume: Volume, *, alone: bool) -> Taken:
        layers = _layers(volume.state)
        if len(layers) >= limits.LAYERS_MAX:
            raise LimitReached(
                f"the session has {limits.LAYERS_MAX} layers", next_step="delete old snapshots", limit="layers"
            )
        fresh = _new_id()
        self._make_layer(fresh)
        if alone:
            point = volume.state
            volume = self._use(volume.name, f"{fresh},{volume.state}")
            # The state before named the same layers, but for the new one.
            self._uses.subtract(layers)
        else:
            await self._copy(volume.path / "u", fresh)
            point = ",".join((fresh, *layers[1:]))
        self._uses.update(_layers(point))
        return Taken(point, volume)

    async def _copy(self, source: Path, layer: str) -> None:
        try:
            await asyncio.to_thread(copy_tree, source, self._volumes / layer / "u")
        except OSError as error:
            self._discard(layer)
            raise Unavailable(f"the files of the session cannot be copied: {error.strerror}") from error

    async def restore(self, volume: Volume, point: str) -> Volume:
        if not all((self._volumes / layer / "u").is_dir() for layer in _layers(point)):
            raise NotFound("a layer of the snapshot is missing")
        fresh = _new_id()
        self._make_layer(fresh)
        return self._use(volume.name, f"{fresh},{point}")

    def look(self, text: str) -> tuple[Path, ...]:
        return tuple(self._volumes / layer / "u" for layer in _layers(text))

    def _make_layer(self, name: str, *, again: bool = False) -> None:
        path = self._volumes / name
        try:
            path.mkdir(mode=0o700, exist_ok=again)
            (path / "u").mkdir(mode=0o755, exist_ok=again)
            # The upper's own owner is the owner of `/` inside. Who may not give it away has no runtime that needs it.
            with contextlib.suppress(OSError):
                os.chown(path / "u", CANONICAL_ID, CANONICAL_ID)
            (path / "w").mkdir(mode=0o755)  # last: where it is, the layer is whole
        except FileExistsError:
            raise Conflict(f"a volume {name} is there already", volume=name) from None
        except OSError as error:
            raise Unavailable(f"volume {name} cannot be made: {error.strerror}", volume=name) from error

    def _use(self, name: str, state: str) -> Volume:
        layers = _layers(state)
        self._uses.update(layers)
        return Volume(
            name, self._volumes / layers[0], tuple(self._volumes / layer / "u" for layer in layers[1:]), state
        )

    # ---- what is left ------------------------------------------------------------------------------------------

    async def release(self, *needless: str) -> None:
        for text in needless:
            for layer in _layers(text):
                self._uses[layer] -= 1
                self._discard_needless(layer)

    @contextlib.contextmanager
    def holding(self, *texts: str) -> Generator[None]:
        layers = [layer for text in texts for layer in _layers(text)]
        self._held.update(layers)
        try:
            yield
        finally:
            self._held.subtract(layers)
            for layer in set(layers):
                self._discard_needless(layer)

    def _discard_needless(self, layer: str) -> None:
        if self._uses[layer] <= 0 and self._held[layer] <= 0:
            del self._uses[layer], self._held[layer]
            self._sizes.pop(layer, None)
            self._discard(layer)

    async def settle(self, points: Iterable[str]) -> None:
        for point in points:
            self._uses.update(_layers(point))
        for entry in list(os.scandir(self._volumes)):
            if entry.is_dir(follow_symlinks=False) and self._uses[entry.name] <= 0:
                self._discard(entry.name)

    def _discard(self, layer: str) -> None:
        try:
            (self._volumes / layer).rename(self._trash / f"{layer}.{os.urandom(4).hex()}")
        except FileNotFoundError:
            return
        except OSError as error:
            raise Unavailable(f"layer {layer} cannot be removed: {error.strerror}", volume=layer) from error

    async def sweep(self) -> None:
        """Empty the trash; what a crash left in it too. Takes as long as the volumes are large."""
        async with self._sweeping:
            for entry in list(os.scandir(self._trash)):
                await self._remove(Path(entry.path))

    async def _remove(self, path: Path) -> None:
        # Whoever worked on its files when it was destroyed may still be about to notice.
        reason: str | None = None
        for pause_s in _REMOVE_PAUSES_S:
            try:
                await asyncio.to_thread(remove_tree, path)
                return
            except OSError as error:
                if not path.exists():
                    return
                reason = error.strerror
            await asyncio.sleep(pause_s)
        # It is tried again at the next start; nobody's work depends on it.
        _log.warning("%s cannot be removed: %s", path, reason)

    async def usage(self, text: str, without: str = "") -> int:
        others = set(_layers(without))
        layers = [layer for layer in _layers(text) if layer not in others]
        if not all((self._volumes / layer / "u").is_dir() for layer in layers):
            raise NotFound("a layer is gone")
        return await asyncio.to_thread(lambda: sum(map(self._measure, layers)))

    def _measure(self, layer: str) -> int:
        # Only the open layer of a volume changes, and it is named once.
        known = self._sizes.get(layer)
        size = _measure(self._volumes / layer) if known is None else known
        if self._uses[layer] > 1:
            self._sizes[layer] = size
        return size

    async def sync(self) -> None:
        try:
            async with asyncio.timeout(limits.SYNC_DEADLINE_S):
                await asyncio.to_thread(sync_filesystem, self._volumes)
        except TimeoutError:
            raise DeadlineExceeded(f"the disk took longer than {limits.SYNC_DEADLINE_S:g} s", limit="sync") from None
        except OSError as error:
            raise Unavailable(f"files cannot be brought to disk: {error.strerror}") from error


def _layers(text: str) -> list[str]:
    """Checked: the text comes from the journal, and becomes paths."""
    return [check_id("layer", layer) for layer in text.split(",") if layer]


def _new_id() -> str:
    return "l-" + os.urandom(8).hex()


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
