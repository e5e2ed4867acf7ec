"""Follow a command that was left running, from the first byte of its output to its end."""

import argparse

from sandlot.cli.context import Context
from sandlot.cli.stream import Collected, OwnStreams, follow, report

USAGE = "attach ID CALL"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("id", metavar="ID", help="the session's id")
    parser.add_argument("call", metavar="CALL", help="the id that `exec --detach` printed, or that `show` lists")


async def run(context: Context) -> int:
    args = context.args
    sink = Collected() if args.json else OwnStreams()
    # Ctrl-C leaves; the command goes on.
    async with context.engine() as host, host.attach(args.id, args.call) as stream:
        result = await follow(stream, sink)
    return report(context.screen, args.id, result, sink)
