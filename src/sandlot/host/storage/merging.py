"""Several closed layers made into one that shows the same over whatever lies below. Blocking, in small steps.

It does what the kernel does when it looks a name up through layers (`fs/overlayfs/namei.c`), with the layers of one
group instead of all, and writes down what it finds: files as further names of the same files, directories and marks
anew. What the group hides of the layers below it stays hidden, by whiteouts and opaque directories; what it moved is
still found there, by redirects. Nothing is followed, and everything is opened below the layers by descriptor.
"""

import errno
import os
import stat
from collections.abc import Generator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from sandlot.host.kernel import ONE_STEP, open_inside
from sandlot.host.storage.copying import copy_attributes, copy_data

STEP_ENTRIES = 32  # between two steps
_OPAQUE, _REDIRECT, _METACOPY, _ORIGIN, _WHITEOUT = (
    f"trusted.overlay.{name}" for name in ("opaque", "redirect", "metacopy", "origin", "whiteout")
)
_MADE_ANEW = frozenset({_OPAQUE, _REDIRECT})
_OF_A_METACOPY = frozenset({_METACOPY, _REDIRECT, _ORIGIN})
_ITSELF = "/"  # what no redirect is
_CHUNK_BYTES = 3000  # of a path that is opened at once; the kernel takes 4095
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW


class Unmergeable(OSError):
    """The layers hold what no kernel would have left there. They are used one by one, as before."""


@dataclass(frozen=True, slots=True)
class _Place:
    """A directory of one layer: its path there, without a slash at either end."""

    layer: int
    path: str

    def inner(self, name: str) -> "_Place":
        return _Place(self.layer, f"{self.path}/{name}" if self.path else name)


@dataclass(frozen=True, slots=True)
class _Folder:
    """A directory as the group shows it: where it is made, and what it is made of, newest first. `open`: what lies
    below the group shows through."""

    path: str
    places: tuple[_Place, ...]
    open: bool


@dataclass(frozen=True, slots=True)
class _Entry:
    """Something that is no directory, in the newest layer that has it; and the directory where it is to be made."""

    parent: _Folder
    number: int
    name: str
    found: os.stat_result
    here: int
    there: int

    @property
    def path(self) -> str:
        return f"/proc/self/fd/{self.here}/{self.name}"

    @property
    def made(self) -> str:
        return f"/proc/self/fd/{self.there}/{self.name}"


@dataclass(slots=True)
class _Search:
    """One name on its way down. `wanted` is a name in the parent directory, or a path from the top of each layer."""

    wanted: str
    found: list[_Place] = field(default_factory=list[_Place])
    is_folder: bool = False
    is_metacopy: bool = False
    stop: bool = False

    @property
    def is_absolute(self) -> bool:
        return self.wanted.startswith("/")


def merge_layers(layers: Sequence[Path], target: Path) -> Generator[None]:
    """`layers`: newest first. `target`: a directory that is there and empty. Raises OSError, Unmergeable."""
    with ExitStack() as opened:
        roots = [_closed_later(opened, os.open(layer, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)) for layer in layers]
        made = _closed_later(opened, os.open(target, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC))
        yield from _Merge(roots, made).run()


def _closed_later(opened: ExitStack, fd: int) -> int:
    opened.callback(os.close, fd)
    return fd


class _Merge:
    def __init__(self, roots: Sequence[int], made: int) -> None:
        self._roots = roots
        self._made = made
        self._tops = tuple(_Place(layer, "") for layer in range(len(roots)))
        self._copies: dict[tuple[int, str], str] = {}  # by inode and what it is redirected to: where it was made
        self._steps = 0

    def run(self) -> Generator[None]:
        pending = [_Folder("", self._tops, open=True)]
        while pending:
            yield from self._merge_folder(pending.pop(), pending)

    def _merge_folder(self, folder: _Folder, pending: list[_Folder]) -> Generator[None]:
        with ExitStack() as opened:
            there = _closed_later(opened, _open_below(self._made, folder.path, _FOLDER))
            here = [_closed_later(opened, self._open(place, _FOLDER)) for place in folder.places]
            hides = False
            seen: set[str] = set()
            for number, fd in enumerate(here):
                with os.scandir(fd) as entries:
                    for entry in entries:
                        if entry.name in seen:
                            continue
                        seen.add(entry.name)
                        found = entry.stat(follow_symlinks=False)
                        if _is_whiteout(fd, entry.name, found):
                            if folder.open:
                                os.mknod(entry.name, stat.S_IFCHR, 0, dir_fd=there)
                                hides = True
                        elif stat.S_ISDIR(found.st_mode):
                            pending.append(self._make_folder(folder, number, entry.name, there))
                        else:
                            yield from self._make_file(_Entry(folder, number, entry.name, found, fd, there))
                        self._steps += 1
                        if self._steps % STEP_ENTRIES == 0:
                            yield
            # Times last: making entries changed them. What is made inside of its directories does not.
            copy_attributes(here[0], there, os.fstat(here[0]), _MADE_ANEW)
            if hides and _attribute(there, _ORIGIN) is None:
                # Without a word that the directory was copied up the kernel does not look for whiteouts in it.
                os.setxattr(there, _ORIGIN, b"")

    def _make_folder(self, parent: _Folder, number: int, name: str, there: int) -> _Folder:
        search = self._search(parent, number, name)
        shows_below = not search.stop and (search.is_absolute or parent.open)
        os.mkdir(name, 0o700, dir_fd=there)
        path = f"/proc/self/fd/{there}/{name}"
        if shows_below and search.wanted != name:
            os.setxattr(path, _REDIRECT, os.fsencode(search.wanted), follow_symlinks=False)
        if parent.open and not shows_below:
            os.setxattr(path, _OPAQUE, b"y", follow_symlinks=False)
        return _Folder(f"{parent.path}/{name}" if parent.path else name, tuple(search.found), shows_below)

    def _make_file(self, entry: "_Entry") -> Generator[None]:
        if not stat.S_ISREG(entry.found.st_mode) or _attribute(entry.path, _METACOPY) is None:
            yield from self._link(entry)
            return
        search = self._search(entry.parent, entry.number, entry.name)
        is_below = not search.stop and (search.is_absolute or entry.parent.open)
        if search.is_metacopy and not is_below:
            raise Unmergeable(errno.EIO, "the content of a file is missing", entry.name)
        if is_below and search.wanted == os.fsdecode(_attribute(entry.path, _REDIRECT) or os.fsencode(entry.name)):
            yield from self._link(entry)
            return
        redirect = search.wanted if is_below else ""
        if self._linked((entry.found.st_ino, redirect), entry):
            return
        if is_below:
            yield from self._copy(entry, None, frozenset({_REDIRECT}))
            if redirect != entry.name:
                os.setxattr(entry.made, _REDIRECT, os.fsencode(redirect), follow_symlinks=False)
        else:
            yield from self._copy(entry, search.found[-1], _OF_A_METACOPY)
        self._copies[entry.found.st_ino, redirect] = f"{entry.parent.path}/{entry.name}"

    def _copy(self, entry: "_Entry", data: _Place | None, without: frozenset[str]) -> Generator[None]:
        """A file with the attributes of one and the content of another, or without content: that is found below."""
        with ExitStack() as opened:
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
            target = _closed_later(opened, os.open(entry.name, flags, 0o600, dir_fd=entry.there))
            os.ftruncate(target, entry.found.st_size)
            if data is not None:
                source = _closed_later(opened, self._open(data, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK))
                yield from copy_data(source, target, entry.found.st_size)
            copy_attributes(entry.path, target, entry.found, without)

    def _link(self, entry: "_Entry") -> Generator[None]:
        """One more name for a file. A file can have only so many; then a copy takes its place."""
        key = (entry.found.st_ino, _ITSELF)
        if self._linked(key, entry):
            return
        name = entry.name
        try:
            os.link(name, name, src_dir_fd=entry.here, dst_dir_fd=entry.there, follow_symlinks=False)
        except OSError as error:
            if error.errno != errno.EMLINK or not stat.S_ISREG(entry.found.st_mode):
                raise
            yield from self._copy(entry, entry.parent.places[entry.number].inner(name), frozenset())
            self._copies[key] = f"{entry.parent.path}/{name}"

    def _linked(self, key: tuple[int, str], entry: "_Entry") -> bool:
        """Whether what was made for another name of the same file has got this name too."""
        known = self._copies.get(key)
        if known is None:
            return False
        folder, _slash, first = known.rpartition("/")
        source = _open_below(self._made, folder, _FOLDER)
        try:
            os.link(first, entry.name, src_dir_fd=source, dst_dir_fd=entry.there, follow_symlinks=False)
        except OSError as error:
            if error.errno != errno.EMLINK:
                raise
            return False
        finally:
            os.close(source)
        return True

    # ---- looking a name up, as the kernel does ----------------------------------------------------------------

    def _search(self, parent: _Folder, number: int, name: str) -> _Search:
        """From the layer on where the name was found first. What is at its end: where it stopped, or what is wanted of
        the layers below the group."""
        search = _Search(name)
        places, at = parent.places, number
        while not search.stop and at < len(places):
            place = places[at]
            found = self._step(place, search)
            if found is not None:
                search.found.append(found)
                if search.is_absolute and places is not self._tops:
                    places, at = self._tops, place.layer
            at += 1
        return search

    def _step(self, place: _Place, search: _Search) -> _Place | None:
        """In one layer. A path goes down name by name, and each may be redirected for the layers below."""
        if not search.is_absolute:
            return self._look(place, search, search.wanted, "", "")
        names = search.wanted[1:].split("/")
        at: _Place | None = _Place(place.layer, "")
        for number, name in enumerate(names):
            rest = "".join(f"/{below}" for below in names[number + 1 :])
            before = search.wanted[: len(search.wanted) - len(name) - len(rest)]
            at = self._look(at, search, name, before, rest)
            if at is None:
                return None
        return at

    def _look(self, folder: _Place, search: _Search, name: str, before: str, rest: str) -> _Place | None:
        place = folder.inner(name)
        try:
            fd = self._open(place, os.O_PATH | os.O_NOFOLLOW)
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG):
                return None
            raise
        try:
            return place if self._judge(fd, search, before, rest) else None
        finally:
            os.close(fd)

    def _judge(self, fd: int, search: _Search, before: str, rest: str) -> bool:
        found, path = os.fstat(fd), f"/proc/self/fd/{fd}"
        is_folder, is_last = stat.S_ISDIR(found.st_mode), not rest
        wrong_kind = is_last and search.is_metacopy and not stat.S_ISREG(found.st_mode)
        if _is_mark(path, found) or wrong_kind or (not is_folder and (search.is_folder or not is_last)):
            search.stop = True
            return False
        if is_folder:
            search.is_folder |= is_last
            if _attribute(path, _OPAQUE) == b"y":
                search.stop = True
                return True
        else:
            search.is_metacopy = stat.S_ISREG(found.st_mode) and _attribute(path, _METACOPY) is not None
            search.stop = not search.is_metacopy
            if search.stop:
                return True
        if redirect := os.fsdecode(_attribute(path, _REDIRECT) or b""):
            if redirect.startswith("/"):
                search.stop = False  # an opaque directory on the way does not matter for what comes from elsewhere
                search.wanted = redirect + rest
            elif "/" in redirect:
                raise Unmergeable(errno.EINVAL, "a redirect is neither a name nor a path", redirect)
            else:
                search.wanted = before + redirect + rest
        return True

    def _open(self, place: _Place, flags: int) -> int:
        return _open_below(self._roots[place.layer], place.path, flags)


def _open_below(root: int, path: str, flags: int) -> int:
    """Of any length: it is walked in pieces that the kernel takes."""
    if len(path) * 4 < _CHUNK_BYTES:
        return open_inside(root, path or ".", flags, ONE_STEP)
    names = path.split("/")
    with ExitStack() as opened:
        at = root
        while True:
            taken, size = 0, 0
            while taken < len(names) and size + len(os.fsencode(names[taken])) < _CHUNK_BYTES:
                size += len(os.fsencode(names[taken])) + 1
                taken += 1
            piece, names = "/".join(names[:taken]), names[taken:]
            if not names:
                return open_inside(at, piece, flags, ONE_STEP)
            at = _closed_later(opened, open_inside(at, piece, os.O_PATH | os.O_DIRECTORY, ONE_STEP))


def _is_whiteout(folder: int, name: str, found: os.stat_result) -> bool:
    return _is_mark(f"/proc/self/fd/{folder}/{name}", found)


def _is_mark(path: str, found: os.stat_result) -> bool:
    if stat.S_ISCHR(found.st_mode):
        return found.st_rdev == 0
    return stat.S_ISREG(found.st_mode) and found.st_size == 0 and _attribute(path, _WHITEOUT) is not None


def _attribute(path: str | int, name: str) -> bytes | None:
    try:
        return os.getxattr(path, name)
    except OSError as error:
        if error.errno not in (errno.ENODATA, errno.EOPNOTSUPP):
            raise
        return None
