"""Destroy sessions: everything that runs in them ends, their files are removed."""

import argparse
import asyncio
import os
import sys

from sandlot.cli.context import Context
from sandlot.cli.screen import is_terminal, show_error
from sandlot.contracts import Host
from sandlot.model import InvalidArgument, SandlotError, SessionFilter, error_to_data, limits

USAGE = "kill ID... | --all"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("ids", metavar="ID", nargs="*", help="the sessions' ids")
    parser.add_argument("--all", action="store_true", help="every session of the data directory")
    parser.add_argument("--yes", action="store_true", help="do not ask before --all")


async def run(context: Context) -> int:
    args = context.args
    if args.all == bool(args.ids):
        raise InvalidArgument("give session ids, or --all", next_step="`sandlot ls` lists the ids")
    if args.all and not args.yes and (context.screen.as_json or not is_terminal(sys.stdin)):
        raise InvalidArgument("--all needs to be confirmed, and there is no terminal to ask on", next_step="add --yes")
    killed: list[str] = []
    errors: list[SandlotError] = []
    async with context.host() as host:
        ids = await _everything(host) if args.all else list(dict.fromkeys(args.ids))
        if args.all and ids and not args.yes and not await _confirmed(len(ids)):
            context.screen.note("nothing was destroyed")
            return 1
        for session_id in ids:
            try:
                await host.destroy(session_id)
                killed.append(session_id)
            except SandlotError as error:
                errors.append(error)
    return _report(context, killed, errors)


async def _everything(host: Host) -> list[str]:
    found: list[str] = []
    page = await host.list(SessionFilter(limit=limits.LIST_PAGE_MAX))
    while True:
        found += [session.session_id for session in page.sessions]
        if page.next is None:
            return found
        page = await host.list(SessionFilter(limit=limits.LIST_PAGE_MAX, after=page.next))


async def _confirmed(count: int) -> bool:
    what = "1 session and its files" if count == 1 else f"{count} sessions and their files"
    print(f"Destroy {what}? [y/N] ", end="", flush=True)
    # The loop goes on meanwhile, so that Ctrl-C is an answer too.
    loop, fd = asyncio.get_running_loop(), sys.stdin.fileno()
    answered: asyncio.Future[None] = loop.create_future()
    loop.add_reader(fd, lambda: answered.done() or answered.set_result(None))
    try:
        await answered
    finally:
        loop.remove_reader(fd)
    return os.read(fd, 1024).strip().lower() in {b"y", b"yes"}


def _report(context: Context, killed: list[str], errors: list[SandlotError]) -> int:
    if context.screen.as_json:
        trouble = [error_to_data(error) for error in errors]
        context.screen.json({"killed": killed} | ({"error": trouble[0], "errors": trouble} if trouble else {}))
    else:
        for session_id in killed:
            context.screen.line(session_id)
        for error in errors:
            show_error(error, as_json=False)
    if not errors:
        return 0
    return 2 if all(isinstance(error, InvalidArgument) for error in errors) else 125
