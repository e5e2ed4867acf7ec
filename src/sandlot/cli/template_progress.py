"""How far the making of a template is, in one line on the terminal of whoever waits for it."""

import sys
import time
from collections.abc import AsyncIterator

from sandlot.cli.screen import is_terminal
from sandlot.cli.show import size_text
from sandlot.model import TemplateEvent, TemplateInfo, TemplateStep

_PATIENCE_S = 0.3  # what is done by then needs no progress


async def shown(steps: AsyncIterator[TemplateEvent], *, quiet: bool) -> TemplateInfo:
    """Reads to the end. On stderr, and only when that is a terminal."""
    began = time.monotonic()
    visible = not quiet and is_terminal(sys.stderr)
    async for step in steps:
        if isinstance(step, TemplateInfo):
            return step
        if visible and time.monotonic() - began > _PATIENCE_S:
            return await _draw(step, steps)
    raise AssertionError("a template that was made is told of")


async def _draw(first: TemplateStep, steps: AsyncIterator[TemplateEvent]) -> TemplateInfo:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[told]}"))
    console = Console(stderr=True, highlight=False)
    with Progress(*columns, console=console, transient=True) as progress:
        line = progress.add_task(first.stage, total=first.total, told="")
        async for step in steps:
            if isinstance(step, TemplateInfo):
                return step
            progress.update(line, description=step.stage, completed=step.done, total=step.total, told=_told(step))
    raise AssertionError("a template that was made is told of")


def _told(step: TemplateStep) -> str:
    size = size_text(step.done) + (f" of {size_text(step.total)}" if step.total else "")
    return f"{size}, {step.entries:,} files" if step.entries else size
