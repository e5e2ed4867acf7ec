"""Where the datasets and images of the storage `zfs` are mounted. Blocking, but for `in_time`; everything else raises
OSError.

A dataset of zfs-fuse must not be unmounted before its daemon has heard that the last file in it was closed: it would
wait for that for ever, and nobody would be served meanwhile. The kernel tells how many requests are not answered yet.
"""

import asyncio
import ctypes
import errno
import os
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from sandlot.host.storage import zfs_images as images
from sandlot.model import DeadlineExceeded, LimitReached, SandlotError, Unavailable

_MNT_EXPIRE, _NOFOLLOW = 4, 8
_FSOPEN, _FSCONFIG, _FSMOUNT, _CREATE = 430, 431, 432, 6
_OTHERS = frozenset({"btrfs"})
_PAUSE_S, _PAUSE_MAX_S = 0.005, 0.2
_CLOSE_S = 5.0
_PATIENCE_S = 20.0  # for a filesystem to answer
_Result = TypeVar("_Result")


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

    def used(self, name: str) -> int:
        """Bytes that its files take now."""
        if not self.is_mounted(self.point(name)):
            raise FileNotFoundError(errno.ENOENT, "it is not mounted", name)
        told = os.statvfs(self.point(name))
        return (told.f_blocks - told.f_bfree) * told.f_frsize

    def close(self, name: str, patience_s: float = _CLOSE_S) -> bool:
        """Both mounts. False: someone still uses files of the image, who may do so until he ends."""
        self.close_image(name)
        return self.close_dataset(name, patience_s)

    def close_image(self, name: str) -> None:
        """Out of sight; it ends when nobody uses it any more."""
        point = self.point(name)
        if self.is_mounted(point):
            with suppress(OSError):
                images.thaw(point)
            images.unmount(point)
        images.remove_point(point)

    def close_dataset(self, name: str, patience_s: float = _CLOSE_S) -> bool:
        path = self.dataset(name)
        number = self.found().get(str(path))
        if number is not None and not _unmount_answered(path, number, patience_s):
            return False
        images.remove_point(path)
        return True

    def drop_all(self) -> None:
        """After the daemon that served them died."""
        for path in sorted(self.found(), reverse=True):
            images.unmount(Path(path))

    def drop(self, name: str) -> None:
        """Mounts that are dead: whatever they were, it does not come back."""
        for path in (self.point(name), self.dataset(name)):
            while self.is_mounted(path):
                images.unmount(path)


def _unmount_answered(path: Path, number: str, patience_s: float) -> bool:
    """Not before it is unused and all that was asked of it is answered. False: it is in use for longer than that."""
    begun = time.monotonic()
    pause_s = _PAUSE_S
    libc = ctypes.CDLL(None, use_errno=True)
    control = _open_connections(libc)
    try:
        while True:
            # The first time it only says whether it is unused; the second time in a row it unmounts.
            if libc.umount2(os.fsencode(path), _MNT_EXPIRE | _NOFOLLOW) == 0:
                return True
            code = ctypes.get_errno()
            if code == errno.EINVAL:
                return True  # it is gone
            if code == errno.EAGAIN:
                _wait_answered(control, number, begun + _CLOSE_S)
            elif code != errno.EBUSY:
                raise OSError(code, os.strerror(code), str(path))
            elif time.monotonic() - begun > patience_s:
                return False
            else:
                time.sleep(pause_s)
                pause_s = min(2 * pause_s, _PAUSE_MAX_S)
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


async def in_time(work: Callable[[], _Result]) -> _Result:
    """In a thread, with a deadline: a filesystem whose daemon hangs answers nobody. Raises DeadlineExceeded,
    LimitReached, Unavailable."""
    try:
        async with asyncio.timeout(_PATIENCE_S):
            return await asyncio.to_thread(work)
    except TimeoutError:
        raise DeadlineExceeded(
            f"the files of the pool do not answer within {_PATIENCE_S:g} s", next_step="run `sandlot doctor`"
        ) from None
    except OSError as error:
        if isinstance(error, SandlotError):
            raise
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise LimitReached("the pool is full", next_step="free space", limit="disk") from error
        raise Unavailable(f"files of the pool: {error.strerror or error}") from error
