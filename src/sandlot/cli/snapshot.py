"""Take a snapshot of a session's files under a name, list them, or delete one."""

import argparse
import dataclasses
import time

from sandlot.cli.context import Context
from sandlot.cli.show import ago, size_text
from sandlot.model import InvalidArgument, Snapshot, SnapshotRequest

USAGE = "snapshot ID NAME | snapshot ID --list | snapshot ID --delete NAME"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("id", metavar="ID", help="the session's id")
    parser.add_argument("name", metavar="NAME", nargs="?", help="what it is called")
    parser.add_argument("--list", action="store_true", help="show those that are there")
    parser.add_argument("--delete", metavar="NAME", help="remove one; what others need of it stays")
    parser.add_argument("--with-memory", action="store_true", help="with what runs, which stands still meanwhile")
    parser.add_argument("--request-id", metavar="ID", help="a repeated one gives the first answer")


async def run(context: Context) -> int:
    args = context.args
    if sum((args.name is not None, args.list, args.delete is not None)) != 1:
        raise InvalidArgument("give a name, --list, or --delete with a name", next_step=f"usage: sandlot {USAGE}")
    async with context.host() as host:
        if args.list:
            return _show(context, list(await host.list_snapshots(args.id)))
        if args.delete is not None:
            await host.delete_snapshot(args.id, args.delete)
            if context.screen.as_json:
                context.screen.json({"deleted": args.delete})
            return 0
        taken = await host.create_snapshot(SnapshotRequest(args.id, args.name, args.request_id, args.with_memory))
    if context.screen.as_json:
        context.screen.json(dataclasses.asdict(taken))
    else:
        context.screen.line(taken.name)
    return 0


def _show(context: Context, snapshots: list[Snapshot]) -> int:
    if context.screen.as_json:
        context.screen.json({"snapshots": [dataclasses.asdict(snapshot) for snapshot in snapshots]})
        return 0
    rows = [
        (
            shot.name,
            f"{shot.kind}, memory" if shot.memory else shot.kind,
            f"{ago(time.time() - shot.created)} ago",
            shot.parent or "the template",
            "" if shot.space_bytes is None else size_text(shot.space_bytes),
        )
        for shot in snapshots
    ]
    context.screen.table(("NAME", "KIND", "AGE", "GREW FROM", "SPACE"), rows, numbers=(4,))
    return 0
