"""How much room a tenant has, and whether there is enough of it for one more session."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from typing import Protocol, TypeVar

from sandlot.model import NO_LIMITS, HostFull, InvalidArgument, MaxSessionsReached, Resources, SessionInfo, TenantLimits

_T = TypeVar("_T")
_OPTIONS = {"cpus": "cpus", "memory_bytes": "memory", "disk_bytes": "disk"}


class Queue(Protocol):
    """Those who wait for room."""

    async def within(self, timeout_s: float, attempt: Callable[[], Awaitable[_T]]) -> _T:
        """The first attempt that does not fail for want of room. Raises what the last one raised."""
        ...


class Room:
    """Of one tenant: all of its keys share it."""

    def __init__(self, tenant: str, bounds: Callable[[], TenantLimits], queue: Queue) -> None:
        self.queue = queue
        self._tenant = tenant
        self._bounds = bounds
        self._making = asyncio.Lock()

    @property
    def is_bounded(self) -> bool:
        bounds = self._bounds()
        return bounds.sessions is not None or bool(bounds.together)

    @asynccontextmanager
    async def taken(
        self, own: Callable[[], Awaitable[list[SessionInfo]]], asked: Resources | None, count: int = 1
    ) -> AsyncGenerator[None]:
        """Held while a session is made, or two that ask at once would both find room. What is asked for may not be
        known yet. Raises MaxSessionsReached, HostFull, InvalidArgument."""
        if not self.is_bounded:
            yield
            return
        async with self._making:
            if asked is not None:
                self._check_asked(asked)
            self.check(await own(), asked or NO_LIMITS, count)
            yield

    def _check_asked(self, asked: Resources) -> None:
        for name in self._bounds().together:
            if getattr(asked, name) is None:
                raise InvalidArgument(
                    f"tenant {self._tenant} shares {name} between its sessions, and this one asks for any amount",
                    next_step=f"say how much it may have (--{_OPTIONS[name]})",
                    limit=f"tenant_{name}",
                )

    def check(self, own: Iterable[SessionInfo], asked: Resources, count: int) -> None:
        """Raises MaxSessionsReached, HostFull."""
        bounds, sessions = self._bounds(), list(own)
        if bounds.sessions is not None and len(sessions) + count > bounds.sessions:
            raise MaxSessionsReached(
                f"tenant {self._tenant} may have {bounds.sessions} sessions",
                next_step="destroy one",
                limit="tenant_sessions",
            )
        for name, most in bounds.together.items():
            taken = sum(getattr(info.resources, name) or 0 for info in sessions)
            wanted = (getattr(asked, name) or 0) * count
            if taken + wanted > most:
                raise HostFull(
                    f"the sessions of tenant {self._tenant} may have {name} of {most:g} together, have {taken:g}, and "
                    f"{wanted:g} more were asked for",
                    next_step="destroy a session, or ask for less",
                    limit=f"tenant_{name}",
                )
