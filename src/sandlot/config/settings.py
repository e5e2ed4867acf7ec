"""One frozen value per process, read once."""

import os
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from sandlot.model import (
    AUTO,
    TURN_PREFIX,
    AllowedMount,
    InvalidArgument,
    Resources,
    check_template,
    is_digest,
    limits,
    split_name,
)

_ROOT_DATA = Path("/var/lib/sandlot")


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
    btrfs_bytes: int  # of the file that holds a btrfs; 0: by what is free
    zfs_pool: str  # empty: one on a file in the data directory
    zfs_bytes: int  # of that file; 0: half of what is free
    zfs_bases_dataset: str
    zfs_sessions_dataset: str
    mounts: tuple[AllowedMount, ...]  # directories of the machine that sessions may have
    keeper: Path  # the guest program
    preload: Path  # the library for sessions under a gVisor that needs it
    scout: Path  # the program that goes through files of sessions
    runsc: str  # a path, or a name to look for
    gvisor_platform: str


@dataclass(frozen=True, slots=True)
class Variable:
    """One thing that can be set, as it is documented."""

    name: str
    meaning: str
    default: str


VARIABLES = (
    Variable(
        "SANDLOT_DATA_DIR",
        "Where sessions, templates and the journal are kept. One engine at a time holds it.",
        f"`{_ROOT_DATA}` for root, else `~/.local/share/sandlot`",
    ),
    Variable("SANDLOT_STORAGE", "How files of new sessions are kept, when a request does not say.", f"`{AUTO}`"),
    Variable("SANDLOT_RUNTIME", "How new sessions are contained, when a request does not say.", f"`{AUTO}`"),
    Variable("SANDLOT_SESSIONS_MAX", "How many sessions an engine holds at once.", f"{limits.SESSIONS_MAX}"),
    Variable("SANDLOT_WARM_POOL", "How many guests wait for a session, started. The command line keeps none.", "0"),
    Variable(
        "SANDLOT_WARM_TEMPLATES",
        "Templates whose guests wait too, serving if the template starts something: `app:3=2,db` keeps two of the one "
        "and one of the other.",
        "none",
    ),
    Variable(
        "SANDLOT_TURNS_KEPT",
        "How many snapshots of turns a session keeps: the newest. Those that a user named stay. 0 keeps all.",
        f"{limits.TURNS_KEPT}",
    ),
    Variable("SANDLOT_SNAPSHOT_PREFIX", "What snapshots of turns are called: `turn-0001`.", f"`{TURN_PREFIX}`"),
    Variable(
        "SANDLOT_LOCAL_DISK_SNAPSHOTS",
        "`on` or `off`: whether the storage `local-disk` has snapshots. Each of them, each rollback and each fork "
        "copies all files of its session; where the filesystem shares blocks (btrfs, xfs), it copies no content.",
        "`off`",
    ),
    Variable(
        "SANDLOT_DEFAULT_PIDS",
        "Processes of a session that asks for no limit; 0: any number.",
        f"{limits.PIDS_DEFAULT}",
    ),
    Variable("SANDLOT_DEFAULT_MEMORY", "Memory of a session that asks for no limit, such as `2G`.", "no limit"),
    Variable("SANDLOT_DEFAULT_CPUS", "Processors of a session that asks for no limit, such as `1.5`.", "no limit"),
    Variable("SANDLOT_DEFAULT_OPEN_FILES", "Open files of each process, where no limit is asked for.", "no limit"),
    Variable(
        "SANDLOT_OVERCOMMIT",
        "How many times the machine's memory its sessions may ask for together.",
        f"{limits.MEMORY_OVERCOMMIT:g}",
    ),
    Variable(
        "SANDLOT_SPACE_WARN",
        "From which fraction of used space or inodes on a host is degraded.",
        f"{limits.SPACE_WARN}",
    ),
    Variable(
        "SANDLOT_SPACE_CRITICAL",
        "From which fraction on it is unhealthy, and makes no sessions.",
        f"{limits.SPACE_CRITICAL}",
    ),
    Variable(
        "SANDLOT_HEALTH_INTERVAL_S",
        "How often the engine looks at itself, in seconds.",
        f"{limits.HEALTH_INTERVAL_S:g}",
    ),
    Variable(
        "SANDLOT_MOUNTS",
        "Directories of the machine that sessions may mount, with all below them: `/srv/data:/srv/work=rw`. "
        "Without `=rw` they can only be read.",
        "none",
    ),
    Variable(
        "SANDLOT_SHUTDOWN_TIMEOUT_S",
        "How long an engine that is closed waits for calls that someone waits for, in seconds.",
        f"{limits.SHUTDOWN_TIMEOUT_S:g}",
    ),
    Variable(
        "SANDLOT_PAUSE_DRAIN_S",
        "How long calls may end before a pause freezes them, where the pause does not say, in seconds.",
        "0",
    ),
    Variable("SANDLOT_RUNSC", "The program of gVisor: a path, or a name that is looked for.", "`runsc`"),
    Variable(
        "SANDLOT_GVISOR_PLATFORM",
        "How gVisor runs programs: `systrap`, `kvm` or `ptrace`. `auto` takes the first that works.",
        f"`{AUTO}`",
    ),
    Variable(
        "SANDLOT_BTRFS_BYTES",
        "How large the file is that holds the storage `btrfs` where the data directory is on something else, such as "
        "`100G`. A larger one than before makes it grow; it never shrinks.",
        "half of what is free",
    ),
    Variable(
        "SANDLOT_ZFS_POOL",
        "The pool of the storage `zfs`; it must be imported. Without one Sandlot makes a pool on a file.",
        "on `zfs.img` in the data directory",
    ),
    Variable("SANDLOT_ZFS_BYTES", "How large that file may become, such as `200G`.", "half of what is free"),
    Variable("SANDLOT_ZFS_BASES", "The dataset in the pool that empty volumes are made from.", "`bases`"),
    Variable("SANDLOT_ZFS_SESSIONS", "The dataset in the pool that holds the volumes of sessions.", "`sessions`"),
    Variable("SANDLOT_KEEPER", "The guest program, where it is not the one of the package.", "in the package"),
)


def load(environment: Mapping[str, str] | None = None) -> Settings:
    """Read and check everything. Raises InvalidArgument that names every wrong variable."""
    env = os.environ if environment is None else environment
    read = _Reader(env)
    settings = Settings(
        data=Path(env.get("SANDLOT_DATA_DIR") or _default_data(env)).absolute(),
        storage=env.get("SANDLOT_STORAGE") or AUTO,
        runtime=env.get("SANDLOT_RUNTIME") or AUTO,
        sessions_max=read.count("SANDLOT_SESSIONS_MAX", limits.SESSIONS_MAX, 1, 28000),
        warm_pool=read.count("SANDLOT_WARM_POOL", 0, 0, 1000),
        warm_templates=read.templates("SANDLOT_WARM_TEMPLATES"),
        turns_kept=read.count("SANDLOT_TURNS_KEPT", limits.TURNS_KEPT, 0, 1_000_000),
        snapshot_prefix=read.word("SANDLOT_SNAPSHOT_PREFIX", TURN_PREFIX),
        local_disk_snapshots=read.flag("SANDLOT_LOCAL_DISK_SNAPSHOTS", default=False),
        resources=Resources(
            cpus=read.number("SANDLOT_DEFAULT_CPUS", 0, limits.CPUS_MIN, limits.CPUS_MAX) or None,
            memory_bytes=read.size("SANDLOT_DEFAULT_MEMORY", 0, limits.MEMORY_BYTES_MIN, limits.BYTES_MAX) or None,
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
        preload=Path(__file__).parents[1] / "_bin" / "sandlot-preload.so",
        scout=Path(__file__).parents[1] / "_bin" / "sandlot-scout",
        runsc=env.get("SANDLOT_RUNSC") or "runsc",
        gvisor_platform=read.one_of("SANDLOT_GVISOR_PLATFORM", AUTO, ("systrap", "kvm", "ptrace")),
        btrfs_bytes=read.size("SANDLOT_BTRFS_BYTES", 0, limits.BTRFS_BYTES_MIN, limits.BYTES_MAX),
        zfs_pool=read.dataset("SANDLOT_ZFS_POOL", ""),
        zfs_bytes=read.size("SANDLOT_ZFS_BYTES", 0, limits.ZFS_BYTES_MIN, limits.BYTES_MAX),
        zfs_bases_dataset=read.dataset("SANDLOT_ZFS_BASES", "bases"),
        zfs_sessions_dataset=read.dataset("SANDLOT_ZFS_SESSIONS", "sessions"),
        mounts=read.mounts("SANDLOT_MOUNTS"),
        keeper=Path(env.get("SANDLOT_KEEPER") or Path(__file__).parents[1] / "_bin" / "sandlot-keeper"),
    )
    if read.wrong:
        raise InvalidArgument("; ".join(read.wrong))
    return settings


class _Reader:
    """Variables by kind. What is wrong is gathered, so that one error tells it all."""

    def __init__(self, env: Mapping[str, str]) -> None:
        self._env = env
        self.wrong: list[str] = []

    def count(self, name: str, default: int, low: int, high: int) -> int:
        text = self._env.get(name, "")
        if not text:
            return default
        if text.isascii() and text.isdigit() and len(text) < 20 and low <= int(text) <= high:
            return int(text)
        self.wrong.append(f"{name} must be a whole number from {low} to {high}, not {text[:32]!r}")
        return default

    def number(self, name: str, default: float, low: float, high: float) -> float:
        text = self._env.get(name, "")
        if not text:
            return default
        with suppress(ValueError):
            if low <= float(text) <= high:
                return float(text)
        self.wrong.append(f"{name} must be a number from {low:g} to {high:g}, not {text[:32]!r}")
        return default

    def size(self, name: str, default: int, low: int, high: int) -> int:
        text = self._env.get(name, "")
        match = re.fullmatch(r"([0-9]{1,15})([kmgt]?)", text, re.IGNORECASE | re.ASCII)
        value = int(match[1]) * 1024 ** " kmgt".index(match[2].lower() or " ") if match else 0
        if not text or low <= value <= high:
            return value or default
        self.wrong.append(f"{name} must be a size of at least {low} bytes, such as 512M or 2G, not {text[:32]!r}")
        return default

    def one_of(self, name: str, default: str, others: tuple[str, ...]) -> str:
        text = self._env.get(name) or default
        if text == default or text in others:
            return text
        self.wrong.append(f"{name} must be one of {default}, {', '.join(others)}, not {text[:32]!r}")
        return default

    def flag(self, name: str, *, default: bool) -> bool:
        text = self._env.get(name, "")
        if text in ("", "on", "off"):
            return text == "on" if text else default
        self.wrong.append(f"{name} must be on or off, not {text[:32]!r}")
        return default

    def templates(self, name: str) -> tuple[tuple[str, int], ...]:
        found: list[tuple[str, int]] = []
        for part in filter(None, self._env.get(name, "").split(",")):
            template, _, count = part.partition("=")
            with suppress(InvalidArgument):
                if re.fullmatch(r"[0-9]{1,3}|", count, re.ASCII):
                    whole = template if is_digest(template) else ":".join(split_name(check_template(template)))
                    found.append((whole, int(count or 1)))
                    continue
            self.wrong.append(f"{name} must hold templates, each with =COUNT or nothing, not {part[:64]!r}")
        return tuple(found)

    def mounts(self, name: str) -> tuple[AllowedMount, ...]:
        found: list[AllowedMount] = []
        for part in filter(None, self._env.get(name, "").split(":")):
            path, _, mode = part.partition("=")
            if path.startswith("/") and mode in ("", "ro", "rw"):
                found.append(AllowedMount(path, mode == "rw"))
            else:
                self.wrong.append(f"{name} must hold absolute paths, each with =rw or nothing, not {part[:64]!r}")
        return tuple(found)

    def word(self, name: str, default: str) -> str:
        text = self._env.get(name) or default
        if re.fullmatch(r"[a-z][a-z0-9]{0,31}", text, re.ASCII):
            return text
        self.wrong.append(f"{name} must be a word of up to 32 small letters and digits, not {text[:32]!r}")
        return default

    def dataset(self, name: str, default: str) -> str:
        text = self._env.get(name) or default
        if not text or re.fullmatch(r"[a-zA-Z][a-zA-Z0-9_.\-]{0,63}", text, re.ASCII):
            return text
        self.wrong.append(f"{name} must be a name of up to 64 letters, digits, `_`, `.` and `-`, not {text[:32]!r}")
        return default


def _default_data(env: Mapping[str, str]) -> Path:
    if os.geteuid() == 0:
        return _ROOT_DATA
    home = env.get("XDG_DATA_HOME") or Path(env.get("HOME") or "/tmp") / ".local" / "share"
    return Path(home) / "sandlot"
