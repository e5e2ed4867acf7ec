"""A managed, named, long-lived program in a session: what is asked for, how it is, and what it prints."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from typing import Any

from sandlot.model import limits
from sandlot.model.call import Stream, check_envs, check_text
from sandlot.model.errors import InvalidArgument
from sandlot.model.ids import check_id, check_session_id
from sandlot.model.start import Ready, ReadyKind

_RUNNING = Ready()


class ProcessState(StrEnum):
    STARTING = "starting"  # not begun, not ready yet, or about to be started again
    RUNNING = "running"  # begun, and ready
    EXITED = "exited"  # it ended, or could not be started, and will not be started again


class Restart(StrEnum):
    NONE = "none"
    ON_FAILURE = "on-failure"  # after any end but exit code 0 and a kill that was asked for


@dataclass(frozen=True, slots=True)
class ProcessSpec:
    """Run one program beside the calls of a session, until it ends or is killed or the session ends."""

    session_id: str
    argv: tuple[str, ...]
    name: str | None = None  # one process that has not ended has it; None: none but its id
    envs: Mapping[str, str] = field(default_factory=dict[str, str])
    cwd: str | None = None  # None: the workspace; relative paths start there
    user: str | None = None  # a name, a uid or uid:gid; None: the session's user
    port: int | None = None  # where it listens inside; reached from outside under the address of the process
    ready: Ready = _RUNNING
    ready_timeout_s: float = limits.READY_TIMEOUT_S
    stdin: bool = False  # False: an empty standard input
    restart: Restart = Restart.NONE
    restarts_max: int = limits.RESTARTS
    backoff_s: float = limits.BACKOFF_S  # before the first restart; twice as long before each further one
    log_bytes_max: int = limits.PROCESS_LOG_BYTES  # of both streams, the newest are kept
    process_id: str | None = None  # a repeated id tells of the first process and starts nothing

    def __post_init__(self) -> None:
        check_session_id(self.session_id)
        if self.process_id is not None:
            check_id("process", self.process_id)
        if self.name is not None:
            check_id("process name", self.name)
        if not self.argv or not self.argv[0]:
            raise InvalidArgument("a process needs a program to run", next_step="give at least one non-empty argument")
        limits.at_most("arguments", len(self.argv), limits.ARGUMENTS_MAX)
        limits.at_most("environment variables", len(self.envs), limits.ARGUMENTS_MAX)
        check_envs(self.envs)
        check_text("an argument", *self.argv)
        check_text("cwd or user", self.cwd or "", self.user or "")
        if self.user == "":
            raise InvalidArgument("user is empty", next_step="leave it out for the session's own user")
        if self.port is not None:
            limits.within("port", self.port, 1, 65535)
        limits.within("ready_timeout_s", self.ready_timeout_s, 0.1, limits.READY_TIMEOUT_S_MAX)
        limits.within("restarts_max", self.restarts_max, 0, limits.RESTARTS_MAX)
        limits.within("backoff_s", self.backoff_s, 0.01, limits.BACKOFF_S_MAX)
        limits.within("log_bytes_max", self.log_bytes_max, limits.PROCESS_LOG_BYTES_MIN, limits.PROCESS_LOG_BYTES_MAX)

    def to_document(self) -> dict[str, Any]:
        """Plain values, as JSON takes them; the session is left out."""
        told = asdict(replace(self, envs=dict(self.envs)))
        del told["session_id"]
        return told | {"restart": str(self.restart)}

    @classmethod
    def from_document(cls, session_id: str, told: Mapping[str, Any]) -> "ProcessSpec":
        """Raises InvalidArgument, KeyError, TypeError, ValueError."""
        ready = told["ready"]
        fields: dict[str, Any] = dict(told) | {
            "argv": tuple(told["argv"]),
            "ready": Ready(ReadyKind(ready["kind"]), int(ready["port"]), str(ready["text"])),
            "restart": Restart(told["restart"]),
        }
        return cls(session_id, **fields)


@dataclass(frozen=True, slots=True)
class Process:
    """A managed process as it is now."""

    session_id: str
    process_id: str
    argv: tuple[str, ...]
    state: ProcessState
    exit_code: int | None = None  # None until exit, 128 + n after signal n, 127 and 126 when it could not be started
    address: str = ""  # host:port of its exposed port, or empty
    name: str = ""
    signal: int | None = None  # that ended it
    reason: str = ""  # why it is not what it should be
    pid: int | None = None  # inside the session, of the run that is there
    started: float = 0.0  # when it was launched
    ended: float | None = None
    restarts: int = 0
    restart: Restart = Restart.NONE
    port: int | None = None
    stdin: bool = False
    stdout_bytes: int = 0  # all that it has printed, kept or not: where a reader who wants news goes on
    stderr_bytes: int = 0


@dataclass(frozen=True, slots=True)
class ProcessOutput:
    """A piece of what a process has printed."""

    stream: Stream
    offset: int  # of the first byte, in its stream, from the first run on
    data: bytes
    lost: int = 0  # bytes right before it that are not kept any more


@dataclass(frozen=True, slots=True)
class ProcessLogs:
    """Which part of it to read. Offsets count bytes of one stream, over all runs; negative ones from its end."""

    session_id: str
    process_id: str  # or its name
    stdout_from: int | None = 0  # None: nothing of this stream
    stderr_from: int | None = 0
    follow: bool = False  # wait for more, until the process has ended for good

    def __post_init__(self) -> None:
        check_session_id(self.session_id)
        check_id("process", self.process_id)
        if self.stdout_from is None and self.stderr_from is None:
            raise InvalidArgument("neither stdout nor stderr is asked for")
        for name, value in (("stdout_from", self.stdout_from), ("stderr_from", self.stderr_from)):
            if value is not None:
                limits.within(name, value, -limits.FILE_OFFSET_MAX, limits.FILE_OFFSET_MAX)


@dataclass(frozen=True, slots=True)
class ExposeRequest:
    """Reach a port of a session from outside, whoever listens there."""

    session_id: str
    port: int  # inside
    host_port: int | None = None  # on the host; None: one that is free

    def __post_init__(self) -> None:
        check_session_id(self.session_id)
        limits.within("port", self.port, 1, 65535)
        if self.host_port is not None:
            limits.within("host_port", self.host_port, 1, 65535)


@dataclass(frozen=True, slots=True)
class ExposedPort:
    session_id: str
    port: int  # inside
    address: str  # host:port
    process_id: str | None = None  # it goes when this process ends
    connections: int = 0  # that are open now


def address_to_url(address: str, scheme: str = "http") -> str:
    """`host:port` as the beginning of a URL; what is a URL already stays as it is, and nothing stays nothing. An IPv6
    address gets its brackets. Raises InvalidArgument for what is neither."""
    if not address or "://" in address:
        return address
    host, colon, port = address.rpartition(":")
    if not colon or not host or not (port.isascii() and port.isdigit()) or int(port) > 65535:
        raise InvalidArgument(f"{address[:100]!r} is no address", next_step="give host:port")
    if ":" in host and not host.startswith("["):
        host = f"[{host}]"
    return f"{scheme}://{host}:{port}"
