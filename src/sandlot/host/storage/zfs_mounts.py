"""Where the datasets and images of the storage `zfs` are mounted. Blocking; everything raises OSError.

A dataset of zfs-fuse must not be unmounted before its daemon has heard that the last file in it was closed: it would
wait for that for ever, and nobody would be served meanwhile. The kernel tells how many requests are not answered yet.
"""

import ctypes
import errno
import os
import time
from contextlib import suppress
from pathlib import Path

from sandlot.host.storage import zfs_images as images

_MNT_EXPIRE, _NOFOLLOW = 4, 8
_FSOPEN, _FSCONFIG, _FSMOUNT, _CREATE = 430, 431, 432, 6
_OTHERS = frozenset({"btrfs"})
_PAUSE_S = 0.005
_CLOSE_S = 5.0


class Mounts:
    """`<folder>/images/<id>` is a dataset, `<folder>/<id>` the image in it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.datasets = folder / "images"

    def prepare(self) -> None:
        for path in (self.folder, self.datasets):
            path.mkdir(mode=0o700, exist_ok=True)

    def point(self, name: str) -> Path:
        return self.folder / name

    def dataset(self, name: str) -> Path:
        return self.datasets / name

    def volume(self, name: str) -> Path:
        return self.folder / name / "files" / "v"

    def found(self) -> dict[str, str]:
        """Mount points of ours, and the numbers of their filesystems. The folder is shared with other storages."""
        below = images.mounts_below(self.folder)
        return {path: number for path, number in below.items() if not self._is_of_others(path)}

    def _is_of_others(self, path: str) -> bool:
        return Path(path).relative_to(self.folder).parts[0] in _OTHERS

    def is_mounted(self, path: Path) -> bool:
        return str(path) in self.found()

    def is_alive(self, name: str) -> bool:
        """Whether its files can be read. Hangs where the daemon does."""
        try:
            os.listdir(self.volume(name) / "w")
            os.statvfs(self.point(name))
        except OSError:
            return False
        return True

    def has_image(self, name: str) -> bool:
        return (self.dataset(name) / images.IMAGE).is_file()

    def open(self, name: str, *, read_only: bool = False) -> None:
        images.mount_image(self.dataset(name) / images.IMAGE, self.point(name), read_only=read_only)

    def close(self, name: str) -> None:
        """Both mounts; what still uses the files of the image uses them until it ends. EBUSY: it has not ended yet."""
        point = self.point(name)
        if str(point) in self.found():
            with suppress(OSError):
                images.thaw(point)
            images.unmount(point)
        images.remove_point(point)
        self.close_dataset(name)

    def close_dataset(self, name: str) -> None:
        path = self.dataset(name)
        number = self.found().get(str(path))
        if number is not None:
            _unmount_answered(path, number)
        images.remove_point(path)

    def drop_all(self) -> None:
        """After the daemon that served them died."""
        for path in sorted(self.found(), reverse=True):
            images.unmount(Path(path))

    def drop(self, name: str) -> None:
        """Mounts that are dead: whatever they were, it does not come back."""
        for path in (self.point(name), self.dataset(name)):
            while self.is_mounted(path):
                images.unmount(path)


def _unmount_answered(path: Path, number: str) -> None:
    """Not before it is unused and all that was asked of it is answered."""
    deadline = time.monotonic() + _CLOSE_S
    libc = ctypes.CDLL(None, use_errno=True)
    control = _open_connections(libc)
    try:
        while True:
            # The first time it only says whether it is unused; the second time in a row it unmounts.
            if libc.umount2(os.fsencode(path), _MNT_EXPIRE | _NOFOLLOW) == 0:
                return
            code = ctypes.get_errno()
            if code == errno.EINVAL:
                return  # it is gone
            if code == errno.EAGAIN:
                _wait_answered(control, number, deadline)
            elif code != errno.EBUSY or time.monotonic() > deadline:
                raise OSError(code, os.strerror(code), str(path))
            else:
                time.sleep(_PAUSE_S)
    finally:
        if control is not None:
            os.close(control)


def _wait_answered(control: int | None, number: str, deadline: float) -> None:
    if control is None:
        return
    while True:
        try:
            fd = os.open(f"{number.partition(':')[2]}/waiting", os.O_RDONLY | os.O_CLOEXEC, dir_fd=control)
        except FileNotFoundError:
            return  # not a filesystem of fuse
        try:
            if int(os.read(fd, 32)) == 0:
                return
        finally:
            os.close(fd)
        if time.monotonic() > deadline:
            raise TimeoutError(errno.ETIMEDOUT, "the daemon does not answer")
        time.sleep(_PAUSE_S)


def _open_connections(libc: ctypes.CDLL) -> int | None:
    """The kernel's list of them, mounted nowhere."""
    context = libc.syscall(_FSOPEN, b"fusectl", 1)
    if context < 0:
        return None
    try:
        if libc.syscall(_FSCONFIG, context, _CREATE, None, None, 0) < 0:
            return None
        fd = libc.syscall(_FSMOUNT, context, 1, 0)
        return fd if fd >= 0 else None
    finally:
        os.close(context)
