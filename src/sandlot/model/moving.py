"""A session on its way: to another storage, into one file, and out of it."""

from dataclasses import dataclass

from sandlot.model import limits
from sandlot.model.ids import check_id, check_session_id
from sandlot.model.session import AUTO
from sandlot.model.template import check_template


@dataclass(frozen=True, slots=True)
class MoveRequest:
    session_id: str
    storage: str  # where it is to be; `auto` is what a new session would get

    def __post_init__(self) -> None:
        check_session_id(self.session_id)
        check_id("storage", self.storage)


@dataclass(frozen=True, slots=True)
class MoveProgress:
    """How far a move is."""

    points: int  # snapshots that are there, and the files as they are now
    points_total: int
    size_bytes: int  # of content that was written
    size_bytes_total: int  # about, of what is on disk


@dataclass(frozen=True, slots=True)
class ExportRequest:
    session_id: str

    def __post_init__(self) -> None:
        check_session_id(self.session_id)


@dataclass(frozen=True, slots=True)
class ImportRequest:
    session_id: str | None = None  # None: the id that it had
    storage: str = AUTO
    runtime: str = AUTO
    template: str | None = None  # None: the one that it had; one that is named is taken as it is here
    timeout_s: float = limits.SESSION_LIFETIME_S

    def __post_init__(self) -> None:
        if self.session_id is not None:
            check_session_id(self.session_id)
        for kind, name in (("storage", self.storage), ("runtime", self.runtime)):
            check_id(kind, name)
        if self.template is not None:
            check_template(self.template)
        limits.within("timeout_s", self.timeout_s, 0.001, limits.SESSION_LIFETIME_S_MAX)
