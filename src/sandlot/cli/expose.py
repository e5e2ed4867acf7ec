"""Give a port of a session an address on the host, list them, or take one away with --off.

The address answers as long as an engine runs: see `sandlot serve`. `sandlot forward` needs none."""

import argparse
import dataclasses

from sandlot.cli import values
from sandlot.cli.context import Context
from sandlot.cli.ps import ALONE, is_alone
from sandlot.model import ExposedPort, ExposeRequest, InvalidArgument

USAGE = "expose [options] ID PORT | ID --list"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--list", action="store_true", help="tell those that are exposed, those of processes included")
    parser.add_argument("--off", action="store_true", help="take the address away; connections through it end")
    parser.add_argument("--host-port", metavar="N", help="this port of the host (default: one that is free)")
    parser.add_argument("id", metavar="ID", help="the session's id")
    parser.add_argument("port", metavar="PORT", nargs="?", help="inside the session")


async def run(context: Context) -> int:
    args, screen = context.args, context.screen
    if args.list == (args.port is not None):
        raise InvalidArgument("give a port, or --list")
    if args.off and (args.list or args.host_port):
        raise InvalidArgument("--off goes with a port alone")
    if args.list:
        return await _list(context)
    port = values.count("PORT", args.port)
    async with context.host() as host:
        if args.off:
            await host.unexpose_port(args.id, port)
            screen.json({"removed": port}) if screen.as_json else screen.line(str(port))
            return 0
        host_port = None if args.host_port is None else values.count("--host-port", args.host_port)
        exposed = await host.expose_port(ExposeRequest(args.id, port, host_port))
        alone = is_alone(host)
    screen.json(_document(exposed)) if screen.as_json else screen.line(exposed.address)
    if alone:
        screen.note(ALONE)
    return 0


async def _list(context: Context) -> int:
    async with context.host() as host:
        ports = await host.list_ports(context.args.id)
    if context.screen.as_json:
        context.screen.json({"ports": [_document(one) for one in ports]})
    else:
        rows = [(str(one.port), one.address or "-", one.process_id or "-", str(one.connections)) for one in ports]
        context.screen.table(("PORT", "ADDRESS", "PROCESS", "CONNECTIONS"), rows, numbers=(0, 3))
    return 0


def _document(exposed: ExposedPort) -> dict[str, object]:
    return dataclasses.asdict(exposed)
