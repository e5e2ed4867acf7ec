"""Watchers of directories: each follows one directory of a session, and tells every reader what changes."""

import asyncio
import os
import time
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Sequence
from contextlib import ExitStack, asynccontextmanager
from functools import partial

from sandlot.host.desk import Desk, Hands, Place
from sandlot.host.inotify import Notice
from sandlot.host.inside import tidy
from sandlot.host.watching import Change, Watching
from sandlot.model import (
    FileEvent,
    FileEventKind,
    FileWatch,
    LimitReached,
    SandlotError,
    SessionPaused,
    Unavailable,
    limits,
)

_LOOK_S = 1.0  # between two looks whether the session stands on other files
_GATHER_S = 0.02  # what comes within it is told together
_SECOND_HALF_S = 0.05  # for the second half of a move to come
_READS_MAX = 64  # of notices, at a time
_Key = tuple[str, str, str | None, bool]


class Watcher:
    """One directory. Offsets begin with the time: those of an earlier watcher, or of an earlier engine, are smaller."""

    def __init__(self, hands: Hands, request: FileWatch, stands_on: Callable[[], object], again: Callable[[], Place]):
        self._hands = hands
        self._request = request
        self._stands_on = stands_on  # another value: the session has other files. Raises when it is gone
        self._again = again
        self._path = ""
        self._told: deque[FileEvent] = deque(maxlen=limits.WATCH_EVENTS_KEPT)
        self._last = self._dropped = time.time_ns() // 1000
        self._news = asyncio.Event()
        self._error: SandlotError | None = None
        self._task: asyncio.Task[None] | None = None
        self._loop = asyncio.get_running_loop()

    async def begin(self, place: Place) -> None:
        """When this returns nothing is missed any more. Raises what `Files` raises."""
        stack = ExitStack()
        try:
            standing = self._stands_on()
            armed = await self._arm(stack, place)
        except BaseException:  # then raised again
            stack.close()
            raise
        self._task = self._loop.create_task(self._follow(stack, armed, standing))

    def end(self) -> None:
        if self._task:
            self._task.cancel()

    @property
    def is_over(self) -> bool:
        return self._error is not None

    def events(self, after: int | None) -> AsyncIterator[Sequence[FileEvent]]:
        """From now on, however late someone begins to read."""
        return self._events(self._last if after is None else after)

    async def _events(self, at: int) -> AsyncIterator[Sequence[FileEvent]]:
        while True:
            news = self._news
            if not self._dropped <= at <= self._last:
                at = self._dropped
                yield [FileEvent(at, FileEventKind.OVERFLOW, self._path, is_directory=True)]
            if found := [event for event in self._told if event.offset > at]:
                at = found[-1].offset
                yield found
            elif self._error:
                raise self._error
            else:
                await news.wait()

    async def _arm(self, stack: ExitStack, place: Place) -> tuple[Desk, Watching]:
        desk = stack.enter_context(self._hands.desk(place, self._request.path))
        self._path = tidy(desk.path)
        make = partial(Watching, desk.inside, desk.path, recursive=self._request.recursive)
        watching = await self._hands.do(desk, lambda: _kept(desk, make()))
        steps = watching.begin()
        while await self._hands.do(desk, partial(_step, steps)):
            pass
        return desk, watching

    async def _follow(self, stack: ExitStack, armed: tuple[Desk, Watching], standing: object) -> None:
        try:
            while True:
                desk, watching = armed
                await self._wait(watching)
                if self._stands_on() != standing:
                    stack.close()
                    standing = self._stands_on()
                    armed = await self._arm_again(stack)
                    self._tell([(FileEventKind.OVERFLOW, "", "", True)])
                    continue
                if notices := await _gathered(watching):
                    self._tell(await self._hands.do(desk, partial(watching.take, notices)))
                elif watching.is_leaving:
                    self._tell(await self._hands.do(desk, watching.settle))
        except SandlotError as error:
            self._error = error
        except OSError as error:
            self._error = Unavailable(f"the directory cannot be watched any more: {error.strerror}")
        finally:
            self._error = self._error or Unavailable("the engine is closing")
            stack.close()
            self._wake()

    async def _arm_again(self, stack: ExitStack) -> tuple[Desk, Watching]:
        while True:
            try:
                return await self._arm(stack, self._again())
            except SessionPaused:  # it goes on later, and then it is looked at again
                await asyncio.sleep(_LOOK_S)

    async def _wait(self, watching: Watching) -> None:
        """Until something is told, or it is time to look."""
        ready: asyncio.Future[None] = self._loop.create_future()
        fd = watching.notices.fd
        self._loop.add_reader(fd, lambda: ready.done() or ready.set_result(None))
        try:
            await asyncio.wait([ready], timeout=_SECOND_HALF_S if watching.is_leaving else _LOOK_S)
        finally:
            self._loop.remove_reader(fd)

    def _tell(self, changes: Sequence[Change]) -> None:
        for kind, path, old, is_directory in changes:
            self._last += 1
            if len(self._told) == limits.WATCH_EVENTS_KEPT:
                self._dropped = self._told[0].offset
            self._told.append(
                FileEvent(self._last, kind, self._named(path), self._named(old) if old else "", is_directory)
            )
        if changes:
            self._wake()

    def _named(self, path: str) -> str:
        return f"{self._path.rstrip('/')}/{path}" if path else self._path

    def _wake(self) -> None:
        self._news.set()
        self._news = asyncio.Event()


class FileWatches:
    """Those of all sessions. Readers of the same directory, with the same rights, share one."""

    def __init__(self, hands: Hands) -> None:
        self._hands = hands
        self._watchers: dict[_Key, tuple[Watcher, int]] = {}  # and how many read
        self._beginning = asyncio.Lock()

    def close(self) -> None:
        for watcher, _readers in self._watchers.values():
            watcher.end()
        self._watchers.clear()

    @asynccontextmanager
    async def watch(
        self, place: Place, request: FileWatch, stands_on: Callable[[], object], again: Callable[[], Place]
    ) -> AsyncGenerator[AsyncIterator[Sequence[FileEvent]]]:
        key: _Key = (request.session_id, request.path, request.user, request.recursive)
        async with self._beginning:
            watcher, readers = self._watchers.get(key, (None, 0))
            if watcher is None or watcher.is_over:
                self._need_room(request.session_id)
                watcher = Watcher(self._hands, request, stands_on, again)
                await watcher.begin(place)
            else:
                os.close(place.tree.fd)
            self._watchers[key] = (watcher, readers + 1)
        try:
            yield watcher.events(request.after)
        finally:
            known, readers = self._watchers.get(key, (watcher, 1))
            if known is watcher:
                self._watchers[key] = (watcher, readers - 1)
                asyncio.get_running_loop().call_later(limits.WATCH_LINGER_S, self._expire, key, watcher)

    def _need_room(self, session_id: str) -> None:
        if sum(key[0] == session_id for key in self._watchers) >= limits.WATCHES_MAX:
            raise LimitReached(
                f"session {session_id} has {limits.WATCHES_MAX} watchers",
                next_step=f"watch a directory above, or wait {limits.WATCH_LINGER_S:g} s after leaving others",
                limit="watches",
            )

    def _expire(self, key: _Key, watcher: Watcher) -> None:
        known, readers = self._watchers.get(key, (None, 0))
        if known is watcher and not readers:
            del self._watchers[key]
            watcher.end()


def _kept(desk: Desk, watching: Watching) -> Watching:
    desk.keep(watching.close)
    return watching


def _step(steps: Iterator[None]) -> bool:
    for _pause in steps:
        return True
    return False


async def _gathered(watching: Watching) -> list[Notice]:
    found = watching.notices.read()
    if found:
        await asyncio.sleep(_GATHER_S)
        for _read in range(_READS_MAX):
            more = watching.notices.read()
            if not more:
                break
            found += more
    return found
