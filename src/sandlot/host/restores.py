"""A restore around an engine: what must be there before it, and what is left when it fails or is killed."""

import asyncio
import os
from collections.abc import AsyncIterable
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from sandlot.host.lifecycle import Lifecycle
from sandlot.host.removal import remove_tree
from sandlot.host.restoring import Restoring, Tell
from sandlot.model import InvalidState, Restored, RestoreRequest, SandlotError, Unavailable

_MARK = "restore.unfinished"
_KEPT = frozenset({"templates", "lost+found"})  # a cache that is made anew, and what a disk has by itself


class Engine(Protocol):
    async def start(self, *, restores: bool = False) -> None: ...

    async def close(self) -> None: ...


def check_finished(data: Path) -> None:
    """Raises Unavailable: a host that is half there is none."""
    if (data / _MARK).exists():
        raise Unavailable(
            f"{data} holds what a restore did not finish",
            next_step="restore again into the same data directory; what is half there is removed first",
        )


class Restores:
    """`into`: what is done once the engine has begun."""

    def __init__(self, data: Path, engine: Engine, lifecycle: Lifecycle, into: Restoring) -> None:
        self._data = data
        self._engine = engine
        self._lifecycle = lifecycle
        self._into = into
        self._is_begun = False

    async def restore(self, request: RestoreRequest, content: AsyncIterable[bytes], tell: Tell) -> Restored:
        """In a data directory without anything in it. The engine has left when this returns, and what fails leaves
        nothing. Raises InvalidState when something is there, Unavailable, and what `Restoring.restore` raises."""
        await asyncio.to_thread(_check_empty, self._data)
        try:
            await asyncio.to_thread(_mark, self._data)
        except OSError as error:
            raise Unavailable(f"{self._data} cannot be written: {error.strerror}") from error
        try:
            await self._start()
            restored = await self._into.restore(self._data, request, content, tell)
            await self._close()
            (self._data / _MARK).unlink()
        except BaseException:  # undone, then raised again
            await asyncio.shield(self._undo())
            raise
        return restored

    async def undo(self) -> None:
        """What was killed in the middle. Raises Unavailable, DataDirectoryHeld."""
        if (self._data / _MARK).exists():
            await self._start()
            await self._undo()

    async def _start(self) -> None:
        await self._engine.start(restores=True)
        self._is_begun = True

    async def _close(self) -> None:
        if self._is_begun:
            self._is_begun = False
            await self._engine.close()

    async def _undo(self) -> None:
        with suppress(SandlotError):
            for session in self._lifecycle.all():
                await self._lifecycle.destroy(session.row.session_id)
        await self._close()
        await asyncio.to_thread(_wipe, self._data)


def _check_empty(data: Path) -> None:
    found = sorted(set(os.listdir(data)) - _KEPT) if data.is_dir() else []
    if found:
        raise InvalidState(
            f"{data} is not empty: it has {', '.join(found[:5])}",
            next_step="restore into a data directory that nothing is in, with --data-dir",
        )


def _mark(data: Path) -> None:
    data.mkdir(mode=0o700, parents=True, exist_ok=True)
    fd = os.open(data / _MARK, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _wipe(data: Path) -> None:
    """The mark goes last."""
    for name in set(os.listdir(data)) - _KEPT - {_MARK}:
        remove_tree(data / name)
    (data / _MARK).unlink(missing_ok=True)
