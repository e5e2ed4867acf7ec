"""What sessions and the machine use, over time.

A sample every five seconds, of sessions in which something may have changed: one whose guest is alone, and in which no
call has begun since that was seen, is not looked at. So sessions that rest cost nothing, however many there are.
"""

import asyncio
import os
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from weakref import WeakKeyDictionary

from sandlot.contracts.runtime import Group, Used
from sandlot.host.health import memory_of_machine
from sandlot.host.lifecycle import Lifecycle
from sandlot.host.listing import space_used
from sandlot.host.parts import HostParts
from sandlot.host.runtimes.usage import network_of
from sandlot.host.samples import Reading, Samples
from sandlot.host.session import Session
from sandlot.model import (
    Capability,
    HostSample,
    InvalidArgument,
    MetricsRequest,
    SandlotError,
    SessionSample,
    SessionState,
    Share,
    limits,
)

_DISK_DEADLINE_S = 5.0
_SHORT_S = 0.5  # a mean over less says nothing


@dataclass(slots=True)
class _Track:
    """Of one session."""

    samples: Samples = field(default_factory=Samples)
    seen: tuple[object, ...] = ()  # what would have changed if anything had run
    rests: bool = False
    disk_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class _Look:
    """What a thread found."""

    used: Used | None
    network: tuple[int, int] | None


@dataclass(frozen=True, slots=True)
class _Machine:
    at: float
    cpu_s: float
    memory: Share
    disk: Share
    network: tuple[int, int]
    load: float


class Metrics:
    def __init__(
        self,
        data: Path,
        lifecycle: Lifecycle,
        parts: HostParts,
    ) -> None:
        self._data = data
        self._find = lifecycle.find
        self._sessions = lifecycle.sessions
        self._parts = parts
        self._tracks: WeakKeyDictionary[Session, _Track] = WeakKeyDictionary()
        self._machine: _Machine | None = None
        self._of_host: deque[HostSample] = deque(maxlen=limits.SAMPLES_KEPT)
        self._looked_at = time.time()
        self._stopped = asyncio.Event()
        self._cpus = len(os.sched_getaffinity(0))
        self._memory_bytes = memory_of_machine().total

    def stop(self) -> None:
        self._stopped.set()

    async def run(self) -> None:
        """The first look comes after an interval: who opens an engine for one command does not pay for it."""
        self._machine = await asyncio.to_thread(_look_at_machine, self._data)
        while not self._stopped.is_set():
            with suppress(TimeoutError):
                async with asyncio.timeout(limits.SAMPLE_INTERVAL_S):
                    await self._stopped.wait()
                    return
            await self.look()

    async def look(self) -> None:
        """Take a sample of each session that may have changed, and one of the machine."""
        due = [session for session in self._sessions() if self._is_due(session)]
        await self._read(due)
        self._of_host.append(await self._host_sample(keep=True))
        self._looked_at = time.time()

    # ---- verbs -------------------------------------------------------------------------------------------------

    async def of_session(self, request: MetricsRequest) -> Sequence[SessionSample]:
        if request.session_id is None:
            raise InvalidArgument("whose metrics?", next_step="name a session, or ask for those of the host")
        session = self._find(request.session_id)
        track = self._track(session)
        with suppress(TimeoutError):
            async with asyncio.timeout(_DISK_DEADLINE_S):
                storage = self._parts.storages[session.row.storage]
                track.disk_bytes = await space_used(session, storage, self._parts.memories)
        before = [self._sample(session, one) for one in track.samples]
        (now,) = await self._read([session], keep=False)
        found = [one for one in (*before, self._sample(session, now)) if one.at >= request.since]
        return found[-request.limit :] or [self._sample(session, now)]

    async def of_host(self, request: MetricsRequest) -> Sequence[HostSample]:
        if request.session_id is not None:
            raise InvalidArgument("a host is no session", next_step="leave the session out, or ask for its metrics")
        found = [one for one in (*self._of_host, await self._host_sample()) if one.at >= request.since]
        return found[-request.limit :] or [await self._host_sample()]

    async def of_all(self) -> Sequence[SessionSample]:
        sessions = list(self._sessions())
        await self._read([session for session in sessions if self._track(session).samples.last() is None])
        now, found = time.time(), list[SessionSample]()
        for session in sessions:
            last = self._track(session).samples.last()
            if last is None:
                continue
            # Nothing has happened since in one that rests, so it is as it was then.
            at = max(last.at, now) if self._track(session).rests and not self._is_due(session) else last.at
            found.append(self._sample(session, last, at))
        return found

    # ---- looking -----------------------------------------------------------------------------------------------

    def _track(self, session: Session) -> _Track:
        return self._tracks.setdefault(session, _Track())

    def _is_due(self, session: Session) -> bool:
        track = self._track(session)
        return not track.rests or bool(session.live) or track.seen != _marks(session)

    async def _read(self, sessions: Sequence[Session], *, keep: bool = True) -> list[Reading]:
        """Look at sessions together: what blocks is done by one thread."""
        marks = [_marks(session) for session in sessions]
        groups = [self._group(session) for session in sessions]
        pids = [session.guest.pid if session.guest else 0 for session in sessions]
        looks = await asyncio.to_thread(_look_at_all, groups, pids) if sessions else []
        found: list[Reading] = []
        for session, mark, group, look in zip(sessions, marks, groups, looks, strict=True):
            reading = await self._reading(session, group, look)
            found.append(reading)
            if keep:
                track = self._track(session)
                track.samples.add(reading)
                track.seen, track.rests = mark, reading.pids <= 1 and reading.calls == 0
        return found

    def _group(self, session: Session) -> Group | None:
        """None: it has no processes, or nobody can tell them."""
        if session.guest is None or session.row.state not in (SessionState.ACTIVE, SessionState.PAUSED):
            return None
        with suppress(SandlotError):
            return self._parts.runtimes[session.row.runtime].group(session.row.volume)
        return None

    async def _reading(self, session: Session, group: Group | None, look: _Look) -> Reading:
        track, now = self._track(session), time.time()
        last = track.samples.last()
        calls = sum(live.result is None and live.lost is None for live in session.live.values())
        begun = session.last_process_id
        pids = last.pids if last else 0
        if group is None or look.used is None:
            cpu_s = last.cpu_s if last else 0.0
            return Reading(now, 0.0, cpu_s, 0, 0, track.disk_bytes, None, None, calls, begun)
        if session.row.state is SessionState.ACTIVE or last is None:  # one that stands still has as many as before
            with suppress(SandlotError):
                pids = await group.count()
        cpu_s = max(look.used.cpu_s, last.cpu_s if last else 0.0)
        received, sent = look.network or (None, None)
        has_network = Capability.NETWORK in session.runtime_capabilities
        return Reading(
            now,
            self._mean(session, last, now, cpu_s),
            cpu_s,
            look.used.memory_bytes,
            pids,
            track.disk_bytes,
            received if has_network else None,
            sent if has_network else None,
            calls,
            begun,
        )

    def _mean(self, session: Session, last: Reading | None, now: float, cpu_s: float) -> float:
        """Since the sample before. In one that rested nothing ran until the last look."""
        if last is None:
            since, before = session.row.created, 0.0
        elif self._track(session).rests:
            since, before = max(last.at, self._looked_at), last.cpu_s
        else:
            since, before = last.at, last.cpu_s
        return (cpu_s - before) / (now - since) if now - since >= _SHORT_S else (last.cpus_used if last else 0.0)

    def _sample(self, session: Session, one: Reading, at: float | None = None) -> SessionSample:
        resources = session.resources
        return SessionSample(
            session_id=session.row.session_id,
            at=one.at if at is None else at,
            cpus_used=one.cpus_used,
            cpu_s=one.cpu_s,
            cpus_max=resources.cpus or float(self._cpus),
            memory_bytes=one.memory_bytes,
            memory_bytes_max=resources.memory_bytes or self._memory_bytes,
            pids=one.pids,
            pids_max=resources.pids,
            disk_bytes=one.disk_bytes,
            disk_bytes_max=resources.disk_bytes,
            received_bytes=one.received_bytes,
            sent_bytes=one.sent_bytes,
            calls=one.calls,
            calls_begun=one.calls_begun,
        )

    async def _host_sample(self, *, keep: bool = False) -> HostSample:
        now, before = await asyncio.to_thread(_look_at_machine, self._data), self._machine
        used = 0.0
        if before is not None and now.at - before.at >= _SHORT_S:
            used = (now.cpu_s - before.cpu_s) / (now.at - before.at)
        elif self._of_host:
            used = self._of_host[-1].cpus_used
        if keep:
            self._machine = now
        sessions = list(self._sessions())
        return HostSample(
            at=now.at,
            cpus_used=max(0.0, used),
            cpus_max=os.cpu_count() or 1,
            memory=now.memory,
            disk=now.disk,
            received_bytes=now.network[0],
            sent_bytes=now.network[1],
            load=now.load,
            sessions=len(sessions),
            calls=sum(live.result is None and live.lost is None for one in sessions for live in one.live.values()),
            calls_begun=self._parts.journal.begun,
        )


def _marks(session: Session) -> tuple[object, ...]:
    """What is another as soon as something may have run in a session."""
    return (session.guest, session.guest.spawned if session.guest else 0, session.row.state)


def _look_at_all(groups: Sequence[Group | None], pids: Sequence[int]) -> list[_Look]:
    found: list[_Look] = []
    for group, pid in zip(groups, pids, strict=True):
        used: Used | None = None
        if group is not None:
            with suppress(SandlotError, OSError, ValueError):
                used = group.used()
        found.append(_Look(used, network_of(pid) if pid else None))
    return found


def _look_at_machine(data: Path) -> _Machine:
    ticks = os.sysconf("SC_CLK_TCK")
    with open("/proc/stat", "rb") as file:
        user, nice, system, _idle, _wait, irq, softirq, *_rest = map(int, file.readline().split()[1:])
    room = os.statvfs(data)
    disk = Share((room.f_blocks - room.f_bfree) * room.f_frsize, room.f_blocks * room.f_frsize)
    cpu_s = (user + nice + system + irq + softirq) / ticks
    network = network_of(os.getpid()) or (0, 0)
    return _Machine(time.time(), cpu_s, memory_of_machine(), disk, network, os.getloadavg()[0])
