"""One fake session: its files, its calls, its history, and what can be told of it."""

import asyncio
from dataclasses import dataclass, field, replace

from sandlot.fakes.calls import FakeCall
from sandlot.fakes.contexts import FakeContext
from sandlot.fakes.process import FakeProcess
from sandlot.fakes.tree import WORKSPACE, Tree
from sandlot.fakes.tty import FakeTty
from sandlot.model import (
    PauseReason,
    SessionInfo,
    SessionPaused,
    SessionSpec,
    SessionState,
    Snapshot,
    Turn,
    Unavailable,
    refusal,
)

NAME = "memory"  # of the only runtime and the only storage


@dataclass(slots=True)
class Point:
    """A snapshot, and the files that it has."""

    snapshot: Snapshot
    tree: Tree


@dataclass(slots=True)
class FakeSession:
    session_id: str
    spec: SessionSpec
    created: float
    expires: float
    serial: int
    tree: Tree = field(default_factory=Tree)
    state: SessionState = SessionState.ACTIVE
    reason: str = ""
    calls: dict[str, FakeCall] = field(default_factory=dict[str, FakeCall])
    ttys: dict[str, FakeTty] = field(default_factory=dict[str, FakeTty])  # by the id of their call
    processes: dict[str, FakeProcess] = field(default_factory=dict[str, FakeProcess])
    contexts: dict[str, FakeContext] = field(default_factory=dict[str, FakeContext])
    points: list[Point] = field(default_factory=list[Point])
    turns: list[Turn] = field(default_factory=list[Turn])
    last_turn: int = 0
    last_pid: int = 1
    told_calls: int = 0  # that turns have told
    head: str | None = None
    origin: str | None = None
    gate: asyncio.Event = field(default_factory=asyncio.Event)
    timer: asyncio.TimerHandle | None = None

    def __post_init__(self) -> None:
        self.gate.set()

    def info(self) -> SessionInfo:
        return SessionInfo(
            session_id=self.session_id,
            state=self.state,
            reason=self.reason,
            created=self.created,
            expires=self.expires,
            labels=dict(self.spec.labels),
            template=self.spec.template,
            storage=NAME,
            runtime=NAME,
            workspace=WORKSPACE,
            turn_count=self.last_turn,
            snap_count=len(self.points),
            origin=self.origin,
            head=self.head,
            on_expiry=self.spec.on_expiry,
            idle_timeout_s=self.spec.idle_timeout_s,
        )

    def measured(self) -> SessionInfo:
        size = sum(len(node.data) for _path, node in self.tree.walk())
        return replace(self.info(), space_used=size)

    def check_active(self, what: str) -> None:
        """Raises SessionPaused, SessionDestroying, InvalidState."""
        if self.state is not SessionState.ACTIVE:
            raise refusal(self.session_id, self.state, what)

    def check_use(self) -> None:
        """The same for calls and files. Raises SessionPaused."""
        if self.state is SessionState.PAUSED:
            raise SessionPaused(
                f"session {self.session_id} is paused", next_step="resume it", session_id=self.session_id
            )
        self.check_active("nothing can be done in it")

    def pause(self, reason: PauseReason) -> None:
        self.state, self.reason = SessionState.PAUSED, reason
        self.gate.clear()

    def resume(self) -> None:
        self.state, self.reason = SessionState.ACTIVE, ""
        self.gate.set()

    @property
    def running(self) -> list[FakeCall]:
        return [call for call in self.calls.values() if not call.is_over]

    def end(self) -> None:
        """Everything that waits for it hears of it."""
        self.state = SessionState.DESTROYING
        if self.timer is not None:
            self.timer.cancel()
        for process in self.processes.values():
            process.stop()
        for context in self.contexts.values():
            context.lose("its session was destroyed")
        for call in self.running:
            call.lose(Unavailable(f"session {self.session_id} was destroyed", session_id=self.session_id))
