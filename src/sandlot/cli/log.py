"""Show the history of a session as a tree: turns and snapshots, branches, and where its files are now."""

import argparse
import dataclasses
import time
from collections.abc import Callable, Iterator, Sequence

from sandlot.cli.context import Context
from sandlot.cli.show import ago
from sandlot.cli.turns import changes_words, turn_document
from sandlot.model import SessionInfo, Snapshot, Turn

USAGE = "log ID"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("id", metavar="ID", help="the session's id")


async def run(context: Context) -> int:
    async with context.host() as host:
        session = await host.get(context.args.id)
        snapshots = await host.list_snapshots(context.args.id)
        turns = await host.turns(context.args.id)
    screen = context.screen
    if screen.as_json:
        screen.json(
            {
                "session_id": session.session_id,
                "origin": session.origin,
                "head": session.head,
                "snapshots": [dataclasses.asdict(shot) for shot in snapshots],
                "turns": [turn_document(turn) for turn in turns],
            }
        )
        return 0
    about = {turn.snapshot: turn for turn in turns if turn.snapshot}
    screen.line(f"{session.session_id}  " + (f"forked from {session.origin}" if session.origin else session.template))
    for line in draw(session, snapshots, about, time.time()):
        screen.line(line)
    return 0


def draw(session: SessionInfo, snapshots: Sequence[Snapshot], turns: dict[str, Turn], now: float) -> Iterator[str]:
    """From the oldest down. The newest branch goes straight on; older ones stand to its right."""
    known = {shot.name for shot in snapshots}
    children: dict[str | None, list[Snapshot]] = {}
    for shot in snapshots:
        # What grew from something that is gone grew from the beginning.
        children.setdefault(shot.parent if shot.parent in known else None, []).append(shot)
    if session.head is None:
        yield "◉ now"
    yield from _line_down(
        children.get(None, []), children, lambda shot: _words(shot, turns.get(shot.name), session, now)
    )


def _line_down(
    starts: Sequence[Snapshot],
    children: dict[str | None, list[Snapshot]],
    words: Callable[[Snapshot], str],
    indent: str = "",
) -> Iterator[str]:
    while starts:
        *aside, straight = starts
        for branch in aside:
            yield f"{indent}├─╮"
            yield from _line_down([branch], children, words, indent + "│ ")
        yield indent + words(straight)
        starts = children.get(straight.name, [])


def _words(shot: Snapshot, turn: Turn | None, session: SessionInfo, now: float) -> str:
    here = session.head == shot.name
    words = ["◉" if here else "●", shot.name, f"{ago(now - shot.created)} ago"]
    if turn is not None:
        calls = "1 call" if len(turn.calls) == 1 else f"{len(turn.calls)} calls"
        words += [calls, changes_words(turn)]
    return "  ".join([*words, "← now" if here else ""]).rstrip()
