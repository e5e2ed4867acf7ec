"""Which limit is blamed, from two readings of the kernel's counters."""

import pytest

from sandlot.contracts.runtime import Hits
from sandlot.host.reasons import LimitWatch
from sandlot.model import LimitHit, Resources, Unavailable, limits

MEMORY = Resources(memory_bytes=limits.GIB, pids=10)


class Counter:
    def __init__(self) -> None:
        self.hits = Hits()
        self.reads = 0

    def __call__(self) -> Hits:
        self.reads += 1
        return self.hits


@pytest.mark.parametrize(
    ("after", "exit_code", "alone", "blamed"),
    [
        (Hits(0, 0), 137, True, None),
        (Hits(1, 0), 137, False, LimitHit.OOM),
        (Hits(1, 0), 2, True, LimitHit.OOM),
        (Hits(1, 0), 2, False, None),  # it may have been another call's
        (Hits(1, 0), 0, True, None),
        (Hits(0, 5), 1, False, LimitHit.PIDS),
        (Hits(0, 5), 0, True, None),
        (Hits(1, 5), 137, True, LimitHit.OOM),
    ],
)
def test_who_is_blamed(after: Hits, exit_code: int, alone: bool, blamed: LimitHit | None) -> None:
    counter = Counter()
    watch = LimitWatch(counter, MEMORY)
    since = watch.begin()
    counter.hits = after
    assert watch.end(since, exit_code, alone=alone) is blamed
    assert watch.end(watch.begin(), exit_code, alone=alone) is None, "once"


def test_nobody_looks_where_nothing_is_limited() -> None:
    counter = Counter()
    watch = LimitWatch(counter, Resources(cpus=1))
    assert watch.end(watch.begin(), 1, alone=True) is None
    assert not watch.is_out_of_memory()
    assert counter.reads == 0


def test_a_call_costs_no_look_before_it_unless_memory_is_limited() -> None:
    counter = Counter()
    watch = LimitWatch(counter, Resources(pids=10))
    watch.begin()
    assert counter.reads == 0
    watch.forget()  # another engine counted
    counter.hits = Hits(0, 7)
    assert watch.begin() == Hits(0, 7)
    assert watch.end(watch.begin(), 1, alone=True) is None


def test_a_guest_that_is_gone_is_not_counted() -> None:
    def gone() -> Hits:
        raise Unavailable("gone")

    watch = LimitWatch(gone, MEMORY)
    assert watch.end(watch.begin(), 137, alone=True) is None
