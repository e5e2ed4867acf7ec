"""Work with several steps that is not left half done."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

_T = TypeVar("_T")


class UnderWay:
    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()

    async def settle(self) -> None:
        """Let what was begun come to its end. Each step of it has a deadline."""
        if self._tasks:
            await asyncio.wait(self._tasks)

    async def give_up(self) -> None:
        """Let what was begun be undone."""
        for task in self._tasks:
            task.cancel()
        await self.settle()

    def begin(self, work: Coroutine[Any, Any, _T]) -> "asyncio.Task[_T]":
        """A caller who waits for it and gives up ends it."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    async def unbroken(self, work: Coroutine[Any, Any, _T]) -> _T:
        """To its end, also when the caller gives up: half of it would have to be undone, which takes as long. He goes
        on when it has ended, so that what he does next meets no shut gate."""
        task = self.begin(work)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            if not task.done():
                await asyncio.wait([task])
            raise

    def _ended(self, task: "asyncio.Task[Any]") -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # who asked may have left; then nobody else looks
