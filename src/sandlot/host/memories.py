"""Memory of processes, on disk: images that runtimes write and read. Each belongs to one session or one snapshot."""

import asyncio
import os
import secrets
import shutil
from collections.abc import Collection, Iterable
from pathlib import Path

_PREFIX = "m-"


class Memories:
    """Directories below one. Their names are in the journal; what it does not name is removed by the next engine. Every
    verb but `discard` works on the disk, and belongs into a thread."""

    def __init__(self, data: Path) -> None:
        self._folder = data / "memory"

    def path(self, name: str) -> Path:
        return self._folder / name

    def make(self) -> str:
        """An empty one, for a runtime to fill."""
        name = _PREFIX + secrets.token_hex(8)
        self.path(name).mkdir(mode=0o700, parents=True)
        return name

    def is_begun(self, name: str) -> bool:
        """Whether a runtime has begun to fill it. One that has does not go back."""
        try:
            return any(self.path(name).iterdir())
        except FileNotFoundError:
            return False

    def sync(self, name: str) -> None:
        """It survives a power cut from now on."""
        for path in (*self.path(name).iterdir(), self.path(name), self._folder):
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                os.fsync(fd)
            finally:
                os.close(fd)

    def copy(self, name: str) -> str:
        """Another name for the same bytes, which nobody changes: they go with the last name."""
        new = self.make()
        for file in self.path(name).iterdir():
            (self.path(new) / file.name).hardlink_to(file)
        self.sync(new)
        return new

    def used(self, name: str) -> int:
        """In bytes."""
        try:
            return sum(file.stat().st_blocks * 512 for file in self.path(name).iterdir())
        except FileNotFoundError:
            return 0

    def remove(self, *names: str) -> None:
        for name in filter(None, names):
            shutil.rmtree(self.path(name), ignore_errors=True)

    async def discard(self, names: Iterable[str]) -> None:
        """In a thread, where there is something to remove: most have no image, and a thread costs a millisecond."""
        if given := [name for name in names if name]:
            await asyncio.to_thread(self.remove, *given)

    def others(self, known: Collection[str]) -> list[str]:
        """Those that nobody needs."""
        if not self._folder.is_dir():
            return []
        return sorted(path.name for path in self._folder.iterdir() if path.name not in known)
