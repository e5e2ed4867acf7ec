"""Tar archives, read once from front to back: ustar, GNU and pax, with long names, attributes and holes.

Every number and every name is checked before it means anything, and nothing is kept that grows with the archive.
"""

import io
import struct
from collections.abc import Generator, Iterator
from dataclasses import dataclass, field
from enum import StrEnum

from sandlot.host.templates.unpacking.refusal import Refused, shown
from sandlot.host.templates.unpacking.streams import PIECE_BYTES

BLOCK = 512
_NAME_BYTES_MAX = 64 << 10
_OCTAL = b"01234567"
_ASCII = bytes(range(128))
_HEADERS_BYTES_MAX = 1 << 20  # of the extended headers of one entry
_HOLES_MAX = 65536  # pieces of a sparse file
_ID_MAX = 65535  # ids that a session has
_SIZE_MAX = 1 << 60
_TIME_MAX = 1 << 40
_XATTR = "SCHILY.xattr."


class Kind(StrEnum):
    FILE = "file"
    DIRECTORY = "directory"
    SYMLINK = "symlink"
    HARD_LINK = "hard link"
    OTHER = "device, pipe or socket"


_KINDS = {
    b"0": Kind.FILE,
    b"\0": Kind.FILE,
    b"7": Kind.FILE,
    b"S": Kind.FILE,
    b"1": Kind.HARD_LINK,
    b"2": Kind.SYMLINK,
    b"3": Kind.OTHER,
    b"4": Kind.OTHER,
    b"6": Kind.OTHER,
    b"5": Kind.DIRECTORY,
}


@dataclass(slots=True)
class Entry:
    path: str
    kind: Kind
    mode: int = 0o644
    uid: int = 0
    gid: int = 0
    mtime_ns: int = 0
    size: int = 0  # of the file, holes included
    target: str = ""
    xattrs: dict[str, bytes] = field(default_factory=dict[str, bytes])
    holes: list[tuple[int, int]] | None = None  # where data is, as offset and size; None: everywhere


def number(raw: bytes, what: str) -> int:
    if raw[0] in (0x80, 0xFF):  # a binary number, which may be negative
        value = int.from_bytes(raw[1:], "big")
        if raw[0] == 0xFF:
            raise Refused(f"a header has a negative {what}")
    else:
        digits = raw.partition(b"\0")[0].strip()
        if digits.strip(_OCTAL):
            raise Refused(f"a header has a {what} that is no number")
        value = int(digits or b"0", 8)
    if value > _SIZE_MAX:
        raise Refused(f"a header has a {what} that is too large")
    return value


def _text(raw: bytes) -> str:
    return raw.partition(b"\0")[0].decode("utf-8", "surrogateescape")


def _decimal(raw: bytes, what: str, high: int) -> int:
    whole = raw.partition(b".")[0]
    if not whole.isdigit() or len(whole) > 20 or int(whole) > high:
        raise Refused(f"an extended header has a {what} that is no number or too large")
    return int(whole)


def is_header(block: bytes) -> bool:
    if len(block) < BLOCK:
        return False
    digits = block[148:156].partition(b"\0")[0].strip()
    if not digits or digits.strip(_OCTAL):
        return False
    told, plain = int(digits, 8), block.translate(None, b"\0")  # most of a header is zeros, which add nothing
    total = sum(plain) - sum(block[148:156]) + 8 * 32
    if told == total:
        return True
    own = block[148:156]
    signed = total - 256 * (len(plain.translate(None, _ASCII)) - len(own.translate(None, _ASCII)))
    return told == signed  # as old programs add it up


class TarReader:
    """An iterator of entries. The content of one is read with `pieces` before the next is asked for, or skipped."""

    def __init__(self, source: io.BufferedReader) -> None:
        self._source = source
        self._left = 0  # of the content of the last entry
        self._pad = 0
        self._general: dict[str, bytes] = {}  # pax headers for all entries
        self.offset = 0  # of the next byte in the archive

    def _take(self, count: int) -> bytes:
        data = self._source.read(count)
        self.offset += len(data)
        return data

    def _exactly(self, count: int) -> bytes:
        data = self._take(count)
        if len(data) != count:
            raise Refused("the archive ends in the middle of an entry")
        return data

    def _skip(self) -> None:
        self._left += self._pad
        self._pad = 0
        while self._left:
            self._left -= len(self._exactly(min(self._left, PIECE_BYTES)))

    def __iter__(self) -> Iterator[Entry]:
        while (entry := self._next()) is not None:
            yield entry

    def _next(self) -> Entry | None:
        self._skip()
        extended: dict[str, bytes] = {}
        name = target = b""
        for _header in range(16):  # that stand before one entry
            block = self._take(BLOCK)
            if not block.strip(b"\0"):
                return None  # the end, marked or not
            if not is_header(block):
                raise Refused("it is not a tar archive, or it is broken: a header has a wrong checksum")
            kind, size = block[156:157], number(block[124:136], "size")
            if kind in b"xgLK" and kind:
                data = self._header_data(size)
                if kind == b"x":
                    extended |= _pax(data)
                elif kind == b"g":
                    self._general |= _pax(data)
                    if sum(map(len, self._general.values())) > _HEADERS_BYTES_MAX:
                        raise Refused("the archive has too many general headers")
                elif kind == b"L":
                    name = data.rstrip(b"\0")
                else:
                    target = data.rstrip(b"\0")
                continue
            return self._entry(block, kind, size, name, target, {**self._general, **extended})
        raise Refused("an entry has too many headers")

    def _header_data(self, size: int) -> bytes:
        if size > _HEADERS_BYTES_MAX:
            raise Refused(f"a header has {size} bytes")
        data = self._exactly(size)
        self._exactly(-size % BLOCK)
        return data

    def _entry(self, block: bytes, kind: bytes, size: int, name: bytes, target: bytes, pax: dict[str, bytes]) -> Entry:
        if "size" in pax:
            size = _decimal(pax["size"], "size", _SIZE_MAX)
        entry = Entry(self._path(block, kind, name, pax), _KINDS.get(kind, Kind.OTHER))
        entry.mode = number(block[100:108], "mode") & 0o7777
        entry.uid = _decimal(pax["uid"], "uid", _SIZE_MAX) if "uid" in pax else number(block[108:116], "uid")
        entry.gid = _decimal(pax["gid"], "gid", _SIZE_MAX) if "gid" in pax else number(block[116:124], "gid")
        if max(entry.uid, entry.gid) > _ID_MAX:
            raise Refused(
                f"{shown(entry.path)} belongs to {entry.uid}:{entry.gid}, and a session has the ids 0 to {_ID_MAX}"
            )
        entry.mtime_ns = _mtime(pax.get("mtime", b""), block)
        entry.target = _text(pax.get("linkpath", target or block[157:257]))
        if len(entry.path.encode("utf-8", "surrogateescape")) > _NAME_BYTES_MAX or len(entry.target) > _NAME_BYTES_MAX:
            raise Refused(f"a name is too long: {shown(entry.path)}")
        entry.xattrs = {key.removeprefix(_XATTR): value for key, value in pax.items() if key.startswith(_XATTR)}
        if entry.kind is Kind.FILE and entry.path.endswith("/") and kind in (b"0", b"\0"):
            entry.kind = Kind.DIRECTORY  # as old archives write it
        if entry.kind is not Kind.FILE:
            size = 0 if entry.kind is not Kind.OTHER or kind in b"346" else size
        self._left, self._pad = size, -size % BLOCK
        entry.size = size
        if kind == b"S":
            self._old_holes(block, entry)
        elif any(key.startswith("GNU.sparse.") for key in pax):
            self._pax_holes(entry, pax)
        return entry

    def _path(self, block: bytes, kind: bytes, name: bytes, pax: dict[str, bytes]) -> str:
        if "GNU.sparse.name" in pax:
            return _text(pax["GNU.sparse.name"])
        if "path" in pax:
            return _text(pax["path"])
        if name:
            return _text(name)
        short = block[0:100].partition(b"\0")[0]
        prefix = block[345:500].partition(b"\0")[0]
        if prefix and block[257:263] == b"ustar\0" and kind != b"S":
            short = prefix + b"/" + short
        return _text(short)

    # ---- holes -------------------------------------------------------------------------------------------------

    def _old_holes(self, block: bytes, entry: Entry) -> None:
        entry.size = number(block[483:495], "size")
        found, more = _pairs(block[386:482]), block[482]
        while more:
            extension = self._exactly(BLOCK)
            found += _pairs(extension[:504])
            more = extension[504]
            if len(found) > _HOLES_MAX:
                raise Refused(f"{shown(entry.path)} has too many holes")
        entry.holes = _checked(entry, found, self._left)

    def _pax_holes(self, entry: Entry, pax: dict[str, bytes]) -> None:
        real = pax.get("GNU.sparse.realsize") or pax.get("GNU.sparse.size")
        if real is None:
            raise Refused(f"{shown(entry.path)} has holes and no size")
        entry.size = _decimal(real, "size", _SIZE_MAX)
        if pax.get("GNU.sparse.major") == b"1":
            numbers = self._hole_numbers(entry)
        else:
            listed = pax.get("GNU.sparse.map", b"").split(b",")
            numbers = [_decimal(one, "hole", _SIZE_MAX) for one in listed if one]
        if len(numbers) % 2 or len(numbers) > 2 * _HOLES_MAX:
            raise Refused(f"{shown(entry.path)} has holes that cannot be read")
        pairs = list(zip(numbers[::2], numbers[1::2], strict=True))
        entry.holes = _checked(entry, pairs, self._left)

    def _hole_numbers(self, entry: Entry) -> list[int]:
        """They stand as lines before the content, in whole blocks."""
        numbers: list[int] = []
        rest = b""
        wanted = None
        while wanted is None or len(numbers) < wanted:
            if self._left < BLOCK or len(rest) > BLOCK:
                raise Refused(f"{shown(entry.path)} has holes that cannot be read")
            rest += self._exactly(BLOCK)
            self._left -= BLOCK
            *lines, rest = rest.split(b"\n")
            for line in lines:
                value = _decimal(line, "hole", _SIZE_MAX) if line.strip(b"\0") else 0
                if wanted is None:
                    wanted = 2 * value
                    if value > _HOLES_MAX:
                        raise Refused(f"{shown(entry.path)} has too many holes")
                elif len(numbers) < wanted:
                    numbers.append(value)
        return numbers

    def pieces(self, entry: Entry) -> Generator[tuple[int, bytes]]:
        """The content of the last entry, each piece with its place in the file."""
        for offset, size in entry.holes if entry.holes is not None else ((0, self._left),):
            end = offset + size
            while offset < end:
                data = self._exactly(min(end - offset, PIECE_BYTES))
                self._left -= len(data)
                yield offset, data
                offset += len(data)


def _mtime(pax: bytes, block: bytes) -> int:
    if not pax:
        return min(number(block[136:148], "time"), _TIME_MAX) * 1_000_000_000
    whole, _, part = pax.partition(b".")
    if not whole.isdigit() or len(whole) > 13:
        return 0  # before 1970, or nonsense: of no consequence
    return int(whole) * 1_000_000_000 + (int(part[:9].ljust(9, b"0")) if part.isdigit() else 0)


def _pairs(raw: bytes) -> list[tuple[int, int]]:
    found: list[tuple[int, int]] = []
    for offset, size in struct.iter_unpack("12s12s", raw):
        if offset[0] == 0 and not offset.strip(b"\0"):
            break
        found.append((number(offset, "hole"), number(size, "hole")))
    return found


def _checked(entry: Entry, pairs: list[tuple[int, int]], stored: int) -> list[tuple[int, int]]:
    """In order, inside the file, and as much as the archive holds."""
    at = 0
    for offset, size in pairs:
        if offset < at or offset + size > entry.size:
            raise Refused(f"{shown(entry.path)} has holes that lie over each other or outside")
        at = offset + size
    if sum(size for _offset, size in pairs) > stored:
        raise Refused(f"{shown(entry.path)} has holes that do not fit its content")
    return [pair for pair in pairs if pair[1]]


def _pax(data: bytes) -> dict[str, bytes]:
    """Lines of the form `LENGTH KEY=VALUE`, where the value may hold anything."""
    found: dict[str, bytes] = {}
    sparse: list[bytes] = []
    at = 0
    while at < len(data) and data[at]:
        space = data.find(b" ", at, at + 20)
        digits = data[at:space]
        if space < 0 or not digits.isdigit() or not (space - at) < int(digits) <= len(data) - at:
            raise Refused("an extended header is broken")
        line = data[space + 1 : at + int(digits)]
        key, equals, value = line.partition(b"=")
        if not equals or not value.endswith(b"\n"):
            raise Refused("an extended header is broken")
        at += int(digits)
        if key in (b"GNU.sparse.offset", b"GNU.sparse.numbytes"):
            sparse.append(value[:-1])
        else:
            found[key.decode("utf-8", "replace")] = value[:-1]
    if sparse:
        found["GNU.sparse.map"] = b",".join(sparse)
    return found
