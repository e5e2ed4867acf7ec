"""What is frozen of data directories that are gone, and that nobody would ever thaw.

A guest ends when its engine and its keeper are gone, unless it is frozen: then it cannot notice. The next engine of its
data directory ends it; where there is no such directory any more, any other engine does.
"""

import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

_NOTE = "trusted.sandlot.data"
_KEEPER = "sandlot-keeper"
_PREFIX = "sandlot-"


def note(base: Path, data: Path) -> None:
    """Whose groups are below it. Where the kernel does not keep that, they are left alone."""
    with suppress(OSError):
        os.setxattr(base, _NOTE, f"{_view()}\n".encode() + os.fsencode(data))


def end_abandoned(place: Path) -> list[Path]:
    """Blocking: below this group. Those whose data directories are gone, which are removed when they are empty."""
    gone = list(_gone(place))
    for base in gone:
        for group in _below(base):
            if _is_frozen(group) and not _has_keeper(group):
                _end(group)
            _remove(group)
        _remove(base)
    return gone


def _view() -> int:
    """A path means the same to whoever sees the same mounts, and to nobody else."""
    return os.stat("/proc/self/ns/mnt").st_ino


def _gone(place: Path) -> Iterator[Path]:
    ours = str(_view()).encode()
    for base in _below(place):
        if base.name.startswith(_PREFIX):
            with suppress(OSError):  # it has no note, or it has just been removed
                view, _, data = os.getxattr(base, _NOTE).partition(b"\n")
                if view == ours and not os.path.lexists(data):
                    yield base


def _below(group: Path) -> list[Path]:
    with suppress(OSError):
        return [Path(entry.path) for entry in os.scandir(group) if entry.is_dir(follow_symlinks=False)]
    return []


def _is_frozen(group: Path) -> bool:
    for name, value in (("cgroup.events", "frozen 1"), ("freezer.state", "FROZEN")):
        with suppress(OSError):
            return value in (group / name).read_text()
    return False


def _pids(group: Path) -> list[int]:
    with suppress(OSError):
        return [int(pid) for pid in (group / "cgroup.procs").read_text().split()]
    return []


def _has_keeper(group: Path) -> bool:
    """Its guest is a child of a keeper for as long as that lives."""
    for pid in _pids(group):
        with suppress(OSError, IndexError):
            stat = Path(f"/proc/{pid}/stat").read_bytes()
            parent = int(stat[stat.rfind(b")") + 2 :].split()[1])
            if Path(f"/proc/{parent}/comm").read_text().strip() == _KEEPER:
                return True
    return False


def _end(group: Path) -> None:
    try:
        (group / "cgroup.kill").write_text("1")
    except OSError:  # version 1
        for pid in _pids(group):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        with suppress(OSError):
            (group / "freezer.state").write_text("THAWED")


def _remove(group: Path) -> None:
    """What the kernel still holds is removed by the engine after this one."""
    for inner in (*_below(group), group):
        with suppress(OSError):
            inner.rmdir()
