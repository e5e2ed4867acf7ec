"""Let a host make no sessions from now on; those that are there go on.

Whoever asks for a session is refused with the reason, forks and imports too, also after a restart of the engine.
`sandlot health` and /readyz tell it. `sandlot uncordon` ends it, `sandlot drain` empties the host besides."""

import argparse
import dataclasses

from sandlot.cli.context import Context
from sandlot.model import CordonRequest

USAGE = "cordon [options]"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--reason", metavar="TEXT", default="", help="told to whoever asks for a session")


async def run(context: Context) -> int:
    async with context.host() as host:
        health = await host.cordon(CordonRequest(context.args.reason))
    if context.screen.as_json:
        context.screen.json(dataclasses.asdict(health))
    else:
        count = health.session_count
        there = f"{count} session{'s' * (count != 1)} there"
        context.screen.note(f"no new sessions from now on; {there}: `sandlot drain` empties it")
    return 0
