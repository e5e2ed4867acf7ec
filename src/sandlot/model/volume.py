"""Volumes as users know them: directories that outlive sessions, and where a session has them.

They lie outside of snapshots: a rollback does not touch them. What the storage calls a volume is another thing."""

import posixpath
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise

from sandlot.model import limits
from sandlot.model.errors import InvalidArgument
from sandlot.model.file import check_path
from sandlot.model.ids import check_id

_KERNEL = ("/proc", "/dev", "/sys")


@dataclass(frozen=True, slots=True)
class Mount:
    """Where a session has a volume, or a directory of the machine that its operator allows."""

    source: str  # the name of a volume, or an absolute path of the machine
    target: str  # an absolute path in the session
    read_only: bool = False

    def __post_init__(self) -> None:
        check_path(self.target)
        if self.source.startswith("/"):
            check_path(self.source)
        else:
            check_volume_name(self.source)
        for path in (self.source, self.target):
            if not path.isprintable():
                raise InvalidArgument("a path of a mount holds characters that cannot be printed")
        is_plain = self.target.startswith("/") and posixpath.normpath(self.target) == self.target
        if not is_plain or self.target.startswith("//") or self.target == "/":
            raise InvalidArgument(
                f"{self.target} is no place for a volume",
                next_step="give an absolute path below / without `.` and `..`, such as /data",
            )
        if any(self.target == top or self.target.startswith(top + "/") for top in _KERNEL):
            raise InvalidArgument(f"{self.target} belongs to the kernel", next_step="take another place, such as /data")

    @property
    def is_of_host(self) -> bool:
        return self.source.startswith("/")


def check_mounts(mounts: Iterable[Mount]) -> None:
    """Raises InvalidArgument, LimitReached."""
    targets = sorted(mount.target.split("/") for mount in mounts)
    limits.at_most("mounts", len(targets), limits.MOUNTS_MAX)
    for above, below in pairwise(targets):
        if below[: len(above)] == above:
            raise InvalidArgument(
                f"{'/'.join(below)} lies in {'/'.join(above)}", next_step="give each volume a place of its own"
            )


@dataclass(frozen=True, slots=True)
class AllowedMount:
    """A directory of the machine that sessions may have, with all below it."""

    path: str
    writable: bool = False

    def __post_init__(self) -> None:
        if not self.path.startswith("/"):
            raise InvalidArgument(
                f"{self.path!r} is no absolute path", next_step="give it from the root of the machine on"
            )


@dataclass(frozen=True, slots=True)
class VolumeSpec:
    name: str
    shared: bool = False  # several sessions may have it at once

    def __post_init__(self) -> None:
        check_volume_name(self.name)


@dataclass(frozen=True, slots=True)
class VolumeInfo:
    name: str
    shared: bool
    created: float
    used_by: tuple[str, ...] = ()  # ids of sessions
    space_used: int | None = None  # None: not measured, as in lists


def check_volume_name(name: str) -> str:
    return check_id("volume", name)
