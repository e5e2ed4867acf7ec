"""Where two subvolumes that grew from one do not hold the same. Blocking; everything raises OSError.

The kernel notes with every inode the transaction that changed it last, and finds those of late transactions without
reading the others. Trees are asked by number of inode: whatever a guest does with names meanwhile leads nowhere.
"""

import errno
import os
import stat
import struct
import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path

from sandlot.contracts.storage import Place
from sandlot.host.storage.btrfs_kernel import Subvolume, describe, opened, search

_INODE, _REF, _FURTHER_REF, _ATTRIBUTE, _NAME = 1, 12, 13, 24, 96  # kinds of items
_FIRST, _LAST = 256, (1 << 64) - 256  # numbers of inodes; the first is the subvolume's own directory
_MADE_CHANGED = struct.Struct("=QQ")
_MODE_AT = 52
_PATH_MAX = 4096  # what is deeper cannot be looked at from outside
_REF_HEAD, _FURTHER_HEAD = struct.Struct("=QH"), struct.Struct("=QQH")
_NAME_HEAD = struct.Struct("=QBQQHHB")  # of whom: inode, kind, offset; transaction; bytes of data, of the name; type
_MARKS = (b"trusted.overlay.opaque", b"trusted.overlay.redirect")


class Family:
    """Who grew from whom, among the subvolumes of one directory."""

    def __init__(self) -> None:
        self._names: dict[str, Subvolume] = {}
        self._looking = threading.Lock()

    def began_with(self, folder: Path, name: str) -> str | None:
        """The point that the volume of a point or a state was made from, if it is there."""
        with suppress(OSError):
            known = self._look(folder)
            names = {one.uuid: name for name, one in known.items()}
            volume = names.get(known[name].parent_uuid) if name.startswith("p-") and name in known else name
            return names.get(known[volume].parent_uuid) if volume in known else None
        return None

    def places(self, folder: Path, old: str, new: str, inside: str) -> tuple[Place, ...] | None:
        """Where, below a directory of both, they are not the same. None: it is not known without looking. Nothing but
        the time that it takes depends on it."""
        with suppress(OSError):
            since = self._common_past(folder, old, new)
            return None if since is None else _changed_places(folder / old, folder / new, inside, since)
        return None

    def _common_past(self, folder: Path, one: str, other: str) -> int | None:
        """The last transaction at which both held the same, as far as is known: then what was not changed since is the
        same in both."""
        known = self._look(folder)
        if one not in known or other not in known:
            return None
        kin = {each.uuid: each for each in known.values()}
        past = dict(_line(known[one], kin))
        return next((min(until, past[uuid]) for uuid, until in _line(known[other], kin) if uuid in past), None)

    def _look(self, folder: Path) -> dict[str, Subvolume]:
        """All that there are; each is asked once, because none becomes another."""
        with self._looking:
            known: dict[str, Subvolume] = {}
            for name in os.listdir(folder):
                with suppress(FileNotFoundError):  # destroyed meanwhile
                    known[name] = self._names.get(name) or describe(folder / name)
            self._names = known
            return known


def _line(start: Subvolume, kin: Mapping[bytes, Subvolume]) -> Iterator[tuple[bytes, int]]:
    """It and all that it grew from, each with the transaction until which it counts. Of one that is gone, those that
    grew from it still tell who it was."""
    yield start.uuid, _LAST
    at: Subvolume | None = start
    while at is not None and any(at.parent_uuid):
        yield at.parent_uuid, at.made_at
        at = kin.get(at.parent_uuid)


def _changed_places(old: Path, new: Path, folder: str, since: int) -> tuple[Place, ...]:
    """Below a folder of both that neither of them replaced. `since`: what was not changed after this transaction is the
    same in both. The price is that of what changed, and of the directories that it is in."""
    with ExitStack() as stack:
        before, after = (
            _Tree(stack.enter_context(opened(path)), os.stat(path / folder).st_ino, since) for path in (old, new)
        )
        found: dict[str, bool] = {}
        for number in before.changed.keys() | after.changed.keys():
            for path, whole in _places(before, after, number):
                found[path] = found.get(path, False) or whole
        return tuple(found.items())


def _places(before: "_Tree", after: "_Tree", number: int) -> Iterator[Place]:
    # A new one is a new name in a directory that was changed by it.
    sides = [tree for tree in (before, after) if number not in tree.fresh]
    paths = {path for tree in sides for path in tree.paths(number)}
    is_folder = any(tree.changed.get(number) for tree in sides)
    apart = is_folder and before.marks(number) != after.marks(number)
    yield from ((path, apart) for path in paths if path)
    if is_folder and len(sides) == 2:
        names, others = before.names(number), after.names(number)
        fresh = before.fresh | after.fresh
        for name in names.keys() | others.keys():
            if names.get(name) != others.get(name) or names[name] in fresh:
                yield from ((f"{path}/{os.fsdecode(name)}", True) for path in paths)


@dataclass
class _Tree:
    """One subvolume, open."""

    fd: int
    top: int  # the inode of the folder that is looked at
    since: int
    changed: dict[int, bool] = field(default_factory=dict[int, bool])  # inodes, and whether each is a directory
    fresh: set[int] = field(default_factory=set[int])  # those of them that were made since
    above: dict[int, tuple[int, bytes]] = field(default_factory=dict[int, "tuple[int, bytes]"])

    def __post_init__(self) -> None:
        for item in search(self.fd, 0, _FIRST, _LAST, (_INODE, _INODE), self.since + 1):
            made_at, changed_at = _MADE_CHANGED.unpack_from(item.data)
            if changed_at > self.since:
                mode = int.from_bytes(item.data[_MODE_AT : _MODE_AT + 4], "little")
                self.changed[item.number] = stat.S_ISDIR(mode)
                if made_at > self.since:
                    self.fresh.add(item.number)

    def paths(self, number: int) -> list[str]:
        """All names of an inode, from the folder on. None: it is elsewhere, or gone."""
        if number == self.top:
            return [""]
        names = ((self._path(parent), os.fsdecode(name)) for parent, name in self._names_of(number))
        return [f"{path}/{name}" for path, name in names if path is not None]

    def _path(self, folder: int) -> str | None:
        """Of a directory, which has one name."""
        told, at = "", folder
        while at != self.top:
            if at not in self.above:
                self.above[at] = next(self._names_of(at), (_FIRST, b""))
            at, name = self.above[at]
            if at == _FIRST:
                return None
            told = f"/{os.fsdecode(name)}{told}"
            if len(told) > _PATH_MAX:
                raise OSError(errno.ENAMETOOLONG, os.strerror(errno.ENAMETOOLONG))
        return told

    def _names_of(self, number: int) -> Iterator[tuple[int, bytes]]:
        for item in search(self.fd, 0, number, number, (_REF, _FURTHER_REF)):
            at, head = 0, _REF_HEAD if item.kind == _REF else _FURTHER_HEAD
            while at + head.size <= len(item.data):
                words = head.unpack_from(item.data, at)
                at += head.size
                yield (item.offset if item.kind == _REF else words[0]), item.data[at : at + words[-1]]
                at += words[-1]

    def names(self, number: int) -> dict[bytes, int]:
        """What a directory holds."""
        return {name: inode for inode, name, _data in self._entries(number, _NAME)}

    def marks(self, number: int) -> set[tuple[bytes, bytes]]:
        """What the kernel wrote down of a directory that hides or moves what is below it."""
        return {(name, data) for _none, name, data in self._entries(number, _ATTRIBUTE) if name in _MARKS}

    def _entries(self, number: int, kind: int) -> Iterator[tuple[int, bytes, bytes]]:
        for item in search(self.fd, 0, number, number, (kind, kind)):
            at = 0
            while at + _NAME_HEAD.size <= len(item.data):
                inode, _kind, _offset, _at, data_bytes, name_bytes, _type = _NAME_HEAD.unpack_from(item.data, at)
                at += _NAME_HEAD.size
                name, data = item.data[at : at + name_bytes], item.data[at + name_bytes :][:data_bytes]
                yield inode, name, data
                at += name_bytes + data_bytes
