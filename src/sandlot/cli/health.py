"""Tell how the host is: its space, its load, and what went wrong lately.

The exit code is 0 when it is healthy, and 1 when it is degraded or unhealthy."""

import argparse
import dataclasses
import time

from sandlot.cli.context import Context
from sandlot.cli.screen import Screen, printable
from sandlot.cli.show import ago, size_text
from sandlot.model import Health, HealthStatus, Share

USAGE = "health [options]"
_BAR_CHARS = 30
_STYLES = {HealthStatus.HEALTHY: "ok", HealthStatus.DEGRADED: "warn", HealthStatus.UNHEALTHY: "missing"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    del parser


async def run(context: Context) -> int:
    async with context.host() as host:
        health = await host.health()
    if context.screen.as_json:
        context.screen.json(dataclasses.asdict(health))
    else:
        _show(context.screen, health)
    return 0 if health.status is HealthStatus.HEALTHY else 1


def _show(screen: Screen, health: Health) -> None:
    at = {reason.what: reason.status for reason in reversed(health.reasons)}
    space = health.pool_space
    used = Share(space.allocated_bytes, space.allocated_bytes + space.free_bytes)
    style = _STYLES[health.status]
    screen.line(f"this host is {screen.mark(health.status, style)}")
    screen.line()
    for name, share, told in (
        ("space", used, f"{size_text(used.used)} of {size_text(used.total)}"),
        ("inodes", health.inodes, f"{health.inodes.used:,} of {health.inodes.total:,}"),
        ("memory", health.memory, f"{size_text(health.memory.used)} of {size_text(health.memory.total)}"),
        ("descriptors", health.descriptors, f"{health.descriptors.used:,} of {health.descriptors.total:,}"),
    ):
        filled = screen.mark(bar(share.fraction), _STYLES[at.get(name, HealthStatus.HEALTHY)])
        screen.line(f"  {name:<12} {filled} {share.fraction:>6.1%}  {told if share.total else 'not counted here'}")
    screen.line()
    screen.line(f"  {'storage':<12} {printable(health.pool_state)}")
    screen.line(f"  {'sessions':<12} {health.session_count}")
    screen.line(f"  {'calls':<12} {health.active_calls} running")
    screen.line(f"  {'engine':<12} up for {ago(health.uptime_s)}")
    for reason in health.reasons:
        screen.line()
        screen.line(f"  {screen.mark(reason.status, _STYLES[reason.status])}: {printable(reason.message)}")
        screen.line(f"  → {printable(reason.next_step)}")
    if health.errors:
        screen.line()
    for failure in health.errors:
        screen.line(f"  {ago(time.time() - failure.at)} ago, {failure.what}: {printable(failure.message)}")


def bar(fraction: float) -> str:
    """Full only when it is full."""
    filled = min(int(fraction * _BAR_CHARS), _BAR_CHARS)
    return "█" * filled + "░" * (_BAR_CHARS - filled)
