"""Waiting in tests: for a condition, and with an end."""

import asyncio
import time
from collections.abc import Callable


async def until(condition: Callable[[], bool], within_s: float = 60) -> bool:
    """Whether it came true in time. What the kernel or another process does tells nobody, so it is looked at again."""
    deadline = time.monotonic() + within_s
    while not (is_true := condition()) and time.monotonic() < deadline:  # noqa: ASYNC110 - as said above
        await asyncio.sleep(0.02)
    return is_true
