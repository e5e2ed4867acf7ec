"""A session as one file: a compressed tar that other programs can list and unpack. `docs/archive.md` tells of
its form. Blocking, piece by piece."""

import hashlib
import json
import os
import zlib
from collections.abc import Generator, Iterable, Iterator, Mapping

from sandlot.host.archives.entries import Entry, Kind, check_owner

MANIFEST = "manifest.json"
CALLS = "calls"
END = "end.json"
FORMAT = "sandlot session"
VERSION = 1
BLOCK_BYTES = 512
ROOT, GONE = "root", "removed"
KIND_KEY = "SANDLOT.kind"
ATTRIBUTE_KEY = "SCHILY.xattr."
_OUT_BYTES = 1 << 18
_LEVEL = 1  # the disk is to be what takes the time
_NAME_BYTES = 100
_OCTAL_MAX = 8**11 - 1
_TYPES = {Kind.DIRECTORY: b"5", Kind.SYMLINK: b"2", Kind.LINK: b"1", Kind.PIPE: b"6"}


class ArchiveWriter:
    """Everything is given as pieces of the file; whoever asks for them puts them somewhere."""

    def __init__(self) -> None:
        self._pack = zlib.compressobj(_LEVEL, zlib.DEFLATED, 31)
        self._digest = hashlib.sha256()
        self._waiting: list[bytes] = []
        self._waiting_bytes = 0
        self._members = 0

    def document(self, name: str, value: object) -> Iterator[bytes]:
        yield from self._member(name.encode(), b"0", {}, (json.dumps(value).encode(),))

    def section(self, name: str, entries: Iterable[Entry]) -> Iterator[bytes]:
        """What changed from one point to another."""
        for entry in entries:
            yield from self._entry(os.fsencode(name), entry)

    def end(self) -> Iterator[bytes]:
        last = {"sha256": self._digest.hexdigest(), "members": self._members}
        yield from self.document(END, last)
        yield from self._put(bytes(2 * BLOCK_BYTES))
        self._waiting.append(self._pack.flush())
        yield from self._give()

    def _entry(self, section: bytes, entry: Entry) -> Iterator[bytes]:
        top = GONE if entry.kind is Kind.REMOVED else ROOT
        path = b"%s/%s%s" % (section, top.encode(), os.fsencode(entry.path.rstrip("/")))
        more: dict[str, bytes] = {}
        link = os.fsencode(entry.target)
        if entry.kind is Kind.LINK:
            link = b"%s/%s%s" % (section, ROOT.encode(), link)
        if entry.kind in (Kind.KEPT, Kind.SOCKET, Kind.REMOVED):
            more[KIND_KEY] = entry.kind.encode()
        for name, value in entry.attributes.items():
            more[ATTRIBUTE_KEY + name] = value
        content, size = entry.content or iter(()), entry.content_bytes
        if entry.kind is Kind.FILE and entry.extents != _whole(entry.size):
            table = _sparse_table(entry.extents, entry.size)
            more |= {"GNU.sparse.major": b"1", "GNU.sparse.minor": b"0", "GNU.sparse.name": path}
            more["GNU.sparse.realsize"] = str(entry.size).encode()
            content, size = _chain(table, content), len(table) + size
        yield from self._member(path, _TYPES.get(entry.kind, b"0"), more, content, size, link, entry)

    def _member(
        self,
        path: bytes,
        kind: bytes,
        more: Mapping[str, bytes],
        content: Iterable[bytes],
        size: int | None = None,
        link: bytes = b"",
        entry: Entry | None = None,
    ) -> Iterator[bytes]:
        if size is None:
            content = tuple(content)
            size = sum(map(len, content))
        entry = entry or Entry("", Kind.FILE, 0o644)
        more = dict(more)
        if not path.isascii() or len(path) > _NAME_BYTES:
            more["path"] = path
        if link and (not link.isascii() or len(link) > _NAME_BYTES):
            more["linkpath"] = link
        seconds, rest = divmod(entry.mtime_ns, 10**9)
        if rest or not 0 <= seconds <= _OCTAL_MAX:
            more["mtime"] = _decimal(entry.mtime_ns)
        if size > _OCTAL_MAX:
            more["size"] = str(size).encode()
        if not all(map(_is_text, more.values())):
            more = {"hdrcharset": b"BINARY", **more}
        if more:
            records = b"".join(_record(key, value) for key, value in more.items())
            yield from self._put(_header(b"pax", b"x", len(records), 0o644) + records + _padding(len(records)))
        numbers = (
            entry.mode,
            check_owner(entry.uid),
            check_owner(entry.gid),
            seconds if 0 <= seconds <= _OCTAL_MAX else 0,
        )
        yield from self._put(_header(path, kind, min(size, _OCTAL_MAX), *numbers, link=link))
        for piece in content:
            yield from self._put(piece)
        yield from self._put(_padding(size))
        self._members += 1

    def _put(self, data: bytes) -> Iterator[bytes]:
        self._digest.update(data)
        packed = self._pack.compress(data)
        if packed:
            self._waiting.append(packed)
            self._waiting_bytes += len(packed)
        if self._waiting_bytes >= _OUT_BYTES:
            yield from self._give()

    def _give(self) -> Iterator[bytes]:
        piece, self._waiting, self._waiting_bytes = b"".join(self._waiting), [], 0
        if piece:
            yield piece


def _whole(size: int) -> tuple[tuple[int, int], ...]:
    return ((0, size),) if size else ()


def _chain(first: bytes, others: Iterable[bytes]) -> Generator[bytes]:
    yield first
    yield from others


def _sparse_table(extents: tuple[tuple[int, int], ...], size: int) -> bytes:
    """As GNU tar writes it, version 1.0: how many, then offset and length of each, filled up to a block. A hole at the
    end is an empty one behind it."""
    if not extents or sum(extents[-1]) < size:
        extents += ((size, 0),)
    text = b"%d\n" % len(extents) + b"".join(b"%d\n%d\n" % extent for extent in extents)
    return text + _padding(len(text))


def _is_text(value: bytes) -> bool:
    try:
        value.decode()
    except UnicodeDecodeError:
        return False
    return True


def _decimal(nanoseconds: int) -> bytes:
    sign = "-" if nanoseconds < 0 else ""
    seconds, rest = divmod(abs(nanoseconds), 10**9)
    return f"{sign}{seconds}.{rest:09d}".encode()


def _record(key: str, value: bytes) -> bytes:
    """Its length counts itself."""
    rest = b" %s=%s\n" % (os.fsencode(key), value)
    length = len(rest)
    while len(str(length)) + len(rest) != length:
        length = len(str(length)) + len(rest)
    return str(length).encode() + rest


def _padding(size: int) -> bytes:
    return bytes(-size % BLOCK_BYTES)


def _header(
    path: bytes,
    kind: bytes,
    size: int,
    mode: int,
    uid: int = 0,
    gid: int = 0,
    seconds: int = 0,
    *,
    link: bytes = b"",
) -> bytes:
    fields = b"%-100s%07o\0%07o\0%07o\0%011o\0%011o\0        %s%-100s" % (
        b"",
        mode,
        uid,
        gid,
        size,
        seconds,
        kind,
        b"",
    )
    block = bytearray(fields)
    block[:_NAME_BYTES] = path[:_NAME_BYTES].ljust(_NAME_BYTES, b"\0")
    block[157:257] = link[:_NAME_BYTES].ljust(_NAME_BYTES, b"\0")
    block += b"ustar\x0000"
    block = block.ljust(BLOCK_BYTES, b"\0")
    block[148:156] = b"%06o\0 " % sum(block)
    return bytes(block)
