"""Close a turn: a snapshot of all files, and the record of what was done since the last one."""

import argparse

from sandlot.cli.context import Context
from sandlot.cli.turns import turn_document, turn_words
from sandlot.model import TurnRequest

USAGE = "turn ID"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("id", metavar="ID", help="the session's id")
    parser.add_argument("--request-id", metavar="ID", help="a repeated one gives the first answer")


async def run(context: Context) -> int:
    async with context.host() as host:
        turn = await host.turn_complete(TurnRequest(context.args.id, context.args.request_id))
    if context.screen.as_json:
        context.screen.json(turn_document(turn))
    else:
        context.screen.line(turn.snapshot or str(turn.number))
        context.screen.note(turn_words(turn))
    return 0
