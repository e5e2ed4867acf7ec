"""An immutable point of a session's files."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Snapshot:
    session_id: str
    name: str
    created: float  # seconds since the epoch
    turn: int | None = None  # the turn that it closes, if it closes one
    space_bytes: int | None = None
