"""What an orchestrator asks of whoever has sandboxes, and what it is told."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from sandlot.model import limits
from sandlot.model.call import check_envs, check_text
from sandlot.model.errors import InvalidArgument
from sandlot.model.ids import check_id, check_labels
from sandlot.model.process import ProcessState
from sandlot.model.resources import Resources

_ID_CHARS_MAX, _TEMPLATE_CHARS_MAX = 512, 512  # an id may hold that of a machine and that of a session


def check_sandbox_id(value: str) -> str:
    """Whoever gave it may put a colon between the parts of it. Raises InvalidArgument."""
    parts = value.split(":") if isinstance(value, str) else [""]  # pyright: ignore[reportUnnecessaryIsInstance]
    try:
        for part in parts:
            check_id("sandbox", part)
    except InvalidArgument as error:
        raise InvalidArgument(
            f"sandbox id {str(value)[:64]!r} is not allowed", next_step="give one as `create_sandbox` told it"
        ) from error
    limits.at_most("characters of a sandbox id", len(value), _ID_CHARS_MAX)
    return value


def check_address(address: str) -> str:
    """`host:port` that can be dialled, or nothing. Raises InvalidArgument for a path, a URL and what has no port."""
    host, _, port = address.rpartition(":")
    is_host = bool(host) and host.isprintable() and not set(host) & set("/ ?#@")
    is_port = port.isascii() and port.isdigit() and 1 <= int(port[:6]) <= 65535
    is_plain = ":" not in host or (host.startswith("[") and host.endswith("]"))
    if address and not (is_host and is_port and is_plain):
        raise InvalidArgument(f"{address[:100]!r} is no address", next_step="give host:port, an IPv6 host in brackets")
    return address


@dataclass(frozen=True, slots=True)
class SandboxCapabilities:
    """What is False is refused with CapabilityNotSupported; the two bounds are held."""

    snapshots: bool = False
    rollback: bool = False
    pause: bool = False
    pause_keeps_processes: bool = False  # they stand still and go on; False: a pause ends them
    launch_process: bool = False
    expose_port: bool = False  # of a launched process
    deep_pause: bool = False  # its files are put away elsewhere, and it uses nothing of the machine
    concurrent_sandboxes: int = 0  # at once; 0: there is no bound
    sandbox_duration_s_max: float | None = None  # None: there is no bound


@dataclass(frozen=True, slots=True)
class CreateSandboxRequest:
    """What cannot be had is refused, never ignored."""

    labels: Mapping[str, str] = field(default_factory=dict[str, str])
    template: str | None = None  # by the name that whoever provides it knows; None: the one for everything
    resources: Resources = field(default_factory=Resources)
    timeout_s: float | None = None  # it lives for so long; None: as long as whoever provides it lets it
    request_id: str | None = None  # a repeated one gives the first answer

    def __post_init__(self) -> None:
        check_labels(self.labels)
        if self.template is not None:
            check_text("template", self.template)
            limits.within("characters of a template", len(self.template), 1, _TEMPLATE_CHARS_MAX)
        if self.timeout_s is not None:
            limits.within("timeout_s", self.timeout_s, 0.001, limits.SESSION_LIFETIME_S_MAX)
        if self.request_id is not None:
            check_id("request", self.request_id)


@dataclass(frozen=True, slots=True)
class CreateSandboxResponse:
    sandbox_id: str
    address: str = ""  # host:port where what holds it is reached, or empty; never a path
    capabilities: SandboxCapabilities = field(default_factory=SandboxCapabilities)

    def __post_init__(self) -> None:
        check_sandbox_id(self.sandbox_id)
        check_address(self.address)


@dataclass(frozen=True, slots=True)
class LaunchProcessRequest:
    """Run one program in a sandbox, beside everything else there, until it ends or is killed."""

    sandbox_id: str
    binary: str  # a path, or a name that is looked up inside
    args: tuple[str, ...] = ()  # as they are: there is no shell
    envs: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)  # keys of APIs among them
    expose_port: int | None = None  # inside, where the program will listen
    cwd: str | None = None  # None: the workspace
    process_id: str | None = None  # a repeated one tells of the first process and starts nothing

    def __post_init__(self) -> None:
        check_sandbox_id(self.sandbox_id)
        if not self.binary:
            raise InvalidArgument("a process needs a program to run", next_step="give its name or its path")
        limits.at_most("arguments", len(self.args), limits.ARGUMENTS_MAX - 1)
        limits.at_most("environment variables", len(self.envs), limits.ARGUMENTS_MAX)
        check_text("an argument", self.binary, *self.args)
        check_text("cwd", self.cwd or "")
        check_envs(self.envs)
        if self.expose_port is not None:
            limits.within("expose_port", self.expose_port, 1, 65535)
        if self.process_id is not None:
            check_id("process", self.process_id)


@dataclass(frozen=True, slots=True)
class LaunchProcessResponse:
    process_id: str
    address: str = ""  # host:port that reaches its exposed port from outside; empty without one
    status: ProcessState = ProcessState.STARTING

    def __post_init__(self) -> None:
        check_address(self.address)


@dataclass(frozen=True, slots=True)
class KillProcessRequest:
    sandbox_id: str
    process_id: str
    signal: int | None = None  # None: TERM, and KILL to what is left after a moment

    def __post_init__(self) -> None:
        check_sandbox_id(self.sandbox_id)
        check_id("process", self.process_id)
        if self.signal is not None:
            limits.within("signal", self.signal, 1, 64)


@dataclass(frozen=True, slots=True)
class GetProcessStatusRequest:
    sandbox_id: str
    process_id: str

    def __post_init__(self) -> None:
        check_sandbox_id(self.sandbox_id)
        check_id("process", self.process_id)


@dataclass(frozen=True, slots=True)
class GetProcessStatusResponse:
    status: ProcessState
    exit_code: int | None = None  # None until it has ended; 128 + n after signal n
    reason: str = ""  # why it is not what it should be
