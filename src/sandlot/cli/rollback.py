"""Put a session's files back to a snapshot or a turn, in place. What runs in it ends."""

import argparse

from sandlot.cli.context import Context
from sandlot.cli.show import session_document
from sandlot.model import RollbackRequest

USAGE = "rollback ID TO"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("id", metavar="ID", help="the session's id")
    parser.add_argument("to", metavar="TO", help="a snapshot, or the number of a turn")
    parser.add_argument("--keep", action="store_true", help="keep what is newer, as another branch")


async def run(context: Context) -> int:
    args = context.args
    async with context.host() as host:
        session = await host.rollback(RollbackRequest(args.id, args.to, args.keep))
    if context.screen.as_json:
        context.screen.json(session_document(session))
    else:
        context.screen.note(f"the files are those of {session.head}")
    return 0
