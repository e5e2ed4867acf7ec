"""Make new sessions that begin with the files of a session: of a snapshot or a turn, or of now."""

import argparse

from sandlot.cli import values
from sandlot.cli.context import Context
from sandlot.cli.show import session_document
from sandlot.model import ForkRequest, limits

USAGE = "fork ID [AT]"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("id", metavar="ID", help="the session's id")
    parser.add_argument("at", metavar="AT", nargs="?", help="a snapshot, or the number of a turn (default: now)")
    parser.add_argument("--count", metavar="N", default="1", help="how many (default: 1)")
    parser.add_argument("--label", metavar="KEY=VALUE", action="append", help="instead of those of the session")
    parser.add_argument("--timeout", metavar="TIME", help="how long they live: 90, 30s, 10m, 2h (default: 24h)")
    parser.add_argument("--with-memory", action="store_true", help="with what ran there; AT must have it")
    parser.add_argument("--request-id", metavar="ID", help="a repeated one gives the first answer")


async def run(context: Context) -> int:
    args = context.args
    request = ForkRequest(
        session_id=args.id,
        at=args.at,
        count=values.count("--count", args.count),
        labels=None if args.label is None else values.pairs("--label", args.label),
        timeout_s=limits.SESSION_LIFETIME_S if args.timeout is None else values.duration("--timeout", args.timeout),
        request_id=args.request_id,
        memory=args.with_memory,
    )
    async with context.host() as host:
        made = await host.fork(request)
    if context.screen.as_json:
        context.screen.json({"sessions": [session_document(session) for session in made]})
        return 0
    for session in made:
        context.screen.line(session.session_id)
    return 0
