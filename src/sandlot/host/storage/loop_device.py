"""A file as a disk: a loop device that ends when nobody has it any more. Blocking; everything raises OSError."""

import ctypes
import errno
import fcntl
import os
import struct
from contextlib import suppress
from pathlib import Path

_SET_CAPACITY, _GET_STATUS, _CONFIGURE, _GET_FREE = 0x4C07, 0x4C05, 0x4C0A, 0x4C82
_READ_ONLY, _AUTOCLEAR, _DIRECT = 1, 4, 16
_STATUS = struct.Struct("=QQQQQIIII64s64s32s2Q")
_NAME_BYTES = 63
_RESERVED_BYTES = 64
_ATTEMPTS = 64


def attach(image: Path, *, read_only: bool = False, block_bytes: int = 0, direct: bool = False) -> tuple[int, str]:
    """Open, and its name. `direct`: past the memory that the kernel keeps of the file, which would hold everything
    twice and is written out before each answer; where the filesystem below cannot do that, the kernel does without."""
    access = os.O_RDONLY if read_only else os.O_RDWR
    control = os.open("/dev/loop-control", os.O_RDWR | os.O_CLOEXEC)
    try:
        file = os.open(image, access | os.O_CLOEXEC)
        try:
            flags = _AUTOCLEAR | (_READ_ONLY if read_only else 0) | (_DIRECT if direct else 0)
            name = os.fsencode(image)[-_NAME_BYTES:]
            info = _STATUS.pack(0, 0, 0, 0, 0, 0, 0, 0, flags, name, b"", b"", 0, 0)
            return _configure(control, access, struct.pack("=II", file, block_bytes) + info + bytes(_RESERVED_BYTES))
        finally:
            os.close(file)
    finally:
        os.close(control)


def _configure(control: int, access: int, config: bytes) -> tuple[int, str]:
    for _attempt in range(_ATTEMPTS):
        device = f"/dev/loop{fcntl.ioctl(control, _GET_FREE)}"
        fd = os.open(device, access | os.O_CLOEXEC)
        try:
            fcntl.ioctl(fd, _CONFIGURE, ctypes.create_string_buffer(config, len(config)))
        except OSError as error:
            os.close(fd)
            if error.errno != errno.EBUSY:  # another one took it meanwhile
                raise
        else:
            return fd, device
    raise OSError(errno.EBUSY, "no loop device is free")


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


def tell_size(device: str) -> None:
    """The file has grown."""
    fd = os.open(device, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.ioctl(fd, _SET_CAPACITY)
    finally:
        os.close(fd)
