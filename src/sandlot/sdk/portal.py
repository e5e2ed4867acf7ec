"""One event loop in a thread of its own, where the engine lives; and the ways into it.

Every use of the SDK, sync or async, from any thread or loop, hands a coroutine over and waits. So one engine serves a
whole process, its work goes on while the program does something else, and no program has to know which loop it is on.
Loaded with the first use: `asyncio` alone takes as long to import as the rest of the SDK.
"""

import asyncio
import atexit
import os
import threading
from collections.abc import Callable, Coroutine, Iterable
from concurrent.futures import CancelledError as FutureCancelled
from contextlib import suppress
from contextvars import Context
from typing import Any, Generic, TypeVar
from weakref import WeakSet

from sandlot import tracing
from sandlot.model import InvalidState
from sandlot.sdk.caller import CALLER
from sandlot.sdk.callers import LoopCaller, ThreadCaller
from sandlot.sdk.pool import LastingPool

_T = TypeVar("_T")
_CLOSE_PATIENCE_S = 20.0
_WORKERS_PATIENCE_S = 5.0  # for what nobody waits for any more


class _Call(Generic[_T]):
    """One piece of work: begun and cancelled in the portal, waited for elsewhere."""

    __slots__ = ("_caller", "_place", "_portal", "_work", "ended", "task")

    def __init__(self, portal: "Portal", work: Coroutine[Any, Any, _T], caller: ThreadCaller | LoopCaller) -> None:
        self._portal = portal
        self._work = work
        self._caller = caller
        self._place = tracing.here()
        self.ended = False
        self.task: asyncio.Task[_T] | None = None

    def begin(self) -> None:
        # Not the caller's context: what the engine starts would keep all that is in it.
        context = Context()
        context.run(CALLER.set, self._caller)
        if self._place:
            context.run(tracing.PLACE.set, self._place)
        self.task = asyncio.get_running_loop().create_task(self._work, context=context)
        self._portal.calls.add(self.task)
        self.task.add_done_callback(self._end)

    def _end(self, task: "asyncio.Task[_T]") -> None:
        self._portal.calls.discard(task)
        if not task.cancelled():
            task.exception()  # looked at: whoever waited may have left with an error of his own
        self.ended = True
        self._caller.tell_end()

    def cancel(self) -> None:
        if self.task is not None:
            self.task.cancel()
        else:  # it was given up before it had begun
            self._work.close()
            self.ended = True
            self._caller.tell_end()

    def outcome(self, failure: BaseException | None = None) -> _T:
        """Where it was waited for. `failure` is what a function of the user raised."""
        assert self.task is not None
        if self.task.cancelled():
            raise _ending() if self._portal.is_closed else InvalidState("the client was closed meanwhile")
        error = failure or self.task.exception()
        if error is not None:
            raise error
        return self.task.result()


class Portal:
    """Starts its thread with the first use. One per process; a forked child gets its own."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.calls: set[asyncio.Task[Any]] = set()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._pool = LastingPool()
        # Can be taken again by the thread that has it: a finalizer may run in the middle of anything.
        self._starting = threading.RLock()
        self._is_starting = False
        self.is_closed = False
        self._at_close: list[Callable[[], Coroutine[Any, Any, None]]] = []

    def at_close(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """To be done in the portal before the program ends."""
        self._at_close.append(work)

    def is_here(self) -> bool:
        """Whether the caller runs in the portal already."""
        return self._thread is threading.current_thread()

    def run(self, work: Coroutine[Any, Any, _T]) -> _T:
        """From a thread: wait for the outcome. Ctrl-C cancels the work, and is raised when that has ended."""
        if self.is_here():
            work.close()
            raise InvalidState(
                "the sync SDK cannot be used inside its own event loop", next_step="use the async one there"
            )
        self._enter(work)
        caller = ThreadCaller()
        call = _Call(self, work, caller)
        try:
            self._begin(call, work)
            caller.attend()
        except BaseException:  # Ctrl-C, or what the user's function raised: nothing runs on that nobody waits for
            if not call.ended:
                with suppress(InvalidState, SystemExit):
                    self._post(call.cancel)
                    caller.await_end()
            raise
        return call.outcome()

    async def run_async(self, work: Coroutine[Any, Any, _T]) -> _T:
        """From a loop: await the outcome. Cancelling cancels the work, and waits until that has ended."""
        if self.is_here():
            return await work
        self._enter(work)
        caller = LoopCaller(asyncio.get_running_loop())
        call = _Call(self, work, caller)
        self._begin(call, work)
        await caller.attend(lambda: self._post(call.cancel))
        return call.outcome(caller.failure)

    def begin(self, work: Coroutine[Any, Any, object]) -> None:
        """From anywhere, without waiting."""
        self._enter(work)
        self._begin(_Call(self, work, ThreadCaller()), work)

    def dispose(self, work: Coroutine[Any, Any, object]) -> None:
        """From a finalizer, which may run in any thread and at any time: wait where that can be, and never fail."""
        try:
            if self.is_here():
                self.begin(work)
            else:
                self.run(work)
        except (InvalidState, SystemExit):  # in a fork, or when the program ends: it goes with the process
            work.close()

    def _enter(self, work: Coroutine[Any, Any, object]) -> None:
        try:
            self._open()
        except BaseException:  # raised again: the work will not be done
            work.close()
            raise

    def _begin(self, call: _Call[Any], work: Coroutine[Any, Any, object]) -> None:
        try:
            self._post(call.begin)
        except (InvalidState, SystemExit):
            work.close()
            raise

    def _post(self, function: Callable[[], None]) -> None:
        assert self._loop is not None
        try:
            self._loop.call_soon_threadsafe(function)
        except RuntimeError:
            raise _ending() from None

    # ---- in the portal -----------------------------------------------------------------------------------------

    def enlist(self, tasks: "WeakSet[asyncio.Task[Any]]") -> None:
        """The work that is being done belongs to these."""
        task = asyncio.current_task()
        if task is not None:
            tasks.add(task)

    async def break_off(self, tasks: "Iterable[asyncio.Task[Any]]") -> None:
        """Whoever waits for one of these is told, and it has ended when this returns."""
        others = [task for task in tasks if task is not asyncio.current_task()]
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    # ---- life --------------------------------------------------------------------------------------------------

    def _open(self) -> None:
        if self.pid != os.getpid():
            raise InvalidState(
                f"this was opened by process {self.pid}, of which this one is a fork",
                next_step="use it there; a data directory is open in one process at a time",
            )
        if self._loop is not None and not self.is_closed:
            return
        with self._starting:
            if self.is_closed:
                raise _ending()
            if self._loop is None:
                self._start()

    def _start(self) -> None:
        if self._is_starting:
            raise InvalidState("the engine is just being started by this thread")
        self._is_starting = True
        try:
            loop = _new_loop()
            loop.set_default_executor(self._pool)
            # A daemon: the interpreter waits for all others before it asks us to close.
            thread = threading.Thread(target=_serve, args=(loop,), name="sandlot", daemon=True)
            thread.start()
            self._thread, self._loop = thread, loop
        finally:
            self._is_starting = False
        # Called when all threads but daemons have ended, and before the exit handlers that were there already.
        atexit.register(self.close)

    def close(self) -> None:
        """Leave everything in order. Closing twice is fine."""
        if self.pid != os.getpid():
            return
        with self._starting:
            if self.is_closed:
                return
            self.is_closed = True
        if self._loop is None or self._thread is None:
            return
        with suppress(TimeoutError, FutureCancelled):  # what is left is found by the next engine
            asyncio.run_coroutine_threadsafe(self._finish(), self._loop).result(_CLOSE_PATIENCE_S)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_CLOSE_PATIENCE_S)
        self._pool.wait(_WORKERS_PATIENCE_S)

    async def _finish(self) -> None:
        await self.break_off(self.calls)
        for work in self._at_close:
            await work()


def _ending() -> InvalidState | SystemExit:
    """For those who are still there: finalizers, which are told, and daemon threads, which end with the program."""
    return SystemExit() if threading.current_thread().daemon else InvalidState("the program is ending")


def _serve(loop: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(loop)
    try:
        loop.run_forever()
    finally:
        loop.close()


def _new_loop() -> asyncio.AbstractEventLoop:
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


_portal = Portal()


def portal() -> Portal:
    """The one of this process."""
    global _portal
    if _portal.pid != os.getpid():
        _portal = Portal()
    return _portal
