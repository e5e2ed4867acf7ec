"""Print the address under which a port of a session is reached through the server.

It is good for a day, or for as long as --expires says, and for whoever has it."""

import argparse
import dataclasses

from sandlot.cli import values
from sandlot.cli.context import Context
from sandlot.cli.show import ago
from sandlot.model import InvalidArgument, PreviewRequest, limits

USAGE = "preview ID PORT [options]"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("id", metavar="ID", help="the session's id")
    parser.add_argument("port", metavar="PORT", help="what a program in the session listens on, on 127.0.0.1 or all")
    parser.add_argument("--expires", metavar="TIME", help="how long the address is good: 90, 10m, 2h (default: 24h)")
    public = parser.add_mutually_exclusive_group()
    public.add_argument("--public", action="store_true", help="let everybody in who reaches the server, from now on")
    public.add_argument("--private", action="store_true", help="let in only who has a token, from now on")
    parser.add_argument("--path", action="store_true", help="the address below the server's own, for programs")


async def run(context: Context) -> int:
    args, screen = context.args, context.screen
    expires_s = limits.PREVIEW_EXPIRES_S if args.expires is None else values.duration("--expires", args.expires)
    port = values.count("PORT", args.port)
    public = True if args.public else False if args.private else None
    request = PreviewRequest(args.id, port, expires_s, public)
    async with context.host() as host:
        preview = await host.preview_port(request)
    if screen.as_json:
        screen.json({**dataclasses.asdict(preview), "signed_url": preview.signed_url})
        return 0
    if args.path:
        if not preview.path_url:
            raise InvalidArgument("this server is not reached by an address of its own")
        preview = dataclasses.replace(preview, url="")
    screen.line(preview.signed_url)
    screen.note("it is public" if preview.public else f"good for {ago(expires_s)}, for whoever has it")
    return 0
