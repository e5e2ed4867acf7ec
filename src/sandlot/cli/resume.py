"""Let a paused session go on where it stood."""

import argparse

from sandlot.cli.context import Context
from sandlot.cli.show import session_document

USAGE = "resume ID"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("id", metavar="ID", help="the session's id")


async def run(context: Context) -> int:
    async with context.host() as host:
        session = await host.resume(context.args.id)
    if context.screen.as_json:
        context.screen.json(session_document(session))
    else:
        context.screen.note(f"{session.session_id} is {session.state}")
    return 0
