"""Samples of one session over an hour, in little memory: numbers side by side, eighty bytes for each sample."""

import math
from array import array
from collections.abc import Iterator
from dataclasses import dataclass

from sandlot.model import limits

_FIELDS = 10


@dataclass(frozen=True, slots=True)
class Reading:
    """What changes from sample to sample."""

    at: float
    cpus_used: float
    cpu_s: float
    memory_bytes: int
    pids: int
    disk_bytes: int | None
    received_bytes: int | None
    sent_bytes: int | None
    calls: int
    calls_begun: int

    def is_like(self, other: "Reading") -> bool:
        """Whether nothing has changed but the time."""
        return self._told() == other._told()

    def _told(self) -> tuple[object, ...]:
        return (
            self.cpus_used,
            self.cpu_s,
            self.memory_bytes,
            self.pids,
            self.disk_bytes,
            self.received_bytes,
            self.sent_bytes,
            self.calls,
            self.calls_begun,
        )


class Samples:
    """The newest of one hour, oldest first."""

    def __init__(self) -> None:
        self._numbers = array("d")

    def __len__(self) -> int:
        return len(self._numbers) // _FIELDS

    def add(self, one: Reading) -> None:
        """A row of three that are alike loses the one in the middle."""
        if len(self) >= 2 and self._at(-1).is_like(one) and self._at(-2).is_like(one):
            del self._numbers[-_FIELDS:]
        self._numbers.extend(
            (
                one.at,
                one.cpus_used,
                one.cpu_s,
                one.memory_bytes,
                one.pids,
                *map(_number, (one.disk_bytes, one.received_bytes, one.sent_bytes)),
                one.calls,
                one.calls_begun,
            )
        )
        # By time and by number: an hour of one that was read often is not more than any other's.
        oldest = one.at - limits.SAMPLES_KEPT * limits.SAMPLE_INTERVAL_S
        drop = max(0, len(self) - limits.SAMPLES_KEPT)
        while drop < len(self) - 1 and self._numbers[drop * _FIELDS] < oldest:
            drop += 1
        del self._numbers[: drop * _FIELDS]

    def last(self) -> Reading | None:
        return self._at(-1) if self._numbers else None

    def __iter__(self) -> Iterator[Reading]:
        return (self._at(number) for number in range(len(self)))

    def _at(self, number: int) -> Reading:
        start = number * _FIELDS if number >= 0 else len(self._numbers) + number * _FIELDS
        row = self._numbers[start : start + _FIELDS]
        at, cpus_used, cpu_s, memory, pids, disk, received, sent, calls, begun = row
        return Reading(
            at,
            cpus_used,
            cpu_s,
            int(memory),
            int(pids),
            _known(disk),
            _known(received),
            _known(sent),
            int(calls),
            int(begun),
        )


def _number(value: int | None) -> float:
    return math.nan if value is None else value


def _known(value: float) -> int | None:
    return None if math.isnan(value) else int(value)
