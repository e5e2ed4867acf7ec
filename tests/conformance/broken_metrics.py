"""Hosts that tell wrong figures, one promise each."""

from collections.abc import Sequence
from dataclasses import replace

from sandlot.model import HostSample, MetricsRequest, SessionSample
from tests.conformance.broken_hosts import Below


class Changed(Below):
    """Tells every sample a little differently."""

    def change(self, sample: SessionSample) -> SessionSample:
        return sample

    async def session_metrics(self, request: MetricsRequest) -> Sequence[SessionSample]:
        return [self.change(sample) for sample in await self.below.session_metrics(request)]


class StandsStill(Changed):
    first: SessionSample | None = None

    def change(self, sample: SessionSample) -> SessionSample:
        self.first = self.first or sample
        return replace(self.first, at=sample.at)


class InventsWork(Changed):
    count = 0

    def change(self, sample: SessionSample) -> SessionSample:
        self.count += 1
        return replace(sample, cpu_s=1000.0 * self.count)


class CountsTheMachine(Changed):
    """What is used by everyone, as if it were the session's."""

    def change(self, sample: SessionSample) -> SessionSample:
        return replace(sample, memory_bytes=sample.memory_bytes_max + 1)


class CountsNoGuest(Changed):
    def change(self, sample: SessionSample) -> SessionSample:
        return replace(sample, pids=sample.pids - 1)


class ForgetsMemory(Changed):
    def change(self, sample: SessionSample) -> SessionSample:
        return replace(sample, memory_bytes=1 << 20)


class CountsCallsTwice(Changed):
    def change(self, sample: SessionSample) -> SessionSample:
        return replace(sample, calls_begun=2 * sample.calls_begun)


class TellsNoLimits(Changed):
    def change(self, sample: SessionSample) -> SessionSample:
        return replace(sample, cpus_max=64.0, memory_bytes_max=1 << 40, pids_max=None)


class ForgetsFiles(Changed):
    def change(self, sample: SessionSample) -> SessionSample:
        return replace(sample, disk_bytes=4096)


class TellsNewestFirst(Below):
    async def session_metrics(self, request: MetricsRequest) -> Sequence[SessionSample]:
        (last,) = (await self.below.session_metrics(request))[-1:]
        return [last, replace(last, at=last.at - 5)]


class TellsOfAnother(Changed):
    def change(self, sample: SessionSample) -> SessionSample:
        return replace(sample, session_id="another")


class LooksOnlyWhenAsked(Below):
    async def session_metrics(self, request: MetricsRequest) -> Sequence[SessionSample]:
        return (await self.below.session_metrics(request))[-1:]


class CountsNoSessions(Below):
    async def host_metrics(self, request: MetricsRequest) -> Sequence[HostSample]:
        return [replace(sample, sessions=1) for sample in await self.below.host_metrics(request)]


class TellsTheBusyAlone(Below):
    async def all_metrics(self) -> Sequence[SessionSample]:
        return [sample for sample in await self.below.all_metrics() if sample.calls_begun]


class TellsSomeTwice(Below):
    async def all_metrics(self) -> Sequence[SessionSample]:
        return [*await self.below.all_metrics()] * 2


class TakesTheHostForASession(Below):
    async def session_metrics(self, request: MetricsRequest) -> Sequence[SessionSample]:
        return await self.below.session_metrics(request) if request.session_id else ()


BROKEN: dict[type[Below], str] = {
    StandsStill: "work_is_counted",
    InventsWork: "work_is_counted",
    CountsTheMachine: "a_session_tells_what_it_uses",
    CountsNoGuest: "a_session_tells_what_it_uses",
    TellsOfAnother: "a_session_tells_what_it_uses",
    ForgetsMemory: "memory_is_counted",
    CountsCallsTwice: "calls_are_counted",
    TellsNoLimits: "limits_are_told",
    ForgetsFiles: "files_are_counted",
    TellsNewestFirst: "samples_are_told_in_order",
    LooksOnlyWhenAsked: "samples_are_taken_while_nobody_asks",
    CountsNoSessions: "the_host_tells_what_it_uses",
    TellsTheBusyAlone: "every_session_is_told_once",
    TellsSomeTwice: "every_session_is_told_once",
    TakesTheHostForASession: "what_has_no_metrics_is_refused",
}
