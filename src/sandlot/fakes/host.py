"""A host in memory: sessions without a machine, for tests of whoever builds on the waist.

It keeps the suite of hosts. Commands are a small shell and a few programs (`shell.py`, `programs.py`), to which a test
adds its own. There are no users, limits, volumes in sessions, archives of sessions and watchers, and calls have no
terminals: whoever asks for one of these gets CapabilityNotSupported, as on a real host that lacks it. Nothing outlives
the object.
"""

import asyncio
import secrets
import time
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace

from sandlot.fakes.calls import FakeCall, FakeStream, Program, check_call
from sandlot.fakes.code import FakeCode
from sandlot.fakes.cordon import FakeCordon
from sandlot.fakes.files import FakeFiles
from sandlot.fakes.history import FakeHistory
from sandlot.fakes.metrics import FakeMetrics
from sandlot.fakes.ports import FakePorts
from sandlot.fakes.processes import FakeProcesses
from sandlot.fakes.programs import PROGRAMS
from sandlot.fakes.session import NAME, FakeSession
from sandlot.fakes.templates import FakeTemplates
from sandlot.fakes.terminals import FakeTerminals
from sandlot.fakes.tools import CATALOGUE, FakeToolCall, FakeToolStream, do_direct, wrong_arguments
from sandlot.fakes.tree import WORKSPACE
from sandlot.fakes.tty import FakeTty, run_program
from sandlot.fakes.volumes import FakeVolumes
from sandlot.fakes.wishes import check_wishes
from sandlot.model import (
    AUTO,
    BUILTIN,
    CallNotFound,
    CallRecord,
    CallRequest,
    Capability,
    CapabilityNotSupported,
    CordonRequest,
    Event,
    EventFilter,
    EventKind,
    Examination,
    ExportRequest,
    FileConflict,
    FileKind,
    FileNotFound,
    Health,
    ImportRequest,
    InvalidArgument,
    InvalidState,
    MaxSessionsReached,
    MoveProgress,
    MoveRequest,
    NotFound,
    OnExpiry,
    PauseReason,
    PauseRequest,
    PoolSpace,
    RelabelRequest,
    SessionExists,
    SessionFilter,
    SessionInfo,
    SessionNotFound,
    SessionPage,
    SessionSpec,
    SessionState,
    Share,
    TemplateNotFound,
    TerminalSize,
    Tool,
    ToolRequest,
    ToolsInFlight,
    check_session_id,
    limits,
    new_call_id,
    new_session_id,
    split_name,
)

CAPABILITIES = frozenset({Capability.SNAPSHOTS, Capability.PAUSE, Capability.OWN_ROOT, Capability.TERMINALS})
# By the name of the check in `conformance/host.py` that is not kept, and why.
DEVIATIONS: Mapping[str, str] = {
    "a_session_comes_back_from_its_export": "the fake packs no sessions",
    "a_tool_that_is_cancelled_leaves_nothing_running": "programs of the fake start no others",
}


class FakeHost:
    """`programs`: what commands find beside the few that are there, by name."""

    def __init__(self, programs: Mapping[str, Program] | None = None, sessions_max: int = limits.SESSIONS_MAX) -> None:
        self.programs = {**PROGRAMS, **(programs or {})}
        self._sessions_max = sessions_max
        self._cordon = FakeCordon()
        self._sessions: dict[str, FakeSession] = {}
        self._requested: dict[str, str] = {}
        self._tool_calls: dict[tuple[str, str], FakeToolCall] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._events: list[Event] = []
        self._first_offset = secrets.randbelow(1000) + 1
        self._said = asyncio.Event()
        self._serial = 0
        self._began = time.monotonic()
        files, history = FakeFiles(self._find), FakeHistory(self._find, self._make, self._say)
        self.read_file, self.write_file, self.append_file = files.read_file, files.write_file, files.append_file
        self.read_lines, self.replace_in_file, self.copy_file = files.read_lines, files.replace_in_file, files.copy_file
        self.change_file, self.make_link, self.list_files = files.change_file, files.make_link, files.list_files
        self.get_attributes, self.set_attributes = files.get_attributes, files.set_attributes
        self.find_files, self.search_files, self.watch_files = files.find_files, files.search_files, files.watch_files
        self.measure_files, self.stat_file = files.measure_files, files.stat_file
        self.make_directory, self.rename_file, self.remove_file = (
            files.make_directory,
            files.rename_file,
            files.remove_file,
        )
        self.upload_tree, self.download_tree = files.upload_tree, files.download_tree
        terminals = FakeTerminals(self._find, self._start)
        self.open_terminal, self.get_terminal, self.terminals = terminals.open, terminals.get, terminals.all
        self.attach_terminal, self.write_terminal = terminals.attach, terminals.write
        self.resize_terminal, self.kill_terminal = terminals.resize, terminals.kill
        processes = FakeProcesses(self._find, self._begin)
        self.launch_process, self.list_processes = processes.launch_process, processes.list_processes
        self.process_status, self.process_logs = processes.process_status, processes.process_logs
        self.write_process_stdin = processes.write_process_stdin
        self.close_process_stdin = processes.close_process_stdin
        self.kill_process, self.wait_process = processes.kill_process, processes.wait_process
        ports = FakePorts(self._find)
        self.preview_port = ports.preview_port
        self.expose_port, self.list_ports = ports.expose_port, ports.list_ports
        self.unexpose_port, self.connect_port = ports.unexpose_port, ports.connect_port
        templates, volumes = FakeTemplates(), FakeVolumes()
        self.list_templates, self.get_template = templates.list_templates, templates.get_template
        self.make_template, self.tag_template = templates.make_template, templates.tag_template
        self.remove_template, self.warm_template = templates.remove_template, templates.warm_template
        self.prune_templates = templates.prune_templates
        self.create_volume, self.get_volume = volumes.create_volume, volumes.get_volume
        self.list_volumes, self.remove_volume = volumes.list_volumes, volumes.remove_volume
        code = FakeCode(self._find)
        self.create_context, self.contexts = code.create_context, code.contexts
        self.interrupt_context, self.restart_context = code.interrupt_context, code.restart_context
        self.delete_context, self.run_code, self.attach_code = code.delete_context, code.run_code, code.attach_code
        metrics = FakeMetrics(self._find, self._sessions.values)
        self.session_metrics, self.host_metrics = metrics.session_metrics, metrics.host_metrics
        self.all_metrics = metrics.all_metrics
        self.create_snapshot, self.list_snapshots = history.create_snapshot, history.list_snapshots
        self.delete_snapshot, self.turn_complete = history.delete_snapshot, history.turn_complete
        self.turns, self.rollback, self.fork, self.diff = history.turns, history.rollback, history.fork, history.diff

    def _find(self, session_id: str) -> FakeSession:
        check_session_id(session_id)
        session = self._sessions.get(session_id)
        if session is None:
            raise SessionNotFound(f"there is no session {session_id}", session_id=session_id)
        return session

    def _say(self, session_id: str, kind: EventKind, detail: str = "") -> None:
        offset = self._first_offset + len(self._events)
        self._events.append(Event(offset, time.time(), session_id, kind, detail))
        said, self._said = self._said, asyncio.Event()
        said.set()

    # ---- sessions ----------------------------------------------------------------------------------------------

    async def create(self, spec: SessionSpec) -> SessionInfo:
        known = self._requested.get(spec.request_id or "")
        if known is not None and known in self._sessions:
            return self._sessions[known].info()
        give_up = time.monotonic() + spec.queue_timeout_s
        while len(self._sessions) >= self._sessions_max and time.monotonic() < give_up:  # noqa: ASYNC110 - no engine
            await asyncio.sleep(0.01)
        for axis, asked in (("runtime", spec.runtime), ("storage", spec.storage)):
            if asked not in (AUTO, NAME):
                raise InvalidArgument(f"{asked!r} is no {axis}", next_step=f"use one of: {AUTO}, {NAME}")
        check_wishes(spec)
        if split_name(spec.template)[0] != BUILTIN:
            raise TemplateNotFound(f"there is no template {spec.template}", next_step="leave it out")
        if spec.session_id in self._sessions:
            raise SessionExists(f"there is a session {spec.session_id}", session_id=spec.session_id)
        tree = None
        if spec.snapshot is not None:
            source, _, name = spec.snapshot.partition("/")
            points = {point.snapshot.name: point for point in self._find(source).points}
            if name not in points:
                raise NotFound(f"there is no snapshot {spec.snapshot}", next_step="list them")
            tree = points[name].tree.copy()
        session = self._make(spec)
        if tree is not None:
            session.tree, session.origin = tree, spec.snapshot
        if spec.request_id is not None:
            self._requested[spec.request_id] = session.session_id
        return session.info()

    def _make(self, spec: SessionSpec) -> FakeSession:
        self._cordon.check()
        if len(self._sessions) >= self._sessions_max:
            raise MaxSessionsReached(
                f"there are {len(self._sessions)} sessions, and no more are allowed", next_step="destroy one"
            )
        self._serial += 1
        now, session_id = time.time(), spec.session_id or new_session_id()
        session = FakeSession(session_id, spec, now, now + spec.timeout_s, self._serial)
        self._sessions[session_id] = session
        self._set_timer(session, spec.timeout_s)
        self._say(session_id, EventKind.CREATED, spec.template)
        self._say(session_id, EventKind.ACTIVE)
        return session

    def _set_timer(self, session: FakeSession, seconds: float) -> None:
        if session.timer is not None:
            session.timer.cancel()
        session.timer = asyncio.get_running_loop().call_later(seconds, self._expire, session)

    def _expire(self, session: FakeSession) -> None:
        self._say(session.session_id, EventKind.EXPIRED)
        if session.spec.on_expiry is OnExpiry.DESTROY:
            self._remove(session)
        else:
            session.pause(PauseReason.EXPIRED)
            self._say(session.session_id, EventKind.PAUSED)

    async def get(self, session_id: str) -> SessionInfo:
        return self._find(session_id).measured()

    async def list(self, query: SessionFilter) -> SessionPage:
        try:
            after = int(query.after or "0")
        except ValueError:
            raise InvalidArgument(
                f"{query.after!r} is no cursor", next_step="give the one of the page before"
            ) from None
        fit = [
            session
            for session in self._sessions.values()
            if session.serial > after
            and query.labels.items() <= session.spec.labels.items()
            and (not query.states or session.state in query.states)
        ]
        page = fit[: query.limit]
        following = str(page[-1].serial) if len(fit) > len(page) else None
        return SessionPage(tuple(session.info() for session in page), following)

    async def pause(self, request: PauseRequest) -> SessionInfo:
        session = self._find(request.session_id)
        if request.memory:
            raise CapabilityNotSupported("the fake keeps no memory of processes", next_step="leave `memory` out")
        if session.state is SessionState.PAUSED:
            return session.info()
        session.check_active("it cannot be paused")
        await self._drain(session, request.drain_s or 0.0)
        if session.running and not request.freeze:
            raise ToolsInFlight(f"{len(session.running)} calls run", next_step="let them be frozen, or wait")
        session.pause(PauseReason.ASKED)
        self._say(session.session_id, EventKind.PAUSED)
        return session.info()

    async def _drain(self, session: FakeSession, seconds: float) -> None:
        waiting = [asyncio.ensure_future(call.ended()) for call in session.running]
        if waiting:
            _done, rest = await asyncio.wait(waiting, timeout=seconds)
            for task in rest:
                task.cancel()

    async def resume(self, session_id: str) -> SessionInfo:
        session = self._find(session_id)
        if session.state is SessionState.PAUSED:
            if session.expires <= time.time():
                raise InvalidState(f"the time of session {session_id} is up", next_step="extend it first")
            session.resume()
            self._say(session_id, EventKind.RESUMED)
        return session.info()

    async def extend(self, session_id: str, timeout_s: float) -> SessionInfo:
        limits.within("timeout_s", timeout_s, 0.001, limits.SESSION_LIFETIME_S_MAX)
        session = self._find(session_id)
        session.expires = time.time() + timeout_s
        self._set_timer(session, timeout_s)
        self._say(session_id, EventKind.EXTENDED)
        return session.info()

    async def relabel(self, request: RelabelRequest) -> SessionInfo:
        session = self._find(request.session_id)
        session.spec = replace(session.spec, labels=request.applied_to(session.spec.labels))
        self._say(session.session_id, EventKind.RELABELED)
        return session.info()

    async def destroy(self, session_id: str) -> None:
        self._remove(self._find(session_id))

    def _remove(self, session: FakeSession) -> None:
        session.end()
        del self._sessions[session.session_id]
        self._say(session.session_id, EventKind.DESTROYED)

    async def recover(self, session_id: str) -> SessionInfo:
        session = self._find(session_id)
        raise InvalidState(f"session {session_id} is {session.state}: it has not failed", session_id=session_id)

    # ---- calls -------------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def call(self, request: CallRequest) -> AsyncGenerator[FakeStream]:
        session = self._find(request.session_id)
        known = session.calls.get(request.call_id or "")
        if known is not None:
            yield FakeStream(known)
            return
        call = self._start(session, request)
        try:
            yield FakeStream(call)
        finally:
            if not request.detach and not call.is_over:
                call.kill(9)
                await call.ended()

    def _start(self, session: FakeSession, request: CallRequest, window_bytes: int = 0) -> FakeCall:
        call = self._begin(session, request, window_bytes)
        session.calls[call.call_id] = call
        return call

    def _begin(self, session: FakeSession, request: CallRequest, window_bytes: int = 0) -> FakeCall:
        session.check_use()
        check_call(request)
        if request.terminal and not window_bytes:
            raise CapabilityNotSupported("calls of the fake are on no terminal", next_step="open a terminal")
        if request.user is not None:
            raise CapabilityNotSupported("the fake has no users", next_step="leave the user out, or use a real host")
        try:
            cwd, node = session.tree.find(request.cwd or WORKSPACE)
        except (FileNotFound, FileConflict) as error:
            raise InvalidArgument(f"the directory {request.cwd} is not there: {error.message}") from error
        if node.kind is not FileKind.DIRECTORY:
            raise InvalidArgument(f"{cwd} is no directory")
        session.last_pid += 1
        call = FakeCall(session.session_id, request.call_id or new_call_id(), request, session.last_pid, session.gate)
        if window_bytes:
            session.ttys[call.call_id] = FakeTty(call, request.terminal or TerminalSize(), window_bytes)
        call.begin(lambda one: run_program(self.programs, session, one, cwd))
        return call

    @asynccontextmanager
    async def attach(self, session_id: str, call_id: str) -> AsyncGenerator[FakeStream]:
        call = self._find(session_id).calls.get(call_id)
        if call is None:
            raise CallNotFound(f"session {session_id} has no call {call_id}", call_id=call_id)
        yield FakeStream(call)

    async def calls(self, session_id: str) -> Sequence[CallRecord]:
        return [call.record for call in self._find(session_id).calls.values()]

    # ---- tools -------------------------------------------------------------------------------------------------

    async def tools(self) -> Sequence[Tool]:
        return list(CATALOGUE.values())

    @asynccontextmanager
    async def execute_tool(self, request: ToolRequest) -> AsyncGenerator[FakeToolStream]:
        session, tool = self._find(request.session_id), CATALOGUE.get(request.tool)
        if tool is None:
            raise InvalidArgument(f"there is no tool {request.tool}", next_step=f"use one of: {', '.join(CATALOGUE)}")
        call_id = request.call_id or new_call_id()
        doing = self._tool_calls.get((session.session_id, call_id))
        if doing is None:
            session.check_use()
            doing = self._tool_calls[session.session_id, call_id] = FakeToolCall(call_id, tool)
            self._do(session, request, doing)
        doing.readers += 1
        try:
            yield FakeToolStream(doing)
        finally:
            doing.readers -= 1
            if not doing.readers:
                doing.cancel()

    def _do(self, session: FakeSession, request: ToolRequest, doing: FakeToolCall) -> None:
        if doing.tool.name != "bash":
            return do_direct(session, request, doing)
        if wrong := wrong_arguments(doing.tool, request.arguments):
            return doing.finish(wrong, is_error=True)
        argv = ("bash", "-c", request.arguments["cmd"])
        call = CallRequest(session.session_id, argv, user=request.user, timeout_s=request.timeout_s, detach=True)
        doing.call = self._start(session, call)
        task = asyncio.create_task(doing.watch(doing.call), name=f"fake tool {doing.call_id}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return None

    async def cancel_tool(self, session_id: str, call_id: str) -> bool:
        self._find(session_id)
        doing = self._tool_calls.get((session_id, call_id))
        if doing is None:
            raise CallNotFound(f"session {session_id} has no call {call_id}", call_id=call_id)
        return doing.cancel()

    # ---- events and upkeep -------------------------------------------------------------------------------------

    @asynccontextmanager
    async def events(self, request: EventFilter) -> AsyncGenerator[AsyncIterator[Event]]:
        if request.after is not None and request.after >= self._first_offset + len(self._events):
            raise InvalidArgument(f"the offset {request.after} was never given")
        yield self._following(request)

    async def _following(self, request: EventFilter) -> AsyncIterator[Event]:
        at = 0
        while True:
            while at < len(self._events):
                event = self._events[at]
                at += 1
                is_new = request.after is None or event.offset > request.after
                if is_new and request.session_id in (None, event.session_id):
                    yield event
            if not request.follow:
                return
            await self._said.wait()

    async def health(self) -> Health:
        used = sum(session.measured().space_used or 0 for session in self._sessions.values())
        space = PoolSpace(max(used, limits.GIB), used, max(0, limits.GIB - used), used / max(used, limits.GIB))
        active = sum(len(session.running) for session in self._sessions.values())
        uptime = time.monotonic() - self._began
        share, count = Share(0, 0), len(self._sessions)
        return Health(
            self._cordon.status,
            self._cordon.reasons(),
            "online",
            space,
            *(share, share, share),
            *(count, active, uptime),
            (),
            self._sessions_max,
            self._cordon.since,
        )

    @asynccontextmanager
    async def backup(self) -> AsyncGenerator[AsyncIterator[bytes]]:
        raise CapabilityNotSupported("the fake packs nothing", next_step="use a real host")
        yield  # unreachable: it makes this a generator

    async def cordon(self, request: CordonRequest) -> Health:
        self._cordon.put(request)
        return await self.health()

    async def uncordon(self) -> Health:
        self._cordon.lift()
        return await self.health()

    async def examine(self, *, repair: bool = False) -> Examination:
        del repair  # there is nothing beside the sessions that could be wrong
        return Examination(len(self._sessions), ())

    async def capabilities(self) -> frozenset[Capability]:
        return CAPABILITIES

    # ---- elsewhere ---------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def move(self, request: MoveRequest) -> AsyncGenerator[AsyncIterator[MoveProgress]]:
        self._find(request.session_id)
        raise CapabilityNotSupported("the fake has one storage", next_step="use a real host")
        yield  # unreachable: it makes this a generator

    @asynccontextmanager
    async def export(self, request: ExportRequest) -> AsyncGenerator[AsyncIterator[bytes]]:
        self._find(request.session_id)
        raise CapabilityNotSupported(DEVIATIONS["a_session_comes_back_from_its_export"], next_step="use a real host")
        yield  # unreachable: it makes this a generator

    async def import_session(self, request: ImportRequest, content: AsyncIterable[bytes]) -> SessionInfo:
        del request, content
        raise CapabilityNotSupported(DEVIATIONS["a_session_comes_back_from_its_export"], next_step="use a real host")
