"""Show what two points of a session do not have in common: snapshots, turns, or the files as they are now."""

import argparse
import dataclasses
import sys

from sandlot.cli.context import Context
from sandlot.cli.screen import printable, writing
from sandlot.model import CURRENT, Change, ChangeKind, DiffRequest

USAGE = "diff ID OLD [NEW]"
_SIGNS = {ChangeKind.ADDED: ("+", "ok"), ChangeKind.CHANGED: ("~", "note"), ChangeKind.REMOVED: ("-", "missing")}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("id", metavar="ID", help="the session's id")
    parser.add_argument("old", metavar="OLD", help="a snapshot, or the number of a turn")
    parser.add_argument("new", metavar="NEW", nargs="?", default=CURRENT, help="the same (default: now)")
    parser.add_argument(
        "--below", metavar="PATH", help="only what lies there (default: everything; --patch: workspace)"
    )
    parser.add_argument("--patch", action="store_true", help="as a patch that `git apply` takes")


async def run(context: Context) -> int:
    args, screen = context.args, context.screen
    found: list[Change] = []
    async with context.host() as host:
        below = args.below or ((await host.get(args.id)).workspace if args.patch else "/")
        request = DiffRequest(args.id, args.old, args.new, below, args.patch)
        async with host.diff(request) as batches:
            async for batch in batches:
                if screen.as_json:
                    found += batch
                else:
                    for change in batch:
                        _tell(context, change, patch=args.patch)
    if screen.as_json:
        screen.json({"changes": [_document(change) for change in found]})
    return 0


def _tell(context: Context, change: Change, *, patch: bool) -> None:
    if patch:
        # Bytes as they are: a patch that was made readable would not apply.
        with writing("stdout"):
            sys.stdout.buffer.write(change.patch.encode("utf-8", "surrogateescape"))
            sys.stdout.buffer.flush()
        return
    sign, style = _SIGNS[change.kind]
    slash = "/" if change.what == "directory" else ""
    modes = (
        ""
        if change.mode is None or change.old_mode in (None, change.mode)
        else f"  {change.old_mode:o} → {change.mode:o}"
    )
    context.screen.line(f"{context.screen.mark(sign, style)} {printable(change.path)}{slash}{modes}")


def _document(change: Change) -> dict[str, object]:
    return dataclasses.asdict(change)
