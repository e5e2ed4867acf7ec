"""One session as the engine holds it: its record, its guest, its calls."""

import asyncio
import posixpath
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from sandlot.contracts.runtime import (
    Group,
    Guest,
    GuestProcess,
    Hits,
    KnownProcess,
    MountPlan,
    Runtime,
    SpawnPlan,
    StartPlan,
)
from sandlot.contracts.storage import Volume
from sandlot.host.call_ids import CallIds
from sandlot.host.call_limits import CallLimits, check_call
from sandlot.host.call_snapshots import CallSnapshot
from sandlot.host.calls import LiveCall, Ticket
from sandlot.host.desk import Place
from sandlot.host.errands import FIRST_ERRAND
from sandlot.host.gate import Gate
from sandlot.host.guest_streams import GuestStream
from sandlot.host.history import SnapshotRow
from sandlot.host.journal import CallRow, Journal, SessionRow
from sandlot.host.process_run import FIRST_RUN, Run, SessionProcesses, Together
from sandlot.host.reasons import LimitWatch
from sandlot.host.terminal_log import Window
from sandlot.host.unheard import Unheard
from sandlot.host.wishes import Wishes
from sandlot.model import (
    NO_LIMITS,
    CallRecord,
    CallRequest,
    CallResult,
    CallState,
    Capability,
    CapabilityNotSupported,
    LimitHit,
    LimitReached,
    Mount,
    OnExpiry,
    Resources,
    SessionInfo,
    SessionNotFound,
    SessionState,
    Start,
    Unavailable,
    call_snapshot,
    limits,
    new_call_id,
    refusal,
)

_START_PREFIX = "start-"
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class Session:
    """Knows nothing of other sessions. Its row changes only through the service, which journals first."""

    def __init__(
        self,
        row: SessionRow,
        wishes: Wishes,
        volume: Volume | None,
        workspace: str,
        capabilities: frozenset[Capability],
        journal: Journal,
        outputs: Path,
    ) -> None:
        self.row = row
        self.volume, self._workspace = volume, workspace
        self._cwd = wishes.cwd
        self.guest: Guest | None = None
        self.on_expiry = OnExpiry(wishes.on_expiry)
        self.idle_timeout_s = wishes.idle_timeout_s
        self.active_at = row.created
        self._uses = 0
        self.is_heard = True  # False: it was paused when this engine came, and cannot be asked for its calls
        self.is_leaving = False  # its guest is being ended, because another one has taken its place
        self.recovering: asyncio.Task[None] | None = None
        self.live: dict[str, LiveCall] = {}
        self.runs: dict[int, Run] = {}  # of its managed processes, by the number that its guest knows
        self.processes: SessionProcesses = Together()
        self.attended = 0  # runs of code that someone waits for
        self.connections: set[GuestStream] = set()  # that its guest carries
        self.call_ids = CallIds()
        self.started: LiveCall | None = None  # what its template starts
        self.is_serving = False  # and that was seen ready
        self.runtime_capabilities = capabilities
        self.capabilities = capabilities  # with those of its storage
        self._journal = journal
        self._outputs = outputs
        self.last_process_id = 0
        self.snapshots: dict[str, SnapshotRow] = {}  # oldest first
        self.last_snapshot = 0
        self.noted: dict[str, dict[str, Any]] = {}  # what was told beside its files, by state and point
        self._gave_up_files = False
        self.counting: set[ExitStack] = set()  # what is held for turns whose changes are being counted
        self.turned: int | None = None  # the newest call that a turn has; None: to be looked up
        self._ended_since_prune = 0
        self.on_wedged: Callable[[str], None] = self._ignore
        self.on_prune_due: Callable[[], None] = self._nothing
        self.limit_watch = LimitWatch(Hits, Resources())
        self.history_counts = False
        self.find_group: Callable[[], Group] = self._no_group
        self.gate = Gate(row.session_id)
        self.labels = wishes.labels
        self._wishes = wishes
        self.call_snapshots = wishes.call_snapshots
        self.call_takes: dict[str, CallSnapshot] = {}  # of calls whose caller is there, by id
        self.relabeling = asyncio.Lock()
        self.snapping = asyncio.Lock()  # calls that end together are snapshotted one after the other
        self._user = wishes.user
        self._envs: dict[str, str] = self._base_envs() | dict(wishes.envs)

    @property
    def workspace(self) -> str:
        """Where commands start: as the template says, or where the runtime has a place for it."""
        return self._cwd or self._workspace

    @workspace.setter
    def workspace(self, path: str) -> None:
        self._workspace = path

    def _ignore(self, reason: str) -> None:
        del reason

    def _nothing(self) -> None:
        return

    def _no_group(self) -> Group:
        raise Unavailable("the guest of the session is gone")

    def _base_envs(self) -> dict[str, str]:
        envs = {"PATH": PATH, "LANG": "C.UTF-8"}
        return envs if Capability.OWN_ROOT in self.runtime_capabilities else envs | {"HOME": self.workspace}

    @property
    def resources(self) -> Resources:
        """The limits that hold."""
        return self._wishes.resources

    @property
    def start(self) -> Start | None:
        return self._wishes.start

    @property
    def mounts(self) -> tuple[MountPlan, ...]:
        return self._wishes.mounts

    def wishes_with(self, labels: Mapping[str, str]) -> Wishes:
        """For a session that is to be like this one."""
        return replace(self._wishes, labels=dict(labels))

    def wish(self, wishes: Wishes) -> None:
        """It has other labels from now on."""
        self._wishes, self.labels = wishes, wishes.labels

    def info(self, space_used: int | None = None) -> SessionInfo:
        row = self.row
        return SessionInfo(
            session_id=row.session_id,
            state=row.state,
            reason=row.reason,
            created=row.created,
            expires=row.expires,
            labels=dict(self.labels),
            template=row.template,
            storage=row.storage,
            runtime=row.runtime,
            workspace=self.workspace,
            turn_count=row.last_turn,
            snap_count=len(self.snapshots),
            space_used=space_used,
            origin=row.origin,
            head=row.head,
            on_expiry=self.on_expiry,
            idle_timeout_s=self.idle_timeout_s,
            resources=self.resources,
            mounts=tuple(Mount(each.source, each.target, each.read_only) for each in self.mounts),
            unlimited=self._wishes.unlimited,
            history_counts=self.history_counts,
            start_call=self.started.ticket.call_id if self.started else None,
            sleeps=bool(row.memory) and row.state is SessionState.PAUSED,
            capabilities=tuple(sorted(self.capabilities)),
        )

    def add_snapshot(self, row: SnapshotRow) -> None:
        self.snapshots[row.name] = row
        self.last_snapshot = max(self.last_snapshot, row.serial)

    def find_snapshot(self, asked: str) -> SnapshotRow | None:
        """By its name, or by the number of the turn that it closes."""
        if asked.isascii() and asked.isdigit():
            return next((row for row in self.snapshots.values() if row.turn == int(asked)), None)
        return self.snapshots.get(asked)

    def forget_snapshots(self, *names: str) -> None:
        """As the journal does: what grew from one of them grew from what it grew from."""
        for name in names:
            gone = self.snapshots.pop(name)
            if self.row.head == name:
                self.row = replace(self.row, head=gone.parent)
            for row in tuple(self.snapshots.values()):
                if row.parent == name:
                    self.snapshots[row.name] = replace(row, parent=gone.parent)

    def give_up_files(self) -> list[str]:
        """States and points that it needs no more. Told once: given back twice, they would be missing in forks."""
        if self._gave_up_files:
            return []
        self._gave_up_files = True
        state = self.volume.state if self.volume else self.row.volume_state or self.row.volume
        given = [*(row.point for row in self.snapshots.values()), state]
        self.snapshots = {}
        for held in tuple(self.counting):
            held.close()  # nobody will ask for the figures
        return given

    def set_state(self, state: SessionState, reason: str = "") -> None:
        self.row = replace(self.row, state=state, reason=reason)

    def output_folder(self) -> Path:
        return self._outputs / self.row.volume

    def output_path(self, process_id: int) -> Path:
        return self.output_folder() / f"{process_id}.log"

    # ---- calls -------------------------------------------------------------------------------------------------

    async def calls(self, first: int = 0, last: int = 1 << 62) -> list[CallRecord]:
        """Oldest first. A call is recorded a moment after it was told of; whoever asks in between has heard of it."""
        told = {row.process_id: row.record for row in await self._journal.calls(self.row.session_id, first, last)}
        for live in tuple(self.live.values()):
            number = live.ticket.process_id
            # Its start may be recorded, and its end not yet.
            if first <= number <= last and (number not in told or live.result is not None):
                told[number] = live.told()
        return [told[number] for number in sorted(told)]

    def _calls_at_once(self) -> int:
        """Those that have ended and wait to be recorded do not count, until there are as many of them again."""
        there = len(self.live)
        if limits.CALLS_AT_ONCE_MAX <= there < 2 * limits.CALLS_AT_ONCE_MAX:
            return sum(live.result is None for live in self.live.values())
        return there

    def start_call(self, request: CallRequest, window: Window | None = None) -> LiveCall:
        """Raises what `Calls.call` raises."""
        guest = self.active_guest("it takes no calls")
        if self._calls_at_once() >= limits.CALLS_AT_ONCE_MAX:
            raise LimitReached(
                f"session {self.row.session_id} runs {limits.CALLS_AT_ONCE_MAX} calls already", limit="calls_at_once"
            )
        call_id = request.call_id or new_call_id()
        if self.call_snapshots:
            call_snapshot(call_id)
        ticket = Ticket.of(request, self.last_process_id + 1, call_id, window)
        plan = self.plan(request, ticket)
        live = self._live_call(ticket)
        self.watch_limits(live)
        if request.resources is NO_LIMITS or request.resources == NO_LIMITS:
            process = guest.spawn(ticket.process_id, plan, live)
        else:
            process = self._spawn_limited(guest, request.resources, plan, live)
        self.last_process_id += 1
        self._journal.begun += 1
        self.active_at = ticket.started
        self.live[ticket.call_id] = live
        live.begin(process)
        return live

    def active_guest(self, what: str) -> Guest:
        if self.guest is None or self.row.state is not SessionState.ACTIVE:
            raise refusal(self.row.session_id, self.row.state, what, self.row.reason)
        return self.guest

    def user_for(self, asked: str | None) -> str:
        user = asked or self._user
        if user and Capability.USERS not in self.runtime_capabilities:
            raise CapabilityNotSupported(
                f"the runtime {self.row.runtime} runs everything as its own user",
                next_step="leave the user out, or use the runtime `namespaces`",
            )
        return user

    def open_files(self, runtime: Runtime, user: str | None) -> Place:
        """Raises what `Files` raises of the session and the user."""
        guest = self.active_guest("its files cannot be reached")
        user = self.user_for(user)
        tree = runtime.open_tree(self.start_plan(), guest)
        return Place(tree, self.workspace, user, session_id=self.row.session_id)

    def start_plan(self) -> StartPlan:
        """The root as the journal knows it."""
        assert self.volume is not None, "an active session has a volume"
        template = Path(self.row.template_path) if self.row.template_path else None
        return StartPlan(self.volume, template, self.row.id_range, self.resources, self.mounts)

    def take_start(self, live: LiveCall) -> None:
        """What its template starts has begun before it, and is ready."""
        self.watch_limits(live)
        self.last_process_id = live.ticket.process_id
        self.live[live.ticket.call_id] = self.started = live
        self.call_ids.add(live.ticket.call_id)
        self.is_serving = True
        self.record_start(live.ticket)

    def plan(self, request: CallRequest, ticket: Ticket) -> SpawnPlan:
        envs = self._envs if not request.envs else self._envs | dict(request.envs)
        if request.terminal and "TERM" not in envs:
            envs = envs | {"TERM": "xterm-256color"}
        cwd = posixpath.join(self.workspace, request.cwd) if request.cwd else self.workspace
        return SpawnPlan(
            argv=request.argv,
            cwd=cwd,
            envs=envs if Capability.OWN_ROOT in self.runtime_capabilities else {"PWD": cwd} | envs,
            user=self.user_for(request.user),
            stdin=request.stdin,
            terminal=request.terminal,
            open_files=self.resources.open_files,
            tag=ticket.to_tag(),
        )

    def _spawn_limited(self, guest: Guest, asked: Resources, plan: SpawnPlan, live: LiveCall) -> GuestProcess:
        check_call(asked, self.resources, self.runtime_capabilities)
        own, of_session = CallLimits(self.find_group, live.ticket.process_id, asked), live.limit_met
        files = plan.open_files if asked.open_files is None else asked.open_files
        with own.begin() as groups:
            process = guest.spawn(live.ticket.process_id, replace(plan, groups=groups, open_files=files), live)
        live.limit_met = lambda code: own.met(code) or of_session(code)
        live.is_limited = True
        return process

    def watch_limits(self, live: LiveCall) -> None:
        since = self.limit_watch.begin()

        def met(exit_code: int) -> LimitHit | None:
            running = sum(each.result is None and each is not self.started for each in self.live.values())
            return self.limit_watch.end(since, exit_code, alone=running <= 1)

        live.limit_met = met

    def _live_call(self, ticket: Ticket) -> LiveCall:
        self.call_ids.add(ticket.call_id)
        return LiveCall(ticket, self.output_path, self.record_start, self.record, self._report_wedged)

    def _report_wedged(self, reason: str) -> None:
        self.on_wedged(reason)

    def is_attended(self) -> bool:
        """Whether someone waits for a call of it."""
        alive = (live for live in self.live.values() if live.result is None and live.lost is None)
        return self.attended > 0 or any(live.is_attended for live in alive)

    @property
    def is_busy(self) -> bool:
        return bool(self._uses or self.running() or not self.gate.is_open)

    @contextmanager
    def in_use(self) -> Generator[None]:
        """By someone who reaches for its files."""
        self._uses += 1
        try:
            yield
        finally:
            self._uses -= 1
            self.active_at = time.time()

    def everything(self) -> tuple[LiveCall | Run, ...]:
        """All that it runs from outside."""
        return (*self.live.values(), *self.runs.values())

    def lose_everything(self, reason: str) -> None:
        for each in self.everything():
            each.on_lost(reason)
        self.live.clear()
        self.processes.lose(reason)

    def is_start(self, call_id: str, process_id: int) -> bool:
        return self.start is not None and call_id == start_call_id(process_id)

    def running(self) -> list[LiveCall]:
        """Those that end some day; what the template starts is not one of them."""
        alive = (live for live in self.live.values() if live.result is None and live.lost is None)
        return [live for live in alive if live is not self.started]

    def hold_calls(self) -> None:
        for live in self.everything():
            live.hold()

    def release_calls(self, paused_s: float) -> None:
        for live in self.everything():
            live.release_hold(paused_s)
        self.processes.go_on()

    def part_calls(self) -> None:
        """Their guest goes, and another one will know of them."""
        for live in self.everything():
            live.part()
        for connection in tuple(self.connections):
            connection.break_off("the session is kept on disk")

    async def rest(self, guest: Guest | None) -> None:
        """A guest of an earlier engine that is paused, and cannot be asked; or none, of one that sleeps. Its calls are
        all recorded."""
        self.last_process_id = max(self.row.forgotten, await self._journal.last_process_id(self.row.session_id))
        self.guest, self.is_heard = guest, False

    def note_calls(self) -> None:
        """Those that were too young to be recorded: who was told that they began can be told that they are lost."""
        for live in self.live.values():
            if live.result is None:
                self.record_start(live.ticket)

    def record_start(self, ticket: Ticket) -> None:
        self._journal.call_started(ticket.session_id, ticket.process_id, ticket.call_id, ticket.started, ticket.argv)

    def record(self, live: LiveCall, result: CallResult, output: bytes | None, release: Callable[[], None]) -> None:
        def safe() -> None:
            release()
            self.live.pop(live.ticket.call_id, None)
            self._ended_since_prune += 1
            if self._ended_since_prune >= limits.CALLS_KEPT:
                self._ended_since_prune = 0
                self.on_prune_due()

        self.active_at = time.time()
        if self.row.state is SessionState.DESTROYING:
            release()  # a record would outlive its session
            return
        ticket = live.ticket
        record = CallRecord(ticket.session_id, ticket.call_id, ticket.argv, CallState.ENDED, ticket.started, result)
        self._journal.call_ended(CallRow(ticket.process_id, record, output), safe)
        if live.is_record_awaited:
            self._journal.hurry()

    async def resume_calls(self, guest: Guest) -> None:
        """Take up the calls that a guest remembers, from an earlier engine or from before it slept."""
        recorded = {row.process_id: row for row in await self._journal.calls(self.row.session_id)}
        self.last_process_id = max(0, self.row.forgotten, *recorded)
        alive: set[int] = set()
        self.limit_watch.forget()
        for known in await guest.known():
            if known.process_id >= FIRST_RUN:
                if known.process_id >= FIRST_ERRAND or not self.processes.adopt(guest, known):
                    Unheard(guest, known)
                continue
            self.last_process_id = max(self.last_process_id, known.process_id)
            row = recorded.get(known.process_id)
            if row.record.state is not CallState.RUNNING if row else known.process_id <= self.row.forgotten:
                # Its end was recorded and the guest did not hear of it; or it runs again, from an image.
                Unheard(guest, known)
                continue
            alive.add(known.process_id)
            self._resume_call(guest, known, row)
        self.guest, self.is_heard = guest, True
        guest.begin()
        self.processes.heard()
        if any(row.record.result is None and process_id not in alive for process_id, row in recorded.items()):
            await self._journal.calls_lost(self.row.session_id, tuple(alive))

    def _resume_call(self, guest: Guest, known: KnownProcess, row: CallRow | None) -> None:
        try:
            ticket = Ticket.from_tag(self.row.session_id, known.process_id, known.tag)
        except (ValueError, IndexError) as error:
            raise Unavailable(f"the guest remembers a process that no host of ours started: {error}") from None
        if (live := self.live.get(ticket.call_id)) is not None:
            live.rejoin(guest.adopt(known, live))
            return
        live = self._live_call(ticket)
        self.watch_limits(live)
        live.paused_s = row.paused_s if row else 0.0
        self.live[ticket.call_id] = live
        if self.is_start(ticket.call_id, ticket.process_id):
            self.started = live
        live.resume(guest.adopt(known, live), known.stdin_taken)
        if row is None:
            self.record_start(ticket)


def start_call_id(process_id: int) -> str:
    """What the call of a start command is called: it may be started again, and each time it is another call."""
    return f"{_START_PREFIX}{process_id}"


def no_session(session_id: str) -> SessionNotFound:
    return SessionNotFound(
        f"there is no session {session_id}", next_step="`sandlot ls` lists the sessions", session_id=session_id
    )
