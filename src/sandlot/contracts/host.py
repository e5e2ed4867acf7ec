"""The waist: everything that can run sessions implements this, and nothing above it knows which one it talks to."""

from collections.abc import AsyncIterable, AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Protocol

from sandlot.contracts.tool_stream import ToolStream
from sandlot.model import (
    AttributesGet,
    AttributesSet,
    Audit,
    CallEvent,
    CallRecord,
    CallRequest,
    CallResult,
    Capability,
    Change,
    DiffRequest,
    DirectoryMake,
    Event,
    EventFilter,
    ExportRequest,
    FileAppend,
    FileChange,
    FileCopy,
    FileInfo,
    FileLines,
    FileList,
    FileRead,
    FileRemove,
    FileRename,
    FileReplace,
    FileStat,
    FileWrite,
    ForkRequest,
    Health,
    ImportRequest,
    Line,
    LinkMake,
    MoveProgress,
    MoveRequest,
    PauseRequest,
    RollbackRequest,
    SessionFilter,
    SessionInfo,
    SessionPage,
    SessionSpec,
    Snapshot,
    SnapshotRequest,
    TemplateEvent,
    TemplateInfo,
    TemplateRequest,
    Tool,
    ToolRequest,
    TreeDownload,
    TreeTally,
    TreeUpload,
    Turn,
    TurnRequest,
    VolumeInfo,
    VolumeSpec,
)


class CallStream(Protocol):
    """One call, live or finished. Given out by a context manager: leaving it ends a command that was not detached."""

    @property
    def call_id(self) -> str: ...

    def __aiter__(self) -> AsyncIterator[CallEvent]:
        """Started, output in the order of arrival, and last the result.

        Raises Unavailable when the guest is lost meanwhile.
        """
        ...

    async def result(self) -> CallResult:
        """Wait for the end without looking at the output. Raises Unavailable when the guest is lost."""
        ...

    async def write_stdin(self, data: bytes) -> None:
        """Hand over input; waits while the program does not read. Bytes after it closed its input are dropped.

        Raises InvalidState when the call has no standard input.
        """
        ...

    async def close_stdin(self) -> None: ...

    async def signal(self, number: int) -> None:
        """Send a signal to the command's process group. A command that has ended ignores it.

        Raises InvalidArgument for a number that is no signal.
        """
        ...

    async def resize(self, rows: int, columns: int) -> None:
        """Tell a terminal its new size. Raises InvalidState when the call has no terminal."""
        ...


class Sessions(Protocol):
    async def create(self, spec: SessionSpec) -> SessionInfo:
        """Make a session; when this returns it is durable and takes calls. A request id that came before gives the
        session that was made for it, as it is now, until it is destroyed.

        Raises InvalidArgument, SessionExists, MaxSessionsReached, TemplateNotFound, CapabilityNotSupported when
        something asked for cannot be had (then nothing was created), HostUnhealthy when the host is too full for
        another one, Unavailable when the machine failed to do it.
        """
        ...

    async def get(self, session_id: str) -> SessionInfo:
        """Tell all about one session, its space included. Raises InvalidArgument, SessionNotFound."""
        ...

    async def list(self, query: SessionFilter) -> SessionPage:
        """A page of sessions, oldest first. Raises InvalidArgument."""
        ...

    async def pause(self, request: PauseRequest) -> SessionInfo:
        """Everything in it stands still, uses no processor and keeps its state; timeouts of calls stand still too. New
        calls and file verbs are refused with SessionPaused from now on; only one that was paused because it was idle is
        woken by them. It can be told of, have snapshots taken, be forked and be destroyed. Pausing it again does
        nothing. With `memory`, its processes are written to disk and free what they used; also of one that is paused.

        Raises InvalidArgument, SessionNotFound, SessionDestroying, SessionFailed, ToolsInFlight when calls must not be
        frozen and do not end in time, CapabilityNotSupported where processes cannot be frozen or kept, InvalidState
        when one holds what cannot be kept, LimitReached when the disk has no room for them, DeadlineExceeded,
        Unavailable; then nothing has changed, unless that turned out halfway: then it has failed, with its files.
        """
        ...

    async def resume(self, session_id: str) -> SessionInfo:
        """It goes on where it stood. One that is not paused does already.

        Raises InvalidArgument, SessionNotFound, SessionDestroying, SessionFailed, InvalidState when its time is up,
        DeadlineExceeded, Unavailable.
        """
        ...

    async def extend(self, session_id: str, timeout_s: float) -> SessionInfo:
        """It lives for so long from now on, whatever it had before. Durable when it returns.

        Raises InvalidArgument, SessionNotFound, SessionDestroying.
        """
        ...

    async def destroy(self, session_id: str) -> None:
        """End everything in it and remove it. Calls in flight end with Unavailable; a second destroy of the same
        session waits for the first.

        Raises InvalidArgument, SessionNotFound, DeadlineExceeded.
        """
        ...


class Calls(Protocol):
    def call(self, request: CallRequest) -> AbstractAsyncContextManager[CallStream]:
        """Run a command. A request whose call_id is known attaches to that call instead.

        Entering raises InvalidArgument, SessionNotFound, SessionPaused, SessionDestroying, SessionFailed,
        InvalidState, LimitReached, CapabilityNotSupported, Unavailable.
        """
        ...

    def attach(self, session_id: str, call_id: str) -> AbstractAsyncContextManager[CallStream]:
        """Read a call from its beginning, whoever started it. Leaving never ends the command.

        Entering raises InvalidArgument, SessionNotFound, CallNotFound.
        """
        ...

    async def calls(self, session_id: str) -> Sequence[CallRecord]:
        """The calls of a session, oldest first. Raises InvalidArgument, SessionNotFound."""
        ...


class Tools(Protocol):
    """What a model calls. Each tool says what it takes, and where it does its work."""

    async def tools(self) -> Sequence[Tool]:
        """The catalogue."""
        ...

    def execute_tool(self, request: ToolRequest) -> AbstractAsyncContextManager[ToolStream]:
        """Call one. What it cannot do, wrong arguments included, is a result that is marked as an error. A call id that
        is known gives what that call gave, and nothing is done again.

        Entering raises InvalidArgument for a tool that nobody knows, and what `call` raises; reading raises what
        failed below the tool, Unavailable when it is not known whether an earlier call with this id was done.
        """
        ...

    async def cancel_tool(self, session_id: str, call_id: str) -> bool:
        """End it; its result says so. False when it has ended already. Raises InvalidArgument, SessionNotFound,
        CallNotFound."""
        ...


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
        """The entries of a directory in batches, in no order; one above before what is in it. Links are told of, not
        followed. A directory that may not be entered, or goes away meanwhile, shows as itself alone."""
        ...

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


class Snapshots(Protocol):
    """The history of a session's files.

    A turn, a snapshot or a fork that is asked for again with its request id, on the same session, gets the first
    answer, whatever else the request says; while the first is under way it waits for it, and when that fails it is
    done anew. What was made so and is gone is a SnapshotNotFound or SessionNotFound. A caller who gives up goes on when
    what he began has come to its end: a fork is undone, everything else is done.

    Every verb raises InvalidArgument, SessionNotFound, SnapshotsNotAvailable where storage or runtime has none,
    InvalidState and the other conflicts of states, RollbackInProgress, and Unavailable; then nothing has changed.
    """

    async def create_snapshot(self, request: SnapshotRequest) -> Snapshot:
        """Durable when it returns. With `memory`, what runs is kept too, and stands still meanwhile. Raises Conflict
        when the name is taken, ToolsInFlight when writes do not end, and with `memory` what `pause` raises."""
        ...

    async def list_snapshots(self, session_id: str) -> Sequence[Snapshot]:
        """Oldest first."""
        ...

    async def delete_snapshot(self, session_id: str, name: str) -> None:
        """Raises SnapshotNotFound."""
        ...

    async def turn_complete(self, request: TurnRequest) -> Turn:
        """Close a turn: a snapshot and its record. Where there are no snapshots the turn is recorded without one."""
        ...

    async def turns(self, session_id: str) -> Sequence[Turn]:
        """Oldest first."""
        ...

    def diff(self, request: DiffRequest) -> AbstractAsyncContextManager[AsyncIterator[Sequence[Change]]]:
        """What two points do not have in common, sorted by path, in batches. Raises SnapshotNotFound."""
        ...

    async def rollback(self, request: RollbackRequest) -> SessionInfo:
        """Put the session's files back, in place, and end what runs; what ran goes on, where the snapshot has memory.
        Raises SnapshotNotFound, ToolsInFlight while someone waits for a call."""
        ...

    async def fork(self, request: ForkRequest) -> Sequence[SessionInfo]:
        """New sessions, all or none; with `memory`, what ran goes on in each of them. Raises SnapshotNotFound,
        MaxSessionsReached, HostUnhealthy, LimitReached; with `memory` what `pause` raises, InvalidState without any."""
        ...


class ExportStream(Protocol):
    """A session as bytes of one file. Given out by a context manager; leaving it early ends it."""

    @property
    def expected_bytes(self) -> int:
        """About how much there is to be told, before it is packed."""
        ...

    def __aiter__(self) -> AsyncIterator[bytes]:
        """Pieces, none of them empty. Raises Unavailable, LimitReached."""
        ...


class Moving(Protocol):
    """Sessions that go elsewhere, with all of their turns.

    Every verb raises InvalidArgument, SessionNotFound and the conflicts of states, CapabilityNotSupported when a limit
    of the session cannot be held there and SnapshotsNotAvailable when its history cannot, before anything is done;
    LimitReached when there is no room, Unavailable. Then nothing has changed.
    """

    def move(self, request: MoveRequest) -> AbstractAsyncContextManager[AsyncIterator[MoveProgress]]:
        """To another storage, in place. What runs in the session stands still meanwhile, and ends with the move; when
        it fails it goes on. The move is done and durable when the last progress was told; leaving earlier undoes it.
        One that is there already stays as it is. Raises ToolsInFlight while someone waits for a call."""
        ...

    def export(self, request: ExportRequest) -> AbstractAsyncContextManager[ExportStream]:
        """All of it as it is now, as one file. The session goes on meanwhile."""
        ...

    async def import_session(self, request: ImportRequest, content: AsyncIterable[bytes]) -> SessionInfo:
        """A session from such a file: whole, or not at all. Nothing in the file is believed. Raises SessionExists,
        MaxSessionsReached, HostUnhealthy, TemplateNotFound, DeadlineExceeded when the rest of the file does not come,
        and what `content` raises."""
        ...


class Upkeep(Protocol):
    """What keeps a host in order."""

    async def health(self) -> Health:
        """How the host is, found out anew. Always answers; what cannot be found out in time is a reason."""
        ...

    async def audit(self, *, repair: bool = False) -> Audit:
        """Whether the journal and the machine say the same. A repair removes what carries our mark and nobody needs,
        and nothing else."""
        ...

    async def recover(self, session_id: str) -> SessionInfo:
        """Bring a failed session back: its files, as they were left, under a new guest. What ran in it is lost.

        Raises InvalidArgument, SessionNotFound, InvalidState when it has not failed, SessionFailed with the new reason
        when it cannot be had; then its files are kept, and it can be tried again.
        """
        ...


class Templates(Protocol):
    """What sessions start from, beside the built-in template, which needs no making."""

    async def list_templates(self) -> Sequence[TemplateInfo]:
        """All that were made, oldest first."""
        ...

    async def get_template(self, name: str) -> TemplateInfo:
        """By name or digest. Raises InvalidArgument, TemplateNotFound."""
        ...

    def make_template(self, request: TemplateRequest) -> AbstractAsyncContextManager[AsyncIterator[TemplateEvent]]:
        """Make one; the last event tells it, and then it is durable and has its name. A name that was given before is
        taken from what had it. Leaving early gives it up, and nothing is left.

        Reading raises InvalidArgument with the reason when what was given is broken, hostile or too large, and then
        nothing was made; NotFound, CapabilityNotSupported, Unavailable.
        """
        ...

    async def tag_template(self, name: str, new_name: str) -> TemplateInfo:
        """Give it another name, too. Raises InvalidArgument, TemplateNotFound, Unavailable."""
        ...

    async def remove_template(self, name: str) -> TemplateInfo:
        """Take a name away, and with the last one, or by digest, the template. Raises InvalidArgument,
        TemplateNotFound, Conflict while a session stands on it, Unavailable."""
        ...

    async def warm_template(self, name: str, count: int) -> TemplateInfo:
        """Keep so many guests of it waiting for sessions, serving if it starts something, as long as the host runs;
        they are ready when this returns. Raises InvalidArgument, TemplateNotFound, StartFailed, and what making a
        session raises."""
        ...

    async def prune_templates(self, budget_bytes: int) -> Sequence[TemplateInfo]:
        """Remove the least recently used until the others fit, those without a name first; tells which. What a session
        stands on stays. Raises InvalidArgument, Unavailable."""
        ...


class Lockers(Protocol):
    """Volumes as users know them: directories with names, outside of snapshots. Every verb raises InvalidArgument and
    Unavailable. What they hold is as durable as files of a session; that they are there is durable at once."""

    async def create_volume(self, spec: VolumeSpec) -> VolumeInfo:
        """Raises Conflict when there is one of that name."""
        ...

    async def get_volume(self, name: str) -> VolumeInfo:
        """With the space that it takes. Raises NotFound."""
        ...

    async def list_volumes(self) -> Sequence[VolumeInfo]: ...

    async def remove_volume(self, name: str) -> None:
        """With all that is in it. Raises NotFound, Conflict while a session has it."""
        ...


class Events(Protocol):
    def events(self, request: EventFilter) -> AbstractAsyncContextManager[AsyncIterator[Event]]:
        """What has happened to sessions, oldest first, those that are gone included. An event is durable together with
        the change that it tells; one of a creation that could not be finished is followed by `destroyed`. Where events
        are missing, because the ones asked for are too old or a power cut took them, one of the kind `gap` says so.

        Entering raises InvalidArgument for an offset that was never given. Following raises Unavailable when the host
        is closed.
        """
        ...


class Host(Sessions, Calls, Tools, Files, Snapshots, Moving, Templates, Lockers, Upkeep, Events, Protocol):
    async def capabilities(self) -> frozenset[Capability]:
        """What a session made with defaults can do here."""
        ...
