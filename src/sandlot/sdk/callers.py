"""The two kinds of callers: a thread that blocks, and a task that awaits. Loaded with the portal."""

import asyncio
import queue
from collections.abc import Awaitable, Callable, Coroutine
from contextvars import copy_context
from typing import Any, cast

from sandlot.sdk.caller import call_here


class ThreadCaller:
    """A thread that waits. It runs what it is asked to until the work has ended."""

    def __init__(self) -> None:
        self._news: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()

    async def call(self, function: Callable[..., Any], *args: object) -> Any:
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Any] = loop.create_future()

        def work() -> None:
            result = function(*args)
            loop.call_soon_threadsafe(settle, answer, result)

        self._news.put(work)
        result = await answer
        # A thread has no loop: what is to be awaited is awaited here.
        return await cast("Awaitable[Any]", result) if isinstance(result, Awaitable) else result

    async def block(self, function: Callable[..., Any], *args: object) -> Any:
        return await self.call(function, *args)

    def tell_end(self) -> None:
        self._news.put(None)

    def attend(self) -> None:
        """Until the end. What a function of the user raises is raised here, where he is."""
        while (work := self._news.get()) is not None:
            work()

    def await_end(self) -> None:
        """Without calling anything any more."""
        while self._news.get() is not None:
            pass


class LoopCaller:
    """A task on another loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._context = copy_context()
        self._ended: asyncio.Future[None] = loop.create_future()
        self._has_ended = False
        self.failure: BaseException | None = None

    async def call(self, function: Callable[..., Any], *args: object) -> Any:
        return await self._do(call_here(function, *args))

    async def block(self, function: Callable[..., Any], *args: object) -> Any:
        return await self._do(asyncio.to_thread(function, *args))

    async def _do(self, work: Coroutine[Any, Any, Any]) -> Any:
        async def attempt() -> Any:
            try:
                return await work
            except BaseException as error:  # noqa: BLE001 - his, of any kind: it goes to him, not through the engine
                self.failure = error
                raise _Failed from None

        outer = attempt()
        try:
            future = self._context.run(asyncio.run_coroutine_threadsafe, outer, self._loop)
        except RuntimeError:  # his loop is closed: nobody waits any more
            outer.close()
            work.close()
            raise _Failed from None
        return await asyncio.wrap_future(future)

    def tell_end(self) -> None:
        try:
            self._loop.call_soon_threadsafe(self._settle)
        except RuntimeError:
            return  # his loop is closed: nobody is left to tell

    def _settle(self) -> None:
        self._has_ended = True
        settle(self._ended)

    async def attend(self, cancel: Callable[[], None]) -> None:
        """Until the end. Cancelled, it calls `cancel` and still waits for the end."""
        try:
            await self._ended
        except asyncio.CancelledError:
            # The end may have come between the cancelling and here.
            if not self._has_ended:
                self._ended = self._loop.create_future()
                cancel()
                await self._ended
            raise


class _Failed(Exception):
    """A function of the user raised something, which is kept for him."""


def settle(future: "asyncio.Future[Any]", result: object = None) -> None:
    if not future.done():
        future.set_result(result)
