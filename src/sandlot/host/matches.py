"""Lines that a scout found, put together with what stands around them."""

import os
import posixpath
import struct
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from sandlot.model import Match, Unavailable

_LINE = struct.Struct("<BQ")
_FITS, _CUT = 1, 2


@dataclass(slots=True)
class _Fit:
    """A line that fits, and waits for those behind it."""

    number: int
    text: str
    is_cut: bool
    before: tuple[str, ...]
    after: list[str] = field(default_factory=list[str])


class Matches:
    """Lines come in order, file by file, none twice. Few are held at a time."""

    def __init__(self, top: str, context: int) -> None:
        self._top = top
        self._context = context
        self._path = top
        self._before: deque[str] = deque(maxlen=context)
        self._waiting: deque[_Fit] = deque()
        self._last = 0

    def take(self, records: Sequence[bytes]) -> list[Match]:
        found: list[Match] = []
        for record in records:
            if record[:1] == b"P":
                found += self.finish()
                self._path = posixpath.join(self._top, os.fsdecode(record[1:])) if record[1:] else self._top
            elif record[:1] == b"L" and len(record) > _LINE.size:
                flags, number = _LINE.unpack_from(record, 1)
                found += self._line(flags, number, record[1 + _LINE.size :].decode("utf-8", "surrogateescape"))
            else:
                raise Unavailable("the search told something that cannot be")
        return found

    def _line(self, flags: int, number: int, text: str) -> list[Match]:
        found = self.finish() if number > self._last + 1 else []
        text = text.removesuffix("\r")
        for fit in self._waiting:
            fit.after.append(text)
        if flags & _FITS:
            self._waiting.append(_Fit(number, text, bool(flags & _CUT), tuple(self._before)))
        while self._waiting and len(self._waiting[0].after) >= self._context:
            found.append(self._told(self._waiting.popleft()))
        self._before.append(text)
        self._last = number
        return found

    def finish(self) -> list[Match]:
        """What follows is not near what came before."""
        found = [self._told(fit) for fit in self._waiting]
        self._waiting.clear()
        self._before.clear()
        self._last = 0
        return found

    def _told(self, fit: _Fit) -> Match:
        return Match(self._path, fit.number, fit.text, fit.before, tuple(fit.after), fit.is_cut)
