"""Make a session from a file that `sandlot export` wrote.

It has the id that it had, or another one, on any storage, with all of its turns. It is made whole or not at all;
nothing in the file is believed. - is stdin."""

# ruff: noqa: N999 - it is called for its verb, and loaded by name

import argparse
import time
from contextlib import ExitStack

from sandlot.cli import progress, values
from sandlot.cli.context import Context
from sandlot.cli.given_file import GivenFile
from sandlot.cli.progress import Far, pace
from sandlot.cli.show import session_document
from sandlot.model import AUTO, ImportRequest, limits

USAGE = "import FILE"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE", help="what was written, or - for stdin")
    parser.add_argument("--id", metavar="ID", help="the session's id (default: the one that it had)")
    parser.add_argument("--storage", metavar="NAME", default=AUTO, help="how its files are kept (default: auto)")
    parser.add_argument("--runtime", metavar="NAME", default=AUTO, help="how it is contained (default: auto)")
    parser.add_argument("--template", metavar="NAME", help="take this one, as it is here (default: the one it had)")
    parser.add_argument("--timeout", metavar="TIME", help="how long it lives: 90, 30s, 10m, 2h (default: 24h)")


async def run(context: Context) -> int:
    args = context.args
    request = ImportRequest(
        args.id,
        args.storage,
        args.runtime,
        args.template,
        limits.SESSION_LIFETIME_S if args.timeout is None else values.duration("--timeout", args.timeout),
    )
    with ExitStack() as stack:
        given, began = GivenFile(args.file, stack), time.monotonic()

        def far() -> Far:
            return Far(given.done, given.size, pace(given.done, given.size, began))

        async with (
            context.host() as host,
            progress.following("importing", far, quiet=context.screen.as_json),
        ):
            session = await host.import_session(request, given.pieces())
    if context.screen.as_json:
        context.screen.json(session_document(session))
    else:
        context.screen.line(session.session_id)
    return 0
