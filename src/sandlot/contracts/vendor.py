"""What an environment stands on where somebody else has the sandboxes. Whoever writes an adapter writes these, and
`sandlot.environments.derived` makes an environment of them."""

from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Protocol

from sandlot.model import EnvironmentState, SessionSpec, Snapshot, Stream

Heard = Callable[[Stream, bytes], Awaitable[None]]  # waits while whoever listens is slow


@dataclass(frozen=True, slots=True)
class VendorCommand:
    """One program. Each word is a word: where a vendor takes a line for a shell, `shlex.join` quotes it."""

    argv: tuple[str, ...]
    cwd: str
    envs: Mapping[str, str] = field(default_factory=dict[str, str])
    user: str | None = None  # None: whoever it is without a wish
    timeout_s: float = 60.0  # for the vendor, where it takes one; it is held here in any case


@dataclass(frozen=True, slots=True)
class VendorTraits:
    """What is so for all sandboxes of a vendor, and cannot be seen from its verbs."""

    name: str  # as messages call it
    workspace: str  # where tools work, as a command sees it; `{session_id}` in it is the id; it is made if it must be
    holds: frozenset[str] = frozenset()  # fields of SessionSpec that `create` honours, beside the id and the life
    streams: bool = True  # output is heard while a command runs
    users: bool = False  # commands may run as another user
    sessions_max: int = 0  # that the vendor holds us to; 0: not known
    session_duration_s_max: float | None = None

    def directory(self, session_id: str) -> str:
        """Where the tools of one session work."""
        return self.workspace.replace("{session_id}", session_id)


class VendorSandboxes(Protocol):
    """The life of sandboxes. Every verb raises Unavailable, DeadlineExceeded, PermissionDenied for a key that is wrong,
    and all but `create` SessionNotFound."""

    @property
    def traits(self) -> VendorTraits: ...

    async def create(self, spec: SessionSpec) -> None:
        """Make one; it takes commands when this returns. The spec has an id, which is the one by which it is found
        again. Raises SessionExists, MaxSessionsReached, LimitReached, TemplateNotFound; then there is none."""
        ...

    async def state(self, session_id: str) -> EnvironmentState: ...

    async def destroy(self, session_id: str) -> None: ...


class VendorHands(Protocol):
    """What can be done in one sandbox. Every verb raises SessionNotFound, SessionPaused, Unavailable."""

    async def execute(self, session_id: str, command: VendorCommand, heard: Heard) -> int:
        """Run it to its end and tell its exit code; 127 for a program that is not there. Being cancelled means that
        nobody waits: what still runs is looked for and ended here."""
        ...

    async def upload(self, session_id: str, path: str, content: AsyncIterable[bytes]) -> None:
        """Write a file whose directory is there. The path is absolute. Raises FileNotFound, PermissionDenied,
        LimitReached."""
        ...

    def download(self, session_id: str, path: str) -> AbstractAsyncContextManager[AsyncIterator[bytes]]:
        """The bytes of a file, in pieces; leaving early ends it. Raises FileNotFound, PermissionDenied."""
        ...


class VendorPause(Protocol):
    """Where a vendor has it. Again does nothing."""

    async def pause(self, session_id: str) -> None: ...

    async def resume(self, session_id: str) -> None: ...


class VendorSnapshots(Protocol):
    """Where a vendor has them."""

    async def create_snapshot(self, session_id: str, name: str) -> Snapshot:
        """Raises Conflict when the name is taken."""
        ...

    async def rollback(self, session_id: str, snapshot: str) -> None:
        """In place: the id stays. Raises SnapshotNotFound; then nothing has changed."""
        ...
