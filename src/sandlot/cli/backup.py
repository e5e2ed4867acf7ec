"""Write all that a host holds into one file: sessions with their turns, templates, volumes, keys.

Everything goes on meanwhile. The file is there whole or not at all, and `sandlot restore` makes a host of it. It holds
the variables of sessions: keep it as you keep secrets. - is stdout."""

import argparse
import json
import sys
import tarfile
from pathlib import Path
from typing import Any

from sandlot.cli.context import Context
from sandlot.cli.export import write
from sandlot.cli.screen import is_terminal, printable
from sandlot.cli.show import size_text
from sandlot.model import InvalidArgument

USAGE = "backup FILE"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE", help="what is written, or - for stdout")


async def run(context: Context) -> int:
    args, screen = context.args, context.screen
    is_standard = args.file == "-"
    if is_standard and (screen.as_json or is_terminal(sys.stdout)):
        raise InvalidArgument("a backup is no text", next_step="give a file, or send it elsewhere with |")
    async with context.host() as host, host.backup() as stream:
        size = await write(context, stream, args.file, "backing up")
    if is_standard:
        return 0
    told = _manifest(Path(args.file))
    counts = {name: len(told[name]) for name in ("sessions", "templates", "volumes")}
    if screen.as_json:
        screen.json({"file": args.file, "size_bytes": size, **counts, "left_out": told["left_out"]})
    else:
        words = ", ".join(f"{count} {name}" for name, count in counts.items() if count or name == "sessions")
        screen.note(f"{words}: {size_text(size)} in {printable(args.file)}")
        for session_id, why in told["left_out"].items():
            screen.note(f"left out: {session_id}: {printable(why)}")
    return 0


def _manifest(path: Path) -> Any:
    """The first that is in it, as any program reads it."""
    with tarfile.open(path, "r|gz") as archive:
        first = archive.next()
        file = archive.extractfile(first) if first else None
        return json.load(file) if file else {}
