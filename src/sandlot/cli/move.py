"""Move a session to another storage, with all of its turns.

It keeps its id. What runs in it stands still meanwhile, and has ended when it is there; a move that fails or is
interrupted leaves everything as it was."""

import argparse
import time

from sandlot.cli import progress
from sandlot.cli.context import Context
from sandlot.cli.progress import Far, pace
from sandlot.cli.show import session_document
from sandlot.model import MoveProgress, MoveRequest

USAGE = "move ID --storage NAME"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("id", metavar="ID", help="the session's id")
    parser.add_argument("--storage", metavar="NAME", required=True, help="where it is to be")


async def run(context: Context) -> int:
    args = context.args
    began, told = time.monotonic(), MoveProgress(0, 0, 0, 0)

    def far() -> Far:
        points = f"{told.points} of {told.points_total} points, {pace(told.size_bytes, None, began)}"
        return Far(told.size_bytes, told.size_bytes_total, points)

    async with context.host() as host:
        async with (
            progress.following("moving", far, quiet=context.screen.as_json),
            host.move(MoveRequest(args.id, args.storage)) as steps,
        ):
            async for told in steps:  # noqa: B007 - the line that shows it looks at it
                pass
        session = await host.get(args.id)
    if context.screen.as_json:
        context.screen.json(session_document(session))
    else:
        context.screen.note(f"its files are kept by {session.storage}")
    return 0
