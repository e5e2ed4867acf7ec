"""What is said to an OpenSandbox server, and what it answers, as plain values. Sizes are bytes, times are seconds."""

from collections.abc import AsyncIterable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from sandlot.model import InvalidArgument

EXECD_PORT = 44772
EGRESS_PORT = 18080
TIMEOUT_S_MIN = 60
TIMEOUT_S_MAX = 86_400

_KEEP_ALIVE = ("tail", "-f", "/dev/null")


@dataclass(frozen=True, slots=True)
class EgressRule:
    action: Literal["allow", "deny"]
    target: str  # a name, `*.example.com`, an address or a network


@dataclass(frozen=True, slots=True)
class NetworkPolicy:
    default_action: Literal["allow", "deny"] = "deny"
    egress: Sequence[EgressRule] = ()


@dataclass(frozen=True, slots=True)
class SandboxOpts:
    """What a sandbox is made of. Exactly one of image, snapshot and template."""

    image: str = ""
    snapshot_id: str = ""
    entrypoint: Sequence[str] = _KEEP_ALIVE
    envs: Mapping[str, str] = field(default_factory=dict[str, str])
    metadata: Mapping[str, str] = field(default_factory=dict[str, str])
    timeout_s: int | None = 600  # until the server ends it; None: never
    resource_limits: Mapping[str, str] = field(default_factory=lambda: {"cpu": "1", "memory": "2Gi"})
    network_policy: NetworkPolicy | None = None
    template_id: str = ""

    def __post_init__(self) -> None:
        if sum(map(bool, (self.image, self.snapshot_id, self.template_id))) != 1:
            raise InvalidArgument(
                "a sandbox is made of an image, of a snapshot or of a template", next_step="give exactly one of them"
            )
        if self.image and not self.entrypoint:
            raise InvalidArgument("a sandbox needs an entrypoint", next_step="leave it out for one that only waits")
        if self.timeout_s is not None and not TIMEOUT_S_MIN <= self.timeout_s <= TIMEOUT_S_MAX:
            raise InvalidArgument(
                f"timeout_s is {self.timeout_s}",
                next_step=f"give {TIMEOUT_S_MIN} to {TIMEOUT_S_MAX} seconds, or None for no end",
            )


@dataclass(frozen=True, slots=True)
class SandboxResponse:
    """A sandbox as the server tells it. States that are not known here are passed on as they came."""

    sandbox_id: str
    state: str  # Pending, Running, Pausing, Paused, Resuming, Stopping, Terminated, Failed
    created: float | None = None  # since 1970
    expires: float | None = None
    metadata: Mapping[str, str] = field(default_factory=dict[str, str])
    reason: str = ""
    message: str = ""
    image: str = ""
    entrypoint: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class SnapshotResponse:
    snapshot_id: str
    sandbox_id: str
    state: str  # Creating, Ready, Failed, Deleting
    name: str = ""
    created: float | None = None


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where a port of a sandbox is reached. The headers go with every request to it."""

    url: str
    headers: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)  # they hold tokens
    host: str = ""
    port: int = 0


@dataclass(frozen=True, slots=True)
class CommandResult:
    """What a command came to. One that fails is a result, too."""

    stdout: str
    stderr: str
    exit_code: int | None  # None when the server did not tell one
    error: str = ""  # what the server said of a command that did not run to its own end
    duration_s: float = 0.0
    truncated: bool = False  # more was printed than was to be kept
    command_id: str = ""


@dataclass(frozen=True, slots=True)
class CommandStatus:
    command_id: str
    running: bool
    exit_code: int | None = None
    error: str = ""
    started: float | None = None
    finished: float | None = None


@dataclass(frozen=True, slots=True)
class CommandLogs:
    text: str
    cursor: int  # where to go on


@dataclass(frozen=True, slots=True)
class FileInfo:
    path: str
    size_bytes: int
    modified: float | None = None
    created: float | None = None
    kind: str = "file"  # file, directory, symlink, other
    mode: int = 0
    owner: str = ""
    group: str = ""


@dataclass(frozen=True, slots=True)
class FileUpload:
    """One file to be written. A path is read here, in pieces."""

    path: str
    content: bytes | Path | Iterable[bytes] | AsyncIterable[bytes]
    mode: int = 0o644
    owner: str = ""
    group: str = ""


@dataclass(frozen=True, slots=True)
class SandboxMetrics:
    cpu_count: float
    cpu_percent: float
    memory_bytes: int
    memory_total_bytes: int
