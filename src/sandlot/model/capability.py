"""What a part can do. Declared, and checked before the call; never found out by a missing method."""

from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from enum import StrEnum

from sandlot.model.errors import CapabilityNotSupported


class Capability(StrEnum):
    ISOLATION = "isolation"  # code inside cannot reach the machine
    OWN_ROOT = "own_root"  # a session has its own root filesystem
    USERS = "users"  # commands may run as any user of the session
    TERMINALS = "terminals"
    SURVIVES_ENGINE = "survives_engine"  # sessions outlive the process that made them
    LIMIT_CPUS = "limit_cpus"
    LIMIT_MEMORY = "limit_memory"
    LIMIT_DISK = "limit_disk"
    LIMIT_PIDS = "limit_pids"
    LIMIT_OPEN_FILES = "limit_open_files"
    LIMIT_SWAP = "limit_swap"
    LIMIT_IO = "limit_io"
    LIMIT_CALLS = "limit_calls"  # a call may have limits of its own, below those of its session
    NETWORK = "network"  # a session may reach something beyond its own loopback
    SECRETS = "secrets"
    PORTS = "ports"
    SNAPSHOTS = "snapshots"
    VOLUMES = "volumes"  # directories that outlive sessions can be mounted into one
    PAUSE = "pause"  # processes can be frozen
    MEMORY = "memory"  # processes can be kept on disk with their memory, and go on from there


@dataclass(frozen=True, slots=True)
class Probe:
    """Whether a part can work on this machine; if not, why, and what to do about it."""

    name: str
    ready: bool
    reason: str = ""
    next_step: str = ""


def need(have: AbstractSet[Capability], wanted: Capability, who: str, next_step: str = "") -> None:
    if wanted not in have:
        raise CapabilityNotSupported(
            f"{who} does not have the capability {wanted}", next_step=next_step, capability=wanted
        )
