"""The part of the waist that is about files of sessions."""

from collections.abc import AsyncIterable, AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Protocol, TypeVar

from sandlot.model import (
    AttributesGet,
    AttributesSet,
    DirectoryMake,
    FileAppend,
    FileChange,
    FileCopy,
    FileEvent,
    FileFind,
    FileInfo,
    FileLines,
    FileList,
    FileRead,
    FileRemove,
    FileRename,
    FileReplace,
    FileSearch,
    FileStat,
    FileUsage,
    FileWatch,
    FileWrite,
    Line,
    LinkMake,
    Match,
    SearchTally,
    TreeDownload,
    TreeTally,
    TreeUpload,
    Usage,
)

_T = TypeVar("_T", covariant=True)


class FileStream(Protocol):
    """One file, opened for reading. Given out by a context manager."""

    @property
    def info(self) -> FileInfo: ...

    def __aiter__(self) -> AsyncIterator[bytes]:
        """The content in pieces, none of them empty. Raises FileConflict, Unavailable."""
        ...


class LineStream(Protocol):
    """Lines of one file. Given out by a context manager."""

    @property
    def info(self) -> FileInfo: ...

    @property
    def total(self) -> int | None:
        """The lines of the whole file: at the end of the stream, when they were asked for or all of them were read."""
        ...

    def __aiter__(self) -> AsyncIterator[Sequence[Line]]:
        """Batches, none of them empty. Raises FileConflict, Unavailable."""
        ...


class FoundStream(Protocol[_T]):
    """What a search finds. Given out by a context manager: leaving it ends the search."""

    @property
    def tally(self) -> SearchTally:
        """Complete at the end of the stream."""
        ...

    def __aiter__(self) -> AsyncIterator[Sequence[_T]]:
        """Batches, none of them empty. Raises LimitReached for directories with millions of entries, DeadlineExceeded,
        Unavailable."""
        ...


class TreeStream(Protocol):
    """A directory on its way out. Given out by a context manager."""

    @property
    def tally(self) -> TreeTally:
        """What was packed so far, and what was left out."""
        ...

    def __aiter__(self) -> AsyncIterator[bytes]:
        """A tar archive in pieces, none of them empty. Raises PermissionDenied, FileConflict for a file that became
        shorter meanwhile, LimitReached, Unavailable."""
        ...


class Files(Protocol):
    """The session's files, touched by the host itself. What leads out of them does not exist here, and neither do the
    kernel's own (`/proc`, `/dev`).

    Every verb raises InvalidArgument, SessionNotFound, SessionPaused, SessionDestroying, SessionFailed, InvalidState,
    FileNotFound, PermissionDenied, FileConflict when something else is there than the verb needs, LimitReached when
    the disk is full, CapabilityNotSupported for a user where the runtime has none, DeadlineExceeded and Unavailable.
    A write is as durable as one of a command in the session: no crash of a process loses it.
    """

    def read_file(self, request: FileRead) -> AbstractAsyncContextManager[FileStream]: ...

    async def write_file(self, request: FileWrite, content: AsyncIterable[bytes]) -> FileInfo:
        """Whole or not at all: an error from `content` leaves everything as it was."""
        ...

    async def append_file(self, request: FileAppend, content: AsyncIterable[bytes]) -> FileInfo:
        """Piece by piece: what came before an error of `content` is there."""
        ...

    def read_lines(self, request: FileLines) -> AbstractAsyncContextManager[LineStream]: ...

    async def replace_in_file(self, request: FileReplace) -> int:
        """How often; 0 leaves the file alone. Whole or not at all, and never over what someone else wrote meanwhile.
        Raises FileConflict, with the count in its context, when the text is not there exactly once and all were not
        asked for; LimitReached for a file of more than 64 MiB."""
        ...

    async def copy_file(self, request: FileCopy) -> TreeTally:
        """Every file is there whole or as it was; after an error those before it are there. Raises FileConflict for a
        directory that is to be copied into itself."""
        ...

    async def change_file(self, request: FileChange) -> FileInfo:
        """After an error some of what is below a directory is changed. Raises InvalidArgument for a user or a group
        that the session does not have."""
        ...

    async def make_link(self, request: LinkMake) -> FileInfo: ...

    async def get_attributes(self, request: AttributesGet) -> Mapping[str, bytes]: ...

    async def set_attributes(self, request: AttributesSet) -> Mapping[str, bytes]:
        """Tells what is there afterwards; after an error some are set. Raises LimitReached when they are too large for
        the filesystem, InvalidArgument where it keeps none."""
        ...

    def list_files(self, request: FileList) -> AbstractAsyncContextManager[AsyncIterator[Sequence[FileInfo]]]:
        """The entries of a directory in batches; one above before what is in it, otherwise in no order unless one is
        asked for. Links are told of, not followed. A directory that may not be entered, or goes away meanwhile, shows
        as itself alone."""
        ...

    def find_files(self, request: FileFind) -> AbstractAsyncContextManager[FoundStream[FileInfo]]:
        """By name. Links are told of, not followed, and other mounts are not entered. Entering raises InvalidArgument
        for a pattern that is none."""
        ...

    def search_files(self, request: FileSearch) -> AbstractAsyncContextManager[FoundStream[Match]]:
        """By content. Entering raises InvalidArgument for a pattern that is none."""
        ...

    def watch_files(self, request: FileWatch) -> AbstractAsyncContextManager[AsyncIterator[Sequence[FileEvent]]]:
        """What changes in a directory, from the moment of entering on, in batches; it never ends by itself. What one
        program does quickly one after the other may be told as one. An overflow tells that some were lost: after a
        burst, after a rollback or a turn that put the session on other files, and to who comes back with an offset
        that is not known any more. A watcher waits a minute for readers to come back; then, and when the engine is
        started again, offsets are forgotten.

        Entering raises LimitReached for too many directories or watchers; reading raises what ended the session."""
        ...

    async def measure_files(self, request: FileUsage) -> Usage: ...

    async def stat_file(self, request: FileStat) -> FileInfo: ...

    async def make_directory(self, request: DirectoryMake) -> bool:
        """Whether it was made; False when it was there."""
        ...

    async def rename_file(self, request: FileRename) -> FileInfo: ...

    async def remove_file(self, request: FileRemove) -> None: ...

    async def upload_tree(self, request: TreeUpload, content: AsyncIterable[bytes]) -> TreeTally:
        """Unpack a tar archive below a directory, as the user. Links are made as they are and never followed; files are
        replaced, directories filled. Every file is there whole or as it was; after an error those before it are there.
        Raises InvalidArgument for what leads out of the directory, for devices, and for an archive that is cut off or
        compressed."""
        ...

    def download_tree(self, request: TreeDownload) -> AbstractAsyncContextManager[TreeStream]:
        """All that is below a directory. Links are told of, not followed; what is no file, directory or link is left
        out and counted."""
        ...
