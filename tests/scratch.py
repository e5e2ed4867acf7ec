"""The folder of one run of the tests: away with it at the end, whatever they made of it.

Trees there may be deeper than a path can be long, and a run that was killed leaves mounts. Both are too much for the
folders that pytest keeps and clears by itself, and one run must not fail for what another has left.
"""

import fcntl
import os
import subprocess
import tempfile
from contextlib import suppress
from pathlib import Path

from sandlot.host.kernel import unmount
from sandlot.host.removal import remove_tree

_VARIABLE = "PYTEST_DEBUG_TEMPROOT"
_PREFIX = "sl-"
_DETACH = 0x4C01
_PATIENCE_S = 30


def open_scratch() -> Path | None:
    """None: this run is part of another one."""
    if _VARIABLE in os.environ:
        return None
    above = Path(tempfile.gettempdir())
    for left in above.glob(f"{_PREFIX}*"):
        pid = left.name.removeprefix(_PREFIX)
        if pid.isdigit() and not Path("/proc", pid).exists():
            close_scratch(left)
    scratch = above / f"{_PREFIX}{os.getpid()}"
    scratch.mkdir(mode=0o755)
    os.environ[_VARIABLE] = str(scratch)
    return scratch


def close_scratch(scratch: Path) -> list[str]:
    """What is mounted in it is told."""
    mounted = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text(errors="replace").splitlines()]
    left = [path for path in mounted if path.startswith(f"{scratch}/")]
    for path in sorted(left, reverse=True):
        with suppress(OSError):
            unmount(path)
    _detach_devices(scratch)
    _destroy_pools(scratch)
    with suppress(OSError):
        remove_tree(scratch)
    return left


def _detach_devices(scratch: Path) -> None:
    """Loop devices on files in it. One on a file that nobody serves any more makes everybody wait who looks at it."""
    for block in Path("/sys/block").glob("loop*"):
        with suppress(OSError):  # not bound to anything, or not ours to detach
            if not (block / "loop" / "backing_file").read_text().startswith(f"{scratch}/"):
                continue
            device = os.open(f"/dev/{block.name}", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            try:
                fcntl.ioctl(device, _DETACH)
            finally:
                os.close(device)


def _destroy_pools(scratch: Path) -> None:
    """Pools on files in it, of a run that was killed. Nothing is asked where no daemon has such a file."""
    if any(path.startswith(f"{scratch}/") for path in files_of_pools()):
        with suppress(OSError, subprocess.SubprocessError):
            for name in _zpool("list", "-H", "-o", "name").split():
                if f"{scratch}/" in _zpool("status", name):
                    _zpool("destroy", "-f", name)


def _zpool(*words: str) -> str:
    ran = subprocess.run(["zpool", *words], capture_output=True, text=True, check=True, timeout=_PATIENCE_S)
    return ran.stdout


def files_of_pools() -> list[str]:
    """Files that pools are on. The daemon of zfs-fuse is not asked: it may be the one that a test has just ended."""
    found: list[str] = []
    for process in [entry for entry in Path("/proc").iterdir() if entry.name.isdigit()]:
        with suppress(OSError):  # it has just ended
            if (process / "comm").read_text().strip() == "zfs-fuse":
                found += [str(fd.readlink()) for fd in list((process / "fd").iterdir())]
    if Path("/sys/module/zfs").is_dir():
        ran = subprocess.run(("zpool", "status", "-P"), capture_output=True, text=True, check=False, timeout=30)
        found += [line.split()[0] for line in ran.stdout.splitlines() if line.strip().startswith("/")]
    return found
