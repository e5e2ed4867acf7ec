"""Empty a host: no new sessions, and those that are there end, are paused or move to another host.

The host is cordoned and stays so. Without --pause and --to it is waited for sessions to end by themselves. What is
left when the time is up is told with the reason, and the exit code is 1; run again, it goes on. A session that is moved
stands still meanwhile, keeps its id and its turns, and what ran in it ends."""

import argparse
import dataclasses
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

from sandlot import registry
from sandlot.cli import progress, values
from sandlot.cli.context import Context
from sandlot.cli.progress import Far
from sandlot.cli.screen import Screen, printable
from sandlot.cli.show import ago
from sandlot.config.remote import load_remote
from sandlot.contracts import Host
from sandlot.model import Drained, InvalidArgument, limits
from sandlot.sdk.draining import drain

USAGE = "drain [options]"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--reason", metavar="TEXT", default="", help="told to whoever asks for a session")
    parser.add_argument("--timeout", metavar="TIME", help="how long it may take: 30s, 10m, 2h (default: 10m)")
    parser.add_argument("--pause", action="store_true", help="pause them; their commands have the time to end first")
    parser.add_argument("--with-memory", action="store_true", help="with --pause: keep what runs on disk")
    parser.add_argument("--to", metavar="URL", help="move them to the server there")
    parser.add_argument("--to-key", metavar="FILE", help="a file with the API key for that server")


async def run(context: Context) -> int:
    args = context.args
    if args.to and args.pause:
        raise InvalidArgument("--pause and --to are two ways", next_step="give one of them")
    if (args.with_memory and not args.pause) or (args.to_key and not args.to):
        raise InvalidArgument("--with-memory is for --pause, and --to-key for --to", next_step="give both")
    timeout_s = limits.HOST_DRAIN_S if args.timeout is None else values.duration("--timeout", args.timeout)
    began, told = time.monotonic(), Drained(0)

    def far() -> Far:
        done = told.sessions - len(told.left)
        return Far(done, told.sessions, f"{done} of {told.sessions} sessions, {ago(time.monotonic() - began)}")

    async with _elsewhere(context) as to, context.host() as host:
        steps = drain(host, args.reason, timeout_s, pause=args.pause, memory=args.with_memory, to=to)
        async with progress.following("draining", far, quiet=context.screen.as_json):
            async for told in steps:  # noqa: B007 - the line that shows it looks at it
                pass
    if context.screen.as_json:
        context.screen.json(dataclasses.asdict(told) | {"empty": told.is_empty})
    else:
        _show(context.screen, told)
    return 0 if told.is_empty else 1


@asynccontextmanager
async def _elsewhere(context: Context) -> AsyncGenerator[Host | None]:
    if not context.args.to:
        yield None
        return
    remote = load_remote(context.args.to, _key(context.args.to_key))
    assert remote is not None
    client = registry.load("host", "client")(remote.url, api_key=remote.api_key)
    try:
        yield client
    finally:
        with context.interruption.held_off():
            await client.aclose()


def _key(path: str | None) -> str | None:
    if path is None:
        return None
    try:
        return Path(path).read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidArgument(f"--to-key {path} cannot be read: {error}") from error


def _show(screen: Screen, told: Drained) -> None:
    parts = (("ended", told.ended), ("paused", told.paused), ("moved", told.moved), ("left", told.left))
    counts = ", ".join(f"{len(ids)} {word}" for word, ids in parts if ids)
    screen.note(f"{told.sessions} session{'s' * (told.sessions != 1)}" + (f": {counts}" if counts else ""))
    for one in told.left:
        screen.line(f"{one.session_id}  {one.state}  {printable(one.why)}")
    screen.note("nothing runs here any more" if told.is_empty else "run it again to go on")
