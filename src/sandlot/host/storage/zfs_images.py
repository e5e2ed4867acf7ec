"""An ext4 filesystem in a file of a dataset, which carries the upper of an overlay. Blocking; everything raises
OSError.

The file is longer than its filesystem, and sparse: so a filesystem grows without anyone touching the file.
"""

import contextlib
import ctypes
import errno
import fcntl
import os
import struct
import subprocess
from pathlib import Path

from sandlot.host.storage.canonical import CANONICAL_ID
from sandlot.host.storage.loop_device import attach

IMAGE = "disk.img"
IMAGE_BYTES = 8 << 40  # of the file; nothing of it is on disk that is not written
_MKFS_S = 60.0
_FREEZE, _THAW = 0xC0045877, 0xC0045878
_RESIZE = 0x40086610  # EXT4_IOC_RESIZE_FS
_MS_RDONLY, _MS_NOSUID, _MS_NODEV, _MS_NOATIME = 1, 2, 4, 1024
_BLOCK = 4096
_SMALL_BYTES = 8 << 30


def make_filesystem(folder: Path, size: int) -> None:
    """In a new image. It keeps nothing back, and small ones have an inode per block: files are small in them too."""
    image = folder / IMAGE
    with image.open("xb") as file:
        file.truncate(IMAGE_BYTES)
    journal = 4 if size < 1 << 30 else 16
    words = (
        "mkfs.ext4", "-q", "-F", "-m", "0", "-b", str(_BLOCK), "-J", f"size={journal}",
        "-i", str(4096 if size < _SMALL_BYTES else 16384), "-O", "64bit,metadata_csum,^resize_inode,meta_bg",
        "-E", "lazy_itable_init=1,lazy_journal_init=1,nodiscard", str(image), str(size // _BLOCK),
    )  # fmt: skip
    environment = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C", "MKE2FS_SKIP_CHECK_MSG": "1"}
    try:
        done = subprocess.run(
            words, stdin=subprocess.DEVNULL, capture_output=True, timeout=_MKFS_S, env=environment, check=False
        )
    except subprocess.TimeoutExpired:
        raise OSError(errno.ETIMEDOUT, f"mkfs.ext4 took longer than {_MKFS_S:g} s") from None
    if done.returncode:
        told = done.stderr.decode(errors="replace").strip().splitlines()
        raise OSError(errno.EIO, f"mkfs.ext4: {told[-1] if told else done.returncode}")


def make_places(mount: Path) -> None:
    """`files/v/{u,w}`: whoever stacks layers looks for the directory that holds the volume."""
    volume = mount / "files" / "v"
    (volume / "u").mkdir(mode=0o755, parents=True)
    os.chown(volume / "u", CANONICAL_ID, CANONICAL_ID)
    (volume / "w").mkdir(mode=0o755)
    os.chmod(mount, 0o700)


def mount_image(image: Path, point: Path, *, read_only: bool = False) -> None:
    """Its loop device ends with the mount."""
    point.mkdir(mode=0o700, exist_ok=True)
    device, name = attach(image, read_only=read_only, block_bytes=_BLOCK)
    try:
        flags = _MS_NOATIME | _MS_NOSUID | _MS_NODEV | (_MS_RDONLY if read_only else 0)
        # Inode tables that were never used are not written: each volume would become as large as they are.
        options = b"noload" if read_only else b"noinit_itable,errors=remount-ro"
        if _libc().mount(name.encode(), os.fsencode(point), b"ext4", flags, options) < 0:
            number = ctypes.get_errno()
            raise OSError(number, f"an image cannot be mounted: {os.strerror(number)}")
    finally:
        os.close(device)


def freeze(mount: Path) -> None:
    """All that was written is in the image, and nothing more is until `thaw`."""
    _ask(mount, _FREEZE)


def thaw(mount: Path) -> bool:
    """Whether it was frozen."""
    try:
        _ask(mount, _THAW)
    except OSError as error:
        if error.errno == errno.EINVAL:
            return False
        raise
    return True


def _ask(mount: Path, request: int) -> None:
    fd = os.open(mount, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.ioctl(fd, request, 0)
    finally:
        os.close(fd)


def grow(mount: Path, size: int) -> bool:
    """While it is in use. False: the kernel does not let us."""
    fd = os.open(mount, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.ioctl(fd, _RESIZE, struct.pack("=Q", size // _BLOCK))
        return True
    except PermissionError:
        return False
    finally:
        os.close(fd)


def mounts_below(folder: Path) -> dict[str, str]:
    """What is mounted there, and the numbers of the filesystems."""
    found: dict[str, str] = {}
    prefix = f"{folder}/"
    for line in Path("/proc/self/mountinfo").read_text(errors="surrogateescape").splitlines():
        fields = line.split(" ")
        point = fields[4].replace("\\040", " ").replace("\\011", "\t").replace("\\012", "\n").replace("\\134", "\\")
        if point.startswith(prefix):
            found[point] = fields[2]
    return found


def unmount(point: Path) -> None:
    """Out of sight at once; it ends when nobody uses it any more. None there is no error."""
    if _libc().umount2(os.fsencode(point), 2 | 8) < 0:
        number = ctypes.get_errno()
        if number not in (errno.EINVAL, errno.ENOENT):
            raise OSError(number, os.strerror(number), str(point))


def remove_point(point: Path) -> None:
    with contextlib.suppress(OSError):
        point.rmdir()


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)
