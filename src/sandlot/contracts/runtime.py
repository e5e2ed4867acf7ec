"""How a session's processes are contained, and the small program inside that starts them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol

from sandlot.contracts.storage import Volume
from sandlot.model import Capability, Probe, Resources, Stream, TerminalSize

if TYPE_CHECKING:
    import socket


@dataclass(frozen=True, slots=True)
class MountPlan:
    """A directory that a guest has in its root, and that is no part of its volume."""

    source: str  # as the user named it
    target: str
    read_only: bool
    path: str  # where it is; no link in it is followed
    owner: tuple[int, int, int] | None = None  # user and group on disk, and who that is inside; None: canonical ids
    is_of_host: bool = False


@dataclass(frozen=True, slots=True)
class StartPlan:
    """What a runtime needs to start a guest. A guest has the name of its volume."""

    volume: Volume
    template: Path | None  # root of the template; None for runtimes without a root of their own
    range: int  # which range of ids is the session's own
    resources: Resources = field(default_factory=Resources)  # to be held from the beginning
    mounts: tuple[MountPlan, ...] = ()
    image: Path | None = None  # a directory that `checkpoint` filled: the guest goes on from there, with all in it


@dataclass(frozen=True, slots=True)
class Tree:
    """A session's files as the host reaches them. Whoever asked for it closes `fd`."""

    fd: int  # of the directory that `path` names
    path: str  # as commands of the session name it; nothing above it can be reached
    first_id: int | None  # the host's number for user 0 of the session; None: its files belong to whoever runs the host
    mounts: tuple[str, ...] = ()  # where other directories are mounted, which belong to its files too


@dataclass(frozen=True, slots=True)
class SpawnPlan:
    """What a guest needs to start a program. All strings are final: nothing is looked up on the host."""

    argv: Sequence[str]
    cwd: str
    envs: Mapping[str, str]
    user: str  # empty: as the guest itself
    stdin: bool = False
    terminal: TerminalSize | None = None
    tag: bytes = b""  # kept by the guest and given back after a restart of the host
    open_files: int | None = None  # None: as many as the guest itself
    groups: Sequence[int] = ()  # descriptors of what it has to enter first; whoever made the plan closes them
    is_probe: bool = False  # no program: the words are a port of the session, and what to send there
    is_connection: bool = False  # no program: the word is a port of the session, the streams are those of who listens
    is_family: bool = False  # worth being kept together with what it starts, also where that takes time


class ProcessEnd(NamedTuple):
    """How a process ended, as its guest tells it."""

    code: int  # -1 after a signal
    signal: int  # 0 without one
    user_us: int
    system_us: int
    rss_kib_max: int
    stdout_bytes: int  # all that was written, kept or not
    stderr_bytes: int


class ProcessSink(Protocol):
    """Who hears of a process. Called on the event loop, in order; must not block."""

    def on_started(self, pid: int) -> None: ...

    def on_output(self, stream: Stream, offset: int, data: bytes) -> None:
        """Bytes arrive in order; after a restart some arrive again, with their old offsets."""
        ...

    def on_stdin_taken(self, offset: int, closed: bool) -> None: ...

    def on_failed(self, error: int, stage: str) -> None:
        """The program could not be started."""
        ...

    def on_exit(self, ended: ProcessEnd) -> None:
        """All output has been given before."""
        ...

    def on_lost(self, reason: str) -> None:
        """The guest is gone, and the process with it."""
        ...


class GuestProcess(Protocol):
    """One program in a guest."""

    def acknowledge(self, stream: Stream, offset: int) -> None:
        """The host keeps all before the offset; the guest may forget it and go on reading."""
        ...

    def discard(self, stream: Stream) -> None:
        """Count what comes, keep and send nothing."""
        ...

    def release(self) -> None:
        """The end of the process is recorded; the guest may forget it."""
        ...

    def write_stdin(self, offset: int, data: bytes) -> None: ...

    def close_stdin(self) -> None: ...

    def signal(self, number: int, *, tree: bool = False, end: bool = False) -> None:
        """To its group; `tree`: to all that it started, wherever that went; `end`: to these, and its end is told when
        none of them lives, or cannot be ended."""
        ...

    def resize(self, size: TerminalSize) -> None: ...


@dataclass(frozen=True, slots=True)
class KnownProcess:
    """A process that a guest remembers from before."""

    process_id: int
    pid: int
    kept_from: Mapping[Stream, int]  # first offset that the guest still has
    stdin_taken: int
    tag: bytes = field(repr=False)
    is_over: bool = False  # its end is still to be told


class Guest(Protocol):
    """The guest of one session, alive."""

    pid: int  # on the host
    spawned: int  # how often this engine asked it to start a program

    def is_alive(self) -> bool:
        """Asks the kernel, so it is true of `pid` at this moment."""
        ...

    def spawn(self, process_id: int, plan: SpawnPlan, sink: ProcessSink) -> GuestProcess:
        """Start a program. Ids are the caller's and never repeat within a session. Raises LimitReached, Unavailable."""
        ...

    def adopt(self, known: KnownProcess, sink: ProcessSink) -> GuestProcess:
        """Hear of a process from before, from what the guest still has on."""
        ...

    async def known(self) -> Sequence[KnownProcess]:
        """Resynchronise: what the guest remembers. Raises DeadlineExceeded, Unavailable."""
        ...

    def begin(self) -> None:
        """Let the news flow that were held back since `known`."""
        ...

    def close(self) -> None:
        """Stop listening; the guest lives on."""
        ...


class Hits(NamedTuple):
    """How often a session met a limit, since it began."""

    oom: int = 0
    pids: int = 0


class Used(NamedTuple):
    """By the processes of a session."""

    cpu_s: float  # since its guest began
    memory_bytes: int


class Group(Protocol):
    """All processes of a session, its guest among them."""

    def used(self) -> Used:
        """Blocking: asks the kernel. Raises Unavailable when the guest is gone."""
        ...

    async def count(self) -> int:
        """How many there are, as the session sees them. Raises Unavailable, DeadlineExceeded when it stands still."""
        ...

    async def limit(self, resources: Resources) -> None:
        """Give a guest that lives other limits. Raises Unavailable."""
        ...

    def hits(self, call: str = "") -> Hits:
        """Of the session, or of a call that has limits of its own."""
        ...

    def begin_call(self, call: str, resources: Resources) -> Sequence[int]:
        """Limits of one call, below those of the session: what its program has to enter. Raises Unavailable."""
        ...

    def end_call(self, call: str) -> None:
        """What the call left running keeps its limits."""
        ...

    async def is_alone(self) -> bool:
        """Whether nothing lives but the guest, as far as that can be told of one that is frozen. Raises Unavailable,
        DeadlineExceeded."""
        ...

    def freeze(self) -> None:
        """Begin to pause. Raises Unavailable."""
        ...

    async def pause(self) -> None:
        """Nothing moves when this returns. Raises DeadlineExceeded, Unavailable."""
        ...

    async def resume(self) -> None: ...

    async def clear(self) -> None:
        """End everything but the guest. Raises DeadlineExceeded, Unavailable."""
        ...


class Runtime(Protocol):
    name: str
    warm_ups: int  # how many programs a new guest runs before it runs them as quickly as later

    @property
    def capabilities(self) -> frozenset[Capability]: ...

    async def probe(self) -> Probe: ...

    def workspace(self, volume: Volume) -> str:
        """The path of the workspace as commands see it."""
        ...

    def open_tree(self, plan: StartPlan, guest: Guest) -> Tree:
        """What the guest stands on now. Called on the event loop. Raises Unavailable when the guest is gone."""
        ...

    async def start(self, plan: StartPlan, on_end: Callable[[str], None]) -> Guest:
        """Start a guest and wait until it answers. `on_end` is called once, when it is gone. One that goes on from an
        image is to be asked what it knows, and to be told to begin, as one that was found.

        Raises Unavailable, DeadlineExceeded, CapabilityNotSupported.
        """
        ...

    async def find(self, name: str, on_end: Callable[[str], None]) -> Guest | None:
        """The guest of an earlier process of ours, or None when it is gone."""
        ...

    async def names(self) -> Sequence[str]:
        """The names of all guests that are alive, known to the journal or not."""
        ...

    def group(self, name: str) -> Group:
        """Raises Unavailable when the guest is gone, CapabilityNotSupported where processes cannot be frozen."""
        ...

    async def swap(self, plan: StartPlan) -> None:
        """Put a living guest on another root. Raises Unavailable, CapabilityNotSupported."""
        ...

    async def checkpoint(self, name: str, image: Path) -> None:
        """Keep a guest, and all in it, in an empty directory, and end it. All that was told to it before has been
        heard; `on_end` is not called. Raises CapabilityNotSupported, LimitReached when the disk has no room,
        InvalidState when something in it cannot be kept, DeadlineExceeded, Unavailable; then the guest goes on, or is
        gone if that turned out halfway: `Guest.is_alive` tells."""
        ...

    async def dial(self, name: str, guest: Guest, port: int) -> "socket.socket | None":
        """A connection to whoever listens on a port of the session, which does not block; None where only the guest
        can have one. Raises NotFound when nobody does, DeadlineExceeded, LimitReached, Unavailable."""
        ...

    async def stop(self, name: str) -> None:
        """End a guest and all in it; one that is gone is fine. Raises DeadlineExceeded."""
        ...
