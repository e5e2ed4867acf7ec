"""The folder of one run of the tests: away with it at the end, whatever they made of it.

Trees there may be deeper than a path can be long, and a run that was killed leaves mounts. Both are too much for the
folders that pytest keeps and clears by itself, and one run must not fail for what another has left.
"""

import os
import tempfile
from contextlib import suppress
from pathlib import Path

from sandlot.host.kernel import unmount
from sandlot.host.removal import remove_tree

_VARIABLE = "PYTEST_DEBUG_TEMPROOT"
_PREFIX = "sl-"


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
    with suppress(OSError):
        remove_tree(scratch)
    return left
