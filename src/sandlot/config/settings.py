"""One frozen value per process, read once."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from sandlot.config.files import file_source
from sandlot.config.reading import Reader, Source
from sandlot.config.variables import LOOPBACK, ROOT_DATA
from sandlot.model import AUTO, TURN_PREFIX, AllowedMount, Resources, limits


@dataclass(frozen=True, slots=True)
class Settings:
    data: Path
    storage: str
    runtime: str
    sessions_max: int
    warm_pool: int
    warm_templates: tuple[tuple[str, int], ...]  # how many guests of each wait
    turns_kept: int
    snapshot_prefix: str
    local_disk_snapshots: bool
    resources: Resources  # of a session that asks for none
    overcommit: float
    space_warn: float
    space_critical: float
    health_interval_s: float
    shutdown_timeout_s: float
    pause_drain_s: float
    tool_timeout_s: float  # the most that a tool may take; 0: what its call says
    call_snapshots: bool  # of sessions whose storage has snapshots, also when they do not ask
    advertise_address: str  # where others reach what sessions expose
    btrfs_bytes: int  # of the file that holds a btrfs; 0: by what is free
    zfs_pool: str  # empty: one on a file in the data directory
    zfs_bytes: int  # of that file; 0: half of what is free
    zfs_bases_dataset: str
    zfs_sessions_dataset: str
    mounts: tuple[AllowedMount, ...]  # directories of the machine that sessions may have
    keeper: Path  # the guest program
    preload: Path  # the library for sessions under a gVisor that needs it
    scout: Path  # the program that goes through files of sessions
    audit: bool  # whether it is written down who does what
    audit_anchor: Path | None  # None: beside the log
    runsc: str  # a path, or a name to look for
    gvisor_platform: str


def load(environment: Mapping[str, str] | None = None) -> Settings:
    """Read and check everything. Raises InvalidArgument that names every wrong variable."""
    environment = os.environ if environment is None else environment
    read = Reader(*sources(environment))
    settings = read_settings(read, environment)
    read.check()
    return settings


def sources(environment: Mapping[str, str], file: str = "") -> tuple[Source, ...]:
    """The environment, and `file`, or the one that it names. Raises InvalidArgument for one that cannot be read."""
    file = file or environment.get("SANDLOT_CONFIG", "")
    return (Source(environment), file_source(Path(file))) if file else (Source(environment),)


def read_settings(read: Reader, environment: Mapping[str, str]) -> Settings:
    """What is wrong is told by the reader."""
    return Settings(
        data=Path(read.text("SANDLOT_DATA_DIR") or _default_data(environment)).absolute(),
        storage=read.text("SANDLOT_STORAGE", AUTO),
        runtime=read.text("SANDLOT_RUNTIME", AUTO),
        sessions_max=read.count("SANDLOT_SESSIONS_MAX", limits.SESSIONS_MAX, 1, 28000),
        warm_pool=read.count("SANDLOT_WARM_POOL", 0, 0, 1000),
        warm_templates=read.templates("SANDLOT_WARM_TEMPLATES"),
        turns_kept=read.count("SANDLOT_TURNS_KEPT", limits.TURNS_KEPT, 0, 1_000_000),
        snapshot_prefix=read.word("SANDLOT_SNAPSHOT_PREFIX", TURN_PREFIX),
        local_disk_snapshots=read.flag("SANDLOT_LOCAL_DISK_SNAPSHOTS", default=False),
        resources=Resources(
            cpus=read.number("SANDLOT_DEFAULT_CPUS", 0, limits.CPUS_MIN, limits.CPUS_MAX) or None,
            memory_bytes=read.size("SANDLOT_DEFAULT_MEMORY", 0, limits.MEMORY_BYTES_MIN, limits.BYTES_MAX) or None,
            disk_bytes=read.size("SANDLOT_DEFAULT_DISK", 0, limits.MIB, limits.BYTES_MAX) or None,
            pids=read.count("SANDLOT_DEFAULT_PIDS", limits.PIDS_DEFAULT, 0, limits.PIDS_MAX) or None,
            open_files=read.count("SANDLOT_DEFAULT_OPEN_FILES", 0, limits.OPEN_FILES_MIN, limits.OPEN_FILES_MAX)
            or None,
        ),
        overcommit=read.number("SANDLOT_OVERCOMMIT", limits.MEMORY_OVERCOMMIT, 0.1, 1000),
        space_warn=read.number("SANDLOT_SPACE_WARN", limits.SPACE_WARN, 0.01, 1),
        space_critical=read.number("SANDLOT_SPACE_CRITICAL", limits.SPACE_CRITICAL, 0.01, 1),
        health_interval_s=read.number("SANDLOT_HEALTH_INTERVAL_S", limits.HEALTH_INTERVAL_S, 0.1, 86400),
        shutdown_timeout_s=read.number("SANDLOT_SHUTDOWN_TIMEOUT_S", limits.SHUTDOWN_TIMEOUT_S, 0, 3600),
        pause_drain_s=read.number("SANDLOT_PAUSE_DRAIN_S", 0.0, 0, limits.PAUSE_DRAIN_S_MAX),
        tool_timeout_s=read.number("SANDLOT_TOOL_TIMEOUT_S", 0.0, 0, limits.CALL_TIMEOUT_S_MAX),
        call_snapshots=read.flag("SANDLOT_CALL_SNAPSHOTS", default=False),
        advertise_address=read.host("SANDLOT_ADVERTISE_ADDRESS", LOOPBACK),
        preload=Path(__file__).parents[1] / "_bin" / "sandlot-preload.so",
        scout=Path(__file__).parents[1] / "_bin" / "sandlot-scout",
        audit=read.flag("SANDLOT_AUDIT", default=True),
        audit_anchor=Path(text).absolute() if (text := read.text("SANDLOT_AUDIT_ANCHOR")) else None,
        runsc=read.text("SANDLOT_RUNSC", "runsc"),
        gvisor_platform=read.one_of("SANDLOT_GVISOR_PLATFORM", AUTO, ("systrap", "kvm", "ptrace")),
        btrfs_bytes=read.size("SANDLOT_BTRFS_BYTES", 0, limits.BTRFS_BYTES_MIN, limits.BYTES_MAX),
        zfs_pool=read.dataset("SANDLOT_ZFS_POOL", ""),
        zfs_bytes=read.size("SANDLOT_ZFS_BYTES", 0, limits.ZFS_BYTES_MIN, limits.BYTES_MAX),
        zfs_bases_dataset=read.dataset("SANDLOT_ZFS_BASES", "bases"),
        zfs_sessions_dataset=read.dataset("SANDLOT_ZFS_SESSIONS", "sessions"),
        mounts=read.mounts("SANDLOT_MOUNTS"),
        keeper=Path(read.text("SANDLOT_KEEPER") or Path(__file__).parents[1] / "_bin" / "sandlot-keeper"),
    )


def _default_data(env: Mapping[str, str]) -> Path:
    if os.geteuid() == 0:
        return ROOT_DATA
    home = env.get("XDG_DATA_HOME") or Path(env.get("HOME") or "/tmp") / ".local" / "share"
    return Path(home) / "sandlot"
