"""Changes of a session's files, told as they come."""

from dataclasses import dataclass
from enum import StrEnum

from sandlot.model import limits
from sandlot.model.file import FileRequest


class FileEventKind(StrEnum):
    CREATED = "created"
    CHANGED = "changed"  # its content
    REMOVED = "removed"
    RENAMED = "renamed"
    ATTRIBUTES = "attributes"  # its bits, owner or times
    OVERFLOW = "overflow"  # some were lost: look again at what you know


@dataclass(frozen=True, slots=True)
class FileEvent:
    offset: int  # grows, and never repeats
    kind: FileEventKind
    path: str  # absolute, as the session sees it; of an overflow, the directory that is watched
    old_path: str = ""  # of one that was renamed
    is_directory: bool = False


@dataclass(frozen=True, slots=True)
class FileWatch(FileRequest):
    """What changes in a directory, and below it."""

    recursive: bool = True
    after: int | None = None  # the offset of the last event that is known; None: from now on

    def __post_init__(self) -> None:
        FileRequest.__post_init__(self)
        if self.after is not None:
            limits.within("after", self.after, 0, limits.FILE_OFFSET_MAX)
