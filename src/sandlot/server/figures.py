"""What Prometheus is told: requests and connections of the server, and how its host is."""

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from sandlot.model import Health, HealthStatus
from sandlot.server.connections import Crowd

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
        yield GaugeMetricFamily("sandlot_connections_waiting", "Of these, without a request.", len(crowd.waiting))
        ended = CounterMetricFamily("sandlot_connections_ended", "Connections that the server ended.", labels=["why"])
        for why, count in (("refused", crowd.refused), ("late", crowd.late), ("broken", crowd.broken)):
            ended.add_metric([why], count)
        yield ended


class Figures:
    def __init__(self, crowd: Crowd) -> None:
        self._registry = registry = CollectorRegistry()
        registry.register(_Connections(crowd))
        ProcessCollector(registry=registry)
        self._under_way = Gauge("sandlot_requests_under_way", "Requests that are not answered yet.", registry=registry)
        self._requests = Counter(
            "sandlot_requests", "Requests that were answered.", ["procedure", "status"], registry=registry
        )
        self._seconds = Histogram(
            "sandlot_request_seconds",
            "From a request's head to the end of its answer.",
            ["procedure"],
            buckets=_BUCKETS_S,
            registry=registry,
        )
        self._names: set[str] = set()
        self._counts: dict[tuple[str, int], Counter] = {}
        self._times: dict[str, Histogram] = {}

    def begin(self) -> None:
        self._under_way.inc()

    def end(self, path: str, status: int, seconds: float) -> None:
        self._under_way.dec()
        name = self._name(path, status)
        count = self._counts.get((name, status))
        if count is None:
            count = self._counts[name, status] = self._requests.labels(name, str(status))
        count.inc()
        times = self._times.get(name)
        if times is None:
            times = self._times[name] = self._seconds.labels(name)
        times.observe(seconds)

    def _name(self, path: str, status: int) -> str:
        name = path.lstrip("/")
        if name in self._names:
            return name
        # What was found is a procedure; what was not may be anything.
        if 200 <= status < 300 and len(self._names) < _PROCEDURES_MAX and len(name) < 128 and name.isprintable():
            self._names.add(name)
            return name
        return _OTHER

    def page(self, health: Health) -> bytes:
        return generate_latest(self._registry) + generate_latest(_HostFigures(health))


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
