"""Files of a session: what can be told of one, and the requests that touch them.

A path is absolute, or relative to the workspace. It is looked up inside the session: links in it lead where they would
lead a command there, and never out. Names that are not UTF-8 travel as surrogate escapes, as `os.fsdecode` makes them.
"""

import posixpath
from dataclasses import dataclass
from enum import StrEnum

from sandlot.model import limits
from sandlot.model.call import check_text
from sandlot.model.errors import InvalidArgument
from sandlot.model.ids import check_session_id


class FileKind(StrEnum):
    FILE = "file"
    DIRECTORY = "directory"
    SYMLINK = "symlink"
    OTHER = "other"  # a pipe, a socket, a device: can be told of and removed, never read or written


@dataclass(frozen=True, slots=True)
class FileInfo:
    path: str  # absolute, as the session sees it
    kind: FileKind
    size_bytes: int
    mode: int  # permission bits
    uid: int  # inside the session
    gid: int
    modified: float
    target: str = ""  # where a symbolic link points, as it stands in the link

    @property
    def name(self) -> str:
        return posixpath.basename(self.path)


@dataclass(frozen=True, slots=True)
class FileRequest:
    """One path of one session, touched with the rights of one user."""

    session_id: str
    path: str
    user: str | None = None  # None: the session's user

    def __post_init__(self) -> None:
        check_session_id(self.session_id)
        check_path(self.path)
        check_text("user", self.user or "")
        if self.user == "":
            raise InvalidArgument("user is empty", next_step="leave it out for the session's own user")


@dataclass(frozen=True, slots=True)
class FileRead(FileRequest):
    offset: int = 0
    length: int | None = None  # None: to the end

    def __post_init__(self) -> None:
        FileRequest.__post_init__(self)
        limits.within("offset", self.offset, 0, limits.FILE_OFFSET_MAX)
        if self.length is not None:
            limits.within("length", self.length, 0, limits.FILE_OFFSET_MAX)


@dataclass(frozen=True, slots=True)
class FileWrite(FileRequest):
    """The file is there whole, or as it was before: never half. One that is replaced keeps its mode and owner."""

    mode: int | None = None  # None: what it had, or 0o644 for a new one
    parents: bool = True  # make the directories above it

    def __post_init__(self) -> None:
        FileRequest.__post_init__(self)
        if self.mode is not None:
            check_mode(self.mode)


@dataclass(frozen=True, slots=True)
class FileList(FileRequest):
    depth: int = 1  # 1: the directory's own entries

    def __post_init__(self) -> None:
        FileRequest.__post_init__(self)
        limits.within("depth", self.depth, 1, limits.FILE_DEPTH_MAX)


@dataclass(frozen=True, slots=True)
class FileStat(FileRequest):
    follow: bool = True  # False: tell of a symbolic link itself


@dataclass(frozen=True, slots=True)
class DirectoryMake(FileRequest):
    mode: int = 0o755
    parents: bool = True

    def __post_init__(self) -> None:
        FileRequest.__post_init__(self)
        check_mode(self.mode)


@dataclass(frozen=True, slots=True)
class FileRename(FileRequest):
    """Links are moved, not followed."""

    to: str = ""
    overwrite: bool = True

    def __post_init__(self) -> None:
        FileRequest.__post_init__(self)
        check_path(self.to)


@dataclass(frozen=True, slots=True)
class FileRemove(FileRequest):
    """Links are removed, not followed."""

    recursive: bool = False  # a directory with all that is in it


def check_path(path: str) -> None:
    """Raises InvalidArgument for what no file can be called. Where a path leads is for the kernel to say."""
    if not path:
        raise InvalidArgument("the path is empty", next_step="give one; '.' is the workspace")
    check_text("the path", path)
    if len(path.encode("utf-8", "surrogateescape")) > limits.PATH_BYTES_MAX:
        raise InvalidArgument(f"the path is longer than {limits.PATH_BYTES_MAX} bytes", limit="path_bytes")


def check_mode(mode: int) -> None:
    if not 0 <= mode <= 0o7777:
        raise InvalidArgument(f"mode {mode} has more than permission bits", next_step="give one such as 0o644")
