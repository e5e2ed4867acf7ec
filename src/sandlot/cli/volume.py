"""Directories with names that outlive sessions: make one, list them, show one, or remove one.

`sandlot volume create cache --shared`, then `sandlot create --volume cache:/cache`. A volume is outside of snapshots: a
rollback does not touch it, and forks have the same one. Without --shared one session at a time has it."""

import argparse
import dataclasses
import time
from collections.abc import Sequence

from sandlot.cli.context import Context
from sandlot.cli.show import ago, size_text
from sandlot.model import InvalidArgument, VolumeInfo, VolumeSpec

USAGE = "volume create NAME [--shared] | volume ls | volume show NAME | volume rm NAME"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("action", metavar="WHAT", choices=("create", "ls", "show", "rm"), help="create, ls, show or rm")
    parser.add_argument("name", metavar="NAME", nargs="?", help="of the volume")
    parser.add_argument("--shared", action="store_true", help="several sessions may have it at once")


async def run(context: Context) -> int:
    args, screen = context.args, context.screen
    if (args.name is None) != (args.action == "ls"):
        raise InvalidArgument("create, show and rm take a name, ls takes none", next_step=f"usage: sandlot {USAGE}")
    spec = VolumeSpec(args.name or "checked-first", args.shared)
    async with context.host() as host:
        if args.action == "rm":
            await host.remove_volume(args.name)
            if screen.as_json:
                screen.json({"removed": args.name})
            return 0
        if args.action == "ls":
            return _list(context, await host.list_volumes())
        info = await (host.create_volume(spec) if args.action == "create" else host.get_volume(args.name))
    if screen.as_json:
        screen.json(dataclasses.asdict(info))
    elif args.action == "create":
        screen.line(info.name)
    else:
        for name, value in (*zip(_HEADS, _row(info), strict=True), ("SPACE", size_text(info.space_used or 0))):
            screen.line(f"{name.lower():<10} {value}")
    return 0


_HEADS = ("NAME", "KIND", "AGE", "USED BY")


def _row(info: VolumeInfo) -> tuple[str, ...]:
    kind = "shared" if info.shared else "private"
    return info.name, kind, f"{ago(time.time() - info.created)} ago", " ".join(info.used_by) or "nobody"


def _list(context: Context, volumes: Sequence[VolumeInfo]) -> int:
    if context.screen.as_json:
        context.screen.json({"volumes": [dataclasses.asdict(info) for info in volumes]})
    else:
        context.screen.table(_HEADS, [_row(info) for info in volumes])
    return 0
