"""Whole trees removed, however deep and however wide. Blocking, by descriptor; nothing is followed.

One directory is open at a time. The way up is `..`, proven by its inode; names that are still to be entered are
remembered up to a bound, and looked for again beyond it.
"""

import errno
import itertools
import os
import stat
from collections.abc import Generator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from sandlot.host.kernel import ONE_STEP, open_inside

BATCH_ENTRIES = 1000
_REMEMBERED_MAX = 100_000  # names of directories that are still to be removed


class Moved(OSError):
    """A directory was moved away while it was being removed."""


def remove_tree(path: Path) -> None:
    """Of ours, not of a session: what its modes forbid is allowed first. Raises OSError."""
    above = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        if not stat.S_ISDIR(os.stat(path.name, dir_fd=above, follow_symlinks=False).st_mode):
            os.unlink(path.name, dir_fd=above)
            return
        for _pause in empty(above, path.name, ours=os.geteuid() != 0):
            pass
        os.rmdir(path.name, dir_fd=above)
    finally:
        os.close(above)


@dataclass(slots=True)
class _Level:
    """A directory that is being emptied: what is still to be entered in it, and whether all of it was seen."""

    below: list[str]
    seen: bool
    entered: str = ""
    device: int = 0
    inode: int = 0


def empty(above: int, name: str, *, ours: bool = False, shorten: bool = False) -> Generator[None]:
    """Remove all that is in a directory, and leave it. `ours`: all of it is ours, whatever its modes say; `shorten`:
    files that someone has open hold nothing any more."""
    here = _enter(above, name, ours=ours)
    pace = itertools.count(1)
    levels: list[_Level] = []
    remembered = 0
    try:
        levels.append((yield from _clear(here, _REMEMBERED_MAX, pace, shorten)))
        remembered = len(levels[0].below)
        while True:
            level = levels[-1]
            if level.below:
                level.entered = level.below.pop()
                remembered -= 1
                own = os.fstat(here)
                level.device, level.inode = own.st_dev, own.st_ino
                try:
                    inner = _enter(here, level.entered, ours=ours)
                except FileNotFoundError:
                    continue
                os.close(here)
                here = inner
                levels.append((yield from _clear(here, _REMEMBERED_MAX - remembered, pace, shorten)))
                remembered += len(levels[-1].below)
            elif not level.seen:
                levels[-1] = yield from _clear(here, _REMEMBERED_MAX - remembered, pace, shorten)
                remembered += len(levels[-1].below)
            elif len(levels) > 1:
                levels.pop()
                up = _open_above(here, levels[-1])
                os.close(here)
                here = up
                with suppress(FileNotFoundError):
                    os.rmdir(levels[-1].entered, dir_fd=here)
            else:
                return
    finally:
        os.close(here)


def _clear(here: int, room: int, pace: "itertools.count[int]", shorten: bool) -> Generator[None, None, _Level]:
    """Remove the files of a directory; tell of the directories in it, of as many as there is room for, and of one."""
    below: list[str] = []
    with os.scandir(here) as entries:
        for entry in entries:
            if next(pace) % BATCH_ENTRIES == 0:
                yield
            if not entry.is_dir(follow_symlinks=False):
                with suppress(FileNotFoundError):
                    if shorten:
                        _shorten(here, entry.name)
                    os.unlink(entry.name, dir_fd=here)
            elif len(below) < max(room, 1):
                below.append(entry.name)
            else:
                return _Level(below, seen=False)
    return _Level(below, seen=True)


def _shorten(here: int, name: str) -> None:
    found = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=here)
    try:
        if stat.S_ISREG(os.fstat(found).st_mode):
            os.truncate(f"/proc/self/fd/{found}", 0)
    finally:
        os.close(found)


def _open_above(here: int, level: _Level) -> int:
    up = os.open("..", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=here)
    found = os.fstat(up)
    if (found.st_dev, found.st_ino) != (level.device, level.inode):
        os.close(up)
        raise Moved(errno.EBUSY, "was moved while it was being removed", level.entered)
    return up


def _enter(above: int, name: str, *, ours: bool) -> int:
    if ours:
        # Someone who is not root cannot enter a directory whose mode forbids it, even his own.
        found = open_inside(above, name, os.O_PATH | os.O_DIRECTORY, ONE_STEP)
        try:
            os.chmod(f"/proc/self/fd/{found}", 0o700)
        finally:
            os.close(found)
    return open_inside(above, name, os.O_RDONLY | os.O_DIRECTORY, ONE_STEP)
