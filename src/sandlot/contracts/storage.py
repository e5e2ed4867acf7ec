"""How a session's files are kept."""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from sandlot.model import Capability, Probe, StorageHealth


@dataclass(frozen=True, slots=True)
class Volume:
    """Where one session's files are. `path` holds `u` (what it wrote) and `w` (the kernel's own).

    A volume has a name of its own: one from the warm pool is older than its session."""

    name: str
    path: Path
    layers: tuple[Path, ...] = ()  # older uppers below `path`, newest first
    state: str = ""  # what the storage needs to open it again; the journal keeps it


@dataclass(frozen=True, slots=True)
class Taken:
    """A snapshot, as storage made it."""

    point: str  # what the storage needs to find it again; the journal keeps it
    volume: Volume  # where the session goes on; a guest that stands elsewhere must be swapped onto it
    is_on_disk: bool = False  # already: else `sync` brings it there


Place = tuple[str, bool]  # a path, and whether everything below it is meant


@dataclass(frozen=True, slots=True)
class Shown:
    """Two states or points, as directories to be stacked over the template, newest first."""

    old: tuple[Path, ...]
    new: tuple[Path, ...]
    apart: tuple[Path, ...]  # uppers that tell of every path that is not the same at both; of more, possibly
    places: tuple[Place, ...] | None = None  # the same, where the storage knows it without looking into them


class Volumes(Protocol):
    """States and points are the storage's own; whoever keeps them tells with `release` when they are needed no more."""

    async def create(self, name: str, point: str = "", disk_bytes: int | None = None) -> Volume:
        """A volume that is empty, or begins at a point. Called once per name, before its guest starts. With a limit
        only where the capability LIMIT_DISK is declared.

        Raises Conflict, LimitReached, Unavailable.
        """
        ...

    async def limit(self, volume: Volume, disk_bytes: int | None) -> None:
        """Another limit for a volume that may be in use. Called only where LIMIT_DISK is declared. Raises
        Unavailable."""
        ...

    def roomy(self, volume: Volume) -> AbstractAsyncContextManager[None]:
        """Inside, a root can be assembled on a volume although it has reached its limit. Nothing of its session runs
        meanwhile. Raises Unavailable."""
        ...

    def is_full(self, volume: Volume) -> bool:
        """Whether its limit has left it no room. Cheap; where it cannot be told, no."""
        ...

    async def open(self, name: str, state: str) -> Volume:
        """A volume that was created before. Raises NotFound."""
        ...

    async def usage(self, text: str, without: str = "") -> int:
        """Bytes on disk that a state or a point needs, and the other one does not. Raises NotFound."""
        ...

    async def release(self, *needless: str) -> None:
        """States and points that nobody needs any more; what is left of them comes back with `sweep`."""
        ...

    def holding(self, *texts: str) -> AbstractContextManager[None]:
        """Inside, what these states and points need stays, also when it is released meanwhile."""
        ...

    async def settle(self, points: Iterable[str]) -> None:
        """After a start, when every volume was opened: remove what neither they nor these points need."""
        ...

    async def sweep(self) -> None:
        """Free the space of what was released, by an earlier process too."""
        ...


class Points(Protocol):
    """Called only where the capability SNAPSHOTS is declared."""

    async def snapshot(self, volume: Volume, *, alone: bool) -> Taken:
        """`alone`: nothing can write to the volume. Else its processes are frozen meanwhile, unless the storage
        `is_atomic`. A state before that is not the state after stays until it is released.

        Raises LimitReached, Unavailable.
        """
        ...

    async def restore(self, volume: Volume, point: str) -> Volume:
        """The same volume, as it was at a point. The state before stays until it is released. Raises NotFound."""
        ...

    def showing(self, old: str | None, new: str) -> AbstractAsyncContextManager[Shown]:
        """Inside, both can be read, also when they are released meanwhile. Without an old one: what the volume of the
        new one began with, or the template where that is not known any more. Raises NotFound, Unavailable."""
        ...

    async def tidy(self, state: str) -> None:
        """What makes the states and points after this one cheaper to use. Called when nobody waits."""
        ...

    async def sync(self) -> None:
        """Everything that was written is on disk when this returns. Raises Unavailable."""
        ...


class Remains(Protocol):
    """For whoever compares what is kept with what should be."""

    async def missing(self, text: str) -> Sequence[str]:
        """What a state or a point needs, and is not there."""
        ...

    async def strays(self, needed: Iterable[str]) -> Sequence[str]:
        """What the storage made, and neither these states and points nor anyone at work needs."""
        ...

    async def remove_stray(self, name: str) -> None:
        """One of those; what is needed by now stays. Raises Unavailable."""
        ...


class Notebook(Protocol):
    """A few words beside each state and point, for whoever has lost the journal."""

    async def write(self, text: str, told: str) -> None:
        """Those before are forgotten. Raises NotFound, Unavailable, InvalidArgument where they are too many."""
        ...

    async def read(self) -> Mapping[str, str]:
        """Of all states and points that nobody released. Raises Unavailable."""
        ...


class Storage(Volumes, Points, Remains, Protocol):
    name: str
    capabilities: frozenset[Capability]
    lacks: Mapping[str, str]  # what its volumes do not do that a plain filesystem does, in words, by name
    is_atomic: bool  # a snapshot is one moment of the files, whoever writes meanwhile
    is_in_place: bool  # a snapshot leaves the volume where it is: no guest is moved
    is_whole: bool  # `u` of a volume holds all that its session wrote: nothing older lies below

    @property
    def is_attached(self) -> bool:
        """Before it is, only `was_used`, `probe` and `attach` are called."""
        ...

    @property
    def is_broken(self) -> bool:
        """Whether what is mounted of it cannot be used again: all that stands on it must end before it is mounted anew.
        Cheap."""
        ...

    @property
    def notebook(self) -> Notebook | None: ...

    def was_used(self) -> bool:
        """Whether an engine attached it here before: then it may hold what nobody needs. Cheap; makes nothing."""
        ...

    async def probe(self) -> Probe:
        """Whether it works here, found out by trying. Leaves nothing behind."""
        ...

    async def attach(self) -> None:
        """Make ready what is not: find or make the place of the volumes. Called again when it was lost. Raises
        Unavailable, CapabilityNotSupported."""
        ...

    async def detach(self) -> None:
        """The engine leaves. What volumes need that are still there stays as it is."""
        ...

    async def health(self) -> StorageHealth:
        """How full it is; of its filesystem where it has no pool. Cheap. Raises Unavailable."""
        ...
