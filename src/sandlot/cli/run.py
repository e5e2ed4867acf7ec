"""Run one command in a session made for it, and destroy the session whatever happens."""

import argparse

from sandlot.cli.context import Context
from sandlot.cli.filling import fill_workspace
from sandlot.cli.options import (
    add_command_options,
    add_session_options,
    call_request,
    call_timeout,
    outliving,
    session_spec,
    workspace,
)
from sandlot.cli.stream import Collected, OwnStreams, converse, report, wants_stdin
from sandlot.contracts import Host
from sandlot.model import BUILTIN, InvalidArgument

USAGE = "run [options] [-- CMD...]"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_session_options(parser)
    add_command_options(parser)
    parser.add_argument(
        "--timeout", metavar="TIME", help="end the command after this: 90, 30s, 10m, 2h (default: none)"
    )


async def run(context: Context) -> int:
    args = context.args
    stdin = wants_stdin(interactive=args.interactive, tty=args.tty)
    spec, start = outliving(session_spec(args), call_timeout(args)), workspace(args)
    if args.command or args.template == BUILTIN:
        call_request(args, "checked-first", stdin=stdin)  # a wrong request is refused before a session is made for it
    sink = Collected() if args.json else OwnStreams()
    async with context.host() as host:
        if not args.command:
            args.command = await _of_image(host, args.template)
        async with context.passing_session(host, spec) as session:
            await fill_workspace(context, host, session, start)
            request = call_request(args, session.session_id, stdin=stdin)
            result = await converse(host, request, sink, context.interruption)
    return report(context.screen, session.session_id, result, sink)


async def _of_image(host: Host, template: str) -> list[str]:
    """What its image runs, as ENTRYPOINT and CMD say. Raises InvalidArgument."""
    told = await host.get_template(template)
    words = [*told.entrypoint, *told.command]
    if not words:
        raise InvalidArgument(
            f"the template {template} says no command to run", next_step="put one at the end: -- CMD ARGUMENT..."
        )
    return words
