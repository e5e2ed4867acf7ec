"""Make a session from a file that `sandlot export` wrote.

It has the id that it had, or another one, on any storage, with all of its turns. It is made whole or not at all;
nothing in the file is believed. - is stdin."""

# ruff: noqa: N999 - it is called for its verb, and loaded by name

import argparse
import asyncio
import sys
import time
from collections.abc import AsyncIterator
from contextlib import ExitStack
from pathlib import Path
from typing import BinaryIO

from sandlot.cli import progress, values
from sandlot.cli.context import Context
from sandlot.cli.progress import Far, pace
from sandlot.cli.show import session_document
from sandlot.model import AUTO, ImportRequest, InvalidArgument, limits

USAGE = "import FILE"
_PIECE_BYTES = 1 << 18


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
        file, size = _open(args.file, stack)
        began, done = time.monotonic(), 0

        async def pieces() -> AsyncIterator[bytes]:
            nonlocal done
            while piece := await asyncio.to_thread(file.read, _PIECE_BYTES):
                done += len(piece)
                yield piece

        async with (
            context.host() as host,
            progress.following(
                "importing", lambda: Far(done, size, pace(done, size, began)), quiet=context.screen.as_json
            ),
        ):
            session = await host.import_session(request, pieces())
    if context.screen.as_json:
        context.screen.json(session_document(session))
    else:
        context.screen.line(session.session_id)
    return 0


def _open(path: str, stack: ExitStack) -> tuple[BinaryIO, int | None]:
    if path == "-":
        return sys.stdin.buffer, None
    try:
        file = Path(path).open("rb")  # noqa: SIM115 - the stack closes it
    except OSError as error:
        raise InvalidArgument(f"{path} cannot be read: {error.strerror}") from error
    return stack.enter_context(file), Path(path).stat().st_size
