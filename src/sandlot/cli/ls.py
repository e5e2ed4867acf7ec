"""List sessions, oldest first."""

import argparse
import time

from sandlot.cli import values
from sandlot.cli.context import Context
from sandlot.cli.show import ago, labels_text, session_document
from sandlot.model import InvalidArgument, SessionFilter, SessionInfo, SessionState, limits

USAGE = "ls [options]"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    states = ", ".join(SessionState)
    parser.add_argument("--label", metavar="KEY=VALUE", action="append", default=[], help="all given ones must match")
    parser.add_argument("--state", metavar="STATE", action="append", default=[], help=f"any given one: {states}")
    parser.add_argument("--limit", metavar="N", help=f"at most so many (default: {limits.LIST_PAGE_DEFAULT})")
    parser.add_argument("--after", metavar="CURSOR", help="go on where the page before ended")


def query(args: argparse.Namespace) -> SessionFilter:
    """Raises InvalidArgument."""
    unknown = [state for state in args.state if state not in set(SessionState)]
    if unknown:
        raise InvalidArgument(
            f"--state: {unknown[0]!r} is not a state", next_step=f"use one of: {', '.join(SessionState)}"
        )
    return SessionFilter(
        labels=values.pairs("--label", args.label),
        states=frozenset(map(SessionState, args.state)),
        limit=limits.LIST_PAGE_DEFAULT if args.limit is None else values.count("--limit", args.limit),
        after=args.after,
    )


async def run(context: Context) -> int:
    asked = query(context.args)
    async with context.host() as host:
        page = await host.list(asked)
    screen = context.screen
    if screen.as_json:
        screen.json({"sessions": [session_document(session) for session in page.sessions], "next": page.next})
        return 0
    if page.sessions or not screen.is_terminal:
        heads = ("ID", "STATE", "AGE", "EXPIRES", "RUNTIME", "STORAGE", "LABELS")
        screen.table(heads, [_row(session, time.time()) for session in page.sessions])
    else:
        screen.line("no sessions; make one with `sandlot create`")
    if page.next:
        screen.note(f"there are more: sandlot ls --after {page.next}")
    return 0


def _row(session: SessionInfo, now: float) -> tuple[str, ...]:
    return (
        session.session_id,
        session.state,
        ago(now - session.created),
        ago(session.expires - now),
        session.runtime,
        session.storage,
        labels_text(session.labels),
    )
