"""Timing beside a yardstick. The unit is *raw*: one posix_spawn and wait of a static program that exits at once.

Milliseconds of one machine say little about another, and a shared machine changes its speed from minute to minute. So
every operation is timed in turn with raw, in the same loop, and what counts is the ratio of the medians.
"""

import gc
import math
import os
import statistics
import time
from collections.abc import Awaitable, Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

ARGV = ("sandlot-keeper", "true")  # the guest program's own verb that does nothing


def milliseconds_since(began_ns: int) -> float:
    return (time.perf_counter_ns() - began_ns) / 1e6


@dataclass(frozen=True, slots=True)
class Raw:
    program: Path

    def __call__(self) -> float:
        began = time.perf_counter_ns()
        pid = os.posix_spawn(self.program, ARGV, {})
        _pid, status = os.waitpid(pid, 0)
        took = milliseconds_since(began)
        if status:
            raise RuntimeError(f"{self.program} true ended with status {status}")
        return took


@dataclass(frozen=True, slots=True)
class Samples:
    operation_ms: Sequence[float]
    raw_ms: Sequence[float]

    @property
    def ratio(self) -> float:
        return statistics.median(self.operation_ms) / statistics.median(self.raw_ms)


@dataclass(frozen=True, slots=True)
class Rounds:
    count: int
    warm_up: int

    def __iter__(self) -> Iterator[bool]:
        """Whether each round counts."""
        return (number >= self.warm_up for number in range(self.warm_up + self.count))


def quantile(values: Sequence[float], share: float) -> float:
    """The nearest rank: always a value that was measured."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


@contextmanager
def quiet() -> Generator[None]:
    """Keep the garbage collector out of the numbers."""
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        gc.unfreeze()


async def interleave(raw: Callable[[], float], rounds: Rounds, operation: Callable[[], Awaitable[float]]) -> Samples:
    """`operation` tells the milliseconds of the part that counts; what it does besides is not timed."""
    operation_ms: list[float] = []
    raw_ms: list[float] = []
    with quiet():
        for counts in rounds:
            raw_took, took = raw(), await operation()
            if counts:
                raw_ms.append(raw_took)
                operation_ms.append(took)
    return Samples(operation_ms, raw_ms)
