"""The engines of this process: one for each data directory, shared by all clients of it."""

import asyncio
import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from sandlot import registry
from sandlot.config.settings import Settings
from sandlot.contracts import Host
from sandlot.model import DataDirectoryHeld
from sandlot.sdk.portal import portal

_log = logging.getLogger("sandlot.sdk")
_HELD_PATIENCE_S = 3.0  # another program may be about to leave the data directory
_RETRY_S = 0.05


class _Engine(Host, Protocol):
    async def start(self) -> None: ...

    async def close(self) -> None: ...


class _Engines:
    """The engines of this process, one per data directory. Used in the portal only."""

    def __init__(self) -> None:
        portal().at_close(self.close)
        self._starting: dict[Path, asyncio.Task[_Engine]] = {}
        self._users: dict[Path, int] = {}

    async def open(self, settings: Settings) -> Host:
        """Raises DataDirectoryHeld, Unavailable."""
        data = settings.data
        task = self._starting.get(data)
        if task is None:
            task = asyncio.get_running_loop().create_task(_start(settings), name=f"engine {data}")
            self._starting[data] = task
        self._users[data] = self._users.get(data, 0) + 1
        try:
            return await asyncio.shield(task)
        except BaseException:  # given back, then raised again
            await self.release(data)
            raise

    async def release(self, data: Path) -> None:
        self._users[data] -= 1
        if self._users[data] == 0:
            del self._users[data]
            await self._close(self._starting.pop(data))

    async def close(self) -> None:
        self._users.clear()
        while self._starting:
            await self._close(self._starting.popitem()[1])

    async def _close(self, task: "asyncio.Task[_Engine]") -> None:
        if not task.done():
            task.cancel()
        for engine in await asyncio.gather(task, return_exceptions=True):
            if not isinstance(engine, BaseException):
                await engine.close()


async def _start(settings: Settings) -> _Engine:
    build: Callable[[Settings, Callable[[int], None]], _Engine] = registry.load("host", "embedded")
    told = False

    def progress(_entries: int) -> None:
        nonlocal told
        if not told:
            told = True
            _log.warning("making the built-in template, once for this data directory; this takes some seconds")

    engine = build(settings, progress)
    give_up = asyncio.get_running_loop().time() + _HELD_PATIENCE_S
    while True:
        try:
            await engine.start()
            return engine
        except DataDirectoryHeld:
            if asyncio.get_running_loop().time() >= give_up:
                raise
            await asyncio.sleep(_RETRY_S)


_engines = _Engines()


def engines() -> _Engines:
    return _engines


def _after_fork() -> None:
    global _engines
    _engines = _Engines()


os.register_at_fork(after_in_child=_after_fork)
