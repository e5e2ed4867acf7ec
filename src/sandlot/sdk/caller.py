"""Who waits for work that runs beside the engine, and how to reach him from there."""

from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from typing import Any, Protocol, cast


class Caller(Protocol):
    """A thread or a task that waits, and can be asked to call something meanwhile."""

    async def call(self, function: Callable[..., Any], *args: object) -> Any:
        """In his thread, or on his loop. What can be awaited is awaited."""
        ...

    async def block(self, function: Callable[..., Any], *args: object) -> Any:
        """The same for what may take long: not on his loop, but in a thread beside it."""
        ...


CALLER: ContextVar[Caller | None] = ContextVar("sandlot_caller", default=None)


async def call_back(function: Callable[..., Any], *args: object) -> Any:
    """Call a function of the user where the user is. What it raises comes out of the user's own call, unchanged."""
    caller = CALLER.get()
    return await (call_here(function, *args) if caller is None else caller.call(function, *args))


async def call_blocking(function: Callable[..., Any], *args: object) -> Any:
    """The same for a function that may take long, such as reading a file."""
    import asyncio  # as everywhere in the SDK, not before it is used

    caller = CALLER.get()
    return await (asyncio.to_thread(function, *args) if caller is None else caller.block(function, *args))


async def call_here(function: Callable[..., Any], *args: object) -> Any:
    result = function(*args)
    return await cast("Awaitable[Any]", result) if isinstance(result, Awaitable) else result
