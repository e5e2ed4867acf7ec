"""Show what a process has printed, and go on with -f until it has ended."""

import argparse
import base64
import json
import sys

from sandlot.cli import values
from sandlot.cli.context import Context
from sandlot.cli.stream import OwnStreams
from sandlot.model import InvalidArgument, ProcessLogs, ProcessOutput

USAGE = "logs [-f] [options] ID PROCESS"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-f", "--follow", action="store_true", help="wait for more, until the process has ended")
    parser.add_argument("--tail", metavar="SIZE", help="begin so many bytes before the end of each stream: 4k, 1m")
    parser.add_argument("--stdout", action="store_true", help="only what it printed on stdout")
    parser.add_argument("--stderr", action="store_true", help="only what it printed on stderr")
    parser.add_argument("id", metavar="ID", help="the session's id")
    parser.add_argument("process", metavar="PROCESS", help="the process's id or name")


async def run(context: Context) -> int:
    args, screen = context.args, context.screen
    if args.stdout and args.stderr:
        raise InvalidArgument("--stdout and --stderr leave nothing", next_step="give one of them, or none")
    start = -values.size("--tail", args.tail) if args.tail else 0
    request = ProcessLogs(
        args.id, args.process, None if args.stderr else start, None if args.stdout else start, args.follow
    )
    streams = OwnStreams()
    async with context.host() as host, host.process_logs(request) as logs:
        async for piece in logs:
            if screen.as_json:  # one document a line, so that a reader need not wait for an end that does not come
                screen.line(json.dumps(_document(piece)))
                sys.stdout.flush()
                continue
            if piece.lost:
                screen.note(f"{piece.lost} bytes of {piece.stream} are not kept any more")
            await streams.write(piece.stream, piece.data)
    return 0


def _document(piece: ProcessOutput) -> dict[str, object]:
    told: dict[str, object] = {"stream": piece.stream, "offset": piece.offset, "lost": piece.lost}
    try:
        return told | {"data": piece.data.decode()}
    except UnicodeDecodeError:
        return told | {"data_base64": base64.b64encode(piece.data).decode()}
