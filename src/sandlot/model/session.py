"""A session: its request, its states and what can be told of it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from sandlot.model import limits
from sandlot.model.call import check_envs, check_text
from sandlot.model.capability import Capability
from sandlot.model.errors import (
    InvalidArgument,
    InvalidState,
    SandlotError,
    SessionDestroying,
    SessionFailed,
    SessionPaused,
)
from sandlot.model.ids import check_id, check_labels, check_session_id
from sandlot.model.network import LOOPBACK, NetworkPolicy
from sandlot.model.resources import NO_LIMITS, Resources
from sandlot.model.template import BUILTIN, check_template
from sandlot.model.volume import Mount, check_mounts

AUTO = "auto"


class SessionState(StrEnum):
    CREATING = "creating"
    ACTIVE = "active"
    PAUSED = "paused"
    DESTROYING = "destroying"
    FAILED = "failed"


class OnExpiry(StrEnum):
    """What becomes of a session when its time is up."""

    DESTROY = "destroy"
    PAUSE = "pause"


class PauseReason(StrEnum):
    ASKED = ""
    IDLE = "idle"  # the next call or file verb wakes it
    EXPIRED = "expired"  # it can be resumed when its time was extended
    MOMENT = "moment"  # its memory is being kept or brought back; the next engine lets it go on


class SessionEvent(StrEnum):
    CREATED = "created"
    PAUSE = "pause"
    RESUME = "resume"
    FAIL = "fail"
    RECOVER = "recover"
    DESTROY = "destroy"


TRANSITIONS: Mapping[tuple[SessionState, SessionEvent], SessionState] = {
    (SessionState.CREATING, SessionEvent.CREATED): SessionState.ACTIVE,
    (SessionState.CREATING, SessionEvent.FAIL): SessionState.FAILED,
    (SessionState.CREATING, SessionEvent.DESTROY): SessionState.DESTROYING,
    (SessionState.ACTIVE, SessionEvent.PAUSE): SessionState.PAUSED,
    (SessionState.ACTIVE, SessionEvent.FAIL): SessionState.FAILED,
    (SessionState.ACTIVE, SessionEvent.DESTROY): SessionState.DESTROYING,
    (SessionState.ACTIVE, SessionEvent.RESUME): SessionState.ACTIVE,
    (SessionState.PAUSED, SessionEvent.PAUSE): SessionState.PAUSED,
    (SessionState.PAUSED, SessionEvent.RESUME): SessionState.ACTIVE,
    (SessionState.PAUSED, SessionEvent.FAIL): SessionState.FAILED,
    (SessionState.PAUSED, SessionEvent.DESTROY): SessionState.DESTROYING,
    (SessionState.FAILED, SessionEvent.FAIL): SessionState.FAILED,
    (SessionState.FAILED, SessionEvent.RECOVER): SessionState.ACTIVE,
    (SessionState.FAILED, SessionEvent.DESTROY): SessionState.DESTROYING,
}


def transition(session_id: str, state: SessionState, event: SessionEvent) -> SessionState:
    """The state after the event; a typed error when the event is not allowed now."""
    after = TRANSITIONS.get((state, event))
    if after is None:
        raise refusal(session_id, state, f"cannot {event}")
    return after


def refusal(session_id: str, state: SessionState, what: str, reason: str = "") -> SandlotError:
    """Why a session in this state does not do what was asked."""
    if state is SessionState.PAUSED:
        return SessionPaused(f"session {session_id} is paused: {what}", next_step="resume it", session_id=session_id)
    if state is SessionState.DESTROYING:
        return SessionDestroying(f"session {session_id} is being destroyed: {what}", session_id=session_id)
    if state is SessionState.FAILED:
        why = f" ({reason})" if reason else ""
        return SessionFailed(
            f"session {session_id} has failed{why}: {what}",
            next_step="its files are kept; recover or destroy it",
            session_id=session_id,
        )
    return InvalidState(f"session {session_id} is {state}: {what}", session_id=session_id)


@dataclass(frozen=True, slots=True)
class SessionSpec:
    """What a caller asks for. What cannot be enforced is refused, never ignored."""

    session_id: str | None = None  # None: a random one
    template: str = BUILTIN
    snapshot: str | None = None  # SESSION/SNAPSHOT to begin with, instead of the template alone
    storage: str = AUTO
    runtime: str = AUTO
    labels: Mapping[str, str] = field(default_factory=dict[str, str])
    envs: Mapping[str, str] = field(default_factory=dict[str, str])
    user: str | None = None  # None: the template's own
    resources: Resources = NO_LIMITS
    timeout_s: float = limits.SESSION_LIFETIME_S
    on_expiry: OnExpiry = OnExpiry.DESTROY
    idle_timeout_s: float | None = None  # paused after so long without a call or a file verb, woken by the next
    network: NetworkPolicy = LOOPBACK
    secrets: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    ports: tuple[int, ...] = ()
    mounts: tuple[Mount, ...] = ()  # volumes, and directories of the machine that its operator allows
    call_snapshots: bool = False  # a snapshot after every call that someone waits for
    starts: bool = True  # False: what the template would start is not started
    request_id: str | None = None  # a repeated one gives the first answer
    queue_timeout_s: float = 0.0  # so long it waits for room, where there is none; 0: it is refused at once

    def __post_init__(self) -> None:
        if self.session_id is not None:
            check_session_id(self.session_id)
        if self.request_id is not None:
            check_id("request", self.request_id)
        if self.template != BUILTIN:
            check_template(self.template)
        if self.snapshot is not None:
            session_id, _, name = self.snapshot.partition("/")
            check_session_id(session_id)
            check_id("snapshot", name)
        if self.labels:
            check_labels(self.labels)
        if self.envs:
            limits.at_most("environment variables", len(self.envs), limits.ARGUMENTS_MAX)
            check_envs(self.envs)
        check_text("user", self.user or "")
        if self.user is not None and (not self.user or "\0" in self.user or len(self.user) > 63):
            raise InvalidArgument("user must be a name or a number of 1 to 63 characters")
        limits.within("timeout_s", self.timeout_s, 0.001, limits.SESSION_LIFETIME_S_MAX)
        if self.idle_timeout_s is not None:
            limits.within("idle_timeout_s", self.idle_timeout_s, 0.001, limits.SESSION_LIFETIME_S_MAX)
        limits.within("queue_timeout_s", self.queue_timeout_s, 0.0, limits.QUEUE_TIMEOUT_S_MAX)
        if self.mounts:
            check_mounts(self.mounts)
        for port in self.ports:
            limits.within("port", port, 1, 65535)


@dataclass(frozen=True, slots=True)
class PauseRequest:
    session_id: str
    drain_s: float | None = None  # so long calls that run may end first; None: as long as the host lets them
    freeze: bool = True  # what runs after that is frozen too; False: the pause is refused
    memory: bool = False  # what runs is kept on disk, and uses no memory meanwhile

    def __post_init__(self) -> None:
        check_session_id(self.session_id)
        if self.drain_s is not None:
            limits.within("drain_s", self.drain_s, 0.0, limits.PAUSE_DRAIN_S_MAX)


@dataclass(frozen=True, slots=True)
class RelabelRequest:
    """Labels to be set and labels to be taken away; all others stay."""

    session_id: str
    labels: Mapping[str, str] = field(default_factory=dict[str, str])
    remove: tuple[str, ...] = ()  # one that is not there is fine

    def __post_init__(self) -> None:
        check_session_id(self.session_id)
        check_labels(self.labels)
        limits.at_most("labels", len(self.remove), limits.LABELS_MAX)

    def applied_to(self, labels: Mapping[str, str]) -> dict[str, str]:
        """What is taken away goes first. Raises LimitReached when the result has too many."""
        kept = {key: value for key, value in labels.items() if key not in self.remove} | dict(self.labels)
        check_labels(kept)
        return kept


@dataclass(frozen=True, slots=True)
class SessionInfo:
    session_id: str
    state: SessionState
    reason: str  # of a failure, or of a pause that nobody asked for; else empty
    created: float
    expires: float
    labels: Mapping[str, str]
    template: str
    storage: str
    runtime: str
    workspace: str  # its path as a command of the session sees it
    turn_count: int = 0
    snap_count: int = 0
    space_used: int | None = None  # None: not measured, as in lists
    origin: str | None = None  # SESSION/SNAPSHOT that it was forked from
    head: str | None = None  # the snapshot that its files grew from
    on_expiry: OnExpiry = OnExpiry.DESTROY
    idle_timeout_s: float | None = None
    resources: Resources = field(default_factory=Resources)  # the limits that hold, asked for or by default
    mounts: tuple[Mount, ...] = ()
    unlimited: tuple[str, ...] = ()  # defaults of this host that this machine cannot enforce
    history_counts: bool = False  # its disk limit is for all that it keeps, what only snapshots hold included
    start_call: str | None = None  # the call of what its template starts
    sleeps: bool = False  # it was paused with its memory: its processes are on disk
    capabilities: tuple[Capability, ...] = ()  # what it can do, on the storage and the runtime that it has


@dataclass(frozen=True, slots=True)
class SessionFilter:
    labels: Mapping[str, str] = field(default_factory=dict[str, str])  # all must match
    states: frozenset[SessionState] = frozenset()  # empty: any
    limit: int = limits.LIST_PAGE_DEFAULT
    after: str | None = None  # the cursor that the page before gave

    def __post_init__(self) -> None:
        limits.within("limit", self.limit, 1, limits.LIST_PAGE_MAX)


@dataclass(frozen=True, slots=True)
class SessionPage:
    sessions: tuple[SessionInfo, ...]
    next: str | None  # cursor of the next page, None at the end
