"""System calls that Python does not have: opening a path without leaving a directory, and acting as another user in one
thread alone. Where the kernel is met by number, the numbers are here."""

import ctypes
import errno
import os
import platform
import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache

NO_XDEV = 0x01  # stay on this filesystem: /proc and /dev of a session are others
NO_MAGICLINKS = 0x02
NO_SYMLINKS = 0x04
BENEATH = 0x08  # what leads out is an error
IN_ROOT = 0x10  # what leads out leads to the top instead, as in a chroot

ONE_STEP = BENEATH | NO_SYMLINKS | NO_MAGICLINKS | NO_XDEV  # one name, and nothing that it might lead to

_OPENAT2 = 437
_SETGROUPS = {"x86_64": 116, "aarch64": 159}
_RENAME_NOREPLACE = 1
_AT_EMPTY_PATH = 0x1000
_CLONE_FS = 0x200
_CLONE_NEWNET = 0x40000000
_CAPABILITY_VERSION = 0x20080522
_EAGAIN_ATTEMPTS = 128  # the kernel asks to look again when someone renames meanwhile

_CHOWN, _DAC_OVERRIDE, _FOWNER, _FSETID, _SETGID, _SETUID = 0, 1, 3, 4, 6, 7
_SWITCH = 1 << _SETGID | 1 << _SETUID
_ROOT_POWERS = 1 << _CHOWN | 1 << _DAC_OVERRIDE | 1 << _FOWNER | 1 << _FSETID  # what root of a session has itself


class _OpenHow(ctypes.Structure):
    _fields_ = (("flags", ctypes.c_uint64), ("mode", ctypes.c_uint64), ("resolve", ctypes.c_uint64))


class _CapabilityHeader(ctypes.Structure):
    _fields_ = (("version", ctypes.c_uint32), ("pid", ctypes.c_int))


class _CapabilityData(ctypes.Structure):
    _fields_ = (("effective", ctypes.c_uint32), ("permitted", ctypes.c_uint32), ("inheritable", ctypes.c_uint32))


@lru_cache(maxsize=1)
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def open_inside(directory: int, path: str, flags: int, resolve: int) -> int:
    """openat2. Raises OSError; EXDEV when the path leads out."""
    raw = os.fsencode(path)
    how = _OpenHow(flags | os.O_CLOEXEC, 0, resolve)
    number = errno.EAGAIN
    for _attempt in range(_EAGAIN_ATTEMPTS):
        fd = _libc().syscall(_OPENAT2, directory, raw, ctypes.byref(how), ctypes.sizeof(how))
        if fd >= 0:
            return fd
        number = ctypes.get_errno()
        if number not in (errno.EAGAIN, errno.EINTR):
            break
    raise OSError(number, os.strerror(number), path)


def mount_id(fd: int) -> int:
    """Which mount an open file is in. Raises OSError."""
    with open(f"/proc/thread-self/fdinfo/{fd}") as told:
        return next(int(line.split()[1]) for line in told if line.startswith("mnt_id:"))


def rename_without_replacing(from_fd: int, name: str, to_fd: int, new_name: str) -> None:
    """Raises OSError; EEXIST when something is there."""
    if _libc().renameat2(from_fd, os.fsencode(name), to_fd, os.fsencode(new_name), _RENAME_NOREPLACE) < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), new_name)


def change_owner(fd: int, uid: int, gid: int) -> None:
    """Of what a descriptor stands for, a link included; -1 keeps what it is. Raises OSError."""
    if _libc().fchownat(fd, b"", uid, gid, _AT_EMPTY_PATH) < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


@dataclass(frozen=True, slots=True)
class Identity:
    """Who a thread is to the filesystem, in the host's numbers. `powerful`: root of a session, whom permission bits do
    not stop."""

    uid: int
    gid: int
    groups: tuple[int, ...] = ()
    powerful: bool = False


class Threads(threading.local):
    """Who each thread is. A thread that acts for sessions never does anything else: whoever it was last, it stays."""

    serves: bool = False
    current: Identity | None = None


_threads = Threads()
_UNKNOWN = Identity(-1, -1)


def serve_sessions() -> None:
    """Make the calling thread one that may act for sessions. What it makes has the mode that was asked for: a umask is
    the whole process's, unless a thread has its own."""
    _threads.serves = True
    # Where a filter of a container forbids it, the engine's umask applies, as it does to its commands.
    with suppress(OSError):
        if _libc().unshare(_CLONE_FS) < 0:
            raise OSError(ctypes.get_errno(), "unshare")
        os.umask(0)


def act_as(identity: Identity | None) -> None:
    """Make the calling thread, and no other, this user. None: whoever the engine is. Raises OSError, and then the
    thread may be anyone."""
    if _threads.current == identity:
        return
    if identity is None:
        raise PermissionError(errno.EPERM, "a thread that acted for a session does not become the engine again")
    if not _threads.serves:
        raise PermissionError(errno.EPERM, "a thread of the engine would lose its powers for good")
    _threads.current = _UNKNOWN
    libc = _libc()
    groups = (ctypes.c_uint32 * len(identity.groups))(*identity.groups)
    # Not the library's setgroups: that one speaks for all threads.
    if libc.syscall(_SETGROUPS[platform.machine()], len(groups), groups) < 0:
        raise OSError(ctypes.get_errno(), "setgroups")
    libc.setfsgid(identity.gid)
    libc.setfsuid(identity.uid)
    _set_effective(_SWITCH | (_ROOT_POWERS if identity.powerful else 0))
    # These two tell the one before and never fail; a number that nobody has asks who we are now.
    if libc.setfsuid(-1) != identity.uid or libc.setfsgid(-1) != identity.gid:
        raise PermissionError(errno.EPERM, f"the engine cannot act as user {identity.uid}")
    _threads.current = identity


def _set_effective(mask: int) -> None:
    header = _CapabilityHeader(_CAPABILITY_VERSION, 0)
    data = (_CapabilityData * 2)()
    libc = _libc()
    if libc.capget(ctypes.byref(header), data) < 0:
        raise OSError(ctypes.get_errno(), "capget")
    data[0].effective = mask & data[0].permitted
    data[1].effective = 0
    if libc.capset(ctypes.byref(header), data) < 0:
        raise OSError(ctypes.get_errno(), "capset")


def sync_filesystem(path: str | os.PathLike[str]) -> None:
    """Blocking: all that was written to the filesystem of a path is on disk. Raises OSError."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        if _libc().syncfs(fd) < 0:
            raise OSError(ctypes.get_errno(), "syncfs")
    finally:
        os.close(fd)


def sync_entry(path: str | os.PathLike[str]) -> None:
    """Blocking: a file, or the names in a directory, are on disk. Raises OSError."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def enter_network(namespace: int) -> None:
    """Move the calling thread, and no other, into the network that a descriptor stands for. Raises OSError."""
    if _libc().setns(namespace, _CLONE_NEWNET) < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), "setns")


def unmount(path: str, *, lazy: bool = True) -> None:
    """Take a mount away; it ends when nobody uses it any more, or is refused while someone does. Raises OSError."""
    if _libc().umount2(os.fsencode(path), _UMOUNT_NOFOLLOW | (_MNT_DETACH if lazy else 0)) < 0:
        raise OSError(ctypes.get_errno(), "umount")


def mount_device(device: str, path: str | os.PathLike[str], kind: str, options: str) -> None:
    """Times of reading are not written. Raises OSError."""
    words = (device.encode(), os.fsencode(path), kind.encode(), _MS_NOATIME, options.encode())
    if _libc().mount(*words) < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{device} cannot be mounted: {os.strerror(number)}")


_MNT_DETACH, _UMOUNT_NOFOLLOW, _MS_NOATIME = 2, 8, 1024
_FSOPEN, _FSCONFIG, _FSMOUNT = 430, 431, 432
_FSOPEN_CLOEXEC, _FSMOUNT_CLOEXEC = 1, 1
_SET_FLAG, _SET_STRING, _CMD_CREATE = 0, 1, 6
_MOUNT_READ_ONLY, _MOUNT_NODEV, _MOUNT_NOEXEC, _MOUNT_NOSUID = 1, 4, 8, 2


def mount_layers(layers: Sequence[str | os.PathLike[str]]) -> int:
    """A directory that shows layers over each other, the first on top, read-only. It is attached nowhere: closing it
    ends it. Raises OSError."""
    if len(layers) == 1:
        return os.open(layers[0], os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    libc = _libc()
    context = _checked(libc.syscall(_FSOPEN, b"overlay", _FSOPEN_CLOEXEC), "fsopen")
    try:
        options = [(b"lowerdir+", os.fsencode(layer)) for layer in layers]
        for key, value in (*options, (b"redirect_dir", b"follow"), (b"metacopy", b"on")):
            _checked(libc.syscall(_FSCONFIG, context, _SET_STRING, key, value, 0), f"fsconfig {key.decode()}")
        _checked(libc.syscall(_FSCONFIG, context, _CMD_CREATE, None, None, 0), "mount overlay")
        flags = _MOUNT_READ_ONLY | _MOUNT_NODEV | _MOUNT_NOEXEC | _MOUNT_NOSUID
        return _checked(libc.syscall(_FSMOUNT, context, _FSMOUNT_CLOEXEC, flags), "fsmount")
    finally:
        os.close(context)


def mount_writable(
    upper: str | os.PathLike[str], work: str | os.PathLike[str], lower: Sequence[str | os.PathLike[str]]
) -> int:
    """The same with a directory on top that takes what is written. Nothing is synced when it ends, and `work` must be
    emptied before it is used again. Raises OSError."""
    libc = _libc()
    context = _checked(libc.syscall(_FSOPEN, b"overlay", _FSOPEN_CLOEXEC), "fsopen")
    try:
        options = [(b"lowerdir+", os.fsencode(layer)) for layer in lower]
        options += [(b"upperdir", os.fsencode(upper)), (b"workdir", os.fsencode(work))]
        for key, value in (*options, (b"redirect_dir", b"on"), (b"metacopy", b"on")):
            _checked(libc.syscall(_FSCONFIG, context, _SET_STRING, key, value, 0), f"fsconfig {key.decode()}")
        _checked(libc.syscall(_FSCONFIG, context, _SET_FLAG, b"volatile", None, 0), "fsconfig volatile")
        _checked(libc.syscall(_FSCONFIG, context, _CMD_CREATE, None, None, 0), "mount overlay")
        flags = _MOUNT_NODEV | _MOUNT_NOEXEC | _MOUNT_NOSUID
        return _checked(libc.syscall(_FSMOUNT, context, _FSMOUNT_CLOEXEC, flags), "fsmount")
    finally:
        os.close(context)


def _checked(result: int, what: str) -> int:
    if result < 0:
        raise OSError(ctypes.get_errno(), what)
    return result
