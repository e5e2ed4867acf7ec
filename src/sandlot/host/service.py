"""The engine on one machine. The only file that sees all of it."""

import asyncio
import os
import socket
import weakref
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress

from sandlot.contracts.host import ExportStream
from sandlot.contracts.storage import Storage
from sandlot.contracts.tool_stream import ToolStream
from sandlot.host.admission import Queue
from sandlot.host.asides import Asides
from sandlot.host.background import Background
from sandlot.host.backups import Backups
from sandlot.host.call_verbs import CallVerbs
from sandlot.host.choices import Choices, session_capabilities
from sandlot.host.code_table import ContextTables
from sandlot.host.code_verbs import CodeVerbs
from sandlot.host.duties import Duties
from sandlot.host.events import Events
from sandlot.host.examining import Examiner
from sandlot.host.exposing import Exposures
from sandlot.host.file_verbs import FileVerbs
from sandlot.host.forks import Forks
from sandlot.host.health import HealthMonitor
from sandlot.host.importing import Importing
from sandlot.host.lifecycle import Lifecycle
from sandlot.host.lines import Lines
from sandlot.host.lock import DataDirectoryLock
from sandlot.host.lockers import Lockers
from sandlot.host.metrics import Metrics
from sandlot.host.moving import Moving
from sandlot.host.notes import REBUILD
from sandlot.host.parts import HostParts, HostSettings
from sandlot.host.pausing import Pausing
from sandlot.host.port_verbs import PortVerbs
from sandlot.host.preview_verbs import issue_preview
from sandlot.host.process_rows import ProcessRows
from sandlot.host.process_run import Together
from sandlot.host.process_table import ProcessTables
from sandlot.host.process_verbs import ProcessVerbs
from sandlot.host.recovery import Recovery
from sandlot.host.restores import Restores, check_finished
from sandlot.host.restoring import Restoring
from sandlot.host.session import Session
from sandlot.host.sleeping import Sleeping
from sandlot.host.template_verbs import Templates
from sandlot.host.terminals import TerminalVerbs
from sandlot.host.tool_calls import ToolCalls
from sandlot.host.tool_rows import ToolRows
from sandlot.host.turns import Turns
from sandlot.model import (
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
    NotFound,
    PauseRequest,
    Preview,
    PreviewRequest,
    Probe,
    RelabelRequest,
    RollbackRequest,
    SandlotError,
    SessionFilter,
    SessionInfo,
    SessionPage,
    SessionSpec,
    SessionState,
    TemplateEvent,
    TemplateInfo,
    TemplateRequest,
    ToolRequest,
    Unavailable,
)

_CLOSE_PATIENCE_S = 5.0
_PUT_RIGHT_S = 10.0
_running: "weakref.WeakSet[SandboxHostService]" = weakref.WeakSet()


class SandboxHostService:
    """Many sessions on one machine. An async context manager: leaving it leaves the sessions alive."""

    def __init__(self, settings: HostSettings, parts: HostParts) -> None:
        self._settings = settings
        self._parts = parts
        self._journal = parts.journal
        self._lock = DataDirectoryLock(settings.data, shares=settings.shares)
        self._background = Background()
        self._choices = Choices(parts.storages, parts.runtimes, settings.storage, settings.runtime)
        self._outputs = settings.data / "outputs"
        self._events = Events(parts.journal)
        self._lifecycle = Lifecycle(settings, parts, self._choices, self._background, self._outputs)
        self._queue = Queue()
        self._lockers = lockers = Lockers(
            settings.data, settings.mounts, self._lifecycle.sessions, self._lifecycle.check_open
        )
        self.create_volume, self.get_volume = lockers.create, lockers.get
        self.list_volumes, self.remove_volume = lockers.all, lockers.remove
        self._monitor = HealthMonitor(settings, parts, self._background, self._lifecycle.sessions)
        self._lifecycle.admit = self._monitor.admit
        sleeping = Sleeping(self._lifecycle, parts)
        self._recovery = Recovery(self._lifecycle, parts, self._outputs, sleeping)
        changing, at_work, notes = self._is_changing, self._lifecycle.volumes_at_work, self._lifecycle.notes
        self._examiner = Examiner(parts, settings.data, self._outputs, at_work, changing, notes)
        self._pausing = Pausing(self._lifecycle, parts, sleeping, settings.pause_drain_s)
        self._duties = Duties(self._lifecycle, parts, self._pausing)
        self._asides = asides = Asides(settings.data / "asides")
        self._files = files = FileVerbs(self._lifecycle.find, self._duties.ready, parts.runtimes, parts.scout, asides)
        self.read_file, self.write_file, self.list_files = files.read_file, files.write_file, files.list_files
        self.stat_file, self.make_directory = files.stat_file, files.make_directory
        self.rename_file, self.remove_file = files.rename_file, files.remove_file
        self.upload_tree, self.download_tree = files.upload_tree, files.download_tree
        self.append_file, self.read_lines, self.copy_file = files.append_file, files.read_lines, files.copy_file
        self.replace_in_file, self.change_file = files.replace_in_file, files.change_file
        self.make_link, self.measure_files = files.make_link, files.measure_files
        self.find_files, self.search_files = files.find_files, files.search_files
        self.watch_files = files.watch_files
        self.get_attributes, self.set_attributes = files.get_attributes, files.set_attributes
        self._turns = Turns(
            self._lifecycle, parts, self._background, sleeping, settings.turns_kept, settings.snapshot_prefix
        )
        asked = (self._lifecycle.find, self._duties.ready, self._lifecycle.check_open)
        calls = CallVerbs(*asked, parts.journal, self._turns)
        self.call, self.attach, self.calls = calls.call, calls.attach, calls.calls
        terminals = TerminalVerbs(*asked, parts.journal)
        self.open_terminal, self.get_terminal, self.terminals = terminals.open, terminals.get, terminals.all
        self.attach_terminal, self.write_terminal = terminals.attach, terminals.write
        self.resize_terminal, self.kill_terminal = terminals.resize, terminals.kill
        self._processes = ProcessTables(rows := ProcessRows(parts.journal), self._background)
        lines = Lines(*asked, parts.runtimes)
        self._exposures = Exposures(rows, self._background, settings.advertise_address, lines)
        self._exposures.follow(self._processes)
        self._hand_on(contexts := ContextTables(self._background), CodeVerbs(*asked, contexts))
        processes = ProcessVerbs(*asked, self._processes, rows, self._exposures)
        self.launch_process, self.list_processes = processes.launch_process, processes.list_processes
        self.process_status, self.process_logs = processes.process_status, processes.process_logs
        self.write_process_stdin, self.close_process_stdin = processes.write_stdin, processes.close_stdin
        self.kill_process, self.wait_process = processes.kill_process, processes.wait_process
        ports = PortVerbs(lines, self._exposures)
        self.expose_port, self.list_ports = ports.expose_port, ports.list_ports
        self.unexpose_port, self.connect_port = ports.unexpose_port, ports.connect_port
        self.meter = meter = Metrics(settings.data, self._lifecycle, parts)
        self.session_metrics, self.host_metrics, self.all_metrics = meter.of_session, meter.of_host, meter.of_all
        self._tools = tools = ToolCalls(
            self, self._lifecycle.find, ToolRows(parts.journal), self._turns, settings.tool_timeout_s
        )
        self.tools, self.cancel_tool, self.add_tools = tools.catalogue, tools.cancel, tools.add
        self._moving = Moving(self._lifecycle, parts, self._choices, self._outputs)
        self._backups = Backups(self._lifecycle, parts, lockers, settings.data, settings.audit_anchor)
        self._importing = Importing(self._lifecycle, parts, self._choices)
        self._templates = Templates(self._lifecycle, parts)
        self._forks = Forks(self._lifecycle, parts, self._turns, sleeping)

    def _attach(self, session: Session) -> None:
        """One that comes to be, or is found."""
        table = self._processes.attach(session)
        self._exposures.attach(session, table)
        session.processes = Together(self._contexts.attach(session), table)

    def _hand_on(self, contexts: ContextTables, code: CodeVerbs) -> None:
        self._contexts, self._lifecycle.on_session = contexts, self._attach
        self.create_context, self.contexts = code.create_context, code.contexts
        self.interrupt_context, self.restart_context = code.interrupt_context, code.restart_context
        self.delete_context = code.delete_context
        self.run_code, self.attach_code = code.run_code, code.attach_code
        self.create_snapshot, self.list_snapshots = self._turns.create_snapshot, self._turns.list_snapshots
        self.delete_snapshot, self.turns = self._turns.delete_snapshot, self._turns.turns
        self.turn_complete = self._turns.turn_complete

    def _is_changing(self) -> bool:
        return self._lifecycle.is_changing() or self._lockers.is_changing() or self._templates.is_changing()

    # ---- life --------------------------------------------------------------------------------------------------

    async def __aenter__(self) -> "SandboxHostService":
        await self.start()
        return self

    async def __aexit__(self, *_exception: object) -> None:
        await self.close()

    async def start(self, *, restores: bool = False) -> None:
        """Take the data directory and everything that lives in it. Raises DataDirectoryHeld, Unavailable, also for what
        a restore did not finish."""
        data = self._settings.data
        if not restores:
            check_finished(data)
        try:
            for folder in (data, data / "run", self._outputs):
                folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise Unavailable(
                f"the data directory {data} cannot be used: {error.strerror}", next_step="give another with --data-dir"
            ) from error
        self._lock.acquire()
        self._journal.reserve.ease()
        _running.add(self)
        try:
            await self._journal.open()
            await self._monitor.cordon.load()
            await self._parts.templates.open()
            await self._parts.keeper.open()
            await self._lockers.start()
            await self._files.open()
            await self._processes.load()
            await self._exposures.load()
            await self._recovery.take_over()
            with suppress(TimeoutError):  # what is left is done when its session is used
                async with asyncio.timeout(_PUT_RIGHT_S):
                    await self._files.put_right()
            with suppress(SandlotError):  # whoever asks for a session meets it, and can ask for another storage
                await self._choices.storage()
            await self._duties.prepare()
            await self._lifecycle.start()
            self._monitor.start()
            self._background.spawn("duties", self._duties.run())
            self._background.spawn("metrics", self.meter.run())
        except BaseException:  # whatever failed, the directory must be free for the next
            self._asides.close()
            await self._parts.keeper.close()
            await self._journal.close()
            self._lock.release()
            _running.discard(self)
            raise

    async def close(self, *, for_calls: bool = True) -> None:
        """Leave. Nothing new is begun; what someone waits for has a moment to end, without `for_calls` no call has.
        Sessions, their processes and their output stay, to be found by the next engine."""
        self._lifecycle.refuse()
        self._monitor.stop()
        self.meter.stop()
        await self._lifecycle.drain(self._settings.shutdown_timeout_s, for_calls=for_calls)
        self._processes.leave()
        await self._exposures.leave()
        self._contexts.leave()
        await self._tools.close()
        self._files.close()
        self._events.close()
        await self._moving.settle()
        await self._importing.settle()
        await self._templates.settle()
        await self._turns.settle()
        await self._pausing.settle()
        await self._duties.settle()
        await self._lifecycle.settle()
        await self._background.close(_CLOSE_PATIENCE_S)
        await self._lifecycle.close()
        await self._parts.storages.detach()
        await self._parts.keeper.close()
        await self._journal.close()
        self._lock.release()
        _running.discard(self)

    def forget(self) -> None:
        """In a forked child: hold nothing of the parent's, or its death would go unnoticed."""
        self._lock.forget()
        self._exposures.forget()
        self._parts.keeper.forget()

    async def probes(self) -> tuple[list[Probe], list[Probe]]:
        """What each storage and each runtime says about this machine."""
        return await self._choices.probes()

    async def storage(self, name: str) -> Storage:
        """One of its parts, attached: for whoever holds it to its contract. Raises InvalidArgument,
        CapabilityNotSupported, Unavailable."""
        return await self._choices.storage(name)

    async def capabilities_of(self, runtime: str, storage: str) -> frozenset[Capability]:
        """Of a session on these. Raises as `storage` does."""
        return session_capabilities(await self._choices.runtime(runtime), await self._choices.storage(storage))

    @property
    def door(self) -> socket.socket | None:
        """Where others come in, when they may: listening, and answered by whoever serves it."""
        return self._lock.door

    @property
    def keeper_pid(self) -> int:
        return self._parts.keeper.pid

    # ---- sessions ----------------------------------------------------------------------------------------------

    async def capabilities(self) -> frozenset[Capability]:
        return await self._choices.capabilities()

    async def create(self, spec: SessionSpec) -> SessionInfo:
        info = await self._queue.within(spec.queue_timeout_s, lambda: self._create(spec))
        try:
            for port in spec.ports:
                await self._exposures.expose(info.session_id, port, 0)
        except BaseException:  # one that is not reached as it was asked for is none
            await asyncio.shield(self._lifecycle.destroy(info.session_id))
            raise
        return info

    async def _create(self, spec: SessionSpec) -> SessionInfo:
        self._lifecycle.check_open()
        await self._recovery.revive(spec.request_id)
        if self._lifecycle.requested(spec.request_id):
            return await self._lifecycle.create(spec)
        await self._monitor.admit()
        if not spec.mounts:
            return await self._lifecycle.create(spec)
        async with self._lockers.held(spec) as mounts:
            return await self._lifecycle.create(spec, mounts)

    async def get(self, session_id: str) -> SessionInfo:
        return await self._lifecycle.get(session_id)

    async def list(self, query: SessionFilter) -> SessionPage:
        return await self._lifecycle.list(query)

    async def destroy(self, session_id: str) -> None:
        self._lifecycle.check_open()
        await self._lifecycle.destroy(session_id)

    async def preview_port(self, request: PreviewRequest) -> Preview:
        return await issue_preview(self._parts.previews, self._lifecycle.find(request.session_id), request)

    async def health(self) -> Health:
        return await self._monitor.health()

    async def examine(self, *, repair: bool = False) -> Examination:
        return await self._examiner.examine(repair=repair)

    async def examine_alone(self, *, repair: bool = False) -> Examination:
        """Instead of a start: nothing is taken over, and nothing is changed unless a repair is asked for. Raises
        DataDirectoryHeld, NotFound when there is no journal."""
        if not (self._settings.data / "journal.db").is_file():
            step = f"give another with --data-dir; where it was lost, {REBUILD}"
            raise NotFound(f"{self._settings.data} has no journal", next_step=step)
        self._lock.acquire()
        try:
            await self._journal.open()
            for name, storage in self._parts.storages.items():
                with suppress(SandlotError):
                    if storage.was_used():
                        await self._parts.storages.attach(name)
            await self._parts.keeper.peek()
            return await self._examiner.examine(repair=repair)
        finally:
            await self._parts.keeper.close()
            await self._journal.close()
            self._lock.release()

    def restores(self) -> Restores:
        """Instead of a start: what makes a host of a backup, and removes what such a one did not finish."""
        life, anchor = self._lifecycle, self._settings.audit_anchor
        into = Restoring(life, self._parts, self._choices, self._importing, self._lockers, self._pausing, anchor)
        return Restores(self._settings.data, self, life, into)

    async def rebuild(self) -> Sequence[SessionInfo]:
        """Sessions that the journal does not know, because it was lost, from what storages noted beside their files.
        Raises Unavailable."""
        return await self._recovery.rebuild()

    async def cordon(self, request: CordonRequest) -> Health:
        self._lifecycle.check_open()
        await self._monitor.cordon.put(request)
        return await self._monitor.health_now()

    async def uncordon(self) -> Health:
        self._lifecycle.check_open()
        await self._monitor.cordon.lift()
        self._lifecycle.pool.refill()
        return await self._monitor.health_now()

    async def pause(self, request: PauseRequest) -> SessionInfo:
        return await self._pausing.pause(request)

    async def resume(self, session_id: str) -> SessionInfo:
        told = await self._pausing.resume(session_id)
        await self._files.put_right()
        return told

    async def extend(self, session_id: str, timeout_s: float) -> SessionInfo:
        return await self._duties.extend(session_id, timeout_s)

    async def relabel(self, request: RelabelRequest) -> SessionInfo:
        return await self._duties.relabel(request)

    async def recover(self, session_id: str) -> SessionInfo:
        told = await self._recovery.recover(session_id)
        await self._files.put_right()
        return told

    # ---- tools -------------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def execute_tool(self, request: ToolRequest) -> AsyncGenerator[ToolStream]:
        async with self._tools.execute(request) as stream:
            yield stream

    # ---- snapshots and turns -----------------------------------------------------------------------------------

    @asynccontextmanager
    async def diff(self, request: DiffRequest) -> AsyncGenerator[AsyncIterator[Sequence[Change]]]:
        async with self._turns.diff(request) as batches:
            yield batches

    async def rollback(self, request: RollbackRequest) -> SessionInfo:
        session = self._lifecycle.find(request.session_id)
        if session.row.state is SessionState.PAUSED or session.gate.is_resting:
            await self._duties.ready(session)
        target = session.find_snapshot(request.to)
        try:
            await self._turns.rollback(request)
        finally:
            session.processes.again()
        session = self._lifecycle.find(request.session_id)
        if target is None or not target.memory:  # else what its template starts runs already
            await self._lifecycle.serving.again(session)
        return session.info()

    async def fork(self, request: ForkRequest) -> Sequence[SessionInfo]:
        await self._monitor.admit()
        await self._lockers.need_shared(self._lifecycle.find(request.session_id).mounts)
        return await self._forks.fork(request)

    # ---- moving ------------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def move(self, request: MoveRequest) -> AsyncGenerator[AsyncIterator[MoveProgress]]:
        async with self._moving.move(request) as progress:
            yield progress

    @asynccontextmanager
    async def export(self, request: ExportRequest) -> AsyncGenerator[ExportStream]:
        async with self._backups.exporting.export(request) as stream:
            yield stream

    @asynccontextmanager
    async def backup(self) -> AsyncGenerator[ExportStream]:
        async with self._backups.backup() as stream:
            yield stream

    async def import_session(self, request: ImportRequest, content: AsyncIterable[bytes]) -> SessionInfo:
        self._lifecycle.check_open()
        await self._monitor.admit()
        return await self._importing.import_session(request, content)

    # ---- templates ---------------------------------------------------------------------------------------------

    async def list_templates(self) -> Sequence[TemplateInfo]:
        return await self._templates.list()

    async def get_template(self, name: str) -> TemplateInfo:
        return await self._templates.get(name)

    @asynccontextmanager
    async def make_template(self, request: TemplateRequest) -> AsyncGenerator[AsyncIterator[TemplateEvent]]:
        async with self._templates.make(request) as steps:
            yield steps

    async def tag_template(self, name: str, new_name: str) -> TemplateInfo:
        return await self._templates.tag(name, new_name)

    async def remove_template(self, name: str) -> TemplateInfo:
        return await self._templates.remove(name)

    async def warm_template(self, name: str, count: int) -> TemplateInfo:
        return await self._templates.warm(name, count)

    async def prune_templates(self, budget_bytes: int) -> Sequence[TemplateInfo]:
        return await self._templates.prune(budget_bytes)

    # ---- events ------------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def events(self, request: EventFilter) -> AsyncGenerator[AsyncIterator[Event]]:
        async with self._events.stream(request) as stream:
            yield stream


def _after_fork() -> None:
    for service in tuple(_running):
        service.forget()
    _running.clear()


os.register_at_fork(after_in_child=_after_fork)
