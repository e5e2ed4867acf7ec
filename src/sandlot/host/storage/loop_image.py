"""A filesystem in a file: the file is made once, and mounted through a loop device that ends with its mount. Blocking;
everything raises OSError."""

import ctypes
import errno
import fcntl
import os
import struct
import subprocess
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path

from sandlot.host.kernel import mount_device, unmount

_SET_CAPACITY, _GET_STATUS, _CONFIGURE, _GET_FREE = 0x4C07, 0x4C05, 0x4C0A, 0x4C82
_AUTOCLEAR = 4
_STATUS = struct.Struct("=QQQQQIIII64s64s32s2Q")
_CONFIG_BYTES = 4 + 4 + _STATUS.size + 64
_ATTEMPTS = 64
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
        fd = os.open(device, os.O_RDONLY | os.O_CLOEXEC)
        try:
            fcntl.ioctl(fd, _SET_CAPACITY)
        finally:
            os.close(fd)


def find_device(image: Path) -> str | None:
    """The loop device that shows a file."""
    wanted = image.stat()
    for folder in sorted(Path("/sys/block").glob("loop*/loop")):
        device = f"/dev/{folder.parent.name}"
        with suppress(OSError):
            fd = os.open(device, os.O_RDONLY | os.O_CLOEXEC)
            try:
                status = bytearray(_STATUS.size)
                fcntl.ioctl(fd, _GET_STATUS, status)
            finally:
                os.close(fd)
            number, inode = _STATUS.unpack(status)[:2]
            if (number, inode) == (_kernel_number(wanted.st_dev), wanted.st_ino):
                return device
    return None


def _kernel_number(device: int) -> int:
    major, minor = os.major(device), os.minor(device)
    return minor & 0xFF | major << 8 | (minor & ~0xFF) << 12


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
    fd, device = _attach(image)
    try:
        yield device
    finally:
        os.close(fd)


def _attach(image: Path) -> tuple[int, str]:
    control = os.open("/dev/loop-control", os.O_RDWR | os.O_CLOEXEC)
    file = os.open(image, os.O_RDWR | os.O_CLOEXEC)
    try:
        name = os.fsencode(image)[:63]
        info = _STATUS.pack(0, 0, 0, 0, 0, 0, 0, 0, _AUTOCLEAR, name, b"", b"", 0, 0)
        config = struct.pack("=II", file, 0) + info + bytes(64)
        for _attempt in range(_ATTEMPTS):
            device = f"/dev/loop{fcntl.ioctl(control, _GET_FREE)}"
            fd = os.open(device, os.O_RDWR | os.O_CLOEXEC)
            try:
                fcntl.ioctl(fd, _CONFIGURE, ctypes.create_string_buffer(config, _CONFIG_BYTES))
            except OSError as error:
                os.close(fd)
                if error.errno != errno.EBUSY:  # another one took it meanwhile
                    raise
            else:
                return fd, device
        raise OSError(errno.EBUSY, "no loop device is free")
    finally:
        os.close(file)
        os.close(control)
