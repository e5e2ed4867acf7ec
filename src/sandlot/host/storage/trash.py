"""What was released lies here until it is removed: giving it back must not take as long as it is large."""

import asyncio
import logging
import os
from pathlib import Path

from sandlot.host.removal import remove_tree
from sandlot.model import Unavailable

_log = logging.getLogger("sandlot.host")
_REMOVE_PAUSES_S = (0.05, 0.2, 0.5, 1.0)


class Trash:
    """A folder on the filesystem of what is put into it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._sweeping = asyncio.Lock()

    def put(self, path: Path) -> None:
        """One that is gone is fine. Raises Unavailable."""
        try:
            path.rename(self.path / f"{path.name}.{os.urandom(4).hex()}")
        except FileNotFoundError:
            return
        except OSError as error:
            raise Unavailable(f"{path.name} cannot be removed: {error.strerror}", volume=path.name) from error

    async def sweep(self) -> None:
        """Empty it; of what a crash left too. Takes as long as the volumes are large."""
        async with self._sweeping:
            for entry in list(os.scandir(self.path)):
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
