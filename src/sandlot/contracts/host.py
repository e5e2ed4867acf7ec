"""The waist: everything that can run sessions implements this, and nothing above it knows which one it talks to."""

from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Protocol

from sandlot.model import (
    CallEvent,
    CallRecord,
    CallRequest,
    CallResult,
    Capability,
    SessionFilter,
    SessionInfo,
    SessionPage,
    SessionSpec,
)


class CallStream(Protocol):
    """One call, live or finished. Given out by a context manager: leaving it ends a command that was not detached."""

    @property
    def call_id(self) -> str: ...

    def __aiter__(self) -> AsyncIterator[CallEvent]:
        """Started, output in the order of arrival, and last the result.

        Raises Unavailable when the guest is lost meanwhile.
        """
        ...

    async def result(self) -> CallResult:
        """Wait for the end without looking at the output. Raises Unavailable when the guest is lost."""
        ...

    async def write_stdin(self, data: bytes) -> None:
        """Hand over input; waits while the program does not read. Bytes after it closed its input are dropped.

        Raises InvalidState when the call has no standard input.
        """
        ...

    async def close_stdin(self) -> None: ...

    async def signal(self, number: int) -> None:
        """Send a signal to the command's process group. A command that has ended ignores it.

        Raises InvalidArgument for a number that is no signal.
        """
        ...

    async def resize(self, rows: int, columns: int) -> None:
        """Tell a terminal its new size. Raises InvalidState when the call has no terminal."""
        ...


class Sessions(Protocol):
    async def create(self, spec: SessionSpec) -> SessionInfo:
        """Make a session; when this returns it is durable and takes calls.

        Raises InvalidArgument, SessionExists, MaxSessionsReached, TemplateNotFound, CapabilityNotSupported when
        something asked for cannot be had (then nothing was created), Unavailable when the machine failed to do it.
        """
        ...

    async def get(self, session_id: str) -> SessionInfo:
        """Tell all about one session, its space included. Raises InvalidArgument, SessionNotFound."""
        ...

    async def list(self, query: SessionFilter) -> SessionPage:
        """A page of sessions, oldest first. Raises InvalidArgument."""
        ...

    async def destroy(self, session_id: str) -> None:
        """End everything in it and remove it. Calls in flight end with Unavailable; a second destroy of the same
        session waits for the first.

        Raises InvalidArgument, SessionNotFound, DeadlineExceeded.
        """
        ...


class Calls(Protocol):
    def call(self, request: CallRequest) -> AbstractAsyncContextManager[CallStream]:
        """Run a command. A request whose call_id is known attaches to that call instead.

        Entering raises InvalidArgument, SessionNotFound, SessionPaused, SessionDestroying, SessionFailed,
        InvalidState, LimitReached, CapabilityNotSupported, Unavailable.
        """
        ...

    def attach(self, session_id: str, call_id: str) -> AbstractAsyncContextManager[CallStream]:
        """Read a call from its beginning, whoever started it. Leaving never ends the command.

        Entering raises InvalidArgument, SessionNotFound, CallNotFound.
        """
        ...

    async def calls(self, session_id: str) -> Sequence[CallRecord]:
        """The calls of a session, oldest first. Raises InvalidArgument, SessionNotFound."""
        ...


class Host(Sessions, Calls, Protocol):
    async def capabilities(self) -> frozenset[Capability]:
        """What a session made with defaults can do here."""
        ...
