"""List the processes of a session, or tell all about one."""

import argparse
import dataclasses
import time
from typing import cast

from sandlot.cli.context import Context
from sandlot.cli.screen import printable
from sandlot.cli.show import ago
from sandlot.contracts import Host
from sandlot.model import Process

USAGE = "ps ID [PROCESS]"
ALONE = "nobody answers there until an engine runs: `sandlot serve`, or use `sandlot forward`"
_HEADS = ("PROCESS", "NAME", "STATE", "EXIT", "PID", "RESTARTS", "AGE", "ADDRESS", "PROGRAM")
_PROGRAM_CHARS = 60


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("id", metavar="ID", help="the session's id")
    parser.add_argument("process", metavar="PROCESS", nargs="?", help="one by its id or its name")


async def run(context: Context) -> int:
    args, screen = context.args, context.screen
    async with context.host() as host:
        if args.process is not None:
            tell(context, await host.process_status(args.id, args.process))
            return 0
        processes = await host.list_processes(args.id)
    if screen.as_json:
        screen.json({"processes": [document(process) for process in processes]})
    elif processes or not screen.is_terminal:
        screen.table(_HEADS, [_row(process, time.time()) for process in processes], numbers=(3, 4, 5))
    else:
        screen.line(f"no processes; `sandlot launch {args.id} -- CMD...` begins one")
    return 0


def tell(context: Context, process: Process) -> None:
    """One of them, as every verb that changes one does."""
    if context.screen.as_json:
        context.screen.json(document(process))
        return
    for name, value in document(process).items():
        if value not in (None, "", ()):
            context.screen.line(f"{name:<14} {printable(_text(value))}")


def is_alone(host: Host) -> bool:
    """Whether the engine ends with this command; then nobody answers at the addresses of ports until another one
    runs."""
    return hasattr(host, "probes")


def document(process: Process) -> dict[str, object]:
    return dataclasses.asdict(process)


def _text(value: object) -> str:
    return " ".join(cast("tuple[str, ...]", value)) if isinstance(value, tuple) else str(value)


def _row(process: Process, now: float) -> tuple[str, ...]:
    return (
        process.process_id,
        process.name or "-",
        process.state,
        "-" if process.exit_code is None else str(process.exit_code),
        "-" if process.pid is None else str(process.pid),
        str(process.restarts),
        ago(now - process.started),
        process.address or "-",
        printable(" ".join(process.argv))[:_PROGRAM_CHARS],
    )
