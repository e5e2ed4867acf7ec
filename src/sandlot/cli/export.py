"""Write a session into one file, with all of its turns.

The file is a compressed tar: `tar tzf` lists it, and `sandlot import` makes the session again, here or on another
machine. It is there whole or not at all. - is stdout. The session goes on meanwhile."""

import argparse
import sys
import time

from sandlot.cli import progress
from sandlot.cli.context import Context
from sandlot.cli.progress import Far, pace
from sandlot.cli.screen import is_terminal, printable, writing
from sandlot.cli.show import size_text
from sandlot.contracts import ExportStream
from sandlot.model import ExportRequest, InvalidArgument, Unavailable
from sandlot.sdk.whole_file import WholeFile

USAGE = "export ID FILE"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("id", metavar="ID", help="the session's id")
    parser.add_argument("file", metavar="FILE", help="what is written, or - for stdout")


async def run(context: Context) -> int:
    args, screen = context.args, context.screen
    is_standard = args.file == "-"
    if is_standard and (screen.as_json or is_terminal(sys.stdout)):
        raise InvalidArgument("an export is no text", next_step="give a file, or send it elsewhere with |")
    async with context.host() as host, host.export(ExportRequest(args.id)) as stream:
        size = await write(context, stream, args.file, "exporting")
    if screen.as_json:
        screen.json({"session": args.id, "file": args.file, "size_bytes": size})
    elif not is_standard:
        screen.note(f"{size_text(size)} in {printable(args.file)}")
    return 0


async def write(context: Context, stream: ExportStream, path: str, word: str) -> int:
    began, size = time.monotonic(), 0

    def far() -> Far:
        return Far(0, None, pace(size, None, began))

    async with progress.following(word, far, quiet=context.screen.as_json):
        if path == "-":
            async for piece in stream:
                size += len(piece)
                with writing("stdout"):
                    sys.stdout.buffer.write(piece)
            with writing("stdout"):
                sys.stdout.buffer.flush()
            return size
        try:
            with WholeFile(path) as file:
                async for piece in stream:
                    size += len(piece)
                    file.write(piece)
                file.commit()
        except OSError as error:
            if isinstance(error, Unavailable):
                raise
            raise Unavailable(f"{path} cannot be written: {error.strerror}") from error
    return size
