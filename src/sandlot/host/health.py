"""The engine looks after itself: space, inodes, memory, descriptors, the journal, and what failed in the background."""

import asyncio
import logging
import os
import resource
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from sandlot.contracts.storage import Storage
from sandlot.host.background import Background
from sandlot.host.cordon import Cordon
from sandlot.host.parts import HostParts, HostSettings
from sandlot.host.session import Session
from sandlot.model import (
    CallState,
    Health,
    HealthReason,
    HealthStatus,
    HostUnhealthy,
    PoolSpace,
    SandlotError,
    Share,
    StorageHealth,
    limits,
)
from sandlot.model.health import DEGRADED, ONLINE, judge, worst

_log = logging.getLogger("sandlot.host")
_FREE_SPACE = "destroy sessions or delete snapshots that nobody needs, or give the data directory a larger disk"
_FREE_INODES = "destroy sessions with many files, or give the data directory a filesystem with more inodes"
_FREE_MEMORY = "destroy sessions that nobody uses, or end other programs on this machine"
_FREE_DESCRIPTORS = "destroy sessions that nobody uses, or raise the limit of open files (`ulimit -n`)"
_FREE_JOURNAL = "free space on the disk of the data directory, and see that it can be written"
_NO_SPACE = StorageHealth("not known", PoolSpace(0, 0, 0, 0.0), Share(0, 0))


@dataclass(frozen=True, slots=True)
class _Machine:
    memory: Share
    descriptors: Share
    reserve: bool


class HealthMonitor:
    """Looks every now and then by itself, and anew whenever someone asks."""

    def __init__(
        self,
        settings: HostSettings,
        parts: HostParts,
        background: Background,
        sessions: Callable[[], Iterable[Session]],
    ) -> None:
        self._settings = settings
        self._parts = parts
        self._background = background
        self._sessions = sessions
        self.cordon = Cordon(parts.journal)
        self._began = time.monotonic()
        self._looked: tuple[float, Health] | None = None
        self._looking: asyncio.Task[Health] | None = None
        self._stopped = asyncio.Event()

    def start(self) -> None:
        self._began = time.monotonic()
        self._background.spawn("health", self._watch())

    def stop(self) -> None:
        self._stopped.set()

    async def health(self) -> Health:
        """What a look says that begins now, or was under way when this was asked."""
        if self._looking is None:
            self._looking = asyncio.create_task(self._look(), name="look at the host")
            self._looking.add_done_callback(self._done)
        return await asyncio.shield(self._looking)

    async def health_now(self) -> Health:
        """What a look says that begins now, whatever was under way."""
        if self._looking is not None:
            await asyncio.wait([self._looking])
        return await self.health()

    async def admit(self) -> None:
        """Before a session is made. Raises HostUnhealthy."""
        self.cordon.check()
        # A host that was well a moment ago is well; one that was not may be by now.
        if self._looked and time.monotonic() - self._looked[0] < limits.HEALTH_FRESH_S:
            health = self._looked[1]
            if health.status is not HealthStatus.UNHEALTHY:
                return
        health = await self.health()
        if health.status is HealthStatus.UNHEALTHY:
            reason = next(reason for reason in health.reasons if reason.status is HealthStatus.UNHEALTHY)
            raise HostUnhealthy(
                f"this host makes no sessions now: {reason.message}", next_step=reason.next_step, reason=reason.what
            )

    # ---- looking -----------------------------------------------------------------------------------------------

    def _done(self, task: "asyncio.Task[Health]") -> None:
        self._looking = None
        if not task.cancelled() and task.exception() is None:
            self._looked = (time.monotonic(), task.result())

    async def _watch(self) -> None:
        before = HealthStatus.HEALTHY
        while not self._stopped.is_set():
            try:
                async with asyncio.timeout(self._settings.health_interval_s):
                    await self._stopped.wait()
                    return
            except TimeoutError:
                await self._parts.storages.find_again()
                health = await self.health()
            if health.status is not before:
                words = "; ".join(reason.message for reason in health.reasons) or "nothing is wrong any more"
                _log.warning("this host is %s: %s", health.status, words)
                before = health.status

    async def _look(self) -> Health:
        storages, machine, journal = await asyncio.gather(
            asyncio.gather(*map(_ask, self._parts.storages.at_work())), self._machine(), self._journal()
        )
        away = [(name, replace(_NO_SPACE, state=reason)) for name, reason in self._parts.storages.missing().items()]
        found = (*self._of_storages([*storages, *away]), *self._of_machine(machine), *journal)
        reasons = (*self.cordon.reasons(), *found)
        fullest = max((told for _name, told in storages), key=lambda told: told.space.capacity, default=_NO_SPACE)
        sessions = tuple(self._sessions())
        return Health(
            status=worst(reasons),
            reasons=reasons,
            pool_state=fullest.state,
            pool_space=fullest.space,
            inodes=fullest.inodes,
            memory=machine.memory,
            descriptors=machine.descriptors,
            session_count=len(sessions),
            active_calls=sum(
                live.state is CallState.RUNNING for session in sessions for live in tuple(session.live.values())
            ),
            uptime_s=time.monotonic() - self._began,
            errors=self._background.failures(),
            sessions_max=self._settings.sessions_max,
            cordoned_at=self.cordon.since,
        )

    def _of_storages(self, storages: Sequence[tuple[str, StorageHealth]]) -> list[HealthReason]:
        warn, critical = self._settings.space_warn, self._settings.space_critical
        found: list[HealthReason] = []
        for name, told in storages:
            if told.state != ONLINE:
                status = HealthStatus.DEGRADED if told.state == DEGRADED else HealthStatus.UNHEALTHY
                message = f"the storage {name} is not well: {told.state}"
                found.append(HealthReason("storage", status, 1.0, 1.0, message, "run `sandlot doctor`"))
            space = f"the disk of the storage {name} is full"
            found += judge("space", told.space.capacity, warn, critical, space, _FREE_SPACE)
            inodes = f"the inodes of the storage {name} are used up"
            found += judge("inodes", told.inodes.fraction, warn, critical, inodes, _FREE_INODES)
        return found

    def _of_machine(self, machine: _Machine) -> list[HealthReason]:
        found = judge(
            "memory",
            machine.memory.fraction,
            limits.MEMORY_WARN,
            limits.MEMORY_CRITICAL,
            "the memory of the machine is used up",
            _FREE_MEMORY,
        )
        found += judge(
            "descriptors",
            machine.descriptors.fraction,
            limits.DESCRIPTORS_WARN,
            limits.DESCRIPTORS_CRITICAL,
            "the open files of the engine are used up",
            _FREE_DESCRIPTORS,
        )
        if not machine.reserve:
            message = "there is no room for the space that is kept for the journal"
            found.append(HealthReason("reserve", HealthStatus.DEGRADED, 0.0, 1.0, message, _FREE_JOURNAL))
        return found

    async def _machine(self) -> _Machine:
        return await asyncio.to_thread(
            lambda: _Machine(memory_of_machine(), _descriptors(), self._parts.journal.reserve.take())
        )

    async def _journal(self) -> tuple[HealthReason, ...]:
        """Found out by writing."""
        try:
            async with asyncio.timeout(limits.HEALTH_DEADLINE_S):
                await self._parts.journal.check()
        except TimeoutError:
            told = f"the journal did not answer in {limits.HEALTH_DEADLINE_S:g} s"
        except SandlotError as error:
            told = error.message
        else:
            return ()
        return (HealthReason("journal", HealthStatus.UNHEALTHY, 1.0, 1.0, told, _FREE_JOURNAL),)


async def _ask(storage: Storage) -> tuple[str, StorageHealth]:
    try:
        async with asyncio.timeout(limits.HEALTH_DEADLINE_S):
            return storage.name, await storage.health()
    except TimeoutError:
        told = f"it did not answer in {limits.HEALTH_DEADLINE_S:g} s"
    except SandlotError as error:
        told = error.message
    return storage.name, StorageHealth(told, PoolSpace(0, 0, 0, 0.0), Share(0, 0))


def memory_of_machine() -> Share:
    """Memory that the kernel could give to someone counts as free."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        told = {line.split(":")[0]: int(line.split()[1]) * 1024 for line in lines if ":" in line}
        return Share(told["MemTotal"] - told["MemAvailable"], told["MemTotal"])
    except (OSError, KeyError, ValueError):
        return Share(0, 0)


def _descriptors() -> Share:
    soft, _hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        used = len(os.listdir("/proc/self/fd"))
    except OSError:
        used = max(soft, 0)  # not even one more can be opened
    return Share(used, 0 if soft == resource.RLIM_INFINITY else soft)
