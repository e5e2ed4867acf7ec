"""What the engine is told and given."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from sandlot.contracts import PreviewBook
from sandlot.contracts.runtime import Runtime
from sandlot.host.journal import Journal
from sandlot.host.memories import Memories
from sandlot.host.runtimes.keeper import Keeper
from sandlot.host.storages import Storages
from sandlot.host.templates.store import TemplateStore
from sandlot.model import AUTO, TURN_PREFIX, AllowedMount, Resources, limits


@dataclass(frozen=True, slots=True)
class HostSettings:
    data: Path
    storage: str = AUTO
    runtime: str = AUTO
    sessions_max: int = limits.SESSIONS_MAX
    warm_pool: int = 0
    warm_templates: Mapping[str, int] = field(default_factory=dict[str, int])  # how many guests of each wait
    turns_kept: int = limits.TURNS_KEPT
    snapshot_prefix: str = TURN_PREFIX
    resources: Resources = field(default_factory=Resources)  # of a session that asks for none
    overcommit: float = limits.MEMORY_OVERCOMMIT
    space_warn: float = limits.SPACE_WARN
    space_critical: float = limits.SPACE_CRITICAL
    health_interval_s: float = limits.HEALTH_INTERVAL_S
    shutdown_timeout_s: float = limits.SHUTDOWN_TIMEOUT_S
    pause_drain_s: float = 0.0
    tool_timeout_s: float = 0.0  # the most that a tool may take; 0: what its call says
    call_snapshots: bool = False  # also of sessions that do not ask
    mounts: tuple[AllowedMount, ...] = ()  # directories of the machine that sessions may have
    advertise_address: str = "127.0.0.1"  # where others reach what sessions expose
    shares: bool = False  # others may come in, and are answered
    audit_anchor: Path | None = None  # where it is kept apart, for backups; the engine itself writes no log


@dataclass(frozen=True, slots=True)
class HostParts:
    """What the engine is built from; `auto` takes the first of each that is ready."""

    storages: Storages
    runtimes: Mapping[str, Runtime]
    templates: TemplateStore
    keeper: Keeper
    scout: Path  # the program that goes through files
    journal: Journal
    memories: Memories
    previews: PreviewBook | None = None  # None: no server shows ports of sessions
