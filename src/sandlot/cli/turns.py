"""List the turns of a session: their calls, and what changed. Also how a turn reads, wherever it shows."""

import argparse
import dataclasses
import shlex

from sandlot.cli.context import Context
from sandlot.cli.screen import decoded
from sandlot.cli.show import size_text
from sandlot.model import CallRecord, Turn

USAGE = "turns ID"
_COMMANDS_CHARS = 70


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("id", metavar="ID", help="the session's id")


async def run(context: Context) -> int:
    async with context.host() as host:
        turns = await host.turns(context.args.id)
    if context.screen.as_json:
        context.screen.json({"turns": [turn_document(turn) for turn in turns]})
        return 0
    heads = ("TURN", "SNAPSHOT", "CALLS", "FAILED", "CHANGES", "SPACE", "LAST COMMANDS")
    context.screen.table(heads, [_row(turn) for turn in turns], numbers=(0, 2, 3, 5))
    return 0


def _row(turn: Turn) -> tuple[str, ...]:
    failed = sum(1 for call in turn.calls if call.result and call.result.exit_code)
    commands = "; ".join(shlex.join(call.argv) for call in turn.calls[-3:])
    return (
        str(turn.number),
        turn.snapshot or "none",
        str(len(turn.calls)),
        str(failed),
        changes_words(turn),
        "" if turn.space_bytes is None else size_text(turn.space_bytes),
        commands if len(commands) <= _COMMANDS_CHARS else "…" + commands[-_COMMANDS_CHARS + 1 :],
    )


def changes_words(turn: Turn) -> str:
    if turn.changes is None:
        return "not counted"
    return f"+{turn.changes.added} ~{turn.changes.changed} -{turn.changes.removed}"


def turn_words(turn: Turn) -> str:
    calls = "1 call" if len(turn.calls) == 1 else f"{len(turn.calls)} calls"
    return f"turn {turn.number} closed, with {calls}" + ("" if turn.snapshot else "; this storage has no snapshots")


def turn_document(turn: Turn) -> dict[str, object]:
    return {**dataclasses.asdict(turn), "calls": [_call(call) for call in turn.calls]}


def _call(call: CallRecord) -> dict[str, object]:
    result = call.result
    return {
        "call_id": call.call_id,
        "argv": [decoded(word) for word in call.argv],
        "state": call.state,
        "started": call.started,
        "exit_code": result.exit_code if result else None,
        "duration_s": result.duration_s if result else None,
    }
