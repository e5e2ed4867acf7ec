"""Whole directories of a session, in or out as one stream."""

from dataclasses import dataclass, field

from sandlot.model import limits
from sandlot.model.file import FileRequest


@dataclass(frozen=True, slots=True)
class TreeUpload(FileRequest):
    """Everything in a tar archive, below one directory. The directory is made when it is not there."""


@dataclass(frozen=True, slots=True)
class TreeDownload(FileRequest):
    include: tuple[str, ...] = ()  # patterns of paths below the directory, as `*.py` or `src/*`; empty: all

    def __post_init__(self) -> None:
        FileRequest.__post_init__(self)
        limits.at_most("patterns", len(self.include), limits.ARGUMENTS_MAX)


@dataclass(slots=True)
class TreeTally:
    """What a transfer has done so far."""

    files: int = 0
    directories: int = 0
    links: int = 0
    size_bytes: int = 0
    skipped_count: int = 0
    skipped: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])  # the first ones, and why

    def skip(self, path: str, why: str) -> None:
        self.skipped_count += 1
        if len(self.skipped) < limits.TREE_SKIPPED_TOLD:
            self.skipped.append((path, why))

    def add(self, other: "TreeTally") -> None:
        self.files += other.files
        self.directories += other.directories
        self.links += other.links
        self.size_bytes += other.size_bytes
