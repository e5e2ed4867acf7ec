"""What Prometheus is told of requests: counts, sums and buckets that belong together."""

import pytest

from sandlot.model import Health, HealthStatus, PoolSpace, Share
from sandlot.server.crowd import Bounds, Crowd
from sandlot.server.figures import Figures


@pytest.fixture
def health() -> Health:
    full = Share(1, 2)
    return Health(HealthStatus.HEALTHY, (), "ok", PoolSpace(10, 5, 5, 0.5), full, full, full, 0, 0, 1.0, ())


def test_requests_are_counted_by_procedure_and_status_and_put_into_buckets(health: Health) -> None:
    figures = Figures(Crowd(Bounds(1, 1.0, 1.0)))
    for seconds, status in ((0.0004, 200), (0.0005, 200), (0.003, 500), (400.0, 200)):
        figures.begin()
        figures.end("/a.B/C", status, seconds)
    figures.begin()
    text = figures.page(health).decode()
    for line in (
        "sandlot_requests_under_way 1.0",
        'sandlot_requests_total{procedure="a.B/C",status="200"} 3.0',
        'sandlot_requests_total{procedure="a.B/C",status="500"} 1.0',
        'sandlot_request_seconds_bucket{le="0.0005",procedure="a.B/C"} 2.0',
        'sandlot_request_seconds_bucket{le="0.0025",procedure="a.B/C"} 2.0',
        'sandlot_request_seconds_bucket{le="0.005",procedure="a.B/C"} 3.0',
        'sandlot_request_seconds_bucket{le="300.0",procedure="a.B/C"} 3.0',
        'sandlot_request_seconds_bucket{le="+Inf",procedure="a.B/C"} 4.0',
        'sandlot_request_seconds_count{procedure="a.B/C"} 4.0',
    ):
        assert line in text.splitlines(), line
    assert 'sandlot_request_seconds_sum{procedure="a.B/C"} 400.0039' in text


def test_paths_that_anyone_can_make_up_share_one_figure(health: Health) -> None:
    figures = Figures(Crowd(Bounds(1, 1.0, 1.0)))
    for number in range(1000):
        figures.begin()
        figures.end(f"/made/up/{number}", 404, 0.001)
    text = figures.page(health).decode()
    assert 'sandlot_requests_total{procedure="other",status="404"} 1000.0' in text
    assert "made/up" not in text
