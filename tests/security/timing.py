"""Whether two things take the same time, on a machine that does other work meanwhile. What disturbs one try disturbs
the other as often, and does not come back: a difference counts when it is there every time that it is looked for."""

import gc
import statistics
import time
from collections.abc import Awaitable, Callable, Sequence

TRIES = 12


def medians(tries: Sequence[Callable[[], object]], rounds: int) -> list[float]:
    """In turn, so that what disturbs one disturbs all."""
    found: list[list[int]] = [[] for _ in tries]
    gc.collect()
    gc.disable()
    try:
        for _ in range(rounds):
            for at, one in enumerate(tries):
                began = time.perf_counter_ns()
                one()
                found[at].append(time.perf_counter_ns() - began)
    finally:
        gc.enable()
    return [statistics.median(times) for times in found]


def is_even(tries: Sequence[Callable[[], object]], rounds: int, ratio: float) -> bool:
    """Whether the slowest takes at most so many times as long as the quickest."""
    for _ in range(TRIES):
        found = medians(tries, rounds)
        if max(found) <= ratio * min(found):
            return True
    return False


async def is_same(one: Callable[[], Awaitable[object]], other: Callable[[], Awaitable[object]], ratio: float) -> bool:
    """Of what asks somebody: few samples first, and more of them each time that they differ."""
    for tries in range(1, TRIES + 1):
        times: tuple[list[float], list[float]] = ([], [])
        for at in range(3 + 2 * tries):
            pairs = list(zip((one, other), times, strict=True))
            for ask, found in pairs if at % 2 else reversed(pairs):
                began = time.perf_counter()
                await ask()
                found.append(time.perf_counter() - began)
        first, second = (statistics.median(found) for found in times)
        if max(first, second) <= ratio * min(first, second):
            return True
    return False
