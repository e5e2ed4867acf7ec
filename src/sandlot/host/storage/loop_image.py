"""A filesystem in a file: the file is made once, and mounted through a loop device that ends with its mount. Blocking;
everything raises OSError."""

import errno
import os
import subprocess
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from sandlot.host.kernel import mount_device, unmount
from sandlot.host.storage.loop_device import attach, find_device, tell_size

_MAKE_S = 60.0
_MIB = 1 << 20
# mkfs looks at the file behind every mounted loop device, and one that hangs would stop it.
_WITHOUT_LOOPS = """
while read -r device point _rest; do
    case $device in /dev/loop*) umount -l -c "$point" || true ;; esac
done < /proc/self/mounts
exec "$@"
"""


def make_image(image: Path, size: int, program: tuple[str, ...]) -> None:
    """A sparse file with a filesystem that the program makes in it. It has its name when it is whole."""
    fresh = image.with_name(image.name + ".new")
    fresh.unlink(missing_ok=True)
    fd = os.open(fresh, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        os.ftruncate(fd, size // _MIB * _MIB)
        words = ("unshare", "--mount", "--propagation", "private", "sh", "-c", _WITHOUT_LOOPS, "sh", *program)
        _run((*words, fresh.name), image.parent)
        os.fsync(fd)
        fresh.rename(image)
    except BaseException:  # undone, then raised again
        fresh.unlink(missing_ok=True)
        raise
    finally:
        os.close(fd)


def _run(words: tuple[str, ...], folder: Path) -> None:
    try:
        done = subprocess.run(
            words, cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, timeout=_MAKE_S, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise OSError(errno.ETIMEDOUT, f"making a filesystem took longer than {_MAKE_S:g} s") from error
    if done.returncode:
        told = done.stderr.decode(errors="replace").strip().splitlines()
        raise OSError(errno.EIO, f"a filesystem could not be made: {told[-1] if told else done.returncode}")


def mount_image(image: Path, point: Path, kind: str, options: str) -> None:
    """Where another mount has it already, that one's device is used."""
    point.mkdir(mode=0o700, parents=True, exist_ok=True)
    with _device(image) as device:
        mount_device(device, point, kind, options)


def unmount_image(point: Path) -> None:
    """EBUSY: someone uses it. The device is gone when nobody does."""
    unmount(str(point), lazy=False)


def grow_image(image: Path, size: int) -> None:
    """Only to more. A device that shows it is told."""
    with image.open("r+b") as file:
        if size > os.fstat(file.fileno()).st_size:
            os.ftruncate(file.fileno(), size // _MIB * _MIB)
    if (device := find_device(image)) is not None:
        tell_size(device)


@contextmanager
def _device(image: Path) -> Generator[str]:
    """Held open meanwhile: without a mount it goes as soon as nobody has it open."""
    if (known := find_device(image)) is not None:
        fd = os.open(known, os.O_RDONLY | os.O_CLOEXEC)
        try:
            yield known
        finally:
            os.close(fd)
        return
    fd, device = attach(image, direct=True)
    try:
        yield device
    finally:
        os.close(fd)
