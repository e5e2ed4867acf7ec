"""Repeat a directory tree by hard links, so that a template of many gigabytes costs no data and a few seconds.

Where hard links are impossible (another filesystem, another btrfs subvolume) files are cloned, and where that is
impossible too they are copied. What not everyone may read is left out: a session must not see it.
"""

import errno
import fcntl
import os
import shutil
import stat
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Final, Literal, TypeAlias

How: TypeAlias = Literal["hardlink", "reflink", "copy"]

_FICLONE: Final = 0x40049409  # _IOW(0x94, 9, int), linux/fs.h
_WORLD_READ: Final = stat.S_IROTH
_WORLD_ENTER: Final = stat.S_IROTH | stat.S_IXOTH
_PROGRESS_EVERY: Final = 2048
_OPEN_DIR: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_OPEN_FILE: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC
_NO_LINK: Final = frozenset({errno.EXDEV, errno.EPERM, errno.EMLINK, errno.EOPNOTSUPP})
_NO_CLONE: Final = frozenset({errno.EXDEV, errno.EOPNOTSUPP, errno.EINVAL, errno.ENOTTY, errno.ENOSYS, errno.EPERM})
_PRIVATE_PLACES: Final = ("/home/", "/root/")


def leads_home(target: str) -> bool:
    """Whether a link's target is in somebody's home, whose name alone is nobody else's business."""
    return f"{target}/".startswith(_PRIVATE_PLACES)


class LinkFarm:
    """Plants trees of the machine into a template and counts what it made and what it left out, by reason."""

    def __init__(
        self,
        refused_paths: frozenset[str] = frozenset(),
        refused_names: frozenset[str] = frozenset(),
        progress: Callable[[int], None] | None = None,
    ) -> None:
        self.how: How = "hardlink"
        self.entries = 0
        self.left_out: Counter[str] = Counter()
        self._refused_paths = refused_paths
        self._refused_names = refused_names
        self._progress = progress
        self._reported = 0
        self._linked = False
        self._copied: dict[tuple[int, int], Path] = {}

    def plant(self, source: Path, target: Path, name: str) -> None:
        """Repeat directory `source` at `target`, which must not exist; `name` is its path for the refused paths.

        The directory itself is always made, whoever may read it.
        """
        source_fd = os.open(source, _OPEN_DIR)
        try:
            self._directory(source_fd, os.fstat(source_fd), target, name)
        finally:
            os.close(source_fd)

    def _directory(self, source_fd: int, status: os.stat_result, target: Path, name: str) -> None:
        os.mkdir(target, 0o700)
        target_fd = os.open(target, _OPEN_DIR)
        try:
            with os.scandir(source_fd) as listing:
                entries = list(listing)
            for entry in entries:
                self._entry(entry, source_fd, target_fd, target, name)
            if status.st_uid or status.st_gid:
                os.fchown(target_fd, status.st_uid, status.st_gid)
            os.fchmod(target_fd, stat.S_IMODE(status.st_mode))
            os.utime(target_fd, ns=(status.st_mtime_ns, status.st_mtime_ns))
        finally:
            os.close(target_fd)
        self._made(1)

    def _entry(self, entry: os.DirEntry[str], source_fd: int, target_fd: int, target: Path, name: str) -> None:
        if entry.name in self._refused_names:
            self.left_out["by name"] += 1
            return
        try:
            if entry.is_dir(follow_symlinks=False):
                self._subdirectory(entry.name, source_fd, target, f"{name}/{entry.name}")
                return
            status = entry.stat(follow_symlinks=False)
            if stat.S_ISREG(status.st_mode):
                if not status.st_mode & _WORLD_READ:
                    self.left_out["not world-readable"] += 1
                    return
            elif not stat.S_ISLNK(status.st_mode):
                self.left_out["special file"] += 1
                return
            elif leads_home(os.readlink(entry.name, dir_fd=source_fd)):
                self.left_out["link into a home"] += 1
                return
            self._place(entry.name, status, source_fd, target_fd, target)
            self._made(1)
        except FileNotFoundError:
            self.left_out["vanished"] += 1

    def _subdirectory(self, child: str, source_fd: int, target: Path, name: str) -> None:
        if name in self._refused_paths:
            self.left_out["by path"] += 1
            return
        child_fd = os.open(child, _OPEN_DIR, dir_fd=source_fd)
        try:
            status = os.fstat(child_fd)
            if status.st_mode & _WORLD_ENTER == _WORLD_ENTER:
                self._directory(child_fd, status, target / child, name)
            else:
                self.left_out["not world-readable"] += 1
        finally:
            os.close(child_fd)

    def _place(self, name: str, status: os.stat_result, source_fd: int, target_fd: int, target: Path) -> None:
        if self.how == "hardlink":
            try:
                # A symbolic link is linked too: the same inode under a second name, owner and time included.
                os.link(name, name, src_dir_fd=source_fd, dst_dir_fd=target_fd, follow_symlinks=False)
                self._linked = True
                return
            except OSError as error:
                if error.errno not in _NO_LINK:
                    raise
                if not self._linked:
                    self.how = "reflink"
        if stat.S_ISLNK(status.st_mode):
            os.symlink(os.readlink(name, dir_fd=source_fd), name, dir_fd=target_fd)
            os.chown(name, status.st_uid, status.st_gid, dir_fd=target_fd, follow_symlinks=False)
            return
        twin = self._copied.get((status.st_dev, status.st_ino))
        if twin is not None:
            os.link(twin, name, dst_dir_fd=target_fd, follow_symlinks=False)
            return
        self._copy(name, status, source_fd, target_fd)
        if status.st_nlink > 1:
            self._copied[status.st_dev, status.st_ino] = target / name

    def _copy(self, name: str, status: os.stat_result, source_fd: int, target_fd: int) -> None:
        source = os.open(name, _OPEN_FILE, dir_fd=source_fd)
        try:
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
            sink = os.open(name, flags, 0o600, dir_fd=target_fd)
            try:
                self._fill(source, sink)
                # The owner first: changing it clears setuid bits and capabilities.
                os.fchown(sink, status.st_uid, status.st_gid)
                os.fchmod(sink, stat.S_IMODE(status.st_mode))
                if "security.capability" in os.listxattr(source):
                    os.setxattr(sink, "security.capability", os.getxattr(source, "security.capability"))
                os.utime(sink, ns=(status.st_mtime_ns, status.st_mtime_ns))
            finally:
                os.close(sink)
        finally:
            os.close(source)

    def _fill(self, source: int, sink: int) -> None:
        if self.how != "copy":
            try:
                fcntl.ioctl(sink, _FICLONE, source)
                return
            except OSError as error:
                if error.errno not in _NO_CLONE:
                    raise
                if self.how == "reflink":
                    self.how = "copy"
        with os.fdopen(source, "rb", closefd=False) as reader, os.fdopen(sink, "wb", closefd=False) as writer:
            shutil.copyfileobj(reader, writer, 1 << 20)

    def _made(self, count: int) -> None:
        self.entries += count
        if self._progress is not None and self.entries - self._reported >= _PROGRESS_EVERY:
            self._reported = self.entries
            self._progress(self.entries)
