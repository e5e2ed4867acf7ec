"""The engines of this process: one for each data directory, shared by all clients of it."""

import asyncio
import logging
import os
from collections.abc import Callable, Coroutine, Iterable, Sequence
from contextvars import Context
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from sandlot import registry
from sandlot.config.settings import Settings, load
from sandlot.contracts import CustomTool, Host
from sandlot.model import InvalidState
from sandlot.sdk.portal import Portal, portal

_log = logging.getLogger("sandlot.sdk")
_HELD_PATIENCE_S = 3.0  # another program may be about to leave the data directory


class _Engine(Host, Protocol):
    def add_tools(self, own: Iterable[CustomTool]) -> None: ...


class _Holding(Protocol):
    """As `sandlot.wiring.holding.Holding`, which is loaded late."""

    @property
    def engine(self) -> _Engine | None: ...

    async def open(self, patience_s: float) -> Host: ...

    async def close(self) -> None: ...


Release = Callable[[], Coroutine[Any, Any, None]]
_Hold = Callable[[Settings, Callable[[int], None]], _Holding]


@dataclass(slots=True)
class _Shared:
    """A data directory that is being opened or is open, and how many use it."""

    task: "asyncio.Task[tuple[_Holding, Host]]"
    users: int = 0


class Engines:
    """Used in the portal only."""

    def __init__(self, of: Portal) -> None:
        self.pid = of.pid
        self._shared: dict[Path, _Shared] = {}
        self._closing: dict[Path, asyncio.Task[None]] = {}
        of.at_close(self.close)

    async def open(self, data: Path | None, tools: Sequence[CustomTool] = ()) -> tuple[Host, Release]:
        """An engine, and how to give it back: the last one closes it. Without `data`, the one that the environment
        names. Raises InvalidArgument, DataDirectoryHeld, Unavailable, CapabilityNotSupported."""
        hold: _Hold = registry.load("host", "embedded")
        settings = load() if data is None else replace(load(), data=data)
        key = _one_spelling(settings.data)
        while key in self._closing:
            await asyncio.wait([self._closing[key]])
        shared = self._shared.get(key)
        if shared is None:
            # Not in the context of whoever comes first: it would live as long as the engine.
            task = asyncio.get_running_loop().create_task(_start(hold, settings), name="engine", context=Context())
            shared = self._shared[key] = _Shared(task)
        shared.users += 1
        release = partial(self._release, key, shared)
        try:
            holding, host = await asyncio.shield(shared.task)
            if tools:
                _add_tools(holding, tools)
            return host, release
        except BaseException:  # given back, then raised again
            await release()
            raise

    async def _release(self, key: Path, shared: _Shared) -> None:
        shared.users -= 1
        if shared.users == 0 and self._shared.get(key) is shared:
            await asyncio.shield(self._begin_to_close(key))

    def _begin_to_close(self, key: Path) -> "asyncio.Task[None]":
        """In a task of its own: whoever is cancelled while it closes does not leave it half closed."""
        work = _close(self._shared.pop(key).task)
        closing = asyncio.get_running_loop().create_task(work, name="close engine", context=Context())
        self._closing[key] = closing
        closing.add_done_callback(lambda _task: self._closing.pop(key))
        return closing

    async def close(self) -> None:
        for key in tuple(self._shared):
            self._begin_to_close(key)
        await asyncio.gather(*self._closing.values())


def _one_spelling(data: Path) -> Path:
    return data.resolve()


async def _close(task: "asyncio.Task[tuple[_Holding, Host]]") -> None:
    if not task.done():
        task.cancel()
    for opened in await asyncio.gather(task, return_exceptions=True):
        if not isinstance(opened, BaseException):
            await opened[0].close()


def _add_tools(holding: _Holding, tools: Sequence[CustomTool]) -> None:
    if holding.engine is None:
        raise InvalidState(
            "the engine of this data directory is in another process, and does not run tools of this one",
            next_step="give this program a data directory of its own, or start it first",
        )
    holding.engine.add_tools(tools)


async def _start(hold: _Hold, settings: Settings) -> tuple[_Holding, Host]:
    told = False

    def progress(_entries: int) -> None:
        nonlocal told
        if not told:
            told = True
            _log.warning("making the built-in template, once for this data directory; this takes some seconds")

    holding = hold(settings, progress)
    return holding, await holding.open(_HELD_PATIENCE_S)


_engines: Engines | None = None


def engines() -> Engines:
    """Those of this process."""
    global _engines
    if _engines is None or _engines.pid != os.getpid():
        _engines = Engines(portal())
    return _engines
