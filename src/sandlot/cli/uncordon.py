"""Let a host make sessions again."""

import argparse
import dataclasses

from sandlot.cli.context import Context
from sandlot.cli.screen import printable

USAGE = "uncordon"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    del parser


async def run(context: Context) -> int:
    async with context.host() as host:
        health = await host.uncordon()
    if context.screen.as_json:
        context.screen.json(dataclasses.asdict(health))
        return 0
    context.screen.note("sessions are made again" if not health.reasons else f"it is not cordoned, and {health.status}")
    for reason in health.reasons:
        context.screen.note(f"  {printable(reason.message)}")
    return 0
