"""How far a copy is, in one line on the terminal of whoever waits for it."""

import asyncio
import sys
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress

from sandlot.cli.screen import is_terminal
from sandlot.cli.show import size_text
from sandlot.cli.transfer import Tally

_PATIENCE_S = 0.3  # what is done by then needs no progress
_TICK_S = 0.1


@asynccontextmanager
async def shown(tally: Tally, size_bytes: int | None, *, quiet: bool) -> AsyncGenerator[None]:
    """`size_bytes`: of all that is to be copied, where that is known. On stderr, and only when that is a terminal."""
    if quiet or not is_terminal(sys.stderr):
        yield
        return
    task = asyncio.get_running_loop().create_task(_show(tally, size_bytes), name="progress")
    try:
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def _show(tally: Tally, size_bytes: int | None) -> None:
    await asyncio.sleep(_PATIENCE_S)
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn

    columns = (TextColumn("copying"), BarColumn(), TextColumn("{task.fields[told]}"))
    console = Console(stderr=True, highlight=False)
    with Progress(*columns, console=console, auto_refresh=False, transient=True) as progress:
        line = progress.add_task("copy", total=size_bytes, told="")
        while True:
            progress.update(line, completed=tally.size_bytes, told=_told(tally, size_bytes), refresh=True)
            await asyncio.sleep(_TICK_S)


def _told(tally: Tally, size_bytes: int | None) -> str:
    files = "1 file" if tally.files == 1 else f"{tally.files:,} files"
    whole = "" if size_bytes is None else f" of {size_text(size_bytes)}"
    speed = size_text(tally.size_bytes / max(time.monotonic() - tally.began, 0.001))
    return f"{files}, {size_text(tally.size_bytes)}{whole}, {speed}/s"
