"""Tasks that nobody waits for, with an owner who ends them."""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Coroutine
from typing import Any

from sandlot.model import HealthFailure, limits

_log = logging.getLogger("sandlot.host")


class Background:
    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()
        self._closed = False
        self._failures: deque[HealthFailure] = deque(maxlen=limits.HEALTH_ERRORS_MAX)

    def spawn(self, name: str, work: Coroutine[Any, Any, Any]) -> None:
        if self._closed:
            work.close()
            return
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()):
            self._failures.append(HealthFailure(time.time(), task.get_name(), str(error) or type(error).__name__))
            _log.error("background task %s failed: %s", task.get_name(), error, exc_info=error)

    def failures(self) -> tuple[HealthFailure, ...]:
        """The newest ones, oldest first."""
        return tuple(self._failures)

    async def close(self, patience_s: float) -> None:
        """Give tasks a moment to end by themselves, then cancel them."""
        self._closed = True
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=patience_s)
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
