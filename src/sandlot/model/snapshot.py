"""An immutable point of a session's files, and what can be asked of such points."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from sandlot.model import limits
from sandlot.model.errors import InvalidArgument
from sandlot.model.ids import check_id, check_labels, check_session_id

TURN_PREFIX = "turn"  # unless a host is told another
CALL_PREFIX = "call"
CURRENT = "."  # the files as they are now, where a comparison takes a point


class SnapshotKind(StrEnum):
    TURN = "turn"  # closes a turn
    NAMED = "named"  # made by a user; never pruned
    CALL = "call"  # made after a call


@dataclass(frozen=True, slots=True)
class Snapshot:
    session_id: str
    name: str  # within its session
    kind: SnapshotKind
    created: float  # seconds since the epoch
    turn: int | None = None  # the turn that it closes, if it closes one
    parent: str | None = None  # the snapshot that its files grew from; None: the template, or where it was forked from
    space_bytes: int | None = None  # on disk, that no older snapshot needs; None: not measured
    memory: bool = False  # it has the processes that ran, too


@dataclass(frozen=True, slots=True)
class SnapshotRequest:
    session_id: str
    name: str
    request_id: str | None = None  # a repeated one gives the first answer
    memory: bool = False  # with what runs, which stands still for as long as that takes

    def __post_init__(self) -> None:
        check_session_id(self.session_id)
        check_id("snapshot", self.name)
        check_given_name(self.name)
        if self.request_id is not None:
            check_id("request", self.request_id)


@dataclass(frozen=True, slots=True)
class RollbackRequest:
    session_id: str
    to: str  # a snapshot, or the number of a turn
    keep: bool = False  # what is newer stays, as another branch

    def __post_init__(self) -> None:
        check_session_id(self.session_id)
        check_id("snapshot", self.to)


@dataclass(frozen=True, slots=True)
class ForkRequest:
    """New sessions that begin with the files of a snapshot; everything else is as in the session they come from."""

    session_id: str
    at: str | None = None  # a snapshot, or the number of a turn; None: a new snapshot of now
    count: int = 1
    labels: Mapping[str, str] | None = None  # None: those of the session
    timeout_s: float = limits.SESSION_LIFETIME_S
    request_id: str | None = None
    memory: bool = False  # with what ran; a snapshot that was named must have it

    def __post_init__(self) -> None:
        check_session_id(self.session_id)
        if self.at is not None:
            check_id("snapshot", self.at)
        limits.within("count", self.count, 1, limits.FORKS_MAX)
        check_labels(self.labels or {})
        limits.within("timeout_s", self.timeout_s, 0.001, limits.SESSION_LIFETIME_S_MAX)
        if self.request_id is not None:
            check_id("request", self.request_id)


class ChangeKind(StrEnum):
    ADDED = "added"
    CHANGED = "changed"
    REMOVED = "removed"


@dataclass(frozen=True, slots=True)
class Change:
    """One path that two points do not have in common."""

    path: str  # absolute, as the session sees it
    kind: ChangeKind
    what: str  # file, directory, symlink or other, after the change; before it, for what is gone
    mode: int | None = None  # after; None for what is gone
    old_mode: int | None = None
    size_bytes: int | None = None  # of what has content: none of directories
    old_size_bytes: int | None = None
    patch: str = ""  # how to get from one to the other, as git writes it; only where it was asked for


@dataclass(frozen=True, slots=True)
class DiffRequest:
    session_id: str
    old: str  # a snapshot, or the number of a turn
    new: str = CURRENT
    below: str = "/"  # only what lies there
    patch: bool = False

    def __post_init__(self) -> None:
        check_session_id(self.session_id)
        check_id("snapshot", self.old)
        if self.new != CURRENT:
            check_id("snapshot", self.new)
        if not self.below.startswith("/") or "\0" in self.below:
            raise InvalidArgument("`below` is an absolute path inside the session")


@dataclass(frozen=True, slots=True)
class ChangeCounts:
    added: int = 0
    changed: int = 0
    removed: int = 0


def turn_snapshot(number: int, prefix: str = TURN_PREFIX) -> str:
    return f"{prefix}-{number:04d}"


def call_snapshot(call_id: str) -> str:
    """Raises InvalidArgument for a call whose id leaves no room."""
    return check_id("snapshot of the call", f"{CALL_PREFIX}-{call_id}")


def check_given_name(name: str, prefix: str = TURN_PREFIX) -> None:
    """A name that a user gives. Raises InvalidArgument for one that the host gives, or that means a turn."""
    own = (f"{TURN_PREFIX}-", f"{prefix}-", f"{CALL_PREFIX}-")
    if name.startswith(own):
        raise InvalidArgument(f"names such as {own[1]}0001 are given by the host", next_step="choose another name")
    if name.isascii() and name.isdigit():
        raise InvalidArgument("a number alone means a turn", next_step="choose a name with a letter")
