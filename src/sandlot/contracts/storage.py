"""How a session's files are kept."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from sandlot.model import Capability, Probe


@dataclass(frozen=True, slots=True)
class Volume:
    """Where one session's files are. `path` holds `u` (what it wrote) and `w` (the kernel's own).

    A volume has a name of its own: one from the warm pool is older than its session."""

    name: str
    path: Path
    layers: tuple[Path, ...] = ()  # older uppers below `path`, newest first


class Storage(Protocol):
    name: str
    capabilities: frozenset[Capability]

    async def probe(self) -> Probe:
        """Whether it works here, found out by trying."""
        ...

    async def create(self, name: str) -> Volume:
        """An empty volume. Called once per name, before its guest starts. Raises Conflict, Unavailable."""
        ...

    async def open(self, name: str) -> Volume:
        """A volume that was created before. Raises NotFound."""
        ...

    async def destroy(self, name: str) -> None:
        """Remove a volume; one that is not there is fine. When this returns the name is free; the space comes back
        with `sweep`."""
        ...

    async def sweep(self) -> None:
        """Free the space of destroyed volumes, those of an earlier process too."""
        ...

    async def usage(self, name: str) -> int:
        """Bytes on disk. Raises NotFound."""
        ...

    async def list(self) -> Sequence[str]:
        """The names of all volumes, known to the journal or not."""
        ...
