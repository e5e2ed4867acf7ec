"""Print the secret that receivers of webhooks verify them with, or the addresses that are told.

Where events are told to is a setting of the server: SANDLOT_WEBHOOKS. The secret is made for a data directory when it
is first wanted, and stays; it has the form that libraries of Standard Webhooks take. Receivers of a tenant have one of
their own."""

import argparse
from collections.abc import Callable
from pathlib import Path

from sandlot import registry
from sandlot.cli.context import Context
from sandlot.config.service import load_service
from sandlot.model import check_tenant

USAGE = "webhook secret [--tenant TENANT] | webhook ls"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("action", metavar="WHAT", choices=("secret", "ls"), help="what to print")
    parser.add_argument("--tenant", metavar="TENANT", default="", help="the secret of the receivers of this tenant")


async def run(context: Context) -> int:
    screen = context.screen
    if context.args.action == "secret":
        tenant = check_tenant(context.args.tenant) if context.args.tenant else ""
        secret_of: Callable[[Path, str], str] = registry.load("server", "webhook-secret")
        secret = secret_of(context.settings.data, tenant)
        if screen.as_json:
            screen.json({"secret": secret})
        else:
            screen.line(secret)
        return 0
    config = load_service()
    kinds = sorted(kind.replace(" ", "_") for kind in config.webhook_events)
    if screen.as_json:
        screen.json({"webhooks": [str(url) for url in config.webhooks], "events": kinds})
        return 0
    for url in config.webhooks:
        screen.line(f"{url}  {', '.join(kinds) or 'all events'}")
    return 0
