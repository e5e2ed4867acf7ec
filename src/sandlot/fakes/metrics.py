"""The verbs of metrics, of the fake: it counts what it has, and uses nothing else."""

import time
from collections.abc import Callable, Iterable, Sequence

from sandlot.fakes.session import FakeSession
from sandlot.model import HostSample, InvalidArgument, MetricsRequest, SessionSample, Share

_MEMORY = Share(1 << 20, 1 << 30)


class FakeMetrics:
    """`begun`: how many calls there were, those of sessions that are gone included."""

    def __init__(self, find: Callable[[str], FakeSession], sessions: Callable[[], Iterable[FakeSession]]) -> None:
        self._find = find
        self._sessions = sessions

    async def session_metrics(self, request: MetricsRequest) -> Sequence[SessionSample]:
        if request.session_id is None:
            raise InvalidArgument("whose metrics?", next_step="name a session")
        return [_sample(self._find(request.session_id))]

    async def host_metrics(self, request: MetricsRequest) -> Sequence[HostSample]:
        if request.session_id is not None:
            raise InvalidArgument("a host is no session", next_step="leave the session out")
        sessions = list(self._sessions())
        running = sum(len(session.running) for session in sessions)
        begun = sum(len(session.calls) for session in sessions)
        return [HostSample(time.time(), 0.0, 1, _MEMORY, _MEMORY, 0, 0, 0.0, len(sessions), running, begun)]

    async def all_metrics(self) -> Sequence[SessionSample]:
        return [_sample(session) for session in self._sessions()]


def _sample(session: FakeSession) -> SessionSample:
    running = len(session.running)
    return SessionSample(
        session_id=session.session_id,
        at=time.time(),
        cpus_used=0.0,
        cpu_s=0.0,
        cpus_max=1.0,
        memory_bytes=0,
        memory_bytes_max=_MEMORY.total,
        pids=1 + running,
        pids_max=None,
        disk_bytes=session.measured().space_used,
        disk_bytes_max=None,
        received_bytes=None,
        sent_bytes=None,
        calls=running,
        calls_begun=len(session.calls),
    )
