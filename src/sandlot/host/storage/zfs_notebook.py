"""Words that are kept with datasets and snapshots, as a user property of each."""

from collections.abc import Mapping

from sandlot.host.storage.zfs_commands import ZfsManager
from sandlot.host.storage.zfs_kept import GONE, ZfsKept
from sandlot.host.storage.zfs_pool import ZfsPool
from sandlot.model import limits

_NOTE = "sandlot:note"
_NOTE_MAX = 8000  # of a property


class ZfsNotebook:
    def __init__(self, place: ZfsPool, manager: ZfsManager, kept: ZfsKept) -> None:
        self._place = place
        self._zfs = manager
        self._kept = kept

    async def write(self, text: str, told: str) -> None:
        self._kept.size(text)
        limits.at_most("bytes of a note", len(told.encode()), _NOTE_MAX)
        # A snapshot without one is told that of its dataset; so each says whose it is.
        await self._zfs.set(self._kept.full(text), _NOTE, f"{text} {told}")

    async def read(self) -> Mapping[str, str]:
        told = await self._zfs.properties(self._place.sessions, (_NOTE, GONE, "defer_destroy"))
        found: dict[str, str] = {}
        for full, values in told.items():
            state, _at, point = full.removeprefix(f"{self._place.sessions}/").partition("@")
            owner, _space, words = values[_NOTE].partition(" ")
            is_leaving = values["defer_destroy"] == "on" or (not point and values[GONE] == "on")
            if owner == (point or state) and not is_leaving and not self._kept.is_due(owner):
                found[owner] = words
        return found
