"""What Prometheus is told: requests and connections of the server, and how its host is."""

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass, field
from math import inf

from prometheus_client import CollectorRegistry, Gauge, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from sandlot.model import Health, HealthStatus
from sandlot.server.crowd import Crowd

CONTENT_TYPE = b"text/plain; version=0.0.4; charset=utf-8"
_PROCEDURES_MAX = 300  # names that get a figure of their own: anyone can make up others
_OTHER = "other"
_BUCKETS_S = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)


class _Connections(Collector):
    def __init__(self, crowd: Crowd) -> None:
        self._crowd = crowd

    def collect(self) -> Iterator[Metric]:
        crowd = self._crowd
        yield GaugeMetricFamily("sandlot_connections", "Connections that are open.", crowd.count)
        yield GaugeMetricFamily("sandlot_connections_waiting", "Of these, without a request.", crowd.waiting)
        ended = CounterMetricFamily("sandlot_connections_ended", "Connections that the server ended.", labels=["why"])
        for why, count in (("refused", crowd.refused), ("late", crowd.late), ("broken", crowd.broken)):
            ended.add_metric([why], count)
        yield ended


@dataclass(slots=True)
class _Procedure:
    counts: dict[int, int] = field(default_factory=dict[int, int])  # by status
    slower: list[int] = field(default_factory=lambda: [0] * (len(_BUCKETS_S) + 1))  # than the bucket before
    seconds: float = 0.0

    def add(self, status: int, seconds: float) -> None:
        self.counts[status] = self.counts.get(status, 0) + 1
        self.slower[bisect_left(_BUCKETS_S, seconds)] += 1
        self.seconds += seconds


class _Requests(Collector):
    """Counted as they end, on the loop of the server; nobody else counts, so nothing is locked."""

    def __init__(self) -> None:
        self.under_way = 0
        self.procedures: dict[str, _Procedure] = {}

    def collect(self) -> Iterator[Metric]:
        yield GaugeMetricFamily("sandlot_requests_under_way", "Requests that are not answered yet.", self.under_way)
        requests = CounterMetricFamily(
            "sandlot_requests", "Requests that were answered.", labels=["procedure", "status"]
        )
        times = HistogramMetricFamily(
            "sandlot_request_seconds", "From a request's head to the end of its answer.", labels=["procedure"]
        )
        for name, procedure in list(self.procedures.items()):
            for status, count in list(procedure.counts.items()):
                requests.add_metric([name, str(status)], count)
            times.add_metric([name], list(_buckets(procedure.slower)), procedure.seconds)
        yield requests
        yield times


def _buckets(slower: list[int]) -> Iterator[tuple[str, float]]:
    total = 0
    for bound, count in zip((*_BUCKETS_S, inf), slower, strict=True):
        total += count
        yield "+Inf" if bound == inf else str(float(bound)), total


class Figures:
    def __init__(self, crowd: Crowd) -> None:
        self._registry = registry = CollectorRegistry()
        self._requests = _Requests()
        registry.register(_Connections(crowd))
        registry.register(self._requests)
        ProcessCollector(registry=registry)

    def begin(self) -> None:
        self._requests.under_way += 1

    def end(self, path: str, status: int, seconds: float) -> None:
        self._requests.under_way -= 1
        self._procedure(path, status).add(status, seconds)

    def _procedure(self, path: str, status: int) -> _Procedure:
        known, name = self._requests.procedures, path.lstrip("/")
        found = known.get(name)
        if found is None:
            # What was found is a procedure; what was not may be anything.
            is_one = 200 <= status < 300 and len(known) < _PROCEDURES_MAX and len(name) < 128 and name.isprintable()
            found = known.setdefault(name if is_one else _OTHER, _Procedure())
        return found

    def page(self, health: Health) -> bytes:
        return generate_latest(self._registry) + host_page(health)


def host_page(health: Health) -> bytes:
    """Of the host alone, without its server."""
    return generate_latest(_HostFigures(health))


class _HostFigures(CollectorRegistry):
    """Of one moment."""

    def __init__(self, health: Health) -> None:
        super().__init__()
        for name, told, value in _host_values(health):
            Gauge(f"sandlot_{name}", told, registry=self).set(value)
        status = Gauge("sandlot_host_status", "1 for the status that the host has.", ["status"], registry=self)
        for one in HealthStatus:
            status.labels(one.value).set(one is health.status)


def _host_values(health: Health) -> Iterator[tuple[str, str, float]]:
    yield "sessions", "Sessions that the host holds.", health.session_count
    yield "sessions_max", "Sessions that it holds at most; 0: it sets no bound.", health.sessions_max
    yield "cordoned", "1 while it makes no sessions because someone said so.", float(health.cordoned_at > 0)
    yield "calls_running", "Calls that have not ended.", health.active_calls
    yield "space_used_bytes", "Of the filesystem or the pool of sessions.", health.pool_space.allocated_bytes
    yield "space_free_bytes", "What is left of it for this host.", health.pool_space.free_bytes
    yield "space_used_ratio", "Which part of it is used.", health.pool_space.capacity
    yield "inodes_used_ratio", "Which part of the inodes is used.", health.inodes.fraction
    yield "memory_used_ratio", "Which part of the machine's memory is used.", health.memory.fraction
    yield "descriptors_used_ratio", "Which part of the descriptors of the engine is used.", health.descriptors.fraction
    yield "uptime_seconds", "Since the engine began.", health.uptime_s
    yield "failures_remembered", "Failures in the background that health tells of.", len(health.errors)
