"""One step of an agent: its calls, and the snapshot that closes it."""

from dataclasses import dataclass

from sandlot.model.call import CallRecord
from sandlot.model.ids import check_id, check_session_id
from sandlot.model.snapshot import ChangeCounts


@dataclass(frozen=True, slots=True)
class Turn:
    session_id: str
    number: int  # from 1 on; never given twice in a session
    closed: float
    snapshot: str | None  # None: the storage has none, or it was pruned
    calls: tuple[CallRecord, ...] = ()
    changes: ChangeCounts | None = None  # None: not counted
    space_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class TurnRequest:
    session_id: str
    request_id: str | None = None  # a repeated one gives the first answer

    def __post_init__(self) -> None:
        check_session_id(self.session_id)
        if self.request_id is not None:
            check_id("request", self.request_id)
