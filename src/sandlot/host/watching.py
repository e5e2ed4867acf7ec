"""What is watched in a session's files, and what is told of it: from notices of the kernel to events.

Blocking, in a thread that acts as the user; nothing here waits."""

import errno
import os
import posixpath
from collections.abc import Generator, Iterable

from sandlot.host import inotify
from sandlot.host.asides import HIDDEN_PREFIX
from sandlot.host.inotify import Inotify, Notice
from sandlot.host.inside import Inside
from sandlot.host.kernel import ONE_STEP, open_inside
from sandlot.model import FileEventKind, LimitReached, limits

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NONBLOCK
_STEP_DIRECTORIES = 250
# A directory that is closed to the user, or gone, or another thing by now: nothing is told of what is in it.
_NOT_ENTERED = {
    *(errno.EACCES, errno.EPERM, errno.EXDEV, errno.ENAMETOOLONG, errno.ENOENT, errno.ESTALE, errno.ENOTDIR),
    errno.ELOOP,
}

Change = tuple[FileEventKind, str, str, bool]  # of what kind, where, where it was before, whether it is a directory


class Watching:
    """One directory and, when asked for, all below it. Paths are those below it; its own is empty."""

    def __init__(self, inside: Inside, path: str, *, recursive: bool) -> None:
        self._recursive = recursive
        self._paths: dict[int, str] = {}
        self._watches: dict[str, int] = {}
        self._leaving: tuple[int, str, bool] | None = None  # the first half of a move: its cookie, and where it was
        self.notices = Inotify()
        try:
            self._top = inside.open(path, _DIRECTORY)
        except BaseException:  # whoever cannot have it cannot close it
            self.notices.close()
            raise

    def close(self) -> None:
        self.notices.close()
        if self._top >= 0:
            os.close(self._top)
        self._top = -1

    def begin(self) -> Generator[None]:
        """Watch what is there. Pauses after every few directories."""
        for _found in self._enter(""):
            yield

    def take(self, notices: Iterable[Notice]) -> list[Change]:
        """What they mean. The same twice in a row is told once."""
        found: dict[Change, None] = {}
        for notice in notices:
            for change in self._meaning(notice):
                # Something that is there again is told again, behind what happened meanwhile.
                if change[0] not in (FileEventKind.CHANGED, FileEventKind.ATTRIBUTES):
                    found.pop(change, None)
                found.setdefault(change)
        return list(found)

    @property
    def is_leaving(self) -> bool:
        """The first half of a move has come, and not yet the second."""
        return self._leaving is not None

    def settle(self) -> list[Change]:
        """The first half of a move whose second half did not come: it left the directory."""
        return self._left()

    def _left(self) -> list[Change]:
        if self._leaving is None:
            return []
        _cookie, path, is_directory = self._leaving
        self._leaving = None
        if is_directory:
            self._forget(path)
        return [] if _is_ours(path) else [(FileEventKind.REMOVED, path, "", is_directory)]

    def _meaning(self, notice: Notice) -> list[Change]:
        mask, is_directory = notice.mask, bool(notice.mask & inotify.IS_DIRECTORY)
        if mask & (inotify.OVERFLOW | inotify.UNMOUNT):
            return [(FileEventKind.OVERFLOW, "", "", False)]
        if mask & inotify.IGNORED:
            gone = self._paths.pop(notice.watch, None)
            if gone is not None and self._watches.get(gone) == notice.watch:
                del self._watches[gone]
            return [(FileEventKind.REMOVED, "", "", True)] if gone == "" else []
        folder = self._paths.get(notice.watch)
        if folder is None:
            return []
        path = posixpath.join(folder, notice.name)
        before = self._left() if self._leaving and self._leaving[0] != notice.cookie else []
        if mask & inotify.MOVED_FROM:
            self._leaving = (notice.cookie, path, is_directory)
            return before
        if mask & inotify.MOVED_TO:
            return before + self._arrived(path, is_directory=is_directory)
        kind = _KINDS.get(
            mask & inotify.MODIFY or mask & inotify.ATTRIB or mask & inotify.CREATE or mask & inotify.DELETE
        )
        if kind is None or _is_ours(path) or self._is_nameless(kind, path, notice.name):
            return before
        more = self._below(path) if kind is FileEventKind.CREATED and is_directory else []
        if kind is FileEventKind.ATTRIBUTES and not notice.name and folder:
            return before  # the directory above tells of it too
        return [*before, (kind, path, "", is_directory), *more]

    def _is_nameless(self, kind: FileEventKind, path: str, name: str) -> bool:
        """The kernel tells of files without a name under their number."""
        if kind in (FileEventKind.CREATED, FileEventKind.REMOVED) or name[:1] != "#" or not name[1:].isdecimal():
            return False
        try:
            os.close(open_inside(self._top, path, os.O_PATH | os.O_NOFOLLOW, ONE_STEP))
        except OSError:
            return True
        return False

    def _arrived(self, path: str, *, is_directory: bool) -> list[Change]:
        leaving, self._leaving = self._leaving, None
        if leaving is None:
            more = self._below(path) if is_directory else []
            return [(FileEventKind.CREATED, path, "", is_directory), *more]
        old = leaving[1]
        if _is_ours(old):  # content that was put in its place
            return [(FileEventKind.CHANGED, path, "", False)]
        if is_directory:
            self._move(old, path)
        return [(FileEventKind.RENAMED, path, old, is_directory)]

    def _below(self, path: str) -> list[Change]:
        """A directory that is new: what came into it before it was watched."""
        if not self._recursive:
            return []
        return [change for found in self._enter(path) for change in found]

    def _enter(self, first: str) -> Generator[list[Change]]:
        pending, entered = [first], 0
        found: list[Change] = []
        while pending:
            below = pending.pop()
            try:
                fd = open_inside(self._top, below or ".", _DIRECTORY, ONE_STEP)
            except OSError as error:
                if not below or error.errno not in _NOT_ENTERED:
                    raise
                continue
            try:
                self._watch(fd, below)
                if self._recursive or below != first:
                    with os.scandir(fd) as entries:
                        for entry in entries:
                            path = posixpath.join(below, entry.name)
                            is_directory = entry.is_dir(follow_symlinks=False)
                            found += [] if _is_ours(path) else [(FileEventKind.CREATED, path, "", is_directory)]
                            pending += [path] if is_directory and self._recursive else []
            finally:
                os.close(fd)
            entered += 1
            if entered % _STEP_DIRECTORIES == 0:
                yield found
                found = []
        yield found

    def _watch(self, fd: int, below: str) -> None:
        if len(self._paths) >= limits.WATCH_DIRECTORIES_MAX:
            raise LimitReached(
                f"more than {limits.WATCH_DIRECTORIES_MAX} directories",
                next_step="watch fewer of them",
                limit="watch_directories",
            )
        try:
            watch = self.notices.watch(fd)
        except OSError as error:
            if error.errno == errno.ENOSPC:
                raise LimitReached(
                    "the machine gives no more watches",
                    next_step="watch fewer directories, or raise fs.inotify.max_user_watches",
                    limit="max_user_watches",
                ) from None
            raise
        self._paths[watch] = below
        self._watches[below] = watch

    def _under(self, path: str) -> list[str]:
        return [known for known in self._watches if known == path or known.startswith(path + "/")]

    def _forget(self, path: str) -> None:
        for known in self._under(path):
            watch = self._watches.pop(known)
            self._paths.pop(watch, None)
            self.notices.forget(watch)

    def _move(self, old: str, new: str) -> None:
        for known in self._under(old):
            watch = self._watches.pop(known)
            self._paths[watch] = new + known[len(old) :]
            self._watches[self._paths[watch]] = watch


_KINDS = {
    inotify.MODIFY: FileEventKind.CHANGED,
    inotify.ATTRIB: FileEventKind.ATTRIBUTES,
    inotify.CREATE: FileEventKind.CREATED,
    inotify.DELETE: FileEventKind.REMOVED,
}


def _is_ours(path: str) -> bool:
    """A file of the host's own that is not in its place yet."""
    return posixpath.basename(path).startswith(HIDDEN_PREFIX)
