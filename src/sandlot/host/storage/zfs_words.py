"""What `zfs` and `zpool` take and tell, as values: names that are checked, states, sizes, and errors by their words.

Two programs of that name are met: OpenZFS, and zfs-fuse, which is much older. Where one of them lacks a flag, the other
one's way is taken that both have.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from sandlot.model import (
    Conflict,
    InvalidArgument,
    LimitReached,
    NotFound,
    PermissionDenied,
    SandlotError,
    Unavailable,
)

_DATASET = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9_.\-:/]*", re.ASCII)
_SHORT = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9_.\-]*", re.ASCII)
_PROPERTY = re.compile(r"[a-z0-9][a-z0-9:_.\-]*", re.ASCII)
_NAME_MAX, _PART_MAX = 1024, 255
_REFUSED = frozenset({"exec", "setuid", "devices"})
_UNITS = {"": 1, "B": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40, "P": 1 << 50, "E": 1 << 60}


class PoolState(StrEnum):
    ONLINE = "ONLINE"
    DEGRADED = "DEGRADED"
    FAULTED = "FAULTED"
    OFFLINE = "OFFLINE"
    REMOVED = "REMOVED"
    UNAVAIL = "UNAVAIL"


@dataclass(frozen=True, slots=True)
class DatasetInfo:
    name: str
    mountpoint: str
    used: int
    available: int
    referenced: int
    origin: str  # a snapshot; empty: none
    created: int


@dataclass(frozen=True, slots=True)
class SnapshotInfo:
    name: str  # without its dataset
    dataset: str
    used: int
    referenced: int
    created: int
    holds: int


@dataclass(frozen=True, slots=True)
class PoolStatus:
    name: str
    state: PoolState
    scan: str
    errors: str


@dataclass(frozen=True, slots=True)
class Space:
    """Of a pool. Fractions; what is not told is 0."""

    name: str
    size: int
    allocated: int
    free: int
    capacity: float
    fragmentation: float
    state: PoolState


# ---- names ---------------------------------------------------------------------------------------------------------


def check_dataset(name: str) -> str:
    """Raises InvalidArgument."""
    parts = name.split("/")
    if not _DATASET.fullmatch(name) or len(name) > _NAME_MAX or any(not part or part == ".." for part in parts):
        raise InvalidArgument(f"{name[:64]!r} is no name of a dataset")
    if any(len(part) > _PART_MAX or ".." in part for part in parts):
        raise InvalidArgument(f"{name[:64]!r} is no name of a dataset")
    return name


def check_pool(name: str) -> str:
    """Raises InvalidArgument."""
    if "/" in check_dataset(name):
        raise InvalidArgument(f"{name[:64]!r} is no name of a pool")
    return name


def check_short(what: str, name: str) -> str:
    """A snapshot without its dataset, or the tag of a hold. Raises InvalidArgument."""
    if not _SHORT.fullmatch(name) or len(name) > _PART_MAX or ".." in name:
        raise InvalidArgument(f"{name[:64]!r} is no name of a {what}")
    return name


def check_snapshot(name: str) -> str:
    """With its dataset. Raises InvalidArgument."""
    dataset, at, short = name.partition("@")
    if not at:
        raise InvalidArgument(f"{name[:64]!r} names no snapshot")
    check_dataset(dataset)
    check_short("snapshot", short)
    return name


def check_property(name: str, value: str) -> str:
    """As `name=value`. Raises InvalidArgument."""
    if not _PROPERTY.fullmatch(name) or name in _REFUSED:
        raise InvalidArgument(f"{name[:64]!r} cannot be set")
    if any(letter in value for letter in "\r\n\0"):
        raise InvalidArgument(f"the value of {name} has more than one line")
    return f"{name}={value}"


def check_path(path: str) -> str:
    """Of a mount point or a device. Raises InvalidArgument."""
    if not path.startswith("/") or ".." in path.split("/") or any(letter in path for letter in "\r\n\0"):
        raise InvalidArgument(f"{path[:64]!r} is not a plain absolute path")
    return path


# ---- what is told --------------------------------------------------------------------------------------------------


def read_size(text: str) -> int:
    """`123`, `1.5G`, `-`. What has a unit was rounded by who told it. Raises Unavailable."""
    if text in ("-", "none", ""):
        return 0
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)([BKMGTPE]?)", text.strip().upper())
    if match is None:
        raise Unavailable(f"zfs told a size that is none: {text[:64]!r}")
    return int(float(match[1]) * _UNITS[match[2]]) if match[2] or "." in match[1] else int(match[1])


def read_number(text: str, default: int) -> int:
    """Of a property that we wrote; others may have."""
    return int(text) if text.isascii() and text.isdigit() else default


def read_fraction(text: str) -> float:
    """`12%`, `12`, `-`. Raises Unavailable."""
    if text in ("-", ""):
        return 0.0
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)%?", text)
    if match is None:
        raise Unavailable(f"zfs told a share that is none: {text[:64]!r}")
    return float(match[1]) / 100


def read_state(text: str) -> PoolState:
    """Raises Unavailable."""
    try:
        return PoolState(text.strip().split(" ")[0].upper())
    except ValueError:
        raise Unavailable(f"zfs told a state that is none: {text[:64]!r}") from None


def read_status(pool: str, text: str) -> PoolStatus:
    """Of `zpool status`. `scan:` is `scrub:` in older ones. Raises Unavailable."""
    told: dict[str, str] = {}
    for line in text.splitlines():
        match = re.match(r"\s*(pool|state|scan|scrub|errors): (.*)", line)
        if match:
            told.setdefault(match[1], match[2].strip())
    if "state" not in told:
        raise Unavailable(f"zpool did not tell the state of the pool {pool}")
    scan = told.get("scan", told.get("scrub", ""))
    return PoolStatus(told.get("pool", pool), read_state(told["state"]), scan, told.get("errors", ""))


def read_space(line: str) -> Space:
    """Of `zpool list -H -o name,size,allocated,free,capacity,health[,fragmentation]`. Raises Unavailable."""
    fields = line.split("\t")
    if len(fields) not in (6, 7):
        raise Unavailable(f"zpool told {len(fields)} fields instead of 6 or 7")
    name, size, allocated, free, capacity, health = fields[:6]
    torn = read_fraction(fields[6]) if len(fields) == 7 else 0.0
    # A pool that is not there has no sizes.
    total, used = read_size(size), read_size(allocated)
    share = used / total if total else read_fraction(capacity)
    return Space(name, total, used, read_size(free), share, torn, read_state(health))


def read_table(text: str, columns: int) -> list[list[str]]:
    """Lines of fields with tabs between. Raises Unavailable."""
    rows = [line.split("\t") for line in text.splitlines() if line]
    if any(len(row) != columns for row in rows):
        raise Unavailable(f"zfs told a line that has not {columns} fields")
    return rows


# ---- errors --------------------------------------------------------------------------------------------------------

_CLASSES: Sequence[tuple[tuple[str, ...], type[SandlotError], str]] = (
    (("no such pool", "does not exist", "no pools available", "could not find"), NotFound, ""),
    (("already exists", "' exists", "is already mounted"), Conflict, ""),
    (("has dependent clones", "has children"), Conflict, "what was made from it must go first"),
    (("is busy", "resource busy", "device busy", "target is busy"), Conflict, "someone uses it; try again later"),
    (("permission denied", "operation not permitted", "must be root"), PermissionDenied, "run as root"),
    (("pool is full", "no space left", "out of space", "quota exceeded", "file too large"), LimitReached, "free space"),
    (("invalid option", "bad property list", "invalid property"), Unavailable, "this zfs is too old for that"),
)


def classify(what: str, code: int, stderr: str) -> SandlotError:
    """The error of a command that failed, by its words."""
    words = stderr.lower()
    told = next((line.strip() for line in stderr.splitlines() if line.strip()), f"it ended with code {code}")
    for known, kind, step in _CLASSES:
        if any(text in words for text in known):
            return kind(f"{what}: {told[:300]}", next_step=step)
    return Unavailable(f"{what}: {told[:300]}")
