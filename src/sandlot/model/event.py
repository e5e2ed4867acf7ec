"""What has happened to sessions, one after another, with numbers that never repeat."""

from dataclasses import dataclass
from enum import StrEnum

from sandlot.model import limits
from sandlot.model.errors import InvalidArgument
from sandlot.model.ids import check_session_id


class EventKind(StrEnum):
    CREATED = "created"  # its files are there; the detail is what it began with
    ACTIVE = "active"  # for the first time: commands can be run in it
    PAUSED = "paused"
    RESUMED = "resumed"
    TURN = "turn"  # closed; the detail is its number
    ROLLED_BACK = "rolled back"  # the detail is the snapshot
    FORKED = "forked"  # the detail names the new sessions
    MOVED = "moved"  # the detail is the storage that it is on now
    OOM = "oom"  # it met its memory limit, and lost a process
    FAILED = "failed"  # the detail is the reason
    RECOVERED = "recovered"
    EXPIRED = "expired"  # its time was up
    EXTENDED = "extended"
    RELABELED = "relabeled"  # other labels stand on it
    DESTROYED = "destroyed"
    GAP = "gap"  # of no session: events between the one before and this one are not there any more


@dataclass(frozen=True, slots=True)
class Event:
    offset: int  # grows with every event of a data directory; some numbers are never given
    at: float
    session_id: str
    kind: EventKind
    detail: str = ""


@dataclass(frozen=True, slots=True)
class EventFilter:
    after: int | None = None  # the offset of the last one that is known; None: from the oldest that is kept
    session_id: str | None = None
    follow: bool = False  # wait for more instead of ending

    def __post_init__(self) -> None:
        if self.session_id is not None:
            check_session_id(self.session_id)
        if self.after is not None and not 0 <= self.after <= limits.FILE_OFFSET_MAX:
            raise InvalidArgument(f"after must be the offset of an event, not {self.after}")
