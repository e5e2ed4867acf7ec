"""Trees on their way: the tar format as functions over bytes. Nothing here touches a file.

Read are ustar, pax and GNU's long names, without compression: what is to be unpacked is as large as what was sent.
Whatever a name could do outside its tree is refused before anyone sees it."""

import os
from collections.abc import Iterator
from enum import StrEnum
from typing import NamedTuple

from sandlot.model import limits
from sandlot.model.errors import InvalidArgument, LimitReached

BLOCK = 512
END = bytes(2 * BLOCK)
_NAME_MAX = 100
_OCTAL_MAX = 0o77777777777
_OCTAL = b"01234567"
_MODE_BITS = 0o777
_REGULAR = b"0\x007"
_SAID = ("path", "linkpath", "size")  # all else that is told of a member means nothing here, and is not kept
_LONG = {b"L": "path", b"K": "linkpath"}
_KINDS_REFUSED = {b"3": "a device", b"4": "a device", b"6": "a pipe", b"S": "a sparse file"}
_COMPRESSED = (b"\x1f\x8b", b"BZh", b"\xfd7zXZ", b"\x28\xb5\x2f\xfd", b"PK\x03\x04")
_STEP = "send a plain tar, as `tar -c` makes it"


class MemberKind(StrEnum):
    FILE = "file"
    DIRECTORY = "directory"
    SYMLINK = "symlink"
    HARD_LINK = "hard_link"  # another name of a file that came before


class Member(NamedTuple):
    parts: tuple[str, ...]  # of its path below the top; empty for the top itself
    kind: MemberKind
    mode: int  # permission bits; those that make someone else of who runs it are never among them
    size_bytes: int = 0
    modified: int = 0
    target: str = ""  # of a link: for a symbolic one the text in it, for a hard one a path below the top

    @property
    def path(self) -> str:
        return "/".join(self.parts)


# ---- writing -----------------------------------------------------------------------------------------------------


def header(name: str, kind: MemberKind, mode: int, size_bytes: int = 0, modified: int = 0, target: str = "") -> bytes:
    """What stands before the content of a member."""
    raw, raw_target = os.fsencode(name), os.fsencode(target)
    if kind is MemberKind.DIRECTORY:
        raw += b"/"
    before = b""
    modified = max(0, min(modified, _OCTAL_MAX))
    if len(raw) > _NAME_MAX or len(raw_target) > _NAME_MAX or size_bytes > _OCTAL_MAX:
        before = _pax(raw, raw_target, size_bytes)
        raw, raw_target, size_bytes = raw[:_NAME_MAX], raw_target[:_NAME_MAX], min(size_bytes, _OCTAL_MAX)
    return before + _block(raw, _FLAGS[kind], mode, size_bytes, modified, raw_target)


_FLAGS = {
    MemberKind.FILE: b"0",
    MemberKind.HARD_LINK: b"1",
    MemberKind.SYMLINK: b"2",
    MemberKind.DIRECTORY: b"5",
}


def padding(size_bytes: int) -> bytes:
    """What stands behind a content of this size."""
    return bytes(-size_bytes % BLOCK)


def _block(name: bytes, flag: bytes, mode: int, size: int, modified: int, target: bytes = b"") -> bytes:
    head = name.ljust(_NAME_MAX, b"\0") + b"%07o\0%07o\0%07o\0%011o\0%011o\0" % (mode & 0o7777, 0, 0, size, modified)
    tail = flag + target.ljust(_NAME_MAX, b"\0") + b"ustar\x0000"
    total = sum(head.translate(None, b"\0")) + sum(tail.translate(None, b"\0")) + 8 * 32
    return (head + b"%06o\0 " % total + tail).ljust(BLOCK, b"\0")


def _pax(name: bytes, target: bytes, size: int) -> bytes:
    records = _record(b"path", name)
    if len(target) > _NAME_MAX:
        records += _record(b"linkpath", target)
    if size > _OCTAL_MAX:
        records += _record(b"size", b"%d" % size)
    return _block(b"long", b"x", 0o644, len(records), 0) + records + padding(len(records))


def _record(key: bytes, value: bytes) -> bytes:
    """Its length counts itself."""
    rest = b" %b=%b\n" % (key, value)
    length = len(rest)
    while len(b"%d" % length) + len(rest) != length:
        length = len(b"%d" % length) + len(rest)
    return b"%d" % length + rest


# ---- reading -----------------------------------------------------------------------------------------------------


class TarReader:
    """Takes an archive in pieces of any size. Raises InvalidArgument for what is no archive or leads out of its tree,
    LimitReached for more than one may hold."""

    def __init__(self) -> None:
        self._rest = b""
        self._left = 0  # of the content of a file
        self._skip = 0  # behind it
        self._extra = b""  # the kind of a member that describes the next one, and how much of it is to come
        self._extra_bytes = bytearray()
        self._extra_left = 0
        self._said: dict[str, bytes] = {}  # of the next member
        self._zeros = 0
        self._is_over = False
        self._count = 0

    def feed(self, data: bytes | memoryview) -> Iterator[Member | memoryview]:
        """Members as they come, each file followed by its content in pieces, which are not copied."""
        view, at = memoryview(self._rest + data if self._rest else data), 0
        end = len(view)
        while at < end:
            if self._left or self._extra_left or self._skip:
                size = min(self._left or self._extra_left or self._skip, end - at)
                if self._left:
                    self._left -= size
                    yield view[at : at + size]
                elif self._extra_left:
                    self._take_extra(view[at : at + size])
                else:
                    self._skip -= size
                at += size
            elif end - at < BLOCK:
                break
            else:
                member = self._header(bytes(view[at : at + BLOCK]))
                at += BLOCK
                if member is not None:
                    yield member
        self._rest = bytes(view[at:])

    def finish(self) -> None:
        """Nothing more comes. Raises InvalidArgument when the end is missing."""
        if not self._is_over:
            raise InvalidArgument(
                "the archive ends before its end: something on the way was cut off", next_step="send it again"
            )

    def _header(self, block: bytes) -> Member | None:
        if self._is_over or not block.strip(b"\0"):
            self._end(block)
            return None
        if self._zeros:
            raise InvalidArgument("the archive goes on behind its end", next_step=_STEP)
        check(block)
        flag = block[156:157]
        size = number(block[124:136])
        if flag in b"xgLK" and flag:
            self._begin_extra(flag, size)
            return None
        said, self._said = self._said, {}
        if said:
            return self._member(block, flag, size, said)
        return self._member(block, flag, size, _NOTHING)

    def _member(self, block: bytes, flag: bytes, size: int, said: dict[str, bytes]) -> Member:
        self._count += 1
        if self._count > limits.TREE_ENTRIES_MAX:
            raise LimitReached(
                f"the archive has more than {limits.TREE_ENTRIES_MAX} members",
                next_step="send it in parts",
                limit="tree_entries",
            )
        raw = said.get("path") or _name(block)
        parts = split(raw)
        kind = _kind(flag, raw)
        target = ""
        if kind is MemberKind.FILE:
            size = _decimal(said["size"]) if "size" in said else size
            self._left, self._skip = size, -size % BLOCK
            if not parts:
                raise _refused(raw, "a file without a name")
        else:
            if size and kind is not MemberKind.HARD_LINK:
                raise _refused(raw, "it has a content, and is no file")
            size = 0
            if kind is not MemberKind.DIRECTORY:
                target = _target(kind, said.get("linkpath") or block[157:257].partition(b"\0")[0], raw, parts)
        return Member(parts, kind, number(block[100:108]) & _MODE_BITS, size, number(block[136:148]), target)

    # ---- what describes the next member ------------------------------------------------------------------------

    def _begin_extra(self, flag: bytes, size: int) -> None:
        if size > limits.TREE_EXTRA_BYTES_MAX:
            raise LimitReached(
                f"what the archive tells of a member has {size} bytes", next_step=_STEP, limit="tree_extra_bytes"
            )
        if not size:
            raise InvalidArgument("the archive tells of a member, and tells nothing", next_step=_STEP)
        self._extra, self._extra_left, self._skip = flag, size, -size % BLOCK
        self._extra_bytes = bytearray()

    def _take_extra(self, piece: memoryview) -> None:
        self._extra_bytes += piece
        self._extra_left -= len(piece)
        if self._extra_left:
            return
        told = bytes(self._extra_bytes)
        self._extra_bytes = bytearray()
        if self._extra in _LONG:
            self._said[_LONG[self._extra]] = told.partition(b"\0")[0]
        elif self._extra == b"x":
            records = _records(told)
            self._said |= {key: records[key] for key in _SAID if key in records}

    def _end(self, block: bytes) -> None:
        if block.strip(b"\0"):
            raise InvalidArgument("something stands behind the end of the archive", next_step=_STEP)
        self._zeros += 1
        if self._zeros >= 2:
            self._is_over = True


_NOTHING: dict[str, bytes] = {}


def check(block: bytes) -> None:
    """Raises InvalidArgument for what is no header."""
    told = block[148:156].strip(b" \0")
    total = sum(block.translate(None, b"\0")) - sum(block[148:156]) + 8 * 32
    if not told or told.strip(_OCTAL) or int(told, 8) != total:
        what = "compressed" if block.startswith(_COMPRESSED) else "no tar archive, or broken"
        raise InvalidArgument(f"what came is {what}", next_step=_STEP)


def number(field: bytes) -> int:
    """Octal, or the binary form of large ones. Raises InvalidArgument."""
    if field[0] & 0x80:
        value = int.from_bytes(field, "big") & ~(0x80 << 8 * (len(field) - 1))
        if field[0] & 0x40 or value > limits.FILE_OFFSET_MAX:
            raise InvalidArgument("a number in the archive is too large or below zero", next_step=_STEP)
        return value
    text = field.strip(b" \0") or b"0"
    if text.strip(_OCTAL):  # a sign or an underscore is none of the format's digits, though Python takes them
        raise InvalidArgument("a number in the archive is none", next_step=_STEP)
    return int(text, 8)


def _decimal(text: bytes) -> int:
    if not text.isdigit() or len(text) > 19 or int(text) > limits.FILE_OFFSET_MAX:
        raise InvalidArgument("a size in the archive is no number", next_step=_STEP)
    return int(text)


def _name(block: bytes) -> bytes:
    name = block[:_NAME_MAX].partition(b"\0")[0]
    if block[257:263] == b"ustar\0" and block[345]:
        return block[345:500].partition(b"\0")[0] + b"/" + name
    return name


def split(raw: bytes) -> tuple[str, ...]:
    """The names on the way to a member. Raises InvalidArgument for what does not stay below the top."""
    if len(raw) > limits.PATH_BYTES_MAX:
        raise InvalidArgument(f"a name in the archive has {len(raw)} bytes", limit="path_bytes")
    if b"\0" in raw:
        raise _refused(raw, "its name holds a NUL")
    if raw.startswith(b"/"):
        raise _refused(raw, "its name begins at the root")
    names = os.fsdecode(raw).split("/")
    if ".." in names:
        raise _refused(raw, "its name leads upwards")
    if "" in names or "." in names:
        return tuple(name for name in names if name not in ("", "."))
    return tuple(names)


def _kind(flag: bytes, raw: bytes) -> MemberKind:
    if flag in _REGULAR or not flag:
        # Archives older than the standard have no kind for directories.
        return MemberKind.DIRECTORY if raw.endswith(b"/") else MemberKind.FILE
    for kind, known in _FLAGS.items():
        if flag == known:
            return kind
    raise _refused(raw, f"it is {_KINDS_REFUSED.get(flag, 'of a kind that is not known')}")


def _target(kind: MemberKind, target: bytes, raw: bytes, parts: tuple[str, ...]) -> str:
    if not target or b"\0" in target or len(target) > limits.PATH_BYTES_MAX or not parts:
        raise _refused(raw, "it is a link that leads nowhere")
    if kind is MemberKind.HARD_LINK:
        return "/".join(split(target))
    return os.fsdecode(target)


def _records(told: bytes) -> dict[str, bytes]:
    found: dict[str, bytes] = {}
    at = 0
    while at < len(told):
        length, space, _rest = told[at : at + 20].partition(b" ")
        end = at + int(length) if space and length.isdigit() else 0
        record = told[at + len(length) + 1 : end - 1]
        key, equals, value = record.partition(b"=")
        if not at < end <= len(told) or told[end - 1 : end] != b"\n" or not equals:
            raise InvalidArgument("what the archive tells of a member cannot be read", next_step=_STEP)
        if key.startswith(b"GNU.sparse"):
            raise InvalidArgument("the archive holds a sparse file", next_step="send it without --sparse")
        found[key.decode(errors="replace")] = value
        at = end
    return found


def _refused(raw: bytes, why: str) -> InvalidArgument:
    shown = os.fsdecode(raw[:300])
    shown = shown if shown.isprintable() else repr(shown)[1:-1]
    return InvalidArgument(f"{shown}: {why}; nothing like it is unpacked", next_step="leave it out of the archive")
