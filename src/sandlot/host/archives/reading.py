"""The other way: what is in such a file, and nothing that it could not hold. Blocking.

The file is anyone's. Every number in it is bounded before it is believed, memory does not grow with it, and it is whole
only when its last member says the digest of everything before.
"""

import hashlib
import json
import os
import zlib
from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import dataclass
from typing import cast

from sandlot.host.archives.entries import Entry, Kind, check_owner, is_kept
from sandlot.host.archives.writing import ATTRIBUTE_KEY, BLOCK_BYTES, CALLS, END, GONE, KIND_KEY, MANIFEST, ROOT
from sandlot.model import InvalidArgument, LimitReached, limits

_PIECE_BYTES = 1 << 18
_RECORDS_BYTES_MAX = 1 << 21  # of one member: a path, a link, and all attributes that a file can have
_TABLE_BYTES_MAX = 1 << 20  # where the data of a file with holes lies
_SIZE_MAX = (1 << 63) - 1
_TIME_DIGITS_MAX = 12
_KINDS = {b"0": Kind.FILE, b"5": Kind.DIRECTORY, b"2": Kind.SYMLINK, b"1": Kind.LINK, b"6": Kind.PIPE}
_MARKED = {Kind.KEPT, Kind.SOCKET, Kind.REMOVED}
_NEXT_STEP = "export the session again, and carry the file over whole"


def damaged(what: str) -> InvalidArgument:
    return InvalidArgument(f"the file is no whole export of a session: {what}", next_step=_NEXT_STEP)


@dataclass(slots=True)
class Budget:
    """How much may be unpacked: no more than there is room for."""

    size_bytes: int
    entries: int

    def spend(self, count: int) -> None:
        self.size_bytes -= count
        if self.size_bytes < 0:
            raise LimitReached(
                "the export holds more than there is room for here",
                next_step="free space, or choose another storage",
                limit="import_bytes",
            )

    def count(self) -> None:
        self.entries -= 1
        if self.entries < 0:
            raise LimitReached(
                "the export has more files than there is room for here",
                next_step="free space, or choose another storage",
                limit="import_entries",
            )


@dataclass(frozen=True, slots=True)
class _Member:
    path: bytes
    kind: bytes
    size: int
    mode: int
    uid: int
    gid: int
    mtime_ns: int
    link: bytes
    records: Mapping[str, bytes]


class _Unpacked:
    """The bytes of the tar, as many as are asked for and never more than a piece ahead."""

    def __init__(self, read: Callable[[], bytes]) -> None:
        """`read` gives the next piece of the file, none at its end."""
        self._read = read
        self._unpack = zlib.decompressobj(31)
        self._packed = b""
        self._ready = bytearray()
        self.digest = hashlib.sha256()

    def take(self, size: int) -> bytes:
        while len(self._ready) < size:
            if not self._fill():
                raise damaged("it ends too early")
        data = bytes(self._ready[:size])
        del self._ready[:size]
        self.digest.update(data)
        return data

    def _fill(self) -> bool:
        try:
            if self._unpack.eof:
                return False
            self._packed = self._packed or self._read()
            if not self._packed:
                raise damaged("it ends too early")
            self._ready += self._unpack.decompress(self._packed, _PIECE_BYTES)
            self._packed = self._unpack.unconsumed_tail
        except zlib.error:
            raise damaged("it cannot be unpacked") from None
        return True

    def check_end(self) -> None:
        """Nothing but zeros, up to a bound, and nothing behind."""
        seen = 0
        while self._fill():
            seen += len(self._ready)
            if any(self._ready) or seen > _PIECE_BYTES:
                raise damaged("something stands behind its end")
            self._ready.clear()
        if any(self._ready) or self._unpack.unused_data or self._packed or self._read():
            raise damaged("something stands behind its end")


class ArchiveReader:
    """Members in their order: the manifest, the calls, the sections, the end. Each is read before the next one is."""

    def __init__(self, read: Callable[[], bytes]) -> None:
        self._bytes = _Unpacked(read)
        self._next: _Member | None = None
        self._before = self._bytes.digest.copy()  # of all that stands before the next one
        self._members = 0
        self._documents_bytes = 0
        self._part = b""  # of an archive that holds several: what stands before the names of its members
        self.budget: Budget | None = None

    def enter(self, part: str) -> bool:
        """One of several in this archive: names are below it from now on. False when it is not what comes next."""
        found = self._peek().path.startswith(part.encode() + b"/")
        if found:
            self._part, self._documents_bytes = part.encode() + b"/", 0
        return found

    def leave(self) -> None:
        """Nothing of the part is left. Raises InvalidArgument."""
        if self._part and self._peek().path.startswith(self._part):
            raise damaged(f"{_shown(self._peek().path)} is not expected")
        self._part, self._documents_bytes = b"", 0

    def manifest(self) -> Mapping[str, object]:
        member = self._peek()
        if member.path != self._part + MANIFEST.encode():
            raise damaged("it does not begin with a manifest")
        return self._document()

    def calls(self) -> Iterator[Mapping[str, object]]:
        while self._peek().path.startswith(self._part + CALLS.encode() + b"/"):
            listed = self._document().get("calls")
            if not isinstance(listed, list):
                raise damaged("its calls are no list")
            for call in cast("list[object]", listed):
                yield as_document(call)

    def section(self, name: str) -> Generator[Entry]:
        """What is asked for next may only be asked for when all of it was."""
        last: list[str] | None = None
        place = self._part + name.encode()
        while (member := self._peek()).path.startswith(place + b"/"):
            entry = self._entry(place, member)
            parts = entry.path.rstrip("/").split("/")
            if last is None and entry.path != "/":
                raise damaged("a point does not begin with its root")
            # So nothing comes twice, and nothing in the place of what came before.
            if last is not None and parts <= last:
                raise damaged("its paths are not in order")
            last = parts
            if self.budget:
                self.budget.count()
            yield entry
            for _piece in entry.content or ():
                raise damaged("a file was not read")  # a defect of ours
        if last is None:
            raise damaged(f"{name} is missing")

    def end(self) -> None:
        """Raises InvalidArgument when the file is not what was written. Of a part: when more of it follows."""
        if self._part:
            self.leave()
            return
        member = self._peek()
        digest, members = self._before.hexdigest(), self._members
        if member.path != END.encode():
            raise damaged(f"{_shown(member.path)} is not expected")
        told = self._document()
        if told.get("sha256") != digest or told.get("members") != members:
            raise damaged("its digest is another")
        self._bytes.check_end()

    # ---- one member --------------------------------------------------------------------------------------------

    def _peek(self) -> _Member:
        if self._next is None:
            self._before = self._bytes.digest.copy()
            self._next = self._read_member()
        return self._next

    def _take(self) -> _Member:
        member, self._next = self._peek(), None
        self._members += 1
        return member

    def _read_member(self) -> _Member:
        records: Mapping[str, bytes] = {}
        block = self._bytes.take(BLOCK_BYTES)
        if block[156:157] == b"x":
            size = _number(_checked(block)[124:136])
            if size > _RECORDS_BYTES_MAX:
                raise damaged("the head of a member is too large")
            records = _records(self._bytes.take(size))
            self._skip_padding(size)
            block = self._bytes.take(BLOCK_BYTES)
        return _member(_checked(block), records)

    def _skip_padding(self, size: int) -> None:
        if any(self._bytes.take(-size % BLOCK_BYTES)):
            raise damaged("something stands between its members")

    def _document(self) -> Mapping[str, object]:
        member = self._take()
        self._documents_bytes += member.size
        if member.kind != b"0" or self._documents_bytes > limits.IMPORT_RECORDS_BYTES_MAX:
            raise damaged("its records are too large")
        text = self._bytes.take(member.size)
        self._skip_padding(member.size)
        try:
            return as_document(json.loads(text))
        except (ValueError, RecursionError):
            raise damaged("its records cannot be read") from None

    def _entry(self, section: bytes, member: _Member) -> Entry:
        kind = _kind(member)
        path = _inside(section, GONE if kind is Kind.REMOVED else ROOT, member.path)
        attributes = _attributes(member.records)
        size, extents, content = 0, (), None
        self._take()
        if kind is Kind.FILE:
            size, extents = self._layout(member)
            content = self._content(sum(length for _begin, length in extents))
        elif member.size:
            raise damaged("what is no file has a content")
        target = ""
        if kind is Kind.LINK:
            target = _inside(section, ROOT, member.link)
        elif kind is Kind.SYMLINK:
            target = os.fsdecode(member.link)
            if not target or "\0" in target or len(member.link) > limits.PATH_BYTES_MAX:
                raise damaged("a link of it leads nowhere")
        owners = check_owner(member.uid), check_owner(member.gid)
        return Entry(path, kind, member.mode, *owners, member.mtime_ns, attributes, target, size, extents, content)

    def _layout(self, member: _Member) -> tuple[int, tuple[tuple[int, int], ...]]:
        """The size of a file, and where its data lies."""
        if "GNU.sparse.realsize" not in member.records:
            return member.size, ((0, member.size),) if member.size else ()
        size, left = _decimal(member.records["GNU.sparse.realsize"]), member.size
        table = b""
        wanted = 1
        while len(lines := table.split(b"\n")) <= wanted:
            if left < BLOCK_BYTES or len(table) >= _TABLE_BYTES_MAX:
                raise damaged("a file with holes has no table")
            table += self._bytes.take(BLOCK_BYTES)
            left -= BLOCK_BYTES
            if wanted == 1 and b"\n" in table:
                wanted = 1 + 2 * _decimal(table.split(b"\n", 1)[0])
        numbers = [_decimal(line) for line in lines[1:wanted]]
        extents = tuple(zip(numbers[::2], numbers[1::2], strict=True))
        if extents and extents[-1] == (size, 0):
            extents = extents[:-1]  # a hole at the end
        at = 0
        for begin, length in extents:
            if begin < at or not length or begin + length > size:
                raise damaged("a file with holes has a table that cannot be")
            at = begin + length
        if sum(length for _begin, length in extents) != left:
            raise damaged("a file with holes has another size")
        return size, extents

    def _content(self, size: int) -> Iterator[bytes]:
        left = size
        while left:
            piece = self._bytes.take(min(left, _PIECE_BYTES))
            left -= len(piece)
            if self.budget:
                self.budget.spend(len(piece))
            yield piece
        self._skip_padding(size)


# ---- parsing -------------------------------------------------------------------------------------------------------


def as_document(value: object) -> Mapping[str, object]:
    """Raises InvalidArgument."""
    if not isinstance(value, dict):
        raise damaged("a record of it is no object")
    return cast("Mapping[str, object]", value)


def _shown(path: bytes) -> str:
    return repr(path[:64].decode(errors="replace"))


def _checked(block: bytes) -> bytes:
    if block[257:262] != b"ustar":
        raise damaged("a member has no head")
    told = _number(block[148:156])
    if told != sum(block[:148]) + 8 * 0x20 + sum(block[156:]):
        raise damaged("the head of a member is not as it was written")
    return block


def _number(field: bytes) -> int:
    text = field.rstrip(b"\0 ").lstrip(b" ")
    if not text or not all(0x30 <= digit <= 0x37 for digit in text):
        raise damaged("a number of it is none")
    return int(text, 8)


def _decimal(text: bytes) -> int:
    if not text.isdigit() or len(text) > 19 or int(text) > _SIZE_MAX:
        raise damaged("a number of it is none")
    return int(text)


def _records(data: bytes) -> Mapping[str, bytes]:
    found: dict[str, bytes] = {}
    at = 0
    while at < len(data):
        space = data.find(b" ", at, at + 20)
        length = _decimal(data[at:space]) if space > 0 else 0
        end = at + length
        key, equals, value = data[space + 1 : end - 1].partition(b"=")
        if space <= at or end > len(data) or end <= space + 2 or not equals or data[end - 1 : end] != b"\n":
            raise damaged("the head of a member cannot be read")
        found[os.fsdecode(key)] = value
        at = end
    return found


def _member(block: bytes, records: Mapping[str, bytes]) -> _Member:
    size = _decimal(records["size"]) if "size" in records else _number(block[124:136])
    return _Member(
        path=records.get("path", block[:100].rstrip(b"\0")),
        kind=block[156:157],
        size=size,
        mode=_number(block[100:108]) & 0o7777,
        uid=_number(block[108:116]),
        gid=_number(block[116:124]),
        mtime_ns=_time(records["mtime"]) if "mtime" in records else _number(block[136:148]) * 10**9,
        link=records.get("linkpath", block[157:257].rstrip(b"\0")),
        records=records,
    )


def _time(text: bytes) -> int:
    seconds, _, rest = text.removeprefix(b"-").partition(b".")
    if not seconds.isdigit() or len(seconds) > _TIME_DIGITS_MAX or len(rest) != 9 or not rest.isdigit():
        raise damaged("a time of it is none")
    nanoseconds = int(seconds) * 10**9 + int(rest)
    return -nanoseconds if text.startswith(b"-") else nanoseconds


def _kind(member: _Member) -> Kind:
    kind = _KINDS.get(member.kind)
    if kind is None:
        raise damaged("it holds a device, or something else that no session has")
    marked = member.records.get(KIND_KEY)
    if marked is None:
        return kind
    for each in _MARKED:
        if kind is Kind.FILE and marked == each.encode():
            return each
    raise damaged("it holds something that no session has")


def _inside(section: bytes, top: str, path: bytes) -> str:
    """The path in the session. What names another place is none."""
    head = b"%s/%s" % (section, top.encode())
    if path == head:
        return "/"
    rest = path.removeprefix(head)
    if rest == path or not rest.startswith(b"/") or len(rest) > limits.PATH_BYTES_MAX:
        raise damaged(f"{_shown(path)} lies outside")
    if b"\0" in rest or any(part in (b"", b".", b"..") for part in rest[1:].split(b"/")):
        raise damaged(f"{_shown(path)} lies outside")
    return os.fsdecode(rest)


def _attributes(records: Mapping[str, bytes]) -> Mapping[str, bytes]:
    found = {key.removeprefix(ATTRIBUTE_KEY): value for key, value in records.items() if key.startswith(ATTRIBUTE_KEY)}
    for name in found:
        if not is_kept(name) or "\0" in name or len(name) > 255:
            raise damaged(f"it holds an attribute {name[:64]!r}, which no session has")
    return found
