"""What a destroyed subvolume of btrfs holds, given up although something still has files of it open.

The kernel frees a subvolume when nobody has a file of it any more. gVisor keeps what it has seen of a root open, after
that was taken from it too, so a session at its limit would go back and have no room all the same."""

import contextlib
import os
from collections.abc import Generator, Iterable, Mapping, Sequence
from pathlib import Path

from sandlot.host.removal import empty as remove_all
from sandlot.host.storage import btrfs_kernel


@contextlib.contextmanager
def held(volumes: Path, names: Iterable[str]) -> Generator[Mapping[str, int]]:
    """Subvolumes that can be reached when they have lost their names."""
    found: dict[str, int] = {}
    try:
        for name in names:
            with contextlib.suppress(OSError):  # it is gone
                found[name] = os.open(volumes / name / "u", os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        yield found
    finally:
        for fd in found.values():
            os.close(fd)


def empty(volumes: Path, gone: Sequence[int], group: int, room: int, most: int) -> None:
    """At the limit the kernel refuses to shorten a file too: for that moment there is room. Raises OSError."""
    btrfs_kernel.limit_group(volumes, group, room)
    try:
        for fd in gone:
            for _pause in remove_all(fd, ".", shorten=True):
                pass
        btrfs_kernel.sync(volumes)
    finally:
        btrfs_kernel.limit_group(volumes, group, most)
