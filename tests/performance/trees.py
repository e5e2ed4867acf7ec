"""Trees for the benchmark, and what `tar` needs for them."""

import asyncio
import itertools
import os
import shutil
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from statistics import median

from tests.performance.measure import milliseconds_since, quiet
from tests.performance.report import Row

Pair = Callable[[], Awaitable[tuple[float, float]]]  # milliseconds of ours, and of tar


def make_tree(top: Path, files: int, size_bytes: int) -> None:
    """Files in directories of a hundred; no two are alike."""
    content = bytes(range(256)) * (size_bytes // 256 + 1)
    for number in range(files):
        folder = top / f"folder-{number // 100:04d}"
        if number % 100 == 0:
            folder.mkdir(parents=True)
        (folder / f"file-{number:06d}").write_bytes(b"%08d" % number + content[: size_bytes - 8])


async def shell(script: str) -> float:
    """How long it took; one that fails would make every number beside it worthless."""
    began = time.perf_counter_ns()
    process = await asyncio.create_subprocess_exec("/bin/sh", "-ec", script)
    if await process.wait() != 0:
        raise RuntimeError(f"{script} ended with {process.returncode}")
    return milliseconds_since(began)


@asynccontextmanager
async def scratch(folder: Path) -> AsyncGenerator[Path]:
    """A directory that is gone again, before the next thing is timed."""
    folder.mkdir()
    try:
        yield folder
    finally:
        await asyncio.to_thread(shutil.rmtree, folder)


def taking_turns(ours: Callable[[], Awaitable[float]], tar: Callable[[], Awaitable[float]]) -> Pair:
    """Each begins when nothing is left to be written, and is the first in half of the rounds. Memory that was freed a
    moment ago costs less to write into than memory that a machine which is virtual has given back meanwhile: whoever
    came second had it for less, and took half the time."""
    turns = itertools.cycle((False, True))

    async def pair() -> tuple[float, float]:
        took: dict[bool, float] = {}
        is_tar = next(turns)
        for whose in (is_tar, not is_tar):
            await asyncio.to_thread(os.sync)
            took[whose] = await (tar() if whose else ours())
        return took[False], took[True]

    return pair


async def beside_tar(section: str, name: str, rounds: int, pair: Pair, target: float, note: str = "") -> Row:
    """Both in turn: what else the machine does meets both."""
    ours: list[float] = []
    tar: list[float] = []
    with quiet():
        for _round in range(rounds):
            took, beside = await pair()
            ours.append(took)
            tar.append(beside)
    told = f"{median(ours) / 1000:.2f} s, and {median(tar) / 1000:.2f} s by tar"
    return Row(
        section,
        name,
        median(ours) / median(tar),
        "times tar",
        target,
        median_ms=median(ours),
        n=rounds,
        note=f"{told}; {note}" if note else told,
    )
