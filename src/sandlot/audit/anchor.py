"""Where the log begins and ends, kept apart from it: who cuts the log must reach this too.

Two places in the file are written in turn, each with a sum: one that was not finished leaves the other."""

import json
import os
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sandlot.audit.chain import BEGINNING, Place

_SLOT_BYTES = 256
_TEXT_BYTES = _SLOT_BYTES - len("01234567 \n")


@dataclass(frozen=True, slots=True)
class Ends:
    """`before`: the place before the oldest record that is kept."""

    before: Place
    last: Place


NO_ENDS = Ends(BEGINNING, BEGINNING)


class Anchor:
    def __init__(self, path: Path) -> None:
        self._path = path
        self._fd = -1
        self._turn = 0

    def open(self) -> Ends | None:
        """What it says; None: there is none. Raises OSError."""
        found = read(self._path)
        self._fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        return found

    def write(self, ends: Ends) -> None:
        """Raises OSError."""
        self._turn = 1 - self._turn
        before, last = ends.before, ends.last
        text = f'[{before.number},"{before.hash}",{last.number},"{last.hash}"]'.ljust(_TEXT_BYTES).encode()
        os.pwrite(self._fd, b"%08x %s\n" % (zlib.crc32(text), text), self._turn * _SLOT_BYTES)

    def sync(self) -> None:
        os.fsync(self._fd)

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def read(path: Path) -> Ends | None:
    """The newer of the two. Raises OSError."""
    try:
        content = path.read_bytes()[: 2 * _SLOT_BYTES]
    except FileNotFoundError:
        return None
    slots = [content[:_SLOT_BYTES], content[_SLOT_BYTES:]]
    found = [ends for slot in slots if (ends := _slot(slot)) is not None]
    return max(found, key=lambda ends: ends.last.number, default=None)


def _slot(slot: bytes) -> Ends | None:
    total, _, text = slot[:-1].partition(b" ")
    if total != b"%08x" % zlib.crc32(text):
        return None
    try:
        told: Any = json.loads(text)
        return Ends(Place(int(told[0]), str(told[1])), Place(int(told[2]), str(told[3])))
    except (ValueError, TypeError, IndexError):
        return None
