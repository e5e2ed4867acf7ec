"""How a host is: its space, its load, and what went wrong lately."""

from dataclasses import dataclass
from enum import StrEnum

from sandlot.model import limits
from sandlot.model.errors import InvalidArgument


class HealthStatus(StrEnum):
    HEALTHY = "healthy"
    DEGRADED = "degraded"  # everything works; someone should look
    UNHEALTHY = "unhealthy"  # no new sessions are made; those that are there can be used and destroyed


@dataclass(frozen=True, slots=True)
class Share:
    """How much of something is used."""

    used: int
    total: int  # 0: there is no bound

    @property
    def fraction(self) -> float:
        return self.used / self.total if self.total > 0 else 0.0


@dataclass(frozen=True, slots=True)
class PoolSpace:
    """Where files of sessions are kept; of the filesystem where the storage has no pool of its own."""

    size_bytes: int
    allocated_bytes: int
    free_bytes: int  # that this host may use
    capacity: float  # the fraction of what it may use that is used, from 0 to 1
    fragmentation: float | None = None  # None: the storage has no such figure


@dataclass(frozen=True, slots=True)
class StorageHealth:
    """What a storage says of itself."""

    state: str  # `online`, or what is wrong with it
    space: PoolSpace
    inodes: Share


ONLINE = "online"
DEGRADED = "degraded"  # it works, with less to fall back on


@dataclass(frozen=True, slots=True)
class HealthReason:
    """Why a host is not healthy."""

    what: str  # `space`, `inodes`, `memory`, `descriptors`, `journal`, `reserve`, `storage`, `cordon`
    status: HealthStatus  # what it makes of the host
    value: float
    threshold: float
    message: str
    next_step: str


@dataclass(frozen=True, slots=True)
class HealthFailure:
    """Something that the engine does by itself, and that failed."""

    at: float
    what: str
    message: str


@dataclass(frozen=True, slots=True)
class Health:
    status: HealthStatus
    reasons: tuple[HealthReason, ...]
    pool_state: str  # of the fullest storage
    pool_space: PoolSpace
    inodes: Share
    memory: Share  # of the machine, in bytes
    descriptors: Share  # of this process
    session_count: int
    active_calls: int
    uptime_s: float  # of the engine
    errors: tuple[HealthFailure, ...]  # the newest, oldest first
    sessions_max: int = 0  # that it holds at once; 0: it sets no bound
    cordoned_at: float = 0.0  # since when it makes no sessions because someone said so; 0: it does


@dataclass(frozen=True, slots=True)
class CordonRequest:
    """That a host is to make no sessions from now on."""

    reason: str = ""  # for whoever asks for one meanwhile

    def __post_init__(self) -> None:
        if len(self.reason) > limits.CORDON_REASON_CHARS_MAX or not self.reason.isprintable():
            raise InvalidArgument(
                f"a reason is one line of at most {limits.CORDON_REASON_CHARS_MAX} printable characters",
                next_step="make it shorter",
                limit="reason",
            )


def judge(what: str, value: float, warn: float, critical: float, told: str, next_step: str) -> list[HealthReason]:
    """A reason when a fraction has reached a threshold; none below."""
    for status, threshold in ((HealthStatus.UNHEALTHY, critical), (HealthStatus.DEGRADED, warn)):
        if value >= threshold:
            message = f"{told}: {value:.1%}, and {threshold:.0%} is {status}"
            return [HealthReason(what, status, value, threshold, message, next_step)]
    return []


def worst(reasons: tuple[HealthReason, ...]) -> HealthStatus:
    order = list(HealthStatus)
    return max((reason.status for reason in reasons), key=order.index, default=HealthStatus.HEALTHY)
