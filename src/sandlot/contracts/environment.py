"""What the loop of an agent holds: one session, wherever it is."""

from collections.abc import Callable, Sequence
from typing import Protocol

from sandlot.model import (
    EnvironmentCapabilities,
    EnvironmentState,
    SessionSpec,
    Snapshot,
    Tool,
    ToolProgress,
    ToolRequest,
    ToolResult,
)

OnProgress = Callable[[ToolProgress], object]  # what it returns is awaited, where it can be


class ExecutionEnvironment(Protocol):
    """One session. An object begins without one; `create` makes it or `attach_session` finds it, once and for good.

    Any number of calls may be made at once, and none waits for another one. Every verb that needs the session raises
    InvalidState as long as there is none and when it was destroyed, SessionNotFound when it is gone, the conflicts of
    states, DeadlineExceeded, and Unavailable when whoever provides it does not answer; a false capability raises
    CapabilityNotSupported and changes nothing.
    """

    @property
    def session_id(self) -> str | None:
        """None before there is a session. Then it never changes."""
        ...

    async def create(self, spec: SessionSpec) -> str:
        """Make the session; tells its id. It takes tools when this returns.

        Raises InvalidState when this environment has one, InvalidArgument, SessionExists, MaxSessionsReached,
        LimitReached for a longer life than there is, TemplateNotFound, CapabilityNotSupported, Unavailable. Then there
        is no session, and nothing is left of one.
        """
        ...

    async def attach_session(self, session_id: str) -> None:
        """Take a session that someone else made. Raises InvalidState when this environment has one, InvalidArgument,
        SessionNotFound, CapabilityNotSupported when it is not of the kind that this environment insists on."""
        ...

    async def pause(self) -> None:
        """Tools are refused with SessionPaused from now on. Again does nothing."""
        ...

    async def resume(self) -> None:
        """Again does nothing."""
        ...

    async def destroy(self) -> None:
        """End the session, whoever made it. Again, and of one that is gone, does nothing. When this returns the state
        is `destroyed`, and nobody is asked for it any more."""
        ...

    async def tools(self) -> Sequence[Tool]:
        """What can be called."""
        ...

    async def execute_tool(self, request: ToolRequest, on_progress: OnProgress | None = None) -> ToolResult:
        """Call a tool; `on_progress` hears what it says while it works. What it cannot do, wrong arguments included, is
        a result that is marked as an error. A call id that is known gives what that call gave. Whoever is cancelled
        meanwhile ends the call; so does an `on_progress` that raises, which is what comes out then.

        Raises InvalidArgument for a tool that nobody knows and for a request of another session.
        """
        ...

    async def state(self) -> EnvironmentState:
        """As it is now, whoever changed it. Raises Unavailable or DeadlineExceeded when that cannot be found out, which
        is no state."""
        ...

    async def capabilities(self) -> EnvironmentCapabilities:
        """What this session can do; before there is one, what it could. Raises InvalidState where that is known only
        when it is made."""
        ...

    async def create_snapshot(self, name: str) -> Snapshot:
        """Durable when it returns. Raises Conflict when the name is taken, ToolsInFlight."""
        ...

    async def rollback(self, snapshot: str) -> None:
        """Put its files back. Raises SnapshotNotFound, ToolsInFlight; then nothing has changed."""
        ...
