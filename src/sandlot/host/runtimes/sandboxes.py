"""All processes of a session under gVisor. Their host's processes are frozen and limited as those of other sessions
are; how many the session has only its own kernel knows, so its guest is asked."""

import asyncio
import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from sandlot.contracts.runtime import Hits, Used
from sandlot.host.runtimes.keeper import Keeper
from sandlot.host.runtimes.usage import memory_of_sandbox, own_memory
from sandlot.model import CapabilityNotSupported, DeadlineExceeded, Resources, Unavailable, limits

_POLL_S = 0.002
_POLL_S_MAX = 0.05
_ROUNDS = 8
# A net for the machine, not a limit. On the platform `ptrace` every process of the session has a thread of the host for
# each thread of gVisor that ever ran it. A sandbox that meets the net ends.
_HOST_THREADS_PER_PROCESS = 32
_HOST_THREADS_OF_RUNSC = 2048
_HOST_THREADS_MAX = 16384


class SandboxGroup:
    def __init__(self, keeper: Keeper, name: str) -> None:
        """Raises Unavailable when the guest is gone, CapabilityNotSupported without groups."""
        self._keeper = keeper
        self._name = name
        self._link = keeper.link(name)
        self._group = keeper.group(name)

    async def limit(self, resources: Resources) -> None:
        """Every process that runsc has, and those that it makes meanwhile. Raises Unavailable."""
        self._link.limit(resources.pids or 0)
        resources = net(resources)
        fds = self._keeper.groups.controllers.prepare(self._name, resources)
        try:
            moved: set[int] = set()
            for _round in range(_ROUNDS):
                new = [pid for pid in self._group.processes() if pid not in moved]
                if not new:
                    break
                moved.update(new)
                for pid in new:
                    _enter(fds, pid)
            self._keeper.groups.pin(self._name, self._link.pid, resources)
        except OSError as error:
            raise Unavailable(f"the sandbox cannot be put under its limits: {error.strerror}") from error
        finally:
            for fd in fds:
                os.close(fd)

    def used(self) -> Used:
        """Of the sandbox, its kernel included."""
        if (counted := self._keeper.groups.controllers.memory_used(self._name)) is not None:
            return self._group.used()._replace(memory_bytes=counted)
        pids = self._group.processes()
        return self._group.used()._replace(memory_bytes=own_memory(pids) + memory_of_sandbox(pids))

    async def count(self) -> int:
        if self._group.is_frozen():
            raise Unavailable("a session that stands still cannot be asked for its processes", next_step="resume it")
        return 1 + await self._link.count()

    def memory_used(self) -> int:
        """In bytes; what several of its processes share counts once."""
        total = 0
        for pid in self._group.processes():
            with suppress(OSError):
                told = Path(f"/proc/{pid}/smaps_rollup").read_text()
                total += next(int(line.split()[1]) for line in told.splitlines() if line.startswith("Pss:"))
        return total * 1024

    def hits(self, call: str = "") -> Hits:
        return self._group.hits(call)

    def begin_call(self, call: str, resources: Resources) -> Sequence[int]:
        raise CapabilityNotSupported(
            "calls have no limits of their own under gVisor", next_step="limit the session instead"
        )

    def end_call(self, call: str) -> None:
        del call

    async def is_alone(self) -> bool:
        """One that is frozen cannot be asked: then there may be someone."""
        if self._group.is_frozen():
            return False
        return await self._link.count() == 0

    def freeze(self) -> None:
        self._group.freeze()

    async def pause(self) -> None:
        await self._group.pause()

    async def resume(self) -> None:
        await self._group.resume()

    async def clear(self) -> None:
        loop = asyncio.get_running_loop()
        give_up, pause_s = loop.time() + limits.GUEST_DEADLINE_S, _POLL_S
        if await self._link.count() == 0:
            return
        while await self._link.count(end=True):
            if loop.time() >= give_up:
                raise DeadlineExceeded(f"the session was not cleared in {limits.GUEST_DEADLINE_S:g} s")
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, _POLL_S_MAX)


def _enter(fds: Sequence[int], pid: int) -> None:
    for fd in fds:
        try:
            os.write(fd, str(pid).encode())
        except ProcessLookupError:
            return


def net(resources: Resources) -> Resources:
    """What groups hold a sandbox to. The number of processes is what the machine bears, not what was asked for."""
    pids = _HOST_THREADS_PER_PROCESS * (resources.pids or limits.PIDS_DEFAULT) + _HOST_THREADS_OF_RUNSC
    return replace(resources, pids=min(pids, _HOST_THREADS_MAX), open_files=None, disk_bytes=None)
