"""What the program of a context tells, taken out of what user code prints.

Both come on the same two streams. What is told stands behind a mark that is made at random for each start of a context
and given to its program alone: nobody prints it by chance, and whatever its children print is never taken for it. User
code that looks for the mark can find it: so each piece is bounded, and nothing in it is believed further than its form.
"""

import json
from dataclasses import dataclass
from typing import Any, cast

from sandlot.host.code_languages import MARK_FIRST

TEXT = "t"
_FLAGS = b".<=>"
_HEAD_BYTES = 6  # a letter, whether more follows, four digits
_PIECE_BYTES_MAX = 4096
_FIRST = MARK_FIRST.encode()
_JSON_BYTES_MAX = 4096


@dataclass(frozen=True, slots=True)
class Piece:
    kind: str  # TEXT, or the letter of what is told
    flag: str  # '.': whole; '<', '=', '>': the first, a later one, the last
    data: bytes
    end: int  # of it, in its stream


class Splitter:
    """Of one stream. `held` bytes at its end are not told of yet."""

    def __init__(self, mark: str, offset: int = 0) -> None:
        self._mark = mark.encode()
        self._rest = b""
        self._end = offset

    @property
    def held(self) -> int:
        return len(self._rest)

    def feed(self, data: bytes) -> list[Piece]:
        self._end += len(data)
        data = self._rest + data if self._rest else data
        start, at, told = self._end - len(data), 0, list[Piece]()
        while at < len(data):
            found = data.find(self._mark, at)
            if found < 0:
                end = self._held_from(data, at)
                if end > at:
                    told.append(Piece(TEXT, ".", data[at:end], start + end))
                at = end
                break
            if found > at:
                told.append(Piece(TEXT, ".", data[at:found], start + found))
            at = found
            head = found + len(self._mark)
            if len(data) < head + _HEAD_BYTES:
                break
            size = _size(data[head : head + _HEAD_BYTES])
            if size is None:
                at = head  # a mark with nothing behind it
                continue
            end = head + _HEAD_BYTES + size
            if len(data) < end:
                break
            kind, flag = chr(data[head]), chr(data[head + 1])
            told.append(Piece(kind, flag, data[head + _HEAD_BYTES : end], start + end))
            at = end
        self._rest = data[at:]
        return told

    def _held_from(self, data: bytes, at: int) -> int:
        """Where what may become a mark begins; else the end."""
        first = data.rfind(_FIRST, max(at, len(data) - len(self._mark) + 1))
        return first if first >= 0 and self._mark.startswith(data[first:]) else len(data)


def _size(head: bytes) -> int | None:
    digits = head[2:]
    if head[1] not in _FLAGS or not (65 <= head[0] <= 90) or not digits.isdigit():
        return None
    return size if (size := int(digits)) <= _PIECE_BYTES_MAX else None


def fields_of(data: bytes) -> dict[str, Any]:
    """A small message; none of its fields when it is no such thing."""
    if len(data) > _JSON_BYTES_MAX:
        return {}
    return json_object(data)


def json_object(data: bytes) -> dict[str, Any]:
    try:
        found: object = json.loads(data)
    except (ValueError, RecursionError):
        return {}
    return cast("dict[str, Any]", found) if isinstance(found, dict) else {}
