"""How sessions come to be, end, and are found again after a restart."""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

from sandlot.contracts.runtime import MountPlan, Runtime
from sandlot.contracts.storage import Storage, Volume
from sandlot.host import failpoints
from sandlot.host.admission import Admission
from sandlot.host.background import Background
from sandlot.host.choices import Choices, check_wishes, grant, session_capabilities
from sandlot.host.history import SnapshotRow
from sandlot.host.journal import SessionRow
from sandlot.host.journal_writer import JournalError
from sandlot.host.listing import list_sessions, space_used
from sandlot.host.notes import Notes
from sandlot.host.output import remove_outputs
from sandlot.host.parts import HostParts, HostSettings
from sandlot.host.pool import WarmPools, can_be_limited
from sandlot.host.repeats import Repeats, Verb
from sandlot.host.room import watch_limits
from sandlot.host.session import Session, no_session
from sandlot.host.sources import find_source, find_template
from sandlot.host.starting import Serving, serve, start_early, wait_serving
from sandlot.host.storages import Sweeper
from sandlot.host.vessels import DEFAULT_USER, Vessel, Vessels, new_row
from sandlot.host.wishes import Wishes
from sandlot.model import (
    BUILTIN,
    Capability,
    DeadlineExceeded,
    EventKind,
    MaxSessionsReached,
    Resources,
    SandlotError,
    SessionEvent,
    SessionExists,
    SessionFilter,
    SessionInfo,
    SessionPage,
    SessionSpec,
    SessionState,
    Template,
    Unavailable,
    check_session_id,
    limits,
    new_fork_id,
    new_session_id,
    transition,
)

FORKING, IMPORTING = "fork", "import"
Place = tuple[Storage, Runtime, Template]
_DRAIN_POLL_S = 0.02
_ROOM_PAUSES_S = (0.0, 0.2, 1.0, 3.0, 5.0)


class Lifecycle:
    """All sessions of one host. Every change of state is journalled before it is told."""

    def __init__(
        self, settings: HostSettings, parts: HostParts, choices: Choices, background: Background, outputs: Path
    ) -> None:
        self._settings = settings
        self._parts = parts
        self._journal = parts.journal
        self._choices = choices
        self._background = background
        self._outputs = outputs
        self._vessels = Vessels()
        self._admission = Admission(settings.overcommit)
        self.notes = Notes(parts, background)
        warm = {BUILTIN: settings.warm_pool, **settings.warm_templates}
        self.pool = WarmPools(warm, self._make_pool_vessel, self._discard, background)
        self._sessions: dict[str, Session] = {}
        self.creating: set[str] = set()  # ids of sessions that are being made
        self._repeats = Repeats()
        self._requests: dict[str, str] = {}  # which session was made for a request
        self._destroying: dict[str, asyncio.Task[None]] = {}
        self.serving = Serving()
        self._last_serial = 0
        self.changed = asyncio.Event()  # there may be something else to be done next
        self._sweeper = Sweeper(parts.storages, background)
        self.sweep = self._sweeper.soon
        self.is_closing = False
        self._refuses = False
        self.admit: Callable[[], Awaitable[None]] | None = None  # raises when the host has no room for one more
        self.on_session: Callable[[Session], None] | None = None  # of one that comes to be, or is found

    async def start(self) -> None:
        """After what an earlier engine left was taken over: serve."""
        self._background.spawn("merge layers", self._tidy())
        self.sweep()
        self.pool.refill()

    async def _tidy(self) -> None:
        """What an earlier engine did not come to."""
        for session in tuple(self._sessions.values()):
            if session.volume is not None:
                await self._storage(session).tidy(session.volume.state)

    def refuse(self) -> None:
        """Begin nothing more: whoever asks for a session is told that the engine is closing."""
        self._refuses = True

    async def drain(self, patience_s: float, *, for_calls: bool) -> None:
        """Wait for what is under way and someone waits for. What takes longer is left: to the guest, which remembers
        its calls, or to the next engine, which undoes what was not recorded."""
        loop = asyncio.get_running_loop()
        give_up = loop.time() + patience_s
        while self._is_busy(for_calls) and loop.time() < give_up:  # noqa: ASYNC110 - many things, each with its own end
            await asyncio.sleep(_DRAIN_POLL_S)
        for session in self._sessions.values():
            for live in session.everything():
                live.leave()

    def _is_busy(self, for_calls: bool) -> bool:
        return self.is_changing() or (for_calls and any(each.is_attended() for each in self._sessions.values()))

    def is_changing(self) -> bool:
        """Whether files of some session are being made, copied or given back."""
        return bool(self.creating or self._destroying) or any(
            session.recovering or not session.gate.is_quiet for session in self._sessions.values()
        )

    def volumes_at_work(self) -> frozenset[str]:
        """Those that this engine has begun, with a session or without."""
        return frozenset(self._vessels.names.values())

    def check_open(self) -> None:
        """Raises Unavailable."""
        if self._refuses:
            raise Unavailable("the engine is closing", next_step="try again when an engine is there")

    async def settle(self) -> None:
        """Finish what was begun, and begin nothing more."""
        for task in tuple(self._destroying.values()):
            with suppress(SandlotError):
                await task
        self.serving.give_up()
        self.is_closing = True
        self.changed.set()
        self.pool.stop()
        for session in self._sessions.values():
            for live in session.everything():
                await live.settle()

    async def close(self) -> None:
        """After the background tasks: give back what no session holds. Sessions stay."""
        for vessel in self.pool.drain():
            await self._discard(vessel)
        await self._sweeper.now()

    def sessions(self) -> Collection[Session]:
        return self._sessions.values()

    def find(self, session_id: str) -> Session:
        """For whoever asks from outside. Raises SessionNotFound, InvalidArgument, Unavailable."""
        self.check_open()
        session = self._find(session_id)
        # A child whose siblings are still being made may be undone: nobody has heard of it yet.
        if session.row.changing == FORKING:
            raise no_session(session_id)
        return session

    def _find(self, session_id: str) -> Session:
        session = self._sessions.get(check_session_id(session_id))
        if session is None:
            raise no_session(session_id)
        return session

    def requested(self, request_id: str | None) -> Session | None:
        """The session that a request has made."""
        return self._sessions.get(self._requests.get(request_id or "", ""))

    def all(self) -> list[Session]:
        return [*self._sessions.values()]

    async def create(self, spec: SessionSpec, mounts: tuple[MountPlan, ...] = ()) -> SessionInfo:
        async with self._repeats.one_at_a_time(Verb.CREATE, "", spec.request_id):
            if spec.request_id and spec.request_id in self._requests:
                session_id = self._requests[spec.request_id]
                await wait_serving(self.find(session_id))
                return await self.get(session_id)
            session_id = spec.session_id or new_session_id()
            self._admit(session_id)
            self.creating.add(session_id)
            try:
                session = await self._create(session_id, spec, mounts)
            finally:
                self.creating.remove(session_id)
                self._admission.arrived(session_id)
            if spec.request_id:
                self._requests[spec.request_id] = session_id
            if session.start and not session.is_serving:
                await self._serve_or_end(session)
            return session.info(space_used=0)

    async def _serve_or_end(self, session: Session) -> None:
        """A session that does not serve is none. Raises StartFailed."""
        try:
            await serve(session)
        except BaseException:  # undone, then raised again
            await asyncio.shield(self.destroy(session.row.session_id))
            raise

    async def get(self, session_id: str) -> SessionInfo:
        session = self.find(session_id)
        return session.info(await space_used(session, self._storage(session), self._parts.memories))

    async def list(self, query: SessionFilter) -> SessionPage:
        self.check_open()
        seen = (session for session in self._sessions.values() if session.row.changing != FORKING)
        return list_sessions(seen, query)

    async def destroy(self, session_id: str, event: EventKind | None = None) -> None:
        """The event tells why, when it was not asked for."""
        session = self._find(session_id)
        task = self._destroying.get(session_id)
        if task is None:
            task = asyncio.get_running_loop().create_task(
                self.finish_destroy(session, event), name=f"destroy {session_id}"
            )
            self._destroying[session_id] = task
            task.add_done_callback(lambda _task: self._destroying.pop(session_id, None))
        try:
            async with asyncio.timeout(limits.DESTROY_DEADLINE_S):
                await asyncio.shield(task)
        except TimeoutError:
            raise DeadlineExceeded(f"session {session_id} is still being destroyed", session_id=session_id) from None

    def adopt(self, row: SessionRow, volume: Volume | None) -> Session:
        """A session of an earlier engine; its guest is still to be found."""
        self._vessels.claim(row.id_range)
        self._last_serial = max(self._last_serial, row.serial)
        if row.request_id:
            self._requests[row.request_id] = row.session_id
        session = self._wrap(row, Wishes.from_text(row.spec), self._parts.runtimes[row.runtime], volume)
        self._sessions[row.session_id] = session
        return session

    def number(self, row: SessionRow) -> SessionRow:
        """A session that was made elsewhere, as one of this engine."""
        return replace(row, serial=self._next_serial(), id_range=self._vessels.take_range())

    # ---- creating ----------------------------------------------------------------------------------------------

    def _admit(self, session_id: str) -> None:
        if session_id in self._sessions or session_id in self.creating:
            raise SessionExists(
                f"session {session_id} exists", next_step="choose another id, or connect to it", session_id=session_id
            )
        if len(self._sessions) + len(self.creating) >= self._settings.sessions_max:
            raise MaxSessionsReached(
                f"this host holds {self._settings.sessions_max} sessions already",
                next_step="destroy one, or raise sessions_max",
                limit="sessions_max",
            )

    def _held(self) -> Iterator[Resources]:
        return (session.resources for session in self._sessions.values())

    async def _create(self, session_id: str, spec: SessionSpec, mounts: tuple[MountPlan, ...]) -> Session:
        source, start = find_source(self.find, spec)
        runtime = await self._choices.runtime(spec.runtime)
        disk_bytes = spec.resources.disk_bytes
        storage = await self._choices.storage(source.row.storage if source else spec.storage, disk_bytes)
        have = session_capabilities(runtime, storage)
        check_wishes(spec, have)
        if self._settings.call_snapshots and Capability.SNAPSHOTS in have:
            spec = replace(spec, call_snapshots=True)
        resources, unlimited = grant(spec.resources, self._settings.resources, have)
        self._admission.expect(session_id, resources, self._held())
        source, start = find_source(self.find, spec)  # again: it may have gone meanwhile
        if source and start:
            template = self._parts.templates.at(source.row.template, source.row.template_path)
            vessel = await self._vessels.begin(storage, runtime, template, resources, start.point)
        else:
            template = await find_template(self._parts.templates, spec.template, runtime)
            # A volume is born with the group that limits it, and a guest with its mounts.
            fits = disk_bytes is None and not mounts and can_be_limited(storage, self._settings.resources, resources)
            # What runs in it already has the variables and the user of the template.
            fits = fits and not (template.start and (spec.envs or spec.user or not spec.starts))
            waiting = self.pool.take(storage, runtime, template) if fits else None
            vessel = waiting or await self._vessels.begin(storage, runtime, template, resources)
        user = spec.user or ((template.user or DEFAULT_USER) if Capability.USERS in have else "")
        wishes = Wishes.of(spec, user, resources, unlimited).below(template, starts=spec.starts)
        wishes = replace(wishes, mounts=mounts) if mounts else wishes
        spec = spec if spec.template == template.name else replace(spec, template=template.name)
        origin = f"{start.session_id}/{start.name}" if start else None
        row = new_row(session_id, self._next_serial(), spec, wishes, vessel, origin)
        return await self._board(row, wishes, vessel)

    async def fork(
        self, source: Session, at: SnapshotRow, labels: Mapping[str, str], timeout_s: float, image: Path | None
    ) -> Session:
        """A session that begins at a point of another one, and has everything else of it; with an image, what ran."""
        row, wishes = source.row, source.wishes_with(labels)
        session_id = new_fork_id(row.session_id)
        self._admit(session_id)
        # Counted from now on: many are made at once, and together they must not be more than fit.
        self.creating.add(session_id)
        try:
            self._admission.expect(session_id, wishes.resources, self._held())
            parts = self._parts.storages[row.storage], self._parts.runtimes[row.runtime]
            template = Template(row.template, "", row.template_path)
            vessel = await self._vessels.begin(*parts, template, wishes.resources, at.point)
            vessel.image = image
            spec, origin = SessionSpec(template=row.template, timeout_s=timeout_s), f"{row.session_id}/{at.name}"
            made = new_row(session_id, self._next_serial(), spec, wishes, vessel, origin)
            # Marked, until all that were asked for are there: those of an engine that died in between are removed.
            made = replace(made, changing=FORKING, forgotten=at.last_process_id if image else 0)
            return await self._board(made, wishes, vessel)
        finally:
            self.creating.remove(session_id)
            self._admission.arrived(session_id)

    async def arrive(
        self, session_id: str, wishes: Wishes, parts: Place, timeout_s: float, fill: Callable[[Vessel], Awaitable[None]]
    ) -> Session:
        """A session whose files come from elsewhere, marked until all that belongs to it is recorded."""
        self._admit(session_id)
        self.creating.add(session_id)
        try:
            self._admission.expect(session_id, wishes.resources, self._held())
            vessel = await self._vessels.begin(*parts, wishes.resources)
            try:
                await fill(vessel)
            except BaseException:  # undone, then raised again
                await self._discard(vessel)
                raise
            spec = SessionSpec(template=vessel.template.name, timeout_s=timeout_s)
            made = new_row(session_id, self._next_serial(), spec, wishes, vessel)
            return await self._board(replace(made, changing=IMPORTING), wishes, vessel)
        finally:
            self.creating.remove(session_id)
            self._admission.arrived(session_id)

    async def _board(self, row: SessionRow, wishes: Wishes, vessel: Vessel) -> Session:
        """Make a session of a vessel, or nothing."""
        session_id = row.session_id
        recorded: asyncio.Future[None] | None = None
        try:
            await failpoints.reach("create: volume made")
            # While the guest starts: the disk and the kernel need not wait for each other. A crash in between leaves a
            # row without a guest, which is a session that has failed, or a guest without a row, which is ended.
            vessel.mounts, recorded = wishes.mounts, self._journal.add_session(row)
            session = self._wrap(row, wishes, vessel.runtime, vessel.volume)
            if vessel.claim:
                vessel.claim(session)
            if vessel.guest is None:
                await self._vessels.start(vessel)
            else:
                await self._vessels.limit(vessel, wishes.resources)
            await failpoints.reach("create: guest started")
            await recorded
            await failpoints.reach("create: recorded")
            if vessel.image and vessel.guest:
                await session.resume_calls(vessel.guest)
            elif row.changing != IMPORTING:
                session.call_ids.begin_empty()
            if vessel.lost:
                raise Unavailable("the guest ended while its session was being made", session_id=session_id)
        except BaseException:  # undone, then raised again
            await asyncio.shield(self._unboard(session_id, vessel, recorded))
            raise
        self._journal.note(session_id, EventKind.ACTIVE)
        session.guest = vessel.guest
        vessel.on_end = partial(self.guest_ended, session)
        self._sessions[session_id] = session
        self.notes.remember(session)
        self.changed.set()
        return session

    async def _unboard(self, session_id: str, vessel: Vessel, recorded: "asyncio.Future[None] | None") -> None:
        if recorded:
            await asyncio.gather(recorded, return_exceptions=True)
        await self._discard(vessel)
        with suppress(SandlotError):
            await self._journal.remove_session(session_id)

    def _next_serial(self) -> int:
        self._last_serial += 1
        return self._last_serial

    def _wrap(self, row: SessionRow, wishes: Wishes, runtime: Runtime, volume: Volume | None) -> Session:
        workspace = runtime.workspace(volume) if volume else ""
        session = Session(row, wishes, volume, workspace, runtime.capabilities, self._journal, self._outputs)
        session.on_wedged = partial(self._wedged, session)
        session.find_group = partial(runtime.group, row.volume)
        watch_limits(session, self._parts.storages[row.storage])
        if self.on_session:
            self.on_session(session)
        session.on_prune_due = lambda: self._background.spawn("prune outputs", self._prune(session))
        return session

    async def _make_pool_vessel(self, name: str) -> Vessel:
        if self.admit:
            await self.admit()
        runtime, storage = await self._choices.runtime(), await self._choices.storage()
        have = session_capabilities(runtime, storage)
        resources, unlimited = grant(Resources(), self._settings.resources, have)
        template = await find_template(self._parts.templates, name, runtime)
        vessel = await self._vessels.make(storage, runtime, template, resources)
        try:
            await self._vessels.warm_up(vessel)
            if template.start is not None:
                spec, user = SessionSpec(template=name), template.user or DEFAULT_USER
                wishes = Wishes.of(spec, user, resources, unlimited).below(template)
                draft = self._wrap(new_row("warm", 0, spec, wishes, vessel), wishes, runtime, vessel.volume)
                await start_early(vessel, draft, self._outputs)
        except BaseException:  # undone, then raised again
            await self._discard(vessel)
            raise
        return vessel

    async def _discard(self, vessel: Vessel) -> None:
        await self._vessels.discard(vessel)
        if vessel.template.start is not None:
            await asyncio.to_thread(remove_outputs, self._outputs / vessel.volume.name)
        self.sweep()

    # ---- ending ------------------------------------------------------------------------------------------------

    def _storage(self, session: Session) -> Storage:
        return self._parts.storages[session.row.storage]

    async def finish_destroy(self, session: Session, event: EventKind | None = None) -> None:
        """All steps of it, or those that an earlier engine did not come to."""
        if session.recovering is not None:  # bounded, and two who start and end one guest would not hear of each other
            await asyncio.wait([session.recovering])
        row = session.row
        if row.state is not SessionState.DESTROYING:
            session.set_state(transition(row.session_id, row.state, SessionEvent.DESTROY))
        # A full disk is no reason to keep what fills it. An engine that dies before the row is gone leaves a session
        # that is marked, or one that has failed.
        with suppress(JournalError):
            await self._journal.set_state(row.session_id, SessionState.DESTROYING, event=event)
        await failpoints.reach("destroy: marked")
        session.lose_everything("the session was destroyed")
        # Whatever is being done with its files ends first: two must not give the same layers back.
        async with session.gate.shut_for_good():
            await self._parts.runtimes[row.runtime].stop(row.volume)
            session.guest = None
            await failpoints.reach("destroy: guest ended")
            images = [session.row.memory, *(snapshot.memory for snapshot in session.snapshots.values())]
            await self._storage(session).release(*session.give_up_files())
            await failpoints.reach("destroy: volume released")
            await asyncio.to_thread(remove_outputs, self._outputs / row.volume)
            await self._parts.memories.discard(images)
            await self._forget(row.session_id)
            self._sessions.pop(row.session_id, None)
        self._vessels.free(row.id_range)
        if row.request_id:
            self._requests.pop(row.request_id, None)
        self.sweep()

    async def _forget(self, session_id: str) -> None:
        for pause_s in _ROOM_PAUSES_S:
            try:
                await self._journal.remove_session(session_id)
                return
            except JournalError:
                # There is room when its files are gone, and a moment later on disk.
                await self._sweeper.now()
                await asyncio.sleep(pause_s)
        await self._journal.remove_session(session_id)

    def guest_ended(self, session: Session, reason: str) -> None:
        if session.row.state in (SessionState.DESTROYING, SessionState.FAILED) or session.is_leaving:
            return
        reason += "; the session was out of memory" if session.limit_watch.is_out_of_memory() else ""
        session.guest = None
        session.set_state(transition(session.row.session_id, session.row.state, SessionEvent.FAIL), reason)
        self._background.spawn("record a failure", self.record_failure(session, reason))

    async def record_failure(self, session: Session, reason: str) -> None:
        session.note_calls()
        session.processes.lose(reason)
        await self._journal.set_state(session.row.session_id, SessionState.FAILED, reason, EventKind.FAILED)
        await self._journal.calls_lost(session.row.session_id)
        session.live.clear()

    def _wedged(self, session: Session, reason: str) -> None:
        """A guest that does not do what it must is ended: a session that hangs is worse than one that failed."""
        if session.row.state in (SessionState.ACTIVE, SessionState.PAUSED):
            for live in session.everything():
                live.on_lost(reason)
            self.guest_ended(session, reason)
            self._background.spawn("end a guest", self._parts.runtimes[session.row.runtime].stop(session.row.volume))

    async def _prune(self, session: Session) -> None:
        files = await self._journal.prune_outputs(session.row.session_id)
        for process_id in files:
            session.output_path(process_id).unlink(missing_ok=True)
