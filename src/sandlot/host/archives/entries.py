"""One path that is to be made as it was elsewhere, with everything that belongs to it.

Owners are numbers of the session: on disk they are in the canonical range, and the template has them as they are. The
same holds for the users that an access list or a file capability names.
"""

import struct
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from sandlot.host.storage.canonical import CANONICAL_ID, RANGE_IDS
from sandlot.model import InvalidArgument

CAPABILITY = "security.capability"
LISTS = ("system.posix_acl_access", "system.posix_acl_default")
_USER = "user."
_CAPABILITY_2 = struct.Struct("<IIIII")
_CAPABILITY_3 = struct.Struct("<IIIIII")
_REVISION_2, _REVISION_3, _REVISION_MASK = 0x02000000, 0x03000000, 0xFF000000
_LIST_HEAD = struct.Struct("<I")
_LIST_VERSION = 2
_LIST_ENTRY = struct.Struct("<HHI")
_NAMED = (0x02, 0x08)  # entries of a user, of a group
_VALUE_BYTES_MAX = 65536  # the kernel takes no more


class Kind(StrEnum):
    FILE = "file"
    KEPT = "kept"  # a file whose content stays, and all else is new
    DIRECTORY = "directory"
    SYMLINK = "symlink"
    LINK = "link"  # a further name of a file of this point, or of the one before
    PIPE = "pipe"
    SOCKET = "socket"
    REMOVED = "removed"  # with all that is below it


@dataclass(frozen=True, slots=True)
class Entry:
    """Come in the order of their paths, one above before what is in it. The content is read before the next one is
    asked for."""

    path: str  # absolute, as the session sees it; / is the root
    kind: Kind
    mode: int = 0  # permission bits
    uid: int = 0
    gid: int = 0
    mtime_ns: int = 0
    attributes: Mapping[str, bytes] = field(default_factory=dict[str, bytes])
    target: str = ""  # of a symlink; the other name of a link
    size: int = 0
    extents: tuple[tuple[int, int], ...] = ()  # offset and length of all that is no hole, in order
    content: Iterator[bytes] | None = None  # of the extents, one after another

    @property
    def content_bytes(self) -> int:
        return sum(length for _offset, length in self.extents)


def owner_of(number: int) -> int:
    """The session's number of an owner on disk."""
    return number - CANONICAL_ID if number >= CANONICAL_ID else number


def owner_on_disk(number: int) -> int:
    return CANONICAL_ID + number


def check_owner(number: int) -> int:
    """Raises InvalidArgument: no session has such a user."""
    if not 0 <= number < RANGE_IDS:
        raise InvalidArgument(f"a file belongs to {number}, and a session has the users 0 to {RANGE_IDS - 1}")
    return number


def is_kept(name: str) -> bool:
    """Whether an attribute belongs to the session. Others are the machine's own."""
    return name.startswith(_USER) or name == CAPABILITY or name in LISTS


def attribute_of(name: str, value: bytes) -> bytes:
    """What stands in the place of what lies on disk. Raises InvalidArgument."""
    if name == CAPABILITY:
        return _capability(value, 0)
    return _access_list(value, owner_of) if name in LISTS else value


def attribute_on_disk(name: str, value: bytes) -> bytes:
    """Raises InvalidArgument for what no session can have."""
    if len(value) > _VALUE_BYTES_MAX:
        raise InvalidArgument(f"an attribute {name[:64]!r} has {len(value)} bytes")
    if name == CAPABILITY:
        return _capability(value, CANONICAL_ID)
    return _access_list(value, lambda number: owner_on_disk(check_owner(number))) if name in LISTS else value


def _capability(value: bytes, root: int) -> bytes:
    """Always of the form that counts for one root only: the session's."""
    if len(value) == _CAPABILITY_3.size:
        fields = _CAPABILITY_3.unpack(value)[:5]
    elif len(value) == _CAPABILITY_2.size:
        fields = _CAPABILITY_2.unpack(value)
    else:
        raise InvalidArgument(f"a file has a capability of {len(value)} bytes")
    if fields[0] & _REVISION_MASK not in (_REVISION_2, _REVISION_3):
        raise InvalidArgument("a file has a capability of an unknown form")
    return _CAPABILITY_3.pack(fields[0] & ~_REVISION_MASK | _REVISION_3, *fields[1:], root)


def _access_list(value: bytes, number_for: Callable[[int], int]) -> bytes:
    size = len(value) - _LIST_HEAD.size
    if size < 0 or size % _LIST_ENTRY.size or _LIST_HEAD.unpack_from(value)[0] != _LIST_VERSION:
        raise InvalidArgument("a file has an access list of an unknown form")
    told = value[: _LIST_HEAD.size]
    for tag, rights, number in _LIST_ENTRY.iter_unpack(value[_LIST_HEAD.size :]):
        told += _LIST_ENTRY.pack(tag, rights, number_for(number) if tag in _NAMED else number)
    return told
