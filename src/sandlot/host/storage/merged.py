"""Which merged layers there are, and what they stand for. A merged layer says so itself, in a file beside its files."""

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from sandlot.model import limits

PREFIX = "m-"
_FILE = "merged.json"
_RANK_OF_LARGE = 3


@dataclass(frozen=True, slots=True)
class Merged:
    name: str
    rank: int  # how often merged: one of rank 2 is made of those of rank 1
    layers: tuple[str, ...]  # that it was made of, newest first
    turns: tuple[str, ...]  # all that it stands for, down to those that sessions wrote


class MergedLayers:
    """A row grows like a number: as soon as it has enough layers of one rank side by side, one of the next rank takes
    their place. So it has few, however many turns there were. A layer with many files begins with a higher rank: it is
    not linked again for the sake of small ones. A row that grows long all the same is merged where that costs least."""

    def __init__(self, volumes: Path) -> None:
        self._volumes = volumes
        self._known: dict[str, Merged] = {}
        self._by_layers: dict[tuple[str, ...], str] = {}
        self._ranks: dict[str, int] = {}  # of layers that are not merged

    def plan(self, name: str, layers: Sequence[str]) -> Merged:
        return Merged(name, 1 + max(map(self._rank, layers)), tuple(layers), tuple(self.expand(layers)))

    def write(self, merged: Merged) -> None:
        """Blocking: on disk when it returns. Raises OSError."""
        folder = self._volumes / merged.name
        with (folder / _FILE).open("w") as file:
            file.write(json.dumps(asdict(merged)))
            file.flush()
            os.fsync(file.fileno())
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def offer(self, merged: Merged) -> None:
        """From now on rows that have its layers are made shorter."""
        self._known[merged.name] = merged
        self._by_layers[merged.layers] = merged.name

    def forget(self, name: str) -> None:
        self._ranks.pop(name, None)
        if (merged := self._known.pop(name, None)) is not None and self._by_layers.get(merged.layers) == name:
            del self._by_layers[merged.layers]

    def find(self, name: str) -> Merged | None:
        if name.startswith(PREFIX) and name not in self._known:
            # Of an earlier engine. One that cannot be read is a layer like others.
            with suppress(OSError, ValueError, TypeError):
                read = json.loads((self._volumes / name / _FILE).read_text())
                self.offer(Merged(name, int(read["rank"]), tuple(read["layers"]), tuple(read["turns"])))
        return self._known.get(name)

    def made_of(self, layer: str) -> Iterator[Merged]:
        return (merged for merged in tuple(self._known.values()) if layer in merged.layers)

    def shorten(self, row: Sequence[str]) -> list[str]:
        """The same files, with fewer layers."""
        short, at, size = list(row), 0, limits.LAYERS_MERGED_AT
        while self._by_layers and at + size <= len(short):
            if name := self._by_layers.get(tuple(short[at : at + size])):
                short[at : at + size] = [name]
                at = max(0, at - size)  # it may be the last that its neighbours waited for
            else:
                at += 1
        return short

    def weigh(self, row: Sequence[str]) -> None:
        """Blocking: look how large layers are that are not known yet."""
        for layer in row:
            if layer not in self._ranks and self.find(layer) is None:
                large = _has_entries(self._volumes / layer / "u", limits.LAYER_LARGE_ENTRIES)
                self._ranks[layer] = _RANK_OF_LARGE if large else 0

    def due(self, row: Sequence[str], but: set[tuple[str, ...]]) -> tuple[str, ...] | None:
        """Layers of a row that are to be merged next, the oldest first."""
        size = limits.LAYERS_MERGED_AT
        found: list[tuple[int, tuple[str, ...]]] = []
        for at in range(len(row) - size, -1, -1):
            group = tuple(row[at : at + size])
            ranks = [self._rank(layer) for layer in group]
            if group in but:
                continue
            if min(ranks) == max(ranks):
                return group
            found.append((max(ranks), group))
        return min(found, key=lambda one: one[0])[1] if found and len(row) > limits.LAYERS_LONG else None

    def expand(self, row: Sequence[str]) -> list[str]:
        found: list[str] = []
        for layer in row:
            merged = self.find(layer)
            found += merged.turns if merged else (layer,)
        return found

    def _rank(self, layer: str) -> int:
        merged = self.find(layer)
        return merged.rank if merged else self._ranks.get(layer, 0)


def _has_entries(folder: Path, count: int) -> bool:
    pending = [str(folder)]
    while pending and count > 0:
        with suppress(OSError), os.scandir(pending.pop()) as entries:
            for entry in entries:
                count -= 1
                if count <= 0:
                    break
                if entry.is_dir(follow_symlinks=False):
                    pending.append(entry.path)
    return count <= 0
