"""Threads for the portal's loop."""

import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any, ParamSpec, TypeVar

_P = ParamSpec("_P")
_T = TypeVar("_T")
_THREADS_MAX = 32


class LastingPool(ThreadPoolExecutor):
    """Works until it is shut. The standard one refuses as soon as the main thread has ended, while other threads and
    `atexit` may still need the engine, which itself needs threads to leave in order."""

    def __init__(self) -> None:
        super().__init__(_THREADS_MAX)
        self._jobs: queue.SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = queue.SimpleQueue()
        self._idle = threading.Semaphore(0)
        self._workers: list[threading.Thread] = []

    def submit(self, fn: Callable[_P, _T], /, *args: _P.args, **kwargs: _P.kwargs) -> "Future[_T]":
        """On the loop only, as its default executor."""
        future: Future[_T] = Future()
        self._jobs.put((future, partial(fn, *args, **kwargs)))
        if not self._idle.acquire(blocking=False) and len(self._workers) < _THREADS_MAX:
            worker = threading.Thread(target=self._work, name="sandlot-worker", daemon=True)
            self._workers.append(worker)
            worker.start()
        return future

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            future, call = job
            if future.set_running_or_notify_cancel():
                try:
                    result = call()
                except BaseException as error:  # noqa: BLE001 - as every pool does: it goes to whoever waits
                    future.set_exception(error)
                else:
                    future.set_result(result)
            del job, future, call  # nothing is kept while there is nothing to do
            self._idle.release()

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        del cancel_futures
        for _worker in self._workers:
            self._jobs.put(None)
        if wait:
            for worker in self._workers:
                worker.join()

    def wait(self, patience_s: float) -> None:
        """Until its threads have ended, which were told to. One that comes back from what it does when the interpreter
        is gone ends the process with an abort, if an extension in Rust is below it, as when it loads modules."""
        give_up = time.monotonic() + patience_s
        for worker in self._workers:
            worker.join(max(0.0, give_up - time.monotonic()))
