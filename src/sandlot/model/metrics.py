"""What sessions and their host use, over time."""

from dataclasses import dataclass

from sandlot.model import limits
from sandlot.model.health import Share
from sandlot.model.ids import check_session_id


@dataclass(frozen=True, slots=True)
class MetricsRequest:
    """Samples of a session, or of the host; the last one is of now."""

    session_id: str | None = None  # None: of the host
    since: float = 0.0  # unix time; what is older is left out
    limit: int = limits.SAMPLES_KEPT  # the newest so many

    def __post_init__(self) -> None:
        if self.session_id is not None:
            check_session_id(self.session_id)
        limits.within("limit", self.limit, 1, limits.SAMPLES_KEPT)


@dataclass(frozen=True, slots=True)
class SessionSample:
    """What a session used at a moment. None: the machine does not tell it, or there is none."""

    session_id: str
    at: float  # unix time
    cpus_used: float  # processors, in the mean since the sample before
    cpu_s: float  # processor time since its guest began
    cpus_max: float  # the limit, or what the machine has
    memory_bytes: int
    memory_bytes_max: int
    pids: int  # the guest is one of them
    pids_max: int | None
    disk_bytes: int | None  # what it wrote, its snapshots included where the storage counts them
    disk_bytes_max: int | None
    received_bytes: int | None  # from the network; its own loopback does not count
    sent_bytes: int | None
    calls: int  # that run
    calls_begun: int  # since it was made


@dataclass(frozen=True, slots=True)
class HostSample:
    """What the machine used, whoever used it, and what the host had to do."""

    at: float
    cpus_used: float
    cpus_max: int
    memory: Share
    disk: Share  # where files of sessions are kept
    received_bytes: int
    sent_bytes: int
    load: float  # of the last minute
    sessions: int
    calls: int  # that run
    calls_begun: int  # since the engine started
