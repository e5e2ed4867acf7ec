"""Empty layers that wait to be used: to make a directory may take the kernel longer than all else that a layer needs.

They lie beside the layers, on the same filesystem, and get their name when they are needed. Those that an engine left
are no better than new ones: they are removed when the next one begins."""

import asyncio
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

KEPT = 2  # for a session, and for its first turn
_AFTER_S = 0.005  # whoever took one has more to do first


class Spares:
    def __init__(self, folder: Path, make: Callable[[str], None]) -> None:
        """`make` puts all of a layer at a path. Raises OSError."""
        self._folder = str(folder)
        self._make = make
        self._ready: list[str] = []
        self._timer: asyncio.TimerHandle | None = None
        self._making: asyncio.Future[Sequence[str]] | None = None
        self._is_open = False

    def __len__(self) -> int:
        return len(self._ready)

    def open(self, remove: Callable[[Path], None]) -> None:
        """Raises OSError."""
        with suppress(FileExistsError):
            os.mkdir(self._folder, 0o700)
        for name in os.listdir(self._folder):
            remove(Path(self._folder, name))
        self._is_open = True

    async def close(self) -> None:
        self._is_open = False
        if self._timer is not None:
            self._timer.cancel()
        if self._making is not None:
            await asyncio.wait([self._making])
        ready, self._ready = self._ready, []
        for path in ready:
            with suppress(OSError):
                for part in ("/w", "/u", ""):
                    os.rmdir(path + part)

    def take(self, path: str) -> bool:
        """Whether there was one; it is at the path now, where nothing was. Raises OSError."""
        self._fill_soon()
        if not self._ready or os.path.lexists(path):
            return False
        try:
            os.rename(self._ready.pop(), path)
        except FileNotFoundError:  # someone removed it
            return False
        return True

    def _fill_soon(self) -> None:
        if self._is_open and self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_AFTER_S, self._fill)

    def _fill(self) -> None:
        self._timer = None
        wanted = KEPT - len(self._ready)
        if wanted > 0 and self._is_open and (self._making is None or self._making.done()):
            self._making = asyncio.ensure_future(asyncio.to_thread(self._make_some, wanted))
            self._making.add_done_callback(self._made)

    def _make_some(self, count: int) -> Sequence[str]:
        made: list[str] = []
        with suppress(OSError):  # whoever needs a layer meets what is wrong
            for _ in range(count):
                path = f"{self._folder}/{os.urandom(8).hex()}"
                self._make(path)
                made.append(path)
        return made

    def _made(self, making: "asyncio.Future[Sequence[str]]") -> None:
        self._ready += making.result()
