"""How far a copy is, in one line on the terminal of whoever waits for it."""

import asyncio
import sys
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass

from sandlot.cli.screen import is_terminal
from sandlot.cli.show import size_text
from sandlot.cli.transfer import Tally

_PATIENCE_S = 0.3  # what is done by then needs no progress
_TICK_S = 0.1


@dataclass(frozen=True, slots=True)
class Far:
    """How far something is."""

    size_bytes: int
    size_bytes_total: int | None  # None: not known
    told: str


@asynccontextmanager
async def shown(tally: Tally, size_bytes: int | None, *, quiet: bool) -> AsyncGenerator[None]:
    """`size_bytes`: of all that is to be copied, where that is known."""
    async with following("copying", lambda: Far(tally.size_bytes, size_bytes, _told(tally, size_bytes)), quiet=quiet):
        yield


@asynccontextmanager
async def following(word: str, look: Callable[[], Far], *, quiet: bool) -> AsyncGenerator[None]:
    """On stderr, and only when that is a terminal."""
    if quiet or not is_terminal(sys.stderr):
        yield
        return
    task = asyncio.get_running_loop().create_task(_show(word, look), name="progress")
    try:
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def _show(word: str, look: Callable[[], Far]) -> None:
    await asyncio.sleep(_PATIENCE_S)
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn

    columns = (TextColumn(word), BarColumn(), TextColumn("{task.fields[told]}"))
    console = Console(stderr=True, highlight=False)
    with Progress(*columns, console=console, auto_refresh=False, transient=True) as progress:
        line = progress.add_task(word, total=look().size_bytes_total, told="")
        while True:
            far = look()
            total = far.size_bytes_total
            done = far.size_bytes if total is None else min(far.size_bytes, total)
            progress.update(line, completed=done, total=total, told=far.told, refresh=True)
            await asyncio.sleep(_TICK_S)


def _told(tally: Tally, size_bytes: int | None) -> str:
    files = "1 file" if tally.files == 1 else f"{tally.files:,} files"
    return f"{files}, {pace(tally.size_bytes, size_bytes, tally.began)}"


def pace(done: int, whole: int | None, began: float) -> str:
    """So much, of so much, so quickly."""
    of = "" if whole is None else f" of {size_text(whole)}"
    return f"{size_text(done)}{of}, {size_text(done / max(time.monotonic() - began, 0.001))}/s"
