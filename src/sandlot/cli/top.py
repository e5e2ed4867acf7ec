"""Show what sessions and their host use, again and again, or once.

The busiest comes first. Ctrl-C ends it."""

import argparse
import asyncio
import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING

from sandlot.cli import values
from sandlot.cli.context import Context
from sandlot.cli.screen import printable
from sandlot.cli.show import size_text
from sandlot.model import HostSample, MetricsRequest, SessionSample, Share

if TYPE_CHECKING:
    from rich.console import Group

USAGE = "top [options]"
_HEADS = ("ID", "CPUS", "OF", "MEMORY", "OF", "PROCESSES", "DISK", "RECEIVED", "SENT", "CALLS", "BEGUN")
_NUMBERS = tuple(range(1, len(_HEADS)))
_UNKNOWN = "-"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--once", action="store_true", help="one table, and no more; also where stdout is no terminal")
    parser.add_argument("--interval", metavar="TIME", default="2s", help="how often it looks (default: 2s)")


async def run(context: Context) -> int:
    interval_s = values.duration("--interval", context.args.interval)
    screen = context.screen
    async with context.engine() as host:

        async def look() -> tuple[HostSample, Sequence[SessionSample]]:
            told = await host.host_metrics(MetricsRequest(limit=1))
            return told[-1], sorted(await host.all_metrics(), key=_weight, reverse=True)

        if screen.as_json:
            of_host, sessions = await look()
            screen.json(
                {"host": dataclasses.asdict(of_host), "sessions": [dataclasses.asdict(one) for one in sessions]}
            )
            return 0
        if context.args.once or not screen.is_terminal:
            of_host, sessions = await look()
            screen.line(_summary(of_host))
            screen.table(_HEADS, [_row(one) for one in sessions], numbers=_NUMBERS)
            return 0
        from rich.live import Live

        with Live(console=screen.console, screen=True, auto_refresh=False) as live:
            while True:
                of_host, sessions = await look()
                live.update(_drawn(of_host, sessions, screen.console.height), refresh=True)
                await asyncio.sleep(interval_s)


def _weight(one: SessionSample) -> tuple[float, int, str]:
    return one.cpus_used, one.memory_bytes, one.session_id


def _summary(one: HostSample) -> str:
    parts = (
        f"{one.cpus_used:.2f} of {one.cpus_max} processors",
        f"memory {_share(one.memory)}",
        f"disk {_share(one.disk)}",
        f"load {one.load:.2f}",
        f"{one.sessions} sessions",
        f"{one.calls} calls running, {one.calls_begun} begun",
    )
    return "   ".join(parts)


def _share(share: Share) -> str:
    return f"{size_text(share.used)} of {size_text(share.total)}"


def _row(one: SessionSample) -> tuple[str, ...]:
    return (
        one.session_id,
        f"{one.cpus_used:.2f}",
        f"{one.cpus_max:g}",
        size_text(one.memory_bytes),
        size_text(one.memory_bytes_max),
        str(one.pids),
        *(
            _UNKNOWN if size is None else size_text(size)
            for size in (one.disk_bytes, one.received_bytes, one.sent_bytes)
        ),
        str(one.calls),
        str(one.calls_begun),
    )


def _drawn(of_host: HostSample, sessions: Sequence[SessionSample], height: int) -> "Group":
    """As many as there is room for."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for at, head in enumerate(_HEADS):
        table.add_column(head, justify="right" if at in _NUMBERS else "left", no_wrap=True)
    room = max(1, height - 4)
    for one in sessions[:room]:
        style = "green" if one.calls else ""
        table.add_row(*(Text(printable(cell), style=style) for cell in _row(one)))
    left = len(sessions) - room
    return Group(Text(_summary(of_host)), Text(), table, Text(f"and {left} more" if left > 0 else ""))
