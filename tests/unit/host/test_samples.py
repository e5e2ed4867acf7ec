"""Samples of one hour take little room, and are what was put in."""

from dataclasses import replace

from sandlot.host.samples import Reading, Samples
from sandlot.model import limits

ONE = Reading(1000.0, 0.5, 12.25, 1 << 40, 3, None, 7, 8, 1, 9)


def test_what_comes_out_is_what_was_put_in() -> None:
    samples = Samples()
    assert samples.last() is None
    second = replace(ONE, at=1005.0, disk_bytes=5, received_bytes=None, sent_bytes=None)
    samples.add(ONE)
    samples.add(second)
    assert list(samples) == [ONE, second]
    assert samples.last() == second


def test_only_an_hour_is_kept() -> None:
    samples = Samples()
    for number in range(1000):
        samples.add(replace(ONE, at=1000.0 + 5 * number, cpu_s=float(number)))
    times = [one.at for one in samples]
    assert len(times) == limits.SAMPLES_KEPT
    assert times[-1] == 1000.0 + 5 * 999
    assert times == sorted(times)
    samples.add(replace(ONE, at=times[-1] + 7200, cpu_s=0.0))
    assert len(samples) == 1


def test_what_does_not_change_takes_no_room() -> None:
    samples = Samples()
    for number in range(100):
        samples.add(replace(ONE, at=1000.0 + 5 * number))
    assert [one.at for one in samples] == [1000.0, 1495.0]
    samples.add(replace(ONE, at=1500.0, pids=4))
    assert [one.at for one in samples] == [1000.0, 1495.0, 1500.0]
