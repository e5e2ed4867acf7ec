"""What two points of a session do not have in common. Blocking.

The layers that only one of them has say where to look: what they hold, what they hide (whiteouts, opaque directories)
and what they moved (redirects). What is there is then asked of both merged trees, which the kernel shows; so the answer
is that of a walk over both, at the price of what changed.
"""

import errno
import os
import posixpath
import stat
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from sandlot.contracts.storage import Place, Shown
from sandlot.host.kernel import BENEATH, NO_MAGICLINKS, NO_SYMLINKS, mount_layers, open_inside
from sandlot.host.patching import Side, write_patch
from sandlot.host.storage.canonical import CANONICAL_ID
from sandlot.model import Change, ChangeKind

_PIECE_BYTES = 1 << 20
_PATCH_BYTES_MAX = 16 << 20  # of one file; a larger one is told of without its content
_CONFINED = BENEATH | NO_SYMLINKS | NO_MAGICLINKS
_WORDS = {stat.S_IFREG: "file", stat.S_IFDIR: "directory", stat.S_IFLNK: "symlink"}


class _View:
    """One merged tree, open. Of no layers at all: an empty one. Of one layer: the directory as it is, without a mount,
    so that it needs no root."""

    def __init__(self, layers: Sequence[Path]) -> None:
        self._root = mount_layers(layers) if layers else -1

    def close(self) -> None:
        if self._root >= 0:
            os.close(self._root)

    def find(self, path: str) -> "_Found | None":
        if self._root < 0:
            return None
        try:
            fd = open_inside(self._root, path.lstrip("/") or ".", os.O_PATH | os.O_NOFOLLOW, _CONFINED)
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
                return None
            raise
        try:
            found = os.fstat(fd)
            target = os.readlink("", dir_fd=fd) if stat.S_ISLNK(found.st_mode) else ""
        finally:
            os.close(fd)
        return _Found(found, target)

    def names(self, path: str) -> set[str]:
        with _where_it_may():
            fd = open_inside(self._root, path.lstrip("/") or ".", os.O_RDONLY | os.O_DIRECTORY, _CONFINED)
            try:
                return set(os.listdir(fd))
            finally:
                os.close(fd)
        return set()

    @contextmanager
    def opened(self, path: str) -> Generator[int]:
        fd = open_inside(self._root, path.lstrip("/"), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, _CONFINED)
        try:
            yield fd
        finally:
            os.close(fd)


@dataclass(frozen=True, slots=True)
class _Found:
    stat: os.stat_result
    target: str

    @property
    def is_directory(self) -> bool:
        return stat.S_ISDIR(self.stat.st_mode)

    @property
    def is_file(self) -> bool:
        return stat.S_ISREG(self.stat.st_mode)

    @property
    def word(self) -> str:
        return _WORDS.get(stat.S_IFMT(self.stat.st_mode), "other")

    def marks(self) -> tuple[object, ...]:
        """All that counts but the content. Owners in the session's own numbers: the template has them as they are."""
        owners = [number - CANONICAL_ID if number >= CANONICAL_ID else number for number in (self._uid, self._gid)]
        size = self.stat.st_size if self.is_file else 0
        return (self.stat.st_mode, *owners, size, self.target, self.stat.st_rdev)

    @property
    def _uid(self) -> int:
        return self.stat.st_uid

    @property
    def _gid(self) -> int:
        return self.stat.st_gid


@contextmanager
def _where_it_may() -> Generator[None]:
    """Someone who is not root cannot look into what its mode forbids, even if it is his own. What he cannot look into
    is compared from outside."""
    try:
        yield
    except PermissionError:
        if os.geteuid() == 0:
            raise


def compare(template: Path | None, shown: Shown, *, below: str = "/", patch: bool = False) -> Generator[Change]:
    """Sorted by path. Without a template nothing is below. Raises OSError."""
    found = places(shown, below)
    bottom = [template] if template else []
    before, after = _View([*shown.old, *bottom]), None
    try:
        after = _View([*shown.new, *bottom])
        covered = "\0"
        for path, whole in found:
            if path.startswith(covered):
                continue
            # What is a directory on one side only is told file by file, as is what comes or goes as a whole.
            deep = whole or _is_directory(before, path) != _is_directory(after, path)
            if deep:
                covered = path + "/"
            yield from _compare_path(before, after, path, deep=deep, base=below if patch else "")
    finally:
        before.close()
        if after:
            after.close()


def places(shown: Shown, below: str = "/") -> list[Place]:
    """Where to look. Nothing is named twice."""
    found: dict[str, bool] = {}
    told = shown.places if shown.places is not None else chain.from_iterable(map(_marks, shown.apart))
    for path, whole in told:
        if path == below or path.startswith(below.rstrip("/") + "/"):
            found[path] = found.get(path, False) or whole
        elif whole and below.startswith(path + "/"):
            found[below] = True
    kept: list[Place] = []
    covered = "\0"
    for path in sorted(found, key=_parts):
        if not path.startswith(covered):
            kept.append((path, found[path]))
            if found[path]:
                covered = path + "/"
    return kept


def _parts(path: str) -> list[str]:
    return path.split("/")


def _marks(layer: Path) -> Iterator[Place]:
    pending = [""]
    while pending:
        folder = pending.pop()
        with _where_it_may(), os.scandir(f"{layer}{folder}") as entries:
            for entry in entries:
                path = f"{folder}/{entry.name}"
                found = entry.stat(follow_symlinks=False)
                if stat.S_ISDIR(found.st_mode):
                    whole = _has_mark(entry.path, "opaque") or _has_mark(entry.path, "redirect")
                    if not whole:
                        pending.append(path)
                    yield path, whole
                else:
                    yield path, stat.S_ISCHR(found.st_mode) and found.st_rdev == 0


def _has_mark(path: str, name: str) -> bool:
    with suppress(OSError):
        os.getxattr(path, f"trusted.overlay.{name}", follow_symlinks=False)
        return True
    return False


def _is_directory(view: _View, path: str) -> bool:
    with _where_it_may():
        found = view.find(path)
        return found is not None and found.is_directory
    return False


def _compare_path(before: _View, after: _View, path: str, *, deep: bool, base: str) -> Iterator[Change]:
    pending = [path]
    while pending:
        at = pending.pop()
        old = new = None
        with _where_it_may():
            old, new = before.find(at), after.find(at)
        if (change := _change(before, after, at, old, new, base)) is not None:
            yield change
        if deep:
            names = {name for view, found in ((before, old), (after, new)) for name in _names(view, found, at)}
            pending += [posixpath.join(at, name) for name in sorted(names, reverse=True)]


def _names(view: _View, found: _Found | None, path: str) -> set[str]:
    return view.names(path) if found is not None and found.is_directory else set()


def _size(found: _Found | None) -> int | None:
    """Of what has content: how large a directory is differs from filesystem to filesystem."""
    return None if found is None or stat.S_ISDIR(found.stat.st_mode) else found.stat.st_size


def _change(before: _View, after: _View, path: str, old: _Found | None, new: _Found | None, base: str) -> Change | None:
    if old is None and new is not None:
        kind, what = ChangeKind.ADDED, new.word
    elif new is None and old is not None:
        kind, what = ChangeKind.REMOVED, old.word
    else:
        if old is None or new is None:
            return None
        if old.marks() == new.marks() and (not new.is_file or _is_same(before, after, path, old, new)):
            return None
        kind, what = ChangeKind.CHANGED, new.word
    return Change(
        path=path,
        kind=kind,
        what=what,
        mode=stat.S_IMODE(new.stat.st_mode) if new else None,
        old_mode=stat.S_IMODE(old.stat.st_mode) if old else None,
        size_bytes=_size(new),
        old_size_bytes=_size(old),
        patch=write_patch(posixpath.relpath(path, base), _side(before, path, old), _side(after, path, new))
        if base
        else "",
    )


def _is_same(before: _View, after: _View, path: str, old: _Found, new: _Found) -> bool:
    """The content of two files of one size; of what cannot be read, the time tells."""
    with _where_it_may():
        return _same_content(before, after, path)
    return old.stat.st_mtime_ns == new.stat.st_mtime_ns


def _same_content(before: _View, after: _View, path: str) -> bool:
    with before.opened(path) as old, after.opened(path) as new:
        at = 0
        while True:
            left, right = os.pread(old, _PIECE_BYTES, at), os.pread(new, _PIECE_BYTES, at)
            if left != right:
                return False
            if not left:
                return True
            at += len(left)


def _side(view: _View, path: str, found: _Found | None) -> Side | None:
    """What git knows of a path: files and links."""
    if found is None or found.word not in ("file", "symlink"):
        return None
    if found.word == "symlink":
        return Side(0o120000, os.fsencode(found.target))
    mode = 0o100755 if found.stat.st_mode & 0o100 else 0o100644
    if found.stat.st_size > _PATCH_BYTES_MAX:
        return Side(mode, None)
    with _where_it_may(), view.opened(path) as fd:
        return Side(mode, os.pread(fd, _PATCH_BYTES_MAX, 0))
    return Side(mode, None)
