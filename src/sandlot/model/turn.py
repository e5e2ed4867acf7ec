"""One step of an agent: its calls, and the snapshot that closes it."""

from dataclasses import dataclass

from sandlot.model.call import CallRecord


@dataclass(frozen=True, slots=True)
class Turn:
    session_id: str
    number: int
    closed: float
    snapshot: str | None
    calls: tuple[CallRecord, ...] = ()
