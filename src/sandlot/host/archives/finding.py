"""What must be done to one point to have another. Blocking.

Stricter than a comparison that is told to people: times, attributes and hard links count too. The layers that only one
of them has say where to look; what is there is asked of both merged trees.
"""

import errno
import os
import posixpath
import stat
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from sandlot.contracts.storage import Shown
from sandlot.host.archives.entries import Entry, Kind, attribute_of, is_kept, owner_of
from sandlot.host.comparing import places
from sandlot.host.kernel import BENEATH, NO_MAGICLINKS, NO_SYMLINKS, mount_layers, open_inside
from sandlot.host.storage.canonical import CANONICAL_ID

_PIECE_BYTES = 1 << 20
_EXTENTS_MAX = 16384  # of one file; with more, small holes are filled
_CONFINED = BENEATH | NO_SYMLINKS | NO_MAGICLINKS
_GONE = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)
_KINDS = {
    stat.S_IFREG: Kind.FILE,
    stat.S_IFDIR: Kind.DIRECTORY,
    stat.S_IFLNK: Kind.SYMLINK,
    stat.S_IFIFO: Kind.PIPE,
    stat.S_IFSOCK: Kind.SOCKET,
}
_Key = tuple[int, int]


@dataclass(frozen=True, slots=True)
class _Found:
    kind: Kind
    marks: tuple[object, ...]  # all that counts but the content
    stat: os.stat_result
    target: str
    attributes: dict[str, bytes]

    @property
    def key(self) -> _Key | None:
        """The same for all names of one file that has several."""
        return (self.stat.st_dev, self.stat.st_ino) if self.stat.st_nlink > 1 and self.kind is not _FOLDER else None


_FOLDER = Kind.DIRECTORY


class _Tree:
    """One merged tree, open; without layers, one that is empty."""

    def __init__(self, layers: Sequence[Path]) -> None:
        self._root = mount_layers(layers) if layers else -1

    def close(self) -> None:
        if self._root >= 0:
            os.close(self._root)

    def _open(self, path: str, flags: int) -> int:
        if self._root < 0:
            raise FileNotFoundError(errno.ENOENT, "nothing is there", path)
        return open_inside(self._root, path.lstrip("/") or ".", flags | os.O_NOFOLLOW, _CONFINED)

    def find(self, path: str) -> _Found | None:
        try:
            fd = self._open(path, os.O_PATH)
        except OSError as error:
            if error.errno in _GONE:
                return None
            raise
        try:
            return _look(fd)
        finally:
            os.close(fd)

    def names(self, path: str) -> set[str]:
        fd = self._open(path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            return set(os.listdir(fd))
        finally:
            os.close(fd)

    def open_file(self, path: str) -> int:
        return self._open(path, os.O_RDONLY | os.O_NONBLOCK)


def _look(fd: int) -> _Found | None:
    found = os.fstat(fd)
    kind = _KINDS.get(stat.S_IFMT(found.st_mode))
    if kind is None:
        return None  # a device, which no session can make
    target = os.readlink("", dir_fd=fd) if kind is Kind.SYMLINK else ""
    name = f"/proc/self/fd/{fd}"
    attributes = {key: attribute_of(key, os.getxattr(name, key)) for key in sorted(os.listxattr(name)) if is_kept(key)}
    size = found.st_size if kind is Kind.FILE else 0
    owners = owner_of(found.st_uid), owner_of(found.st_gid)
    marks = (found.st_mode, *owners, size, target, found.st_mtime_ns, tuple(attributes.items()))
    return _Found(kind, marks, found, target, attributes)


@dataclass(slots=True)
class _Links:
    """Names of files that have several, as far as they were seen: whoever comes later may be a further one."""

    has_template: bool
    elsewhere: Callable[[], Iterator[tuple[str, _Found, _Found]]]  # all that was not changed
    is_looked: bool = False
    told: dict[_Key, tuple[str, _Key | None, bool]] = field(default_factory=dict[_Key, "tuple[str, _Key | None, bool]"])
    before: dict[_Key, _Key | None] = field(default_factory=dict["_Key", "_Key | None"])

    def other(self, key: _Key | None, old: _Found | None, *, is_changed: bool) -> str:
        """The name that a file has already, where it must be made a link to that."""
        if key is not None and key not in self.told and old is None and not self.is_looked:
            # It came from elsewhere, and its other name may be where it always was.
            self.is_looked = True
            for path, before, after in self.elsewhere():
                self.note(path, before, after, is_changed=False)
        if key is None or key not in self.told:
            return ""
        path, before, was_changed = self.told[key]
        apart = is_changed or was_changed or old is None or old.key is None or old.key != before
        return path if apart else ""

    def is_cut(self, old: _Found | None, new: _Found) -> bool:
        """Whether a file that looks as before was another name of one that it is not a name of any more."""
        if old is None or old.key is None or (self.has_template and old.stat.st_uid < CANONICAL_ID):
            return False
        return new.key is None or self.before.get(old.key, new.key) != new.key

    def note(self, path: str, old: _Found | None, new: _Found, *, is_changed: bool) -> None:
        before = old.key if old else None
        if new.key is not None:
            self.told.setdefault(new.key, (path, before, is_changed))
        if before is not None:
            self.before.setdefault(before, new.key)


def find_entries(template: Path | None, shown: Shown) -> Generator[Entry]:
    """The layers are those over the template, if there is one. Raises OSError."""
    below = () if template is None else (template,)
    before, after = _Tree([*shown.old, *below]), None
    try:
        after = _Tree([*shown.new, *below])
        seen = places(shown)
        shared = [layer for layer in shown.new if shown.places is not None or layer not in shown.apart]
        links = _Links(template is not None, partial(_find_links, before, after, shared, dict(seen)))
        top = after.find("/")
        assert top is not None, "a tree has a root"
        yield _told("/", Kind.DIRECTORY, top)
        covered = "\0"
        for path, whole in seen:
            if path.startswith(covered):
                continue
            deep = whole or _is_folder(before.find(path)) != _is_folder(after.find(path))
            if deep:
                covered = path + "/"
            yield from _find_below(before, after, path, links, deep=deep)
    finally:
        before.close()
        if after:
            after.close()


def _find_links(
    before: _Tree, after: _Tree, layers: Sequence[Path], seen: Mapping[str, bool]
) -> Iterator[tuple[str, _Found, _Found]]:
    """Files with several names in layers that both have. What is looked at anyway is not told."""
    for layer in layers:
        for folder, _folders, files in os.walk(layer):
            for name in files:
                found = os.lstat(os.path.join(folder, name))
                path = "/" + os.path.relpath(os.path.join(folder, name), layer)
                if found.st_nlink > 1 and path not in seen and not any(map(seen.get, _above(path))):
                    old, new = before.find(path), after.find(path)
                    if old is not None and new is not None:
                        yield path, old, new


def _above(path: str) -> Iterator[str]:
    while path != "/":
        path = posixpath.dirname(path)
        yield path


def _is_folder(found: _Found | None) -> bool:
    return found is not None and found.kind is _FOLDER


def _find_below(before: _Tree, after: _Tree, path: str, links: _Links, *, deep: bool) -> Iterator[Entry]:
    pending = [path]
    while pending:
        at = pending.pop()
        old, new = before.find(at), after.find(at)
        if (entry := _entry(before, after, at, old, new, links)) is not None:
            yield entry
        if deep and new is not None and new.kind is _FOLDER:
            # Names that are gone are told of one by one; below something that is gone nothing is.
            names = after.names(at) | (before.names(at) if _is_folder(old) else set[str]())
            pending += [posixpath.join(at, name) for name in sorted(names, reverse=True)]


def _entry(
    before: _Tree, after: _Tree, path: str, old: _Found | None, new: _Found | None, links: _Links
) -> Entry | None:
    if new is None:
        return Entry(path, Kind.REMOVED) if old is not None else None
    is_same = old is not None and old.kind is new.kind
    has_content = is_same and (new.kind is not Kind.FILE or _same_content(before, after, path, old, new))
    is_changed = not has_content or old is None or old.marks != new.marks or links.is_cut(old, new)
    other = links.other(new.key, old, is_changed=is_changed)
    links.note(path, old, new, is_changed=is_changed)
    if other:
        # With all that is its file's: programs that unpack it give that to both names.
        return replace(_told(path, Kind.LINK, new), target=other, attributes={})
    if not is_changed:
        return None
    if new.kind is not Kind.FILE:
        return _told(path, new.kind, new)
    if has_content and not links.is_cut(old, new):
        return _told(path, Kind.KEPT, new)
    extents = _extents(after, path)
    return _told(path, Kind.FILE, new, extents, _content(after, path, extents))


def _told(
    path: str,
    kind: Kind,
    found: _Found,
    extents: tuple[tuple[int, int], ...] = (),
    content: Iterator[bytes] | None = None,
) -> Entry:
    return Entry(
        path,
        kind,
        stat.S_IMODE(found.stat.st_mode),
        owner_of(found.stat.st_uid),
        owner_of(found.stat.st_gid),
        found.stat.st_mtime_ns,
        found.attributes,
        found.target,
        found.stat.st_size if kind is Kind.FILE else 0,
        extents,
        content,
    )


# ---- content -------------------------------------------------------------------------------------------------------


def _next_data(fd: int, at: int) -> int | None:
    """Where the next data begins; None: nothing but a hole from here on."""
    try:
        return os.lseek(fd, at, os.SEEK_DATA)
    except OSError as error:
        if error.errno == errno.ENXIO:
            return None
        raise


def _same_content(before: _Tree, after: _Tree, path: str, old: _Found | None, new: _Found) -> bool:
    if old is None or old.stat.st_size != new.stat.st_size:
        return False
    left = before.open_file(path)
    try:
        right = after.open_file(path)
        try:
            return _same(left, right)
        finally:
            os.close(right)
    finally:
        os.close(left)


def _same(left: int, right: int) -> bool:
    at = 0
    while True:
        begins = [begin for fd in (left, right) if (begin := _next_data(fd, at)) is not None]
        if not begins:
            return True
        at = min(begins)
        one, other = os.pread(left, _PIECE_BYTES, at), os.pread(right, _PIECE_BYTES, at)
        if one != other:
            return False
        if not one:
            return True
        at += len(one)


def _extents(tree: _Tree, path: str) -> tuple[tuple[int, int], ...]:
    fd = tree.open_file(path)
    found: list[tuple[int, int]] = []
    gap = 0
    try:
        at: int | None = 0
        while (at := _next_data(fd, at)) is not None:
            end = os.lseek(fd, at, os.SEEK_HOLE)
            _add_extent(found, at, end, gap)
            if len(found) > _EXTENTS_MAX:
                gap = max(gap * 2, 1 << 16)
                found = _merged(found, gap)
            at = end
    finally:
        os.close(fd)
    return tuple(found)


def _add_extent(found: list[tuple[int, int]], begin: int, end: int, gap: int) -> None:
    if found and begin - sum(found[-1]) <= gap:
        begin = found.pop()[0]
    found.append((begin, end - begin))


def _merged(extents: list[tuple[int, int]], gap: int) -> list[tuple[int, int]]:
    merged: list[tuple[int, int]] = []
    for begin, length in extents:
        _add_extent(merged, begin, begin + length, gap)
    return merged


def _content(tree: _Tree, path: str, extents: tuple[tuple[int, int], ...]) -> Iterator[bytes]:
    if not extents:
        return
    fd = tree.open_file(path)
    try:
        for begin, length in extents:
            at, end = begin, begin + length
            while at < end:
                piece = os.pread(fd, min(_PIECE_BYTES, end - at), at)
                if not piece:
                    raise OSError(errno.EIO, "is shorter than it was", path)
                yield piece
                at += len(piece)
    finally:
        os.close(fd)
