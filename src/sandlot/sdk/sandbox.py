"""A sandbox: the handle on one session."""

import builtins
import os
from collections.abc import AsyncGenerator, AsyncIterable, Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, BinaryIO, Self

from sandlot import registry
from sandlot.model import (
    AUTO,
    BUILTIN,
    CURRENT,
    Change,
    DiffRequest,
    Event,
    EventFilter,
    ForkRequest,
    ImportRequest,
    InvalidArgument,
    MetricsRequest,
    MoveProgress,
    MoveRequest,
    NetworkPolicy,
    OnExpiry,
    PauseRequest,
    Preview,
    PreviewRequest,
    RelabelRequest,
    Resources,
    RollbackRequest,
    Scope,
    SessionFilter,
    SessionInfo,
    SessionNotFound,
    SessionSample,
    SessionSpec,
    SessionState,
    Snapshot,
    SnapshotRequest,
    TreeTally,
    Turn,
    TurnRequest,
    address_to_url,
    check_session_id,
    limits,
)
from sandlot.sdk.caller import call_back, call_blocking
from sandlot.sdk.client import Client, default_client, in_portal, iterate
from sandlot.sdk.code import AsyncCode, OnError, OnResult
from sandlot.sdk.code_results import Execution
from sandlot.sdk.commands import AsyncCommands, OnOutput
from sandlot.sdk.content import Readable, pieces_of
from sandlot.sdk.events import events_of
from sandlot.sdk.files import AsyncFiles
from sandlot.sdk.ports import AsyncPorts
from sandlot.sdk.processes import AsyncProcesses
from sandlot.sdk.pty import AsyncTerminals
from sandlot.sdk.tools import AsyncTools
from sandlot.sdk.whole_file import export_to
from sandlot.sdk.wishes import mounts_of, on_expiry_of

if TYPE_CHECKING:
    from sandlot.sdk.workspace import Workspace


class AsyncSandbox:
    """A private computer. `create` makes one, `connect` finds one; leaving the block kills it, unless it was made with
    `detach=True` or found by `connect`.

    Making the object itself does nothing: it only says which sandbox is meant.
    """

    def __init__(self, id: str, *, detach: bool = True, client: Client | None = None) -> None:
        self._id = check_session_id(id)
        self._detach = detach
        self._client = client or default_client()
        self._commands = AsyncCommands(self._client, id)
        self._files = AsyncFiles(self._client, id)
        self._tools = AsyncTools(self._client, id)
        self._pty = AsyncTerminals(self._client, id)
        self._processes = AsyncProcesses(self._client, id)
        self._ports = AsyncPorts(self._client, id)
        self._code = AsyncCode(self._client, id)

    @property
    def id(self) -> str:
        return self._id

    @property
    def client(self) -> Client:
        return self._client

    @property
    def commands(self) -> AsyncCommands:
        return self._commands

    @property
    def files(self) -> AsyncFiles:
        return self._files

    @property
    def tools(self) -> AsyncTools:
        return self._tools

    @property
    def pty(self) -> AsyncTerminals:
        return self._pty

    @property
    def processes(self) -> AsyncProcesses:
        return self._processes

    @property
    def ports(self) -> AsyncPorts:
        return self._ports

    async def url(self, port: int, scheme: str = "http") -> str:
        """Where a port of it is reached from outside; it is exposed when it was not. Raises as `ports.expose` does."""
        return address_to_url((await self._ports.expose(port)).address, scheme)

    @property
    def code(self) -> AsyncCode:
        return self._code

    async def run_code(
        self,
        code: str,
        *,
        language: str | None = None,
        context: str | None = None,
        envs: Mapping[str, str] | None = None,
        timeout: float | None = limits.CALL_TIMEOUT_S,
        on_stdout: OnOutput | None = None,
        on_stderr: OnOutput | None = None,
        on_result: OnResult | None = None,
        on_error: OnError | None = None,
        check: bool = False,
    ) -> Execution:
        """`sandbox.code.run`: run code in a context that remembers, and tell what it printed and showed."""
        return await self._code.run(
            code,
            language=language,
            context=context,
            envs=envs,
            timeout=timeout,
            on_stdout=on_stdout,
            on_stderr=on_stderr,
            on_result=on_result,
            on_error=on_error,
            check=check,
        )

    async def token(self, *, lifetime: float = limits.TOKEN_LIFETIME_S, scope: str = Scope.USE) -> str:
        """What reaches this sandbox on its server, and nothing else there: see `Client.token`."""
        return self._client.token(self._id, lifetime=lifetime, scope=scope)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._id!r})"

    @classmethod
    async def create(
        cls,
        template: str = BUILTIN,
        *,
        id: str | None = None,
        labels: Mapping[str, str] | None = None,
        envs: Mapping[str, str] | None = None,
        user: str | None = None,
        cpus: float | None = None,
        memory_bytes: int | None = None,
        disk_bytes: int | None = None,
        pids: int | None = None,
        open_files: int | None = None,
        swap_bytes: int | None = None,
        io_weight: int | None = None,
        timeout: float = limits.SESSION_LIFETIME_S,
        on_expiry: str = OnExpiry.DESTROY,
        idle_timeout: float | None = None,
        runtime: str = AUTO,
        storage: str = AUTO,
        network: NetworkPolicy | None = None,
        secrets: Mapping[str, str] | None = None,
        ports: Sequence[int] = (),
        snapshot: str | None = None,
        volumes: Mapping[str, str] | None = None,
        call_snapshots: bool = False,
        start: bool = True,
        upload: str | os.PathLike[str] | None = None,
        git: str | None = None,
        request_id: str | None = None,
        queue_timeout: float = 0,
        detach: bool = False,
        client: Client | None = None,
    ) -> Self:
        """A new sandbox, durable when this returns. After `timeout` seconds `on_expiry` is done, `destroy` or `pause`;
        after `idle_timeout` seconds of rest it is paused, and the next use wakes it. The workspace begins with the
        directory `upload`, without what git ignores, or a clone of `git`, PATH or PATH#REF. `volumes`: what is where,
        `{"/cache": "name"}` or `"name:ro"`. With `start=False` what the template starts is left out. A `request_id`
        given twice makes one sandbox. Where there is no room it waits `queue_timeout` seconds for some. Raises
        SandlotError."""
        spec = SessionSpec(
            session_id=id,
            template=template,
            snapshot=snapshot,
            storage=storage,
            runtime=runtime,
            labels=labels or {},
            envs=envs or {},
            user=user,
            resources=Resources(cpus, memory_bytes, disk_bytes, pids, open_files, swap_bytes, io_weight),
            timeout_s=timeout,
            on_expiry=on_expiry_of(on_expiry),
            idle_timeout_s=idle_timeout,
            network=network or NetworkPolicy(),
            secrets=secrets or {},
            ports=tuple(ports),
            mounts=mounts_of(volumes),
            call_snapshots=call_snapshots,
            starts=start,
            request_id=request_id,
            queue_timeout_s=queue_timeout,
        )
        return await cls._make(spec, client or default_client(), _start(upload, git, request_id), detach=detach)

    @classmethod
    async def _make(cls, spec: SessionSpec, client: Client, start: "Workspace | None", *, detach: bool) -> Self:
        made: list[SessionInfo] = []

        async def make() -> None:
            host = await client.host()
            made.append(await host.create(spec))
            if start is not None:
                await registry.load("sdk", "fill")(host, made[0].session_id, start, TreeTally())

        try:
            await client.run(make())
        except BaseException:  # cancelled when it was just there, or not filled; then raised again
            if made and spec.request_id is None:  # nobody would know of it
                await cls(made[0].session_id, client=client).kill()
            raise
        return cls(made[0].session_id, detach=detach, client=client)

    @classmethod
    async def connect(cls, id: str, *, client: Client | None = None) -> Self:
        """A sandbox that is there already. Raises InvalidArgument, SessionNotFound."""
        sandbox = cls(id, client=client)
        await sandbox.info()
        return sandbox

    @classmethod
    async def list(
        cls,
        *,
        labels: Mapping[str, str] | None = None,
        states: Sequence[SessionState] = (),
        client: Client | None = None,
    ) -> list[SessionInfo]:
        """All sandboxes, oldest first: those with all of these labels and one of these states."""
        client = client or default_client()

        async def collect() -> list[SessionInfo]:
            host = await client.host()
            found: list[SessionInfo] = []
            query = SessionFilter(labels or {}, frozenset(states), limits.LIST_PAGE_MAX)
            while True:
                page = await host.list(query)
                found += page.sessions
                if page.next is None:
                    return found
                query = SessionFilter(query.labels, query.states, query.limit, page.next)

        return await client.run(collect())

    @classmethod
    def all_events(
        cls, *, after: int | None = None, follow: bool = False, client: Client | None = None
    ) -> AsyncGenerator[Event]:
        """What has happened to all sandboxes, oldest first: behind the event with the offset `after`, or all that is
        kept. With `follow` it waits for more. An event of the kind `gap` says that some are missing."""
        client = client or default_client()
        return iterate(client, events_of(client, EventFilter(after, None, follow)))

    def events(self, *, after: int | None = None, follow: bool = False) -> AsyncGenerator[Event]:
        """The same of this one, also when it is gone."""
        return iterate(self._client, events_of(self._client, EventFilter(after, self._id, follow)))

    @in_portal
    async def info(self) -> SessionInfo:
        """All that can be told of it, the space that it takes included. Raises SessionNotFound."""
        return await (await self._client.host()).get(self._id)

    @in_portal
    async def metrics(self, *, since: float = 0.0, limit: int = limits.SAMPLES_KEPT) -> builtins.list[SessionSample]:
        """What it used in the last hour, oldest first; the last one is of now. A sandbox that rests has fewer samples,
        and is between them as the one before says. `since`: a time as `time.time()` tells it."""
        return [*await (await self._client.host()).session_metrics(MetricsRequest(self._id, since, limit))]

    @in_portal
    async def kill(self) -> bool:
        """End everything in it and remove it. False when it was gone already."""
        try:
            await (await self._client.host()).destroy(self._id)
        except SessionNotFound:
            return False
        return True

    @in_portal
    async def pause(self, *, drain: float | None = None, freeze: bool = True, memory: bool = False) -> SessionInfo:
        """Everything in it stands still and keeps its state; until `resume`, commands and files raise SessionPaused.
        Commands that run may end first, for `drain` seconds (without it, for as long as the host is set to); then they
        are frozen, or with `freeze=False` the pause raises ToolsInFlight. With `memory=True` what runs is written to
        disk, and uses no memory until then; where the runtime cannot do that, CapabilityNotSupported."""
        return await (await self._client.host()).pause(PauseRequest(self._id, drain, freeze, memory))

    @in_portal
    async def resume(self) -> SessionInfo:
        """It goes on where it stood. Raises InvalidState when its time is up."""
        return await (await self._client.host()).resume(self._id)

    @in_portal
    async def extend(self, timeout: float) -> SessionInfo:
        """It lives for so many seconds from now on. Raises SessionNotFound, SessionDestroying."""
        return await (await self._client.host()).extend(self._id, timeout)

    @in_portal
    async def relabel(self, labels: Mapping[str, str], remove: Sequence[str] = ()) -> SessionInfo:
        """Set labels, and take others away; all others stay. Raises InvalidArgument, LimitReached, SessionNotFound,
        SessionDestroying."""
        return await (await self._client.host()).relabel(RelabelRequest(self._id, dict(labels), tuple(remove)))

    @in_portal
    async def preview(
        self, port: int, *, expires_s: float = limits.PREVIEW_EXPIRES_S, public: bool | None = None
    ) -> Preview:
        """Where a port of this sandbox is reached through its server, with a new token. `public`: from now on everybody
        is let in, or no longer. Raises InvalidArgument, SessionNotFound, InvalidState when no server has its data
        directory, PermissionDenied when its server lets nobody in without a token."""
        request = PreviewRequest(self._id, port, expires_s, public)
        return await (await self._client.host()).preview_port(request)

    @in_portal
    async def preview_url(
        self, port: int, *, expires_s: float = limits.PREVIEW_EXPIRES_S, public: bool | None = None
    ) -> str:
        """An address to open in a browser, good for so long. Whoever has it needs nothing else. Raises as `preview`
        does."""
        request = PreviewRequest(self._id, port, expires_s, public)
        return (await (await self._client.host()).preview_port(request)).signed_url

    @in_portal
    async def recover(self) -> SessionInfo:
        """Bring a sandbox that has failed back: its files as they were left, and nothing running. Raises InvalidState
        when it has not failed, SessionFailed with the new reason when it cannot be had."""
        return await (await self._client.host()).recover(self._id)

    # ---- elsewhere ---------------------------------------------------------------------------------------------

    @in_portal
    async def move(self, storage: str, *, on_progress: Callable[[MoveProgress], object] | None = None) -> SessionInfo:
        """To another storage, with all of its turns. It keeps its id; what runs in it ends. When this fails, or whoever
        called gives up, everything goes on as before. Raises ToolsInFlight while someone waits for a command,
        CapabilityNotSupported, SnapshotsNotAvailable, LimitReached when there is no room."""
        host = await self._client.host()
        async with host.move(MoveRequest(self._id, storage)) as steps:
            async for told in steps:
                if on_progress is not None:
                    await call_back(on_progress, told)
        return await host.get(self._id)

    @in_portal
    async def export(self, path: str | os.PathLike[str]) -> int:
        """All of it, with its turns, as one file of yours: whole, or as it was before. Gives its size in bytes; it goes
        on meanwhile. Raises Unavailable, and OSError for a file that cannot be written."""
        return await export_to(await self._client.host(), self._id, path)

    @classmethod
    async def import_session(
        cls,
        source: str | os.PathLike[str] | Readable | Iterable[bytes] | AsyncIterable[bytes],
        *,
        id: str | None = None,
        storage: str = AUTO,
        runtime: str = AUTO,
        template: str | None = None,
        timeout: float = limits.SESSION_LIFETIME_S,
        detach: bool = False,
        client: Client | None = None,
    ) -> Self:
        """A sandbox from a file that `export` wrote: its path, an open file, or its pieces. It is made whole or not at
        all, and has the id that it had unless another is given. A `template` that is named is taken as it is here.
        Raises InvalidArgument for a file that is not whole, SessionExists, TemplateNotFound, LimitReached when there is
        no room, CapabilityNotSupported, and OSError for a file that cannot be read."""
        request = ImportRequest(id, storage, runtime, template, timeout)
        client = client or default_client()

        async def make() -> SessionInfo:
            if not isinstance(source, str | os.PathLike):
                return await (await client.host()).import_session(request, pieces_of(source))
            file: BinaryIO = await call_blocking(open, source, "rb")
            try:
                return await (await client.host()).import_session(request, pieces_of(file))
            finally:
                file.close()

        made = await client.run(make())
        return cls(made.session_id, detach=detach, client=client)

    # ---- history -----------------------------------------------------------------------------------------------

    @in_portal
    async def turn(self, *, request_id: str | None = None) -> Turn:
        """Close a turn: a snapshot of all files, and the record of what was done since the last one. It is durable when
        this returns. Raises InvalidState while another turn closes, RollbackInProgress, ToolsInFlight."""
        return await (await self._client.host()).turn_complete(TurnRequest(self._id, request_id))

    @in_portal
    async def turns(self) -> builtins.list[Turn]:
        """Oldest first, with their calls and the number of changes."""
        return [*await (await self._client.host()).turns(self._id)]

    @in_portal
    async def create_snapshot(self, name: str, *, memory: bool = False, request_id: str | None = None) -> Snapshot:
        """A point with a name of yours; it stays until you delete it. With `memory=True` it has what runs, too, which
        stands still meanwhile. Raises Conflict when the name is taken, CapabilityNotSupported, InvalidState."""
        return await (await self._client.host()).create_snapshot(SnapshotRequest(self._id, name, request_id, memory))

    @in_portal
    async def snapshots(self) -> builtins.list[Snapshot]:
        """Those of turns and those with names, oldest first."""
        return [*await (await self._client.host()).list_snapshots(self._id)]

    @in_portal
    async def delete_snapshot(self, name: str) -> None:
        """What others need of it stays. Raises SnapshotNotFound."""
        await (await self._client.host()).delete_snapshot(self._id, name)

    @in_portal
    async def rollback(self, to: str | int, *, keep: bool = False) -> SessionInfo:
        """Put all files back to a snapshot or a turn, in place. What runs ends; what ran goes on, if the snapshot has
        its memory. `keep` leaves what is newer as another branch. Raises SnapshotNotFound, ToolsInFlight while someone
        waits for a command."""
        return await (await self._client.host()).rollback(RollbackRequest(self._id, str(to), keep))

    async def fork(
        self,
        at: str | int | None = None,
        *,
        count: int = 1,
        labels: Mapping[str, str] | None = None,
        timeout: float = limits.SESSION_LIFETIME_S,
        memory: bool = False,
        request_id: str | None = None,
        detach: bool = False,
    ) -> builtins.list[Self]:
        """New sandboxes, all or none, that begin with the files of a snapshot or a turn, or of now; with `memory=True`
        also with what ran there. Raises SnapshotNotFound, MaxSessionsReached, LimitReached, CapabilityNotSupported,
        InvalidState when the snapshot has no memory."""
        point = None if at is None else str(at)
        request = ForkRequest(self._id, point, count, labels, timeout, request_id, memory)

        async def make() -> Sequence[SessionInfo]:
            return await (await self._client.host()).fork(request)

        made = await self._client.run(make())
        return [type(self)(child.session_id, detach=detach, client=self._client) for child in made]

    @in_portal
    async def diff(
        self, old: str | int, new: str | int = CURRENT, *, below: str = "/", patch: bool = False
    ) -> builtins.list[Change]:
        """What two points do not have in common, sorted by path: snapshots, turns, or the files as they are now. With
        `patch` each change has the text that `git apply` takes below that directory. Raises SnapshotNotFound."""
        found: list[Change] = []
        request = DiffRequest(self._id, str(old), str(new), below, patch)
        async with (await self._client.host()).diff(request) as batches:
            async for batch in batches:
                found += batch
                limits.at_most("changes", len(found), limits.FILES_LISTED_MAX)
        return found

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_exception: object) -> None:
        # A fork that leaves the block does not take the sandbox from its parent.
        if not self._detach and not self._client.is_inherited:
            await self.kill()


def _start(upload: str | os.PathLike[str] | None, git: str | None, request_id: str | None) -> "Workspace | None":
    if upload is None and git is None:
        return None
    if request_id is not None:
        raise InvalidArgument(
            "a repeated request would fill the workspace again", next_step="create it first, then upload"
        )
    start: Workspace = registry.load("sdk", "workspace")(upload=upload and os.fspath(upload), git=git)
    start.check()
    return start
