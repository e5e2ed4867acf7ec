"""Which processes hold something open, and how they are ended: also those whose ids nobody has written down."""

import asyncio
import os
import signal
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import ParamSpec, TypeVar

from sandlot.model import DeadlineExceeded, PermissionDenied

_POLL_S = 0.02
_P = ParamSpec("_P")
_T = TypeVar("_T")


def holders(*places: str) -> list[int]:
    """Processes with a file open, or standing, at one of these paths or below; never this one."""
    pids = [int(name) for name in os.listdir("/proc") if name.isdigit()]  # noqa: PTH208 - all of the machine's, often
    return [pid for pid in pids if pid != os.getpid() and is_holder(pid, places)]


def is_holder(pid: int, places: tuple[str, ...]) -> bool:
    folder = f"/proc/{pid}/fd"
    try:
        links = [f"/proc/{pid}/cwd", *(f"{folder}/{fd}" for fd in os.listdir(folder))]  # noqa: PTH208
    except OSError:  # it has ended, or is somebody else's
        return False
    for link in links:
        try:
            target = os.readlink(link)  # noqa: PTH115
        except OSError:
            continue
        if target.startswith(places) and any(_is_at(target, place) for place in places):
            return True
    return False


def _is_at(target: str, place: str) -> bool:
    return target in (place, f"{place} (deleted)") or target.startswith(place + "/")


def send(pid: int, number: int, places: tuple[str, ...]) -> None:
    """To a process that holds one of the places, and to no other that got its number. Raises PermissionDenied."""
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        if is_holder(pid, places):
            signal.pidfd_send_signal(handle, number)
    except ProcessLookupError:
        return
    except PermissionError as error:
        raise PermissionDenied(f"process {pid} cannot be ended: it is somebody else's") from error
    finally:
        os.close(handle)


async def end_holders(deadline_s: float, *paths: Path) -> None:
    """KILL to all who hold one of them, until nobody does. Raises PermissionDenied, DeadlineExceeded."""
    places = tuple(map(str, paths))

    def kill_all() -> bool:
        pids = holders(*places)
        for pid in pids:
            send(pid, signal.SIGKILL, places)
        return not pids

    await wait_until(kill_all, deadline_s, f"processes that hold {paths[0]} did not end")


async def signal_holders(path: Path, number: int) -> None:
    def signal_all() -> None:
        for pid in holders(str(path)):
            send(pid, number, (str(path),))

    await asyncio.to_thread(signal_all)


async def to_its_end(function: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
    """In a thread. Whoever is cancelled meanwhile goes on when it has ended: half of it would be done by nobody."""
    task = asyncio.ensure_future(asyncio.to_thread(function, *args, **kwargs))
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        while not task.done():
            with suppress(asyncio.CancelledError):
                await asyncio.wait([task])
        raise


async def wait_until(look: Callable[[], bool], deadline_s: float, otherwise: str) -> None:
    """`look` runs in a thread. Raises DeadlineExceeded."""
    try:
        async with asyncio.timeout(deadline_s):
            while not await asyncio.to_thread(look):  # noqa: ASYNC110 - the kernel tells nobody
                await asyncio.sleep(_POLL_S)
    except DeadlineExceeded:
        raise
    except TimeoutError as error:
        raise DeadlineExceeded(f"{otherwise} within {deadline_s:g} s", next_step="try again") from error
