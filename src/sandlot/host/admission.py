"""Whether the machine can hold what a new session may use, beside what others may use already."""

import asyncio
import os
import resource
import sys
from collections.abc import Awaitable, Callable, Iterable
from typing import TypeVar

from sandlot.model import HostFull, InvalidArgument, MaxSessionsReached, Resources, limits

_T = TypeVar("_T")
_MIB = 1024 * 1024
_LOOK_S = 0.05  # between two looks of the first in the queue


class Queue:
    """Those who wait for room, in the order in which they came."""

    def __init__(self) -> None:
        self._turn = asyncio.Lock()
        self._waiting = 0

    async def within(self, timeout_s: float, attempt: Callable[[], Awaitable[_T]]) -> _T:
        """The first attempt that does not fail for want of room. When the time is up, what the last one raised."""
        give_up = asyncio.get_running_loop().time() + timeout_s
        if timeout_s <= 0 or self._waiting >= limits.QUEUE_MAX:
            return await attempt()
        if not self._waiting:  # else someone was here before
            try:
                return await attempt()
            except (MaxSessionsReached, HostFull):
                pass
        self._waiting += 1
        try:
            return await self._in_turn(give_up, attempt)
        finally:
            self._waiting -= 1

    async def _in_turn(self, give_up: float, attempt: Callable[[], Awaitable[_T]]) -> _T:
        try:
            async with asyncio.timeout_at(give_up):
                await self._turn.acquire()
        except TimeoutError:
            return await attempt()  # it says what there is no room for
        loop = asyncio.get_running_loop()
        try:
            while True:
                try:
                    return await attempt()
                except (MaxSessionsReached, HostFull):
                    if loop.time() >= give_up:
                        raise
                await asyncio.sleep(_LOOK_S)
        finally:
            self._turn.release()


class Admission:
    """Counts what was asked for, not what is used; who has no limit counts nothing."""

    def __init__(self, overcommit: float) -> None:
        self._memory_bytes = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        self._overcommit = overcommit
        self._coming: dict[str, Resources] = {}

    def expect(self, session_id: str, asked: Resources, held: Iterable[Resources]) -> None:
        """Counted from now on, until `arrived`. Raises HostFull, InvalidArgument; then nothing is counted."""
        if asked.cpus is not None and asked.cpus > (cpus := len(os.sched_getaffinity(0))):
            raise InvalidArgument(
                f"{asked.cpus:g} cpus were asked for, and this machine has {cpus}",
                next_step="ask for less, or for a larger machine",
                limit="cpus",
            )
        if asked.open_files is not None and _files_max() < asked.open_files:
            raise InvalidArgument(
                f"{asked.open_files} open files were asked for, and this engine itself may have {_files_max()}",
                next_step="ask for less, or raise the limit of the engine (ulimit -n)",
                limit="open_files",
            )
        if asked.memory_bytes is not None:
            room = int(self._memory_bytes * self._overcommit)
            taken = sum(each.memory_bytes or 0 for each in (*held, *self._coming.values()))
            if taken + asked.memory_bytes > room:
                raise HostFull(
                    f"this host holds {room // _MIB} MiB of memory, its sessions may use {taken // _MIB} MiB already, "
                    f"and {asked.memory_bytes // _MIB} MiB more were asked for",
                    next_step="destroy a session, ask for less, or raise SANDLOT_OVERCOMMIT",
                    limit="memory_bytes",
                    asked=asked.memory_bytes,
                    taken=taken,
                    room=room,
                )
        self._coming[session_id] = asked

    def arrived(self, session_id: str) -> None:
        """It is a session now, or did not become one."""
        self._coming.pop(session_id, None)


def _files_max() -> int:
    """How many files this engine itself may have open."""
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    return sys.maxsize if most == resource.RLIM_INFINITY else most
