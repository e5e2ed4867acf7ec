"""The engine on one machine. The only file that sees all of it."""

import asyncio
import secrets
import time
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from sandlot.contracts.host import CallStream
from sandlot.contracts.runtime import Runtime, StartPlan
from sandlot.contracts.storage import Storage
from sandlot.host.background import Background
from sandlot.host.calls import LiveStream, RecordedStream
from sandlot.host.journal import CallRow, Journal, SessionRow
from sandlot.host.lock import DataDirectoryLock
from sandlot.host.output import OutputLog
from sandlot.host.pool import Vessel, WarmPool
from sandlot.host.runtimes.keeper import Keeper
from sandlot.host.session import Session, spec_to_text
from sandlot.host.storage.canonical import RANGES_MAX
from sandlot.host.templates.store import TemplateStore
from sandlot.model import (
    AUTO,
    CallNotFound,
    CallRecord,
    CallRequest,
    CallState,
    Capability,
    CapabilityNotSupported,
    DeadlineExceeded,
    InvalidArgument,
    LimitReached,
    MaxSessionsReached,
    NetworkMode,
    NetworkPolicy,
    NotFound,
    Probe,
    SandlotError,
    SessionEvent,
    SessionExists,
    SessionFilter,
    SessionInfo,
    SessionNotFound,
    SessionPage,
    SessionSpec,
    SessionState,
    Template,
    Unavailable,
    check_session_id,
    limits,
    new_session_id,
    transition,
)

_LIMIT_CAPABILITIES = {
    "cpus": Capability.LIMIT_CPUS,
    "memory_bytes": Capability.LIMIT_MEMORY,
    "disk_bytes": Capability.LIMIT_DISK,
    "pids": Capability.LIMIT_PIDS,
}
_CLOSE_PATIENCE_S = 5.0


@dataclass(frozen=True, slots=True)
class HostSettings:
    data: Path
    storage: str = AUTO
    runtime: str = AUTO
    sessions_max: int = limits.SESSIONS_MAX
    warm_pool: int = 0


@dataclass(frozen=True, slots=True)
class HostParts:
    """What the engine is built from; `auto` takes the first of each that is ready."""

    storages: Mapping[str, Storage]
    runtimes: Mapping[str, Runtime]
    templates: TemplateStore
    keeper: Keeper
    journal: Journal


class SandboxHostService:
    """Many sessions on one machine. An async context manager: leaving it leaves the sessions alive."""

    def __init__(self, settings: HostSettings, parts: HostParts) -> None:
        self._settings = settings
        self._parts = parts
        self._journal = parts.journal
        self._lock = DataDirectoryLock(settings.data)
        self._background = Background()
        self._pool = WarmPool(settings.warm_pool, self._make_pool_vessel, self._background)
        self._sessions: dict[str, Session] = {}
        self._creating: dict[str, asyncio.Future[None]] = {}
        self._requests: dict[str, str] = {}
        self._destroying: dict[str, asyncio.Task[None]] = {}
        self._ranges: set[int] = {0}  # 0 is for probes
        self._last_serial = 0
        self._expiry_changed = asyncio.Event()
        self._chosen: dict[str, str] = {}
        self._sweeping = False
        self._outputs = settings.data / "outputs"

    # ---- life --------------------------------------------------------------------------------------------------

    async def __aenter__(self) -> "SandboxHostService":
        await self.start()
        return self

    async def __aexit__(self, *_exception: object) -> None:
        await self.close()

    async def start(self) -> None:
        """Take the data directory and everything that lives in it. Raises DataDirectoryHeld, Unavailable."""
        data = self._settings.data
        try:
            for folder in (data, data / "run", self._outputs):
                folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise Unavailable(
                f"the data directory {data} cannot be used: {error.strerror}", next_step="give another with --data-dir"
            ) from error
        self._lock.acquire()
        try:
            await self._journal.open()
            await self._parts.keeper.open()
            for storage in self._parts.storages.values():
                await storage.probe()
            await self._take_over()
        except BaseException:
            self._lock.release()
            raise
        self._background.spawn("expiry", self._expire())
        self._sweep()
        self._pool.refill()

    async def close(self) -> None:
        """Leave. Sessions, their processes and their output stay, to be found by the next engine."""
        for task in tuple(self._destroying.values()):
            with suppress(SandlotError):
                await task
        self._expiry_changed.set()
        for vessel in self._pool.drain():
            with suppress(SandlotError):
                await self._discard_vessel(vessel.runtime, vessel.storage, vessel.volume.name, vessel.id_range)
        self._sweep()
        await self._background.close(_CLOSE_PATIENCE_S)
        await self._parts.keeper.close()
        await self._journal.close()
        self._lock.release()

    async def probes(self) -> tuple[list[Probe], list[Probe]]:
        """What each storage and each runtime says about this machine."""
        return (
            [await storage.probe() for storage in self._parts.storages.values()],
            [await runtime.probe() for runtime in self._parts.runtimes.values()],
        )

    # ---- sessions ----------------------------------------------------------------------------------------------

    async def capabilities(self) -> frozenset[Capability]:
        runtime, storage = await self._choose_runtime(AUTO), await self._choose_storage(AUTO)
        return runtime.capabilities | storage.capabilities

    async def create(self, spec: SessionSpec) -> SessionInfo:
        if spec.request_id and spec.request_id in self._requests:
            return await self._repeat(self._requests[spec.request_id])
        session_id = spec.session_id or new_session_id()
        self._admit(session_id)
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._creating[session_id] = done
        if spec.request_id:
            self._requests[spec.request_id] = session_id
        try:
            session = await self._create(session_id, spec)
        except BaseException:
            if spec.request_id:
                self._requests.pop(spec.request_id, None)
            raise
        finally:
            del self._creating[session_id]
            done.set_result(None)
        return session.info(space_used=0)

    async def get(self, session_id: str) -> SessionInfo:
        session = self._find(session_id)
        try:
            used = await self._storage(session).usage(session.row.volume)
        except NotFound:
            used = None
        return session.info(used)

    async def list(self, query: SessionFilter) -> SessionPage:
        try:
            after = int(query.after) if query.after else 0
        except ValueError:
            raise InvalidArgument(f"{query.after!r} is not a cursor that this host gave") from None
        found = [
            session
            for session in sorted(self._sessions.values(), key=lambda session: session.row.serial)
            if session.row.serial > after
            and (not query.states or session.row.state in query.states)
            and query.labels.items() <= session.labels.items()
        ]
        page = found[: query.limit]
        more = len(found) > len(page)
        return SessionPage(tuple(session.info() for session in page), str(page[-1].row.serial) if more else None)

    async def destroy(self, session_id: str) -> None:
        session = self._find(session_id)
        task = self._destroying.get(session_id)
        if task is None:
            task = asyncio.get_running_loop().create_task(self._destroy(session), name=f"destroy {session_id}")
            self._destroying[session_id] = task
            task.add_done_callback(lambda _task: self._destroying.pop(session_id, None))
        try:
            async with asyncio.timeout(limits.DESTROY_DEADLINE_S):
                await asyncio.shield(task)
        except TimeoutError:
            raise DeadlineExceeded(f"session {session_id} is still being destroyed", session_id=session_id) from None

    # ---- calls -------------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def call(self, request: CallRequest) -> AsyncGenerator[CallStream]:
        session = self._find(request.session_id)
        if request.call_id:
            with suppress(CallNotFound):
                stream = await self._attach(session, request.call_id)
                yield stream
                return
        live = session.start_call(request)
        try:
            yield LiveStream(live)
        finally:
            if not request.detach and live.result is None and live.lost is None:
                live.kill()
                with suppress(SandlotError, TimeoutError):
                    async with asyncio.timeout(limits.KILL_DEADLINE_S):
                        await live.wait()

    @asynccontextmanager
    async def attach(self, session_id: str, call_id: str) -> AsyncGenerator[CallStream]:
        yield await self._attach(self._find(session_id), call_id)

    async def calls(self, session_id: str) -> Sequence[CallRecord]:
        self._find(session_id)
        return [row.record for row in await self._journal.calls(session_id)]

    async def _attach(self, session: Session, call_id: str) -> CallStream:
        live = session.live.get(call_id)
        if live is not None:
            return LiveStream(live)
        row = await self._journal.find_call(session.row.session_id, call_id)
        if row is None:
            raise CallNotFound(f"session {session.row.session_id} has no call {call_id}", call_id=call_id)
        return RecordedStream(row.record.result, await self._recorded_log(session, row), call_id)

    async def _recorded_log(self, session: Session, row: CallRow) -> OutputLog:
        log = OutputLog(session.output_path(row.process_id))
        if row.output is not None:
            log.restore(row.output)
        elif row.record.state is not CallState.RUNNING:
            await asyncio.to_thread(log.restore)
            log.close()
        return log

    # ---- creating ----------------------------------------------------------------------------------------------

    def _find(self, session_id: str) -> Session:
        check_session_id(session_id)
        session = self._sessions.get(session_id)
        if session is None:
            raise SessionNotFound(f"there is no session {session_id}", session_id=session_id)
        return session

    def _admit(self, session_id: str) -> None:
        if session_id in self._sessions or session_id in self._creating:
            raise SessionExists(
                f"session {session_id} exists", next_step="choose another id, or connect to it", session_id=session_id
            )
        if len(self._sessions) + len(self._creating) >= self._settings.sessions_max:
            raise MaxSessionsReached(
                f"this host holds {self._settings.sessions_max} sessions already",
                next_step="destroy one, or raise sessions_max",
                limit="sessions_max",
            )

    async def _repeat(self, session_id: str) -> SessionInfo:
        """The answer to a request that came before."""
        while session_id in self._creating:
            await asyncio.shield(self._creating[session_id])
        return await self.get(session_id)

    async def _choose_storage(self, asked: str) -> Storage:
        name = await self._choose("storage", asked, self._settings.storage, self._parts.storages)
        return self._parts.storages[name]

    async def _choose_runtime(self, asked: str) -> Runtime:
        isolating = {
            name: runtime
            for name, runtime in self._parts.runtimes.items()
            if Capability.ISOLATION in runtime.capabilities
        }
        name = await self._choose("runtime", asked, self._settings.runtime, self._parts.runtimes, isolating)
        return self._parts.runtimes[name]

    async def _choose(
        self,
        axis: str,
        asked: str,
        default: str,
        parts: Mapping[str, Storage] | Mapping[str, Runtime],
        automatic: Mapping[str, Storage] | Mapping[str, Runtime] | None = None,
    ) -> str:
        """Only `auto` chooses; an explicit choice is taken or refused."""
        name = default if asked == AUTO else asked
        key = f"{axis} {name}"
        if key in self._chosen:
            return self._chosen[key]
        if name != AUTO and name not in parts:
            raise InvalidArgument(f"there is no {axis} {name!r}", next_step=f"use one of: auto, {', '.join(parts)}")
        candidates = [name] if name != AUTO else list(parts if automatic is None else automatic)
        trouble: list[str] = []
        for candidate in candidates:
            probe = await parts[candidate].probe()
            if probe.ready:
                self._chosen[key] = candidate
                return candidate
            trouble.append(f"{candidate}: {probe.reason}" + (f"; {probe.next_step}" if probe.next_step else ""))
        raise CapabilityNotSupported(
            f"no {axis} that was asked for works here ({'. '.join(trouble)})", next_step="run `sandlot doctor`"
        )

    def _check_wishes(self, spec: SessionSpec, have: frozenset[Capability]) -> None:
        """Refuse what cannot be enforced, before anything is made."""
        wishes = [_LIMIT_CAPABILITIES[name] for name in spec.resources.asked()]
        if spec.network != NetworkPolicy() or spec.network.mode is not NetworkMode.LOOPBACK:
            wishes.append(Capability.NETWORK)
        if spec.secrets:
            wishes.append(Capability.SECRETS)
        if spec.ports:
            wishes.append(Capability.PORTS)
        if spec.snapshot:
            wishes.append(Capability.SNAPSHOTS)
        missing = [wish for wish in wishes if wish not in have]
        if missing:
            raise CapabilityNotSupported(
                f"this host cannot give what was asked for: {', '.join(missing)}",
                next_step="leave it out, or use a host that has it",
                capability=missing[0],
            )
        if spec.user and Capability.USERS not in have:
            raise CapabilityNotSupported("the chosen runtime has no users of its own", next_step="leave the user out")

    async def _create(self, session_id: str, spec: SessionSpec) -> Session:
        runtime = await self._choose_runtime(spec.runtime)
        storage = await self._choose_storage(spec.storage)
        self._check_wishes(spec, runtime.capabilities | storage.capabilities)
        template = await self._template(spec.template, runtime)
        vessel = self._pool.take(storage.name, runtime.name, template)
        if vessel is None:
            vessel = await self._make_vessel(storage, runtime, template)
        try:
            session = self._make_session(session_id, spec, vessel, runtime)
            await self._journal.add_session(session.row)
            if vessel.lost:
                raise Unavailable("the guest ended while its session was being made", session_id=session_id)
        except BaseException:
            await self._discard_vessel(runtime.name, storage.name, vessel.volume.name, vessel.id_range)
            with suppress(SandlotError):
                await self._journal.remove_session(session_id)
            raise
        vessel.on_end = lambda reason: self._guest_ended(session, reason)
        self._sessions[session_id] = session
        self._expiry_changed.set()
        return session

    async def _template(self, name: str, runtime: Runtime) -> Template:
        if Capability.OWN_ROOT in runtime.capabilities:
            return await self._parts.templates.find(name)
        return Template(name, "", "")

    def _make_session(self, session_id: str, spec: SessionSpec, vessel: Vessel, runtime: Runtime) -> Session:
        self._last_serial += 1
        now = time.time()
        has_users = Capability.USERS in runtime.capabilities
        row = SessionRow(
            session_id=session_id,
            serial=self._last_serial,
            state=SessionState.ACTIVE,
            reason="",
            volume=vessel.volume.name,
            id_range=vessel.id_range,
            storage=vessel.storage,
            runtime=vessel.runtime,
            template=spec.template,
            template_path=vessel.template.path,
            created=now,
            expires=now + spec.timeout_s,
            request_id=spec.request_id,
            spec=spec_to_text(spec, spec.user or ("user" if has_users else "")),
        )
        session = self._wrap(row, runtime, vessel.volume.path)
        session.volume = vessel.volume
        session.workspace = runtime.workspace(vessel.volume)
        session.guest = vessel.guest
        return session

    def _wrap(self, row: SessionRow, runtime: Runtime, workspace: Path | str) -> Session:
        session = Session(row, None, str(workspace), runtime.capabilities, self._journal, self._outputs)
        session.on_wedged = partial(self._wedged, session)
        session.on_prune_due = lambda: self._background.spawn("prune outputs", self._prune(session))
        return session

    async def _make_vessel(self, storage: Storage, runtime: Runtime, template: Template) -> Vessel:
        id_range = self._take_range()
        name = "v-" + secrets.token_hex(8)
        try:
            volume = await storage.create(name)
            vessel: Vessel | None = None

            def on_end(reason: str) -> None:
                if vessel:
                    vessel.ended(reason)

            path = Path(template.path) if template.path else None
            guest = await runtime.start(StartPlan(volume, path, id_range), on_end)
            vessel = Vessel(volume, guest, id_range, template, storage.name, runtime.name)
        except BaseException:
            await self._discard_vessel(runtime.name, storage.name, name, id_range)
            raise
        return vessel

    async def _make_pool_vessel(self) -> Vessel:
        runtime, storage = await self._choose_runtime(AUTO), await self._choose_storage(AUTO)
        return await self._make_vessel(storage, runtime, await self._template("builtin", runtime))

    async def _discard_vessel(self, runtime: str, storage: str, name: str, id_range: int) -> None:
        """Undo, as far as it went. Shielded: an undo that is cancelled halfway would leave things behind."""

        async def undo() -> None:
            with suppress(SandlotError):
                await self._parts.runtimes[runtime].stop(name)
            await self._parts.storages[storage].destroy(name)
            self._ranges.discard(id_range)
            self._sweep()

        await asyncio.shield(asyncio.get_running_loop().create_task(undo(), name=f"discard {name}"))

    def _take_range(self) -> int:
        free = next((number for number in range(1, RANGES_MAX) if number not in self._ranges), None)
        if free is None:
            raise LimitReached("no range of user ids is free", limit="id_ranges")
        self._ranges.add(free)
        return free

    # ---- ending ------------------------------------------------------------------------------------------------

    def _storage(self, session: Session) -> Storage:
        return self._parts.storages[session.row.storage]

    async def _destroy(self, session: Session) -> None:
        row = session.row
        if row.state is not SessionState.DESTROYING:
            session.set_state(transition(row.session_id, row.state, SessionEvent.DESTROY))
            await self._journal.set_state(row.session_id, SessionState.DESTROYING)
        for live in tuple(session.live.values()):
            live.on_lost("the session was destroyed")
        session.live.clear()
        await self._parts.runtimes[row.runtime].stop(row.volume)
        session.guest = None
        await self._storage(session).destroy(row.volume)
        await asyncio.to_thread(_remove_outputs, self._outputs / row.volume)
        await self._journal.remove_session(row.session_id)
        self._sessions.pop(row.session_id, None)
        self._ranges.discard(row.id_range)
        if row.request_id:
            self._requests.pop(row.request_id, None)
        self._sweep()

    def _guest_ended(self, session: Session, reason: str) -> None:
        if session.row.state in (SessionState.DESTROYING, SessionState.FAILED):
            return
        session.guest = None
        session.set_state(transition(session.row.session_id, session.row.state, SessionEvent.FAIL), reason)
        self._background.spawn("record a failure", self._record_failure(session, reason))

    async def _record_failure(self, session: Session, reason: str) -> None:
        await self._journal.set_state(session.row.session_id, SessionState.FAILED, reason)
        await self._journal.calls_lost(session.row.session_id)
        session.live.clear()

    def _wedged(self, session: Session, reason: str) -> None:
        """A guest that does not do what it must is ended: a session that hangs is worse than one that failed."""
        if session.row.state is SessionState.ACTIVE:
            for live in tuple(session.live.values()):
                live.on_lost(reason)
            self._guest_ended(session, reason)
            self._background.spawn("end a guest", self._parts.runtimes[session.row.runtime].stop(session.row.volume))

    async def _prune(self, session: Session) -> None:
        files = await self._journal.prune_outputs(session.row.session_id)
        for process_id in files:
            session.output_path(process_id).unlink(missing_ok=True)

    async def _expire(self) -> None:
        while True:
            self._expiry_changed.clear()
            soonest = min((session.row.expires for session in self._sessions.values()), default=None)
            wait = None if soonest is None else max(0.0, soonest - time.time())
            with suppress(TimeoutError):
                async with asyncio.timeout(wait):
                    await self._expiry_changed.wait()
            for session in [s for s in self._sessions.values() if s.row.expires <= time.time()]:
                with suppress(SandlotError):
                    await self.destroy(session.row.session_id)

    def _sweep(self) -> None:
        if not self._sweeping:
            self._sweeping = True
            self._background.spawn("sweep", self._sweep_storages())

    async def _sweep_storages(self) -> None:
        self._sweeping = False
        for storage in self._parts.storages.values():
            await storage.sweep()

    # ---- after a restart ---------------------------------------------------------------------------------------

    async def _take_over(self) -> None:
        """Bring what the journal says and what the machine holds together; nothing acknowledged is lost, nothing
        that nobody asked for stays."""
        rows = await self._journal.sessions()
        for row in rows:
            self._ranges.add(row.id_range)
            self._last_serial = max(self._last_serial, row.serial)
            if row.request_id:
                self._requests[row.request_id] = row.session_id
        await self._remove_orphans({row.volume for row in rows})
        for row in rows:
            await self._take_over_session(row)

    async def _remove_orphans(self, known: set[str]) -> None:
        for runtime in self._parts.runtimes.values():
            for name in await runtime.names():
                if name not in known:
                    await runtime.stop(name)
        for storage in self._parts.storages.values():
            for name in await storage.list():
                if name not in known:
                    await storage.destroy(name)
        await asyncio.to_thread(_remove_other_outputs, self._outputs, known)

    async def _take_over_session(self, row: SessionRow) -> None:
        runtime = self._parts.runtimes[row.runtime]
        session = self._wrap(row, runtime, "")
        self._sessions[row.session_id] = session
        if row.state is SessionState.DESTROYING:
            await self._destroy(session)
            return
        try:
            session.volume = await self._storage(session).open(row.volume)
            session.workspace = runtime.workspace(session.volume)
        except NotFound:
            await self._fail_found(session, "its volume is missing")
            return
        if row.state is SessionState.FAILED:
            return
        guest = await runtime.find(row.volume, lambda reason: self._guest_ended(session, reason))
        if guest is None:
            await self._fail_found(session, "its guest ended while no engine was there")
            return
        try:
            await session.resume_calls(guest)
        except SandlotError as error:
            await self._fail_found(session, error.message)

    async def _fail_found(self, session: Session, reason: str) -> None:
        session.guest = None
        session.set_state(SessionState.FAILED, reason)
        await self._record_failure(session, reason)


def _remove_outputs(folder: Path) -> None:
    if folder.is_dir():
        for file in folder.iterdir():
            file.unlink(missing_ok=True)
        folder.rmdir()


def _remove_other_outputs(outputs: Path, known: Iterable[str]) -> None:
    for folder in list(outputs.iterdir()):
        if folder.name not in known:
            _remove_outputs(folder)
