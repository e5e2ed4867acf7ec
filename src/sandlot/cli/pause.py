"""Let everything in a session stand still, until it is resumed. It uses no processor and loses nothing."""

import argparse

from sandlot.cli import values
from sandlot.cli.context import Context
from sandlot.cli.show import session_document
from sandlot.model import PauseRequest

USAGE = "pause ID"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("id", metavar="ID", help="the session's id")
    parser.add_argument("--drain", metavar="TIME", help="let commands end first, for so long: 30s, 5m")
    parser.add_argument("--no-freeze", action="store_true", help="refuse when commands still run then")
    parser.add_argument("--with-memory", action="store_true", help="keep what runs on disk, and free its memory")


async def run(context: Context) -> int:
    args = context.args
    drain_s = None if args.drain is None else values.duration("--drain", args.drain)
    request = PauseRequest(args.id, drain_s, not args.no_freeze, args.with_memory)
    async with context.host() as host:
        session = await host.pause(request)
    if context.screen.as_json:
        context.screen.json(session_document(session))
    else:
        context.screen.note(f"{session.session_id} is {session.state}")
    return 0
