"""Make a session that lives on when the program has ended, and print its id."""

import argparse

from sandlot.cli.context import Context
from sandlot.cli.filling import fill_workspace
from sandlot.cli.options import add_session_options, session_spec, workspace
from sandlot.cli.show import session_document

USAGE = "create [options]"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_session_options(parser)
    parser.add_argument("--timeout", metavar="TIME", help="how long it lives: 90, 30s, 10m, 2h (default: 24h)")


async def run(context: Context) -> int:
    spec, start = session_spec(context.args), workspace(context.args)
    async with context.host() as host:
        session = await host.create(spec)
        await fill_workspace(context, host, session, start)
    if context.screen.as_json:
        context.screen.json(session_document(session))
    else:
        context.screen.line(session.session_id)
    return 0
