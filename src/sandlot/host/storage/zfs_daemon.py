"""The daemon of zfs-fuse, one per machine. Where that is what is installed, whoever needs it first starts it.

It is started so that it can carry filesystems in files: when one of its own is unmounted it calls `sync`, which waits
for every filesystem of the machine, with all requests to it held up meanwhile. One of them in a file of its own then
waits for it, and it for that one, for ever. So its `sync` does nothing: what it promises to disks it syncs by other
calls. And the kernel is told that it serves disks, so that it is not made to wait for itself when memory is short.

Run as a program, this module becomes the daemon.
"""

import contextlib
import ctypes
import fcntl
import os
import platform
import shutil
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Generator
from pathlib import Path

from sandlot.model import Unavailable

_PIDFILE = Path("/run/zfs-fuse.pid")
_SOCKET = "/run/zfs/zfs_socket"
_LOCK = Path("/run/sandlot-zfs.lock")
_START_S, _STOP_S, _PAUSE_S = 10.0, 15.0, 0.02
_ENVIRONMENT = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C"}
_SYNC = {"x86_64": (0xC000003E, 162), "aarch64": (0xC00000B7, 81)}
_PR_SET_SECCOMP, _MODE_FILTER, _PR_SET_IO_FLUSHER = 22, 2, 57
_ALLOW, _ERRNO_0 = 0x7FFF0000, 0x00050000
_LOAD, _EQUAL, _RETURN = 0x20, 0x15, 0x06
_NUMBER_AT, _ARCH_AT = 0, 4
_FILTERED = "Seccomp:\t2"


def program() -> str | None:
    """The daemon, where zfs-fuse is what is installed."""
    if Path("/sys/module/zfs").is_dir():
        return None
    return shutil.which("zfs-fuse", path=_ENVIRONMENT["PATH"])


def find() -> int | None:
    """The pid of the daemon that runs."""
    for name in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            told = Path("/proc", name, "stat").read_text()
            if "(zfs-fuse)" in told and told.rpartition(")")[2].split()[0] not in "ZX":
                return int(name)
    return None


def can_carry(pid: int) -> bool:
    """Whether a daemon was started by us, or by someone who knows what we know."""
    with contextlib.suppress(OSError):
        return _FILTERED in Path(f"/proc/{pid}/status").read_text()
    return False


def trouble() -> str:
    """Why a daemon could not be had, found out without starting one. Empty: it could."""
    if program() is None:
        loaded = Path("/sys/module/zfs").is_dir()
        return "" if loaded else "the kernel has no module zfs, and there is no program zfs-fuse"
    return "" if Path("/dev/fuse").exists() else "there is no /dev/fuse"


def ensure() -> int:
    """Blocking: a daemon that answers and can carry images. Raises Unavailable."""
    path = program()
    if path is None:
        return 0
    pid = find()
    if pid is not None and can_carry(pid) and _answers():
        return pid
    with _alone():
        pid = find()
        if pid is not None and not can_carry(pid):
            _stop_idle(pid)
            pid = None
        if pid is None:
            _start(path)
        return _wait()


def _answers() -> bool:
    with socket.socket(socket.AF_UNIX) as line:
        line.settimeout(1.0)
        with contextlib.suppress(OSError):
            line.connect(_SOCKET)
            return True
    return False


@contextlib.contextmanager
def _alone() -> Generator[None]:
    try:
        fd = os.open(_LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise Unavailable(f"{_LOCK}: {error.strerror}", next_step="run as root") from error
    try:
        deadline = time.monotonic() + _START_S + _STOP_S
        while True:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise Unavailable("another engine starts zfs-fuse and does not come to an end") from None
                time.sleep(_PAUSE_S)
        yield
    finally:
        os.close(fd)


def _start(path: str) -> None:
    _PIDFILE.unlink(missing_ok=True)  # of one that is dead: a living one was not found
    words = (sys.executable, "-I", __file__, path, "--pidfile", str(_PIDFILE), "--no-kstat-mount")
    try:
        done = subprocess.run(
            words,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            env=_ENVIRONMENT,
            cwd="/",
            start_new_session=True,
            timeout=_START_S,
            check=False,
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise Unavailable(f"zfs-fuse does not start: {error}") from error
    if done.returncode:
        told = done.stderr.decode(errors="replace").strip()[-300:]
        message = f"zfs-fuse does not start: {told or done.returncode}"
        raise Unavailable(message, next_step="see whether /dev/fuse works")


def _wait() -> int:
    deadline = time.monotonic() + _START_S
    while time.monotonic() < deadline:
        pid = find()
        if pid is not None and _answers():
            return pid
        time.sleep(_PAUSE_S)
    raise Unavailable(f"zfs-fuse does not answer within {_START_S:g} s")


def _stop_idle(pid: int) -> None:
    """One that the machine started by itself and that nobody uses. Raises Unavailable where someone does."""
    step = "export its pools (`zpool export`) and stop it; Sandlot starts it again in a way that can carry images"
    try:
        words = ("zpool", "list", "-H", "-o", "name")
        done = subprocess.run(words, capture_output=True, env=_ENVIRONMENT, timeout=_START_S, check=False)
    except (OSError, subprocess.SubprocessError) as error:
        raise Unavailable(f"zfs-fuse does not answer: {error}", next_step=step) from error
    if done.returncode or done.stdout.strip():
        raise Unavailable("zfs-fuse was started by someone else, and has pools", next_step=step)
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, 15)
    deadline = time.monotonic() + _STOP_S
    while find() == pid:
        if time.monotonic() > deadline:
            raise Unavailable("zfs-fuse was started by someone else, and does not stop", next_step=step)
        time.sleep(_PAUSE_S)


# ---- as a program --------------------------------------------------------------------------------------------------


def _filter() -> bytes:
    arch, number = _SYNC[platform.machine()]
    steps = (
        (_LOAD, 0, 0, _ARCH_AT),
        (_EQUAL, 0, 3, arch),
        (_LOAD, 0, 0, _NUMBER_AT),
        (_EQUAL, 0, 1, number),
        (_RETURN, 0, 0, _ERRNO_0),
        (_RETURN, 0, 0, _ALLOW),
    )
    return b"".join(struct.pack("=HBBI", *step) for step in steps)


def without_sync() -> Callable[[], None]:
    """Made before, called in a process that is about to become another: its `sync` then does nothing."""
    libc = ctypes.CDLL(None, use_errno=True)
    code = _filter()
    buffer = ctypes.create_string_buffer(code, len(code))
    head = ctypes.create_string_buffer(struct.pack("@HP", len(code) // 8, ctypes.addressof(buffer)))

    def apply() -> None:
        if libc.prctl(_PR_SET_SECCOMP, _MODE_FILTER, head, 0, 0) and buffer:
            raise OSError(ctypes.get_errno(), "seccomp")

    return apply


def _become(words: list[str]) -> None:
    ctypes.CDLL(None).prctl(_PR_SET_IO_FLUSHER, 1, 0, 0, 0)  # kernels before 5.6 do not know it
    without_sync()()
    os.execv(words[0], words)


if __name__ == "__main__":
    _become(sys.argv[1:])
