"""An environment: one session as the loop of an agent sees it."""

from dataclasses import dataclass
from enum import StrEnum

from sandlot.model.session import SessionState


class EnvironmentState(StrEnum):
    """Those of a session, and one behind its end."""

    CREATING = "creating"  # it has no session yet, or its session is being made
    ACTIVE = "active"
    PAUSED = "paused"
    DESTROYING = "destroying"
    DESTROYED = "destroyed"
    FAILED = "failed"

    @classmethod
    def of(cls, state: SessionState) -> "EnvironmentState":
        return cls(state.value)


@dataclass(frozen=True, slots=True)
class EnvironmentCapabilities:
    """What an environment can do. What is False is refused with CapabilityNotSupported; the two bounds are held."""

    snapshots: bool = False
    rollback: bool = False
    pause: bool = False
    tier_routing: bool = False  # some tools are done by the host's own hands, others by a program that is contained
    streaming_progress: bool = False  # a tool is heard while it works
    max_session_duration_s: float | None = None  # None: there is no bound
    concurrent_sessions: int = 0  # at once, of whoever provides them; 0: there is no bound
