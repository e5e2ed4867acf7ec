"""Set labels of a session, and take others away with KEY-; all others stay."""

import argparse

from sandlot.cli import values
from sandlot.cli.context import Context
from sandlot.cli.show import session_document
from sandlot.model import RelabelRequest

USAGE = "label ID KEY=VALUE|KEY- ..."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("id", metavar="ID", help="the session's id")
    parser.add_argument("labels", metavar="LABEL", nargs="+", help="KEY=VALUE sets one, KEY- takes one away")


async def run(context: Context) -> int:
    given: list[str] = context.args.labels
    removed = [each[:-1] for each in given if "=" not in each and each.endswith("-")]
    labels = values.pairs("LABEL", [each for each in given if "=" in each or not each.endswith("-")])
    request = RelabelRequest(context.args.id, labels, tuple(removed))
    async with context.host() as host:
        session = await host.relabel(request)
    if context.screen.as_json:
        context.screen.json(session_document(session))
    else:
        told = " ".join(f"{key}={value}" for key, value in sorted(session.labels.items()))
        context.screen.note(f"{session.session_id} has {told or 'no labels'}")
    return 0
