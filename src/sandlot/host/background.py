"""Tasks that nobody waits for, with an owner who ends them."""

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any

_log = logging.getLogger("sandlot.host")


class Background:
    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()
        self._closed = False

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
            _log.error("background task %s failed: %s", task.get_name(), error, exc_info=error)

    async def close(self, patience_s: float) -> None:
        """Give tasks a moment to end by themselves, then cancel them."""
        self._closed = True
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=patience_s)
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
