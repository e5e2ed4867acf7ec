"""The waist: everything that can run sessions implements this, and nothing above it knows which one it talks to."""

from collections.abc import AsyncIterable, AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Protocol

from sandlot.contracts.code import Code
from sandlot.contracts.files import Files
from sandlot.contracts.metrics import Metrics
from sandlot.contracts.ports import Ports
from sandlot.contracts.previews import Previews
from sandlot.contracts.processes import Processes
from sandlot.contracts.terminals import Terminals
from sandlot.contracts.tool_stream import ToolStream
from sandlot.model import (
    CallEvent,
    CallRecord,
    CallRequest,
    CallResult,
    Capability,
    Change,
    CordonRequest,
    DiffRequest,
    Event,
    EventFilter,
    Examination,
    ExportRequest,
    ForkRequest,
    Health,
    ImportRequest,
    MoveProgress,
    MoveRequest,
    PauseRequest,
    RelabelRequest,
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
        session that was made for it, as it is now, until it is destroyed. One that may wait for room gets what comes
        free in the order in which those who wait came.

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

    async def relabel(self, request: RelabelRequest) -> SessionInfo:
        """Set labels, and take others away; two at once are done one after the other. Durable when it returns.

        Raises InvalidArgument, LimitReached when it would have too many, SessionNotFound, SessionDestroying.
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

    async def examine(self, *, repair: bool = False) -> Examination:
        """Whether the journal and the machine say the same. A repair removes what carries our mark and nobody needs,
        and nothing else."""
        ...

    def backup(self) -> AbstractAsyncContextManager[ExportStream]:
        """All that the host holds, as one file: sessions with their turns, templates, volumes, keys, the journal.
        Everything goes on meanwhile; what uses a volume stands still while that is read. One at a time. Raises
        Conflict, CapabilityNotSupported, LimitReached, Unavailable."""
        ...

    async def cordon(self, request: CordonRequest) -> Health:
        """Make no sessions, forks and imports from now on: whoever asks is refused with HostUnhealthy, which has the
        reason. What is there goes on, and a creation that was done is answered to whoever asks for it again. Durable
        when it returns, until `uncordon`; asked again it takes the new reason. Raises Unavailable."""
        ...

    async def uncordon(self) -> Health:
        """Make sessions again. One that is not cordoned does already. Raises Unavailable."""
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


class Host(
    Sessions,
    Calls,
    Processes,
    Ports,
    Previews,
    Terminals,
    Code,
    Tools,
    Files,
    Snapshots,
    Moving,
    Templates,
    Lockers,
    Upkeep,
    Metrics,
    Events,
    Protocol,
):
    async def capabilities(self) -> frozenset[Capability]:
        """What a session made with defaults can do here."""
        ...
