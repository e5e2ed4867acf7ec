"""Volumes as plain directories on any filesystem; the kernel stacks them over the template.

A *layer* is `volumes/<id>/{u,w}`. A volume's state is a row of layers, newest first: the first is open, the others are
closed and never written again. A point is such a row with closed layers only. A snapshot closes the open layer and
opens another, or, where something may still write, copies it. Layers are shared; one that no state and no point names
is renamed into `trash`, which is swept.

Rows stay short: closed layers are merged behind everyone's back (`tidy`), and the next state or point that would name
them all names the merged one instead. What was recorded before goes on naming what it named.

What layers cannot do is in `lacks.py`. Files of merged layers are further names of the files of their layers, so their
link counts and times of change can be later and larger than what the session did.
"""

import asyncio
import contextlib
import logging
import os
import re
from collections import Counter
from collections.abc import AsyncGenerator, Generator, Iterable, Sequence
from functools import lru_cache, partial
from pathlib import Path

from sandlot.contracts.storage import Shown, Taken, Volume
from sandlot.host import failpoints
from sandlot.host.storage import lacks
from sandlot.host.storage.canonical import CANONICAL_ID
from sandlot.host.storage.copying import copy_volume
from sandlot.host.storage.filesystem import filesystem_health, sync, used_bytes
from sandlot.host.storage.held import Held
from sandlot.host.storage.merged import PREFIX, MergedLayers
from sandlot.host.storage.merging import merge_layers
from sandlot.host.storage.spares import Spares
from sandlot.host.storage.trash import Trash
from sandlot.model import (
    Capability,
    CapabilityNotSupported,
    Conflict,
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
_OURS = re.compile(r"[vlm]-[0-9a-f]+")
_MERGE_PAUSE_S = 0.002  # between two steps: it must not take the processor from those who wait for something
_END = object()
_KNOWN = 4096  # layers whose names and paths are remembered


class LayersStorage:
    name = "layers"
    capabilities: frozenset[Capability] = frozenset({Capability.SNAPSHOTS})
    lacks = lacks.LAYERS
    is_atomic = False
    is_in_place = False
    is_whole = False
    notebook = None
    is_broken = False

    def __init__(self, data: Path) -> None:
        self._data = data
        self._volumes = data / "volumes"
        self._trash = Trash(data / "trash")
        self._uses: Counter[str] = Counter()  # by how many states and points each layer is named
        self._held = Held()  # by whoever reads or copies it now
        self._sizes: dict[str, int] = {}  # of closed layers, which do not change
        self._spares = Spares(data / "spares", _make_empty)
        self._merged = MergedLayers(self._volumes)
        self._uppers: dict[str, Path] = {}  # each turn goes through a row of up to a hundred
        self._merging = asyncio.Lock()
        self._unmergeable: set[tuple[str, ...]] = set()
        self.is_attached = False

    async def health(self) -> StorageHealth:
        try:
            return await asyncio.to_thread(filesystem_health, self._volumes)
        except OSError as error:
            raise Unavailable(f"{self._volumes}: {error.strerror}") from error

    def was_used(self) -> bool:
        return self._volumes.is_dir()

    async def probe(self) -> Probe:
        try:
            await self.attach()
        except Unavailable as error:
            return Probe(self.name, False, error.message, error.next_step)
        return Probe(self.name, True)

    async def attach(self) -> None:
        try:
            self._volumes.mkdir(mode=0o700, exist_ok=True)
            self._trash.path.mkdir(mode=0o700, exist_ok=True)
            if not self.is_attached:
                self._spares.open(self._trash.put)
        except OSError as error:
            raise Unavailable(
                f"{self._volumes}: {error.strerror}", next_step="choose another data directory"
            ) from error
        self.is_attached = True

    async def detach(self) -> None:
        await self._spares.close()

    # ---- volumes -----------------------------------------------------------------------------------------------

    async def create(self, name: str, point: str = "", disk_bytes: int | None = None) -> Volume:
        assert disk_bytes is None, "layers have no limit, and say so"
        self._make_layer(check_id("volume", name))
        return self._use(name, ",".join((name, *self._short(point))))

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

    async def limit(self, volume: Volume, disk_bytes: int | None) -> None:
        raise CapabilityNotSupported("layers have no limit", next_step="use the storage `btrfs`", limit="disk_bytes")

    @contextlib.asynccontextmanager
    async def roomy(self, volume: Volume) -> AsyncGenerator[None]:
        del volume  # nothing limits it
        yield

    def is_full(self, volume: Volume) -> bool:
        del volume
        return False

    async def snapshot(self, volume: Volume, *, alone: bool) -> Taken:
        layers = self._short(volume.state)
        if len(layers) >= limits.LAYERS_MAX:
            raise LimitReached(
                f"the session has {limits.LAYERS_MAX} layers", next_step="delete old snapshots", limit="layers"
            )
        fresh = _new_id("l-")
        self._make_layer(fresh)
        if alone:
            point = ",".join(layers)
            volume = self._use(volume.name, f"{fresh},{point}")
        else:
            await copy_volume(volume.path / "u", self._volumes / fresh / "u", partial(self._discard, fresh))
            point = ",".join((fresh, *layers[1:]))
        self._uses.update(_layers(point))
        return Taken(point, volume)

    async def restore(self, volume: Volume, point: str) -> Volume:
        if not all((self._volumes / layer / "u").is_dir() for layer in _layers(point)):
            raise NotFound("a layer of the snapshot is missing")
        fresh = _new_id("l-")
        self._make_layer(fresh)
        return self._use(volume.name, ",".join((fresh, *self._short(point))))

    def _short(self, text: str) -> list[str]:
        return self._merged.shorten(_layers(text))

    @contextlib.asynccontextmanager
    async def showing(self, old: str | None, new: str) -> AsyncGenerator[Shown]:
        with self.holding(old or "", new):
            row = self._paths(_layers(new))
            if old is None:
                yield Shown(row[1:], row, row[:1])
            else:
                yield Shown(self._paths(_layers(old)), row, self._between(old, new))

    def _between(self, old: str, new: str) -> tuple[Path, ...]:
        rows = _layers(old), _layers(new)
        apart = _not_shared(*map(self._merged.expand, rows))
        if any(self._uses[layer] <= 0 for layer in apart):
            apart = _not_shared(*rows)  # some are there as parts of merged ones only
        return self._paths(apart)

    def _paths(self, row: Iterable[str]) -> tuple[Path, ...]:
        return tuple(map(self._upper, row))

    def _upper(self, layer: str) -> Path:
        if layer not in self._uppers:
            if len(self._uppers) >= _KNOWN:
                self._uppers.clear()
            self._uppers[layer] = self._volumes / layer / "u"
        return self._uppers[layer]

    def _make_layer(self, name: str, *, again: bool = False) -> None:
        path = f"{self._volumes}/{name}"
        try:
            if again or not self._spares.take(path):
                _make_empty(path, again=again)
        except FileExistsError:
            raise Conflict(f"a volume {name} is there already", volume=name) from None
        except OSError as error:
            raise Unavailable(f"volume {name} cannot be made: {error.strerror}", volume=name) from error

    def _use(self, name: str, state: str) -> Volume:
        layers = _layers(state)
        self._uses.update(layers)
        return Volume(name, self._volumes / layers[0], self._paths(layers[1:]), state)

    # ---- what is left ------------------------------------------------------------------------------------------

    async def release(self, *needless: str) -> None:
        for text in needless:
            for layer in _layers(text):
                self._uses[layer] -= 1
                self._discard_needless(layer)

    def holding(self, *texts: str) -> contextlib.AbstractContextManager[None]:
        layers = [layer for text in texts for layer in _layers(text)]
        layers += self._merged.expand([layer for layer in layers if layer.startswith(PREFIX)])
        return self._held.holding(layers, self._discard_needless)

    def _discard_needless(self, layer: str) -> None:
        if self._is_needed(layer):
            return
        self._uses.pop(layer, None)
        self._sizes.pop(layer, None)
        self._merged.forget(layer)
        self._discard(layer)
        for merged in self._merged.made_of(layer):
            self._discard_needless(merged.name)

    def _is_needed(self, layer: str) -> bool:
        if self._uses[layer] > 0 or layer in self._held:
            return True
        # A row that has all of its layers may come to use it.
        merged = self._merged.find(layer)
        return merged is not None and all(map(self._is_needed, merged.layers))

    async def settle(self, points: Iterable[str]) -> None:
        for point in points:
            self._uses.update(_layers(point))
        for entry in list(os.scandir(self._volumes)):
            if _is_ours(entry) and not self._is_needed(entry.name):
                self._merged.forget(entry.name)
                self._discard(entry.name)

    def _discard(self, layer: str) -> None:
        self._trash.put(self._volumes / layer)

    async def missing(self, text: str) -> Sequence[str]:
        return [layer for layer in _layers(text) if not (self._volumes / layer / "u").is_dir()]

    async def strays(self, needed: Iterable[str]) -> Sequence[str]:
        known = {layer for text in needed for layer in _layers(text)}

        def is_needed(layer: str) -> bool:
            if layer in known or self._is_needed(layer):
                return True
            merged = self._merged.find(layer)
            return merged is not None and all(map(is_needed, merged.layers))

        found = sorted(entry.name for entry in os.scandir(self._volumes) if _is_ours(entry))
        half_made = PREFIX if self._merging.locked() else "\0"
        return [name for name in found if not name.startswith(half_made) and not is_needed(name)]

    async def remove_stray(self, name: str) -> None:
        if not self._is_needed(check_id("layer", name)):
            self._merged.forget(name)
            self._discard(name)
            await self.sweep()

    # ---- merging -----------------------------------------------------------------------------------------------

    async def tidy(self, state: str) -> None:
        async with self._merging:
            row = self._short(state)[1:]
            await asyncio.to_thread(self._merged.weigh, row)
            while (group := self._merged.due(row, self._unmergeable)) and all(map(self._is_needed, group)):
                await self._merge(group)
                row = self._merged.shorten(row)

    async def _merge(self, group: tuple[str, ...]) -> None:
        """It tells what it stands for when all of it is on disk. One that does not is removed at the next start."""
        merged = self._merged.plan(_new_id(PREFIX), group)
        path = self._volumes / merged.name
        done = False
        with self.holding(",".join(group)):
            try:
                path.mkdir(mode=0o700)
                (path / "u").mkdir()
                steps = merge_layers(self._paths(group), path / "u")
                # A pause, nothing is waited for.
                while await asyncio.to_thread(_advance, steps):  # noqa: ASYNC110
                    await asyncio.sleep(_MERGE_PAUSE_S)
                await failpoints.reach("merge: made")
                await self.sync()
                await failpoints.reach("merge: synced")
                await asyncio.to_thread(self._merged.write, merged)
                self._merged.offer(merged)
                done = True
                await failpoints.reach("merge: offered")
            except (OSError, SandlotError) as error:
                self._unmergeable.add(group)
                _log.warning("layers are used one by one, because they cannot be merged: %s", error)
            finally:
                if not done:
                    self._discard(merged.name)

    async def sweep(self) -> None:
        await self._trash.sweep()

    async def usage(self, text: str, without: str = "") -> int:
        others = {*_layers(without), *self._merged.expand(_layers(without))}
        layers = [part for layer in _layers(text) if layer not in others for part in self._parts(layer, others)]
        if not all((self._volumes / layer / "u").is_dir() for layer in layers):
            raise NotFound("a layer is gone")
        return await asyncio.to_thread(lambda: sum(map(self._measure, layers)))

    def _parts(self, layer: str, others: set[str]) -> Sequence[str]:
        """What a layer has that the others have not: of a merged one some parts only, where they can be told apart."""
        merged = self._merged.find(layer) if others else None
        rest = [part for part in merged.turns if part not in others] if merged else [layer]
        return rest if all(self._uses[part] > 0 for part in rest) else [layer]

    def _measure(self, layer: str) -> int:
        # Only the open layer of a volume changes, and it is named once.
        known = self._sizes.get(layer)
        size = used_bytes(self._volumes / layer) if known is None else known
        if self._uses[layer] > 1:
            self._sizes[layer] = size
        return size

    async def sync(self) -> None:
        await sync(self._volumes)


def _make_empty(path: str, *, again: bool = False) -> None:
    _make_directory(path, 0o700, again=again)
    _make_directory(f"{path}/u", 0o755, again=again)
    # The upper's own owner is the owner of `/` inside. Who may not give it away has no runtime that needs it.
    with contextlib.suppress(OSError):
        os.chown(f"{path}/u", CANONICAL_ID, CANONICAL_ID)
    os.mkdir(f"{path}/w", 0o755)  # last: where it is, the layer is whole


def _make_directory(path: str, mode: int, *, again: bool) -> None:
    try:
        os.mkdir(path, mode)
    except FileExistsError:
        if not again:
            raise


def _is_ours(entry: "os.DirEntry[str]") -> bool:
    """Whatever else lies there, as `lost+found` on a disk of its own, is not."""
    return _OURS.fullmatch(entry.name) is not None and entry.is_dir(follow_symlinks=False)


def _layers(text: str) -> list[str]:
    """Checked: the text comes from the journal, and becomes paths."""
    return [_checked(layer) for layer in text.split(",") if layer]


@lru_cache(_KNOWN)
def _checked(layer: str) -> str:
    return check_id("layer", layer)


def _not_shared(one: Sequence[str], other: Sequence[str]) -> list[str]:
    """Rows grow at the front: what two have in common is at their end."""
    shared = 0
    while shared < min(len(one), len(other)) and one[-1 - shared] == other[-1 - shared]:
        shared += 1
    return [*one[: len(one) - shared], *other[: len(other) - shared]]


def _advance(steps: Generator[None]) -> bool:
    return next(steps, _END) is not _END


def _new_id(prefix: str) -> str:
    return prefix + os.urandom(8).hex()
