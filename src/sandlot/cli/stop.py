"""End a process of a session and all that descends from it, or send it a signal; `kill` destroys sessions."""

import argparse
import signal as signals

from sandlot.cli.context import Context
from sandlot.cli.ps import tell
from sandlot.model import InvalidArgument

USAGE = "stop [--signal SIGNAL] ID PROCESS"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--signal", metavar="SIGNAL", help="send this one alone, and do not wait: HUP, USR1, 9")
    parser.add_argument("id", metavar="ID", help="the session's id")
    parser.add_argument("process", metavar="PROCESS", help="the process's id or name")


async def run(context: Context) -> int:
    args = context.args
    number = None if args.signal is None else _number(args.signal)
    async with context.host() as host:
        process = await host.kill_process(args.id, args.process, number)
    if context.screen.as_json:
        tell(context, process)
    else:
        context.screen.line(process.process_id)
    return 0


def _number(text: str) -> int:
    """Raises InvalidArgument."""
    name = text.upper()
    try:
        return int(text) if text.isdigit() else signals.Signals[name if name.startswith("SIG") else f"SIG{name}"]
    except KeyError:
        raise InvalidArgument(f"--signal: {text[:40]!r} is no signal", next_step="give a name or a number") from None
