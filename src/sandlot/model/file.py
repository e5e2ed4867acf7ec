"""Files of a session: what can be told of one, and the requests that touch them.

A path is absolute, or relative to the workspace. It is looked up inside the session: links in it lead where they would
lead a command there, and never out. Names that are not UTF-8 travel as surrogate escapes, as `os.fsdecode` makes them.
"""

import posixpath
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from sandlot.model import limits
from sandlot.model.call import check_text
from sandlot.model.errors import InvalidArgument
from sandlot.model.ids import check_session_id

ATTRIBUTE_PREFIX = "user."


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
    owner: str = ""  # their names in the session; the number where it has no name
    group: str = ""
    changed: float = 0.0  # when anything about it changed, its mode and its names included

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
class FileAppend(FileRequest):
    """Behind what is in a file; one that is not there is made. What came before an error stays."""

    mode: int = 0o644  # of a new one
    parents: bool = True

    def __post_init__(self) -> None:
        FileRequest.__post_init__(self)
        check_mode(self.mode)


@dataclass(frozen=True, slots=True)
class FileLines(FileRequest):
    """Lines end with a newline, which is not told."""

    first: int = 1  # lines have numbers, beginning with 1
    count: int | None = None  # None: to the end
    total: bool = False  # also count the lines of the whole file
    line_bytes: int = limits.LINE_BYTES  # of what is longer, so much is told

    def __post_init__(self) -> None:
        FileRequest.__post_init__(self)
        limits.within("first", self.first, 1, limits.FILE_OFFSET_MAX)
        if self.count is not None:
            limits.within("count", self.count, 0, limits.FILE_OFFSET_MAX)
        limits.within("line_bytes", self.line_bytes, 1, limits.LINE_BYTES_MAX)


@dataclass(frozen=True, slots=True)
class Line:
    number: int
    text: str
    is_cut: bool = False


@dataclass(frozen=True, slots=True)
class FileReplace(FileRequest):
    """One text of a file for another, whole or not at all."""

    old: str = ""
    new: str = ""
    all: bool = False  # False: it must be there exactly once

    def __post_init__(self) -> None:
        FileRequest.__post_init__(self)
        if not self.old:
            raise InvalidArgument("the text to be replaced is empty", next_step="give some of what is in the file")
        for name, text in (("old", self.old), ("new", self.new)):
            if len(text) > limits.FILE_READ_BYTES_MAX:
                raise InvalidArgument(f"{name} is longer than any file that is edited", limit="file_read_bytes")


@dataclass(frozen=True, slots=True)
class FileList(FileRequest):
    depth: int = 1  # 1: the directory's own entries
    ordered: bool = False  # by name, each directory before what is in it
    after: str = ""  # of an ordered listing: the path of the last entry that is known, as it was told
    limit: int | None = None  # entries of this page, the first ones in order

    def __post_init__(self) -> None:
        FileRequest.__post_init__(self)
        limits.within("depth", self.depth, 1, limits.FILE_DEPTH_MAX)
        if self.limit is not None:
            limits.within("limit", self.limit, 1, limits.FILE_OFFSET_MAX)
        if self.after:
            check_path(self.after)
        if (self.after or self.limit is not None) and not self.ordered:
            raise InvalidArgument("pages have an order", next_step="ask for an ordered listing")


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
class FileCopy(FileRequest):
    """A file keeps its permission bits and gets the owner who copies it. Links are copied, not followed. A directory
    that is there is filled; what is no file, directory or link is left out and counted."""

    to: str = ""
    recursive: bool = False  # a directory with all that is in it
    overwrite: bool = True

    def __post_init__(self) -> None:
        FileRequest.__post_init__(self)
        check_path(self.to)


@dataclass(frozen=True, slots=True)
class FileChange(FileRequest):
    """Permission bits, owner and group. A link at the end of the path is followed; those below are not."""

    mode: int | None = None
    owner: str | None = None  # a name in the session, or a number as text
    group: str | None = None
    recursive: bool = False

    def __post_init__(self) -> None:
        FileRequest.__post_init__(self)
        if self.mode is not None:
            check_mode(self.mode)
        if self.mode is None and self.owner is None and self.group is None:
            raise InvalidArgument("nothing is to be changed", next_step="give a mode, an owner or a group")
        for name, who in (("owner", self.owner), ("group", self.group)):
            check_text(name, who or "")
            if who == "":
                raise InvalidArgument(f"{name} is empty", next_step="leave it out to keep what it is")


@dataclass(frozen=True, slots=True)
class LinkMake(FileRequest):
    """A symbolic link. Where it points is text, and need not be there."""

    target: str = ""
    parents: bool = True

    def __post_init__(self) -> None:
        FileRequest.__post_init__(self)
        check_path(self.target)


@dataclass(frozen=True, slots=True)
class AttributesSet(FileRequest):
    """Extended attributes of a file or a directory. Names begin with `user.`; others are the kernel's."""

    values: Mapping[str, bytes | None] = field(default_factory=dict[str, bytes | None])  # None: it is removed
    replace: bool = False  # those that are not named are removed too

    def __post_init__(self) -> None:
        FileRequest.__post_init__(self)
        limits.at_most("attributes", len(self.values), limits.ATTRIBUTES_MAX)
        for name, value in self.values.items():
            check_text("the name of an attribute", name)
            size = len(name.encode("utf-8", "surrogateescape"))
            if not name.startswith(ATTRIBUTE_PREFIX) or not len(ATTRIBUTE_PREFIX) < size <= limits.ATTRIBUTE_NAME_BYTES:
                raise InvalidArgument(
                    f"{name[:40]!r} cannot be the name of an attribute",
                    next_step=f"use one such as {ATTRIBUTE_PREFIX}note, of at most {limits.ATTRIBUTE_NAME_BYTES} bytes",
                )
            if value is not None and len(value) > limits.ATTRIBUTE_BYTES:
                raise InvalidArgument(f"{name}: more than {limits.ATTRIBUTE_BYTES} bytes", limit="attribute_bytes")


@dataclass(frozen=True, slots=True)
class AttributesGet(FileRequest):
    """All that begin with `user.`."""


@dataclass(frozen=True, slots=True)
class FileUsage(FileRequest):
    """What a file, or a directory with all that is in it, takes."""


@dataclass(frozen=True, slots=True)
class Usage:
    """Links are not followed. A file with several names counts once, unless there are very many of such."""

    size_bytes: int = 0  # as a reader sees them
    allocated_bytes: int = 0  # on disk
    files: int = 0  # all that is no directory
    directories: int = 0  # with the first one
    closed: int = 0  # directories that may not be entered


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
