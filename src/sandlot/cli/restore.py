"""Make a host again from a file that `sandlot backup` wrote, in an empty data directory.

Whole, or not at all: what fails leaves nothing, and what was interrupted is removed when it is asked for again.
Sessions have their ids, files, turns and the time that was left to them; what ran in them has ended. - is stdin."""

import argparse
import dataclasses
import time
from collections.abc import Callable
from contextlib import ExitStack

from sandlot import registry
from sandlot.cli import progress
from sandlot.cli.context import Context, Engine
from sandlot.cli.given_file import GivenFile
from sandlot.cli.progress import Far, pace
from sandlot.cli.screen import printable
from sandlot.model import InvalidArgument, RestoreRequest

USAGE = "restore FILE"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE", help="what was written, or - for stdin")
    parser.add_argument("--storage", metavar="NAME", help="for all sessions (default: the one that each had)")
    parser.add_argument(
        "--templates-here", action="store_true", help="where this machine's template is another build, take it"
    )


async def run(context: Context) -> int:
    args, screen = context.args, context.screen
    if context.remote is not None:
        raise InvalidArgument("a restore is into a data directory of this machine", next_step="leave out --url")
    request = RestoreRequest(args.storage, args.templates_here)
    build: Callable[..., Engine] = registry.load("host", "engine")
    with ExitStack() as stack:
        given, began, step = GivenFile(args.file, stack), time.monotonic(), ""

        def tell(what: str, count: int, of: int) -> None:
            nonlocal step
            step = f"{what} {count} of {of}, "

        def far() -> Far:
            return Far(given.done, given.size, f"{step}{pace(given.done, given.size, began)}")

        await build(context.settings, context.progress).restores().undo()
        async with progress.following("restoring", far, quiet=screen.as_json):
            restored = await build(context.settings, context.progress).restores().restore(request, given.pieces(), tell)
    if screen.as_json:
        screen.json(dataclasses.asdict(restored))
        return 0
    screen.note(f"{len(restored.sessions)} sessions in {context.settings.data}")
    for session_id, why in restored.left_out.items():
        screen.note(f"it was without files when the backup was taken: {session_id}: {printable(why)}")
    return 0
