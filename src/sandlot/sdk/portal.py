"""One event loop in a thread of its own, where the engine lives; and the ways into it.

Every use of the SDK, sync or async, from any thread or loop, hands a coroutine over and waits. So one engine serves a
whole process, its work goes on while the program does something else, and no program has to know which loop it is on.
Loaded with the first use: `asyncio` alone takes as long to import as the rest of the SDK.
"""

import asyncio
import atexit
import os
import queue
import threading
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import CancelledError as FutureCancelled
from contextlib import suppress
from contextvars import copy_context
from typing import Any, TypeVar

from sandlot.model import InvalidState, SandlotError, Unavailable
from sandlot.sdk.caller import CALLER, Caller

_T = TypeVar("_T")
_CLOSE_PATIENCE_S = 20.0


class _SyncCaller:
    """A thread that waits. It runs what it is asked to until the outcome is there."""

    def __init__(self) -> None:
        self.news: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()

    async def call(self, function: Callable[..., object], *args: object) -> None:
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[None] = loop.create_future()

        def work() -> None:
            try:
                function(*args)
            except Exception as error:  # noqa: BLE001 - whatever the user's function raises is his, and goes to him
                loop.call_soon_threadsafe(_settle, answer, error)
            else:
                loop.call_soon_threadsafe(_settle, answer)

        self.news.put(work)
        await answer


class _AsyncCaller:
    """A task on another loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    async def call(self, function: Callable[..., object], *args: object) -> None:
        async def work() -> None:
            result = function(*args)
            if isinstance(result, Awaitable):
                await result

        await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work(), self._loop))


def _settle(future: asyncio.Future[None], error: Exception | None = None) -> None:
    if future.done():
        return
    if error is None:
        future.set_result(None)
    else:
        future.set_exception(error)


class Portal:
    """Starts its thread with the first use. One per process; a forked child gets its own."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._starting = threading.Lock()
        self._closed = False
        self._calls: set[asyncio.Task[Any]] = set()
        self._at_close: list[Callable[[], Coroutine[Any, Any, None]]] = []

    def at_close(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """To be done in the portal before the program ends."""
        self._at_close.append(work)

    def is_here(self) -> bool:
        """Whether the caller runs in the portal already."""
        return self._thread is threading.current_thread()

    def run(self, work: Coroutine[Any, Any, _T]) -> _T:
        """From a thread: wait for the outcome. Ctrl-C cancels the work, and is raised when that has ended."""
        try:
            loop = self._ready()
            if self.is_here():
                raise InvalidState(
                    "the sync SDK cannot be used inside its own event loop", next_step="use the async one there"
                )
        except SandlotError:
            work.close()
            raise
        caller = _SyncCaller()
        outcome: list[asyncio.Task[_T]] = []

        def ended(_task: object) -> None:
            caller.news.put(None)

        loop.call_soon_threadsafe(lambda: outcome.append(self._begin(loop, work, caller, ended)))
        try:
            self._attend(caller)
        except BaseException:  # Ctrl-C, most of all: nothing is to run on that nobody waits for
            loop.call_soon_threadsafe(lambda: outcome[0].cancel())
            self._attend(caller)
            raise
        return _outcome(outcome[0])

    def _attend(self, caller: _SyncCaller) -> None:
        while (work := caller.news.get()) is not None:
            work()

    async def run_async(self, work: Coroutine[Any, Any, _T]) -> _T:
        """From a loop: await the outcome. Cancelling cancels the work, and waits until that has ended."""
        if self.is_here():
            return await work
        try:
            portal = self._ready()
        except SandlotError:
            work.close()
            raise
        loop = asyncio.get_running_loop()
        waiting: list[asyncio.Future[None]] = [loop.create_future()]
        outcome: list[asyncio.Task[_T]] = []
        caller = _AsyncCaller(loop)

        def ended(_task: object) -> None:
            try:
                loop.call_soon_threadsafe(lambda: _settle(waiting[-1]))
            except RuntimeError:
                return  # the loop that waited is closed: nobody is left to tell

        portal.call_soon_threadsafe(lambda: outcome.append(self._begin(portal, work, caller, ended)))
        try:
            await waiting[0]
        except asyncio.CancelledError:
            if waiting[0].cancelled():
                waiting.append(loop.create_future())
                portal.call_soon_threadsafe(lambda: outcome[0].cancel())
                await waiting[1]
            raise
        return _outcome(outcome[0])

    def _begin(
        self,
        loop: asyncio.AbstractEventLoop,
        work: Coroutine[Any, Any, _T],
        caller: Caller,
        ended: Callable[[asyncio.Task[_T]], object],
    ) -> asyncio.Task[_T]:
        context = copy_context()
        context.run(CALLER.set, caller)
        task = loop.create_task(work, context=context)
        self._calls.add(task)
        task.add_done_callback(self._calls.discard)
        task.add_done_callback(ended)
        return task

    # ---- life --------------------------------------------------------------------------------------------------

    def _ready(self) -> asyncio.AbstractEventLoop:
        if self._loop is not None and self.pid == _own_pid and not self._closed:
            return self._loop
        if self.pid != _own_pid:
            raise InvalidState(
                f"this was opened by process {self.pid}, of which this one is a fork",
                next_step="connect again after the fork, or start workers with `spawn`",
            )
        with self._starting:
            if self._closed:
                raise InvalidState("the program is ending")
            if self._loop is None:
                self._loop = self._start()
        return self._loop

    def _start(self) -> asyncio.AbstractEventLoop:
        loop = _new_loop()
        # A daemon: the interpreter waits for other threads before it asks us to close.
        self._thread = threading.Thread(target=self._serve, args=(loop,), name="sandlot", daemon=True)
        self._thread.start()
        # Before the pools of threads are shut, which the engine needs to leave in order; `atexit` comes after that.
        register = getattr(threading, "_register_atexit", atexit.register)
        register(self.close)
        return loop

    def _serve(self, loop: asyncio.AbstractEventLoop) -> None:
        asyncio.set_event_loop(loop)
        loop.run_forever()

    def close(self) -> None:
        """Leave everything in order. Closing twice is fine."""
        with self._starting:
            if self._closed or self.pid != os.getpid():
                return
            self._closed = True
        if self._loop is None or self._thread is None:
            return
        loop = self._loop
        with suppress(TimeoutError, FutureCancelled):  # what is left is found by the next engine
            asyncio.run_coroutine_threadsafe(self._finish(), loop).result(_CLOSE_PATIENCE_S)
        loop.call_soon_threadsafe(loop.stop)
        self._thread.join(_CLOSE_PATIENCE_S)

    async def _finish(self) -> None:
        calls = tuple(self._calls)
        for task in calls:
            task.cancel()
        await asyncio.gather(*calls, return_exceptions=True)
        for work in self._at_close:
            await work()


def _outcome(task: asyncio.Task[_T]) -> _T:
    if task.cancelled():
        raise Unavailable("it was broken off, because the program is ending")
    error = task.exception()
    if error is not None:
        raise error
    return task.result()


def _new_loop() -> asyncio.AbstractEventLoop:
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


_own_pid = os.getpid()
_portal = Portal()


def portal() -> Portal:
    return _portal


def _after_fork() -> None:
    global _own_pid, _portal
    _own_pid = os.getpid()
    _portal = Portal()


os.register_at_fork(after_in_child=_after_fork)
