"""Who waits for work that runs beside the engine, and how to reach him from there."""

from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from typing import Protocol


class Caller(Protocol):
    """A thread or a task that waits, and can be asked to call something meanwhile."""

    async def call(self, function: Callable[..., object], *args: object) -> None: ...


CALLER: ContextVar[Caller | None] = ContextVar("sandlot_caller", default=None)


async def call_back(function: Callable[..., object], *args: object) -> None:
    """Call a function of the user where the user is: in his thread, or on his loop. What it raises is raised here."""
    caller = CALLER.get()
    if caller is not None:
        await caller.call(function, *args)
        return
    result = function(*args)
    if isinstance(result, Awaitable):
        await result
