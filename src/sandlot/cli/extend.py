"""Give a session more time, or less: it lives for so long from now on."""

import argparse

from sandlot.cli import values
from sandlot.cli.context import Context
from sandlot.cli.show import ago, session_document

USAGE = "extend ID TIME"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("id", metavar="ID", help="the session's id")
    parser.add_argument("time", metavar="TIME", help="how long it lives from now on: 90, 30s, 10m, 2h")


async def run(context: Context) -> int:
    timeout_s = values.duration("TIME", context.args.time)
    async with context.host() as host:
        session = await host.extend(context.args.id, timeout_s)
    if context.screen.as_json:
        context.screen.json(session_document(session))
    else:
        context.screen.note(f"{session.session_id} has {ago(timeout_s)} from now on")
    return 0
