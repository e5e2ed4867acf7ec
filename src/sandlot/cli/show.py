"""Tell all about one session and its calls. Also how a session reads as text and as a document, wherever it shows."""

import argparse
import dataclasses
import shlex
import time
from collections.abc import Mapping
from datetime import UTC, datetime

from sandlot.cli.context import Context
from sandlot.cli.screen import decoded, printable
from sandlot.model import CallRecord, SessionInfo

USAGE = "show ID"
_CALLS_SHOWN = 20
_COMMAND_CHARS = 60


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("id", metavar="ID", help="the session's id")


async def run(context: Context) -> int:
    async with context.host() as host:
        session = await host.get(context.args.id)
        calls = await host.calls(session.session_id)
    screen = context.screen
    if screen.as_json:
        screen.json({**session_document(session), "calls": [_call_document(call) for call in calls]})
        return 0
    for name, value in _facts(session, time.time()):
        screen.line(f"{name:<10} {printable(value)}")
    if calls:
        screen.line()
        if len(calls) > _CALLS_SHOWN:
            screen.line(f"the last {_CALLS_SHOWN} of {len(calls)} calls:")
        heads = ("CALL", "STATE", "EXIT", "TIME", "COMMAND")
        screen.table(heads, [_call_row(call) for call in calls[-_CALLS_SHOWN:]], numbers=(2, 3))
    return 0


def _facts(session: SessionInfo, now: float) -> list[tuple[str, str]]:
    reason = f" ({session.reason})" if session.reason else ""
    reason += ", its memory is on disk" if session.sleeps else ""
    return [
        ("id", session.session_id),
        ("state", f"{session.state}{reason}"),
        ("created", f"{_moment(session.created)} ({ago(now - session.created)} ago)"),
        ("expires", f"{_moment(session.expires)} (in {ago(session.expires - now)}), then {session.on_expiry}"),
        ("idle", "never paused" if session.idle_timeout_s is None else f"paused after {ago(session.idle_timeout_s)}"),
        ("template", session.template),
        ("runtime", session.runtime),
        ("storage", session.storage),
        ("workspace", session.workspace),
        ("space", "not measured" if session.space_used is None else size_text(session.space_used)),
        ("volumes", mounts_text(session) or "none"),
        ("limits", limits_text(session)),
        ("started", session.start_call or "nothing"),
        ("labels", labels_text(session.labels) or "none"),
    ]


def _call_row(call: CallRecord) -> tuple[str, ...]:
    command = shlex.join(call.argv)
    result = call.result
    return (
        call.call_id,
        call.state,
        str(result.exit_code) if result else "",
        f"{result.duration_s:.3f} s" if result else "",
        command if len(command) <= _COMMAND_CHARS else command[: _COMMAND_CHARS - 1] + "…",
    )


def _call_document(call: CallRecord) -> dict[str, object]:
    result = dataclasses.asdict(call.result) | {"reason": decoded(call.result.reason)} if call.result else None
    return {
        "call_id": call.call_id,
        "argv": [decoded(word) for word in call.argv],
        "state": call.state,
        "started": call.started,
        "result": result,
    }


def session_document(session: SessionInfo) -> dict[str, object]:
    return dataclasses.asdict(session)


def limits_text(session: SessionInfo) -> str:
    held = {
        name: size_text(value) if name.endswith("_bytes") else f"{value:g}"
        for name, value in session.resources.to_data().items()
    }
    if session.history_counts:
        held["disk_bytes"] += " (history counts)"
    told = [f"{name.removesuffix('_bytes')}={value}" for name, value in held.items()]
    return " ".join((*told, *(f"{name}=not enforceable here" for name in session.unlimited))) or "none"


def mounts_text(session: SessionInfo) -> str:
    return " ".join(f"{mount.source}:{mount.target}{':ro' if mount.read_only else ''}" for mount in session.mounts)


def labels_text(labels: Mapping[str, str]) -> str:
    return " ".join(f"{key}={value}" for key, value in sorted(labels.items()))


def ago(seconds: float) -> str:
    """A length of time in its largest unit; what is past the end is 0s."""
    whole = max(0, int(seconds))
    for unit, length in (("d", 86400), ("h", 3600), ("m", 60)):
        if whole >= 2 * length:
            return f"{whole // length}{unit}"
    return f"{whole}s"


def size_text(size_bytes: float) -> str:
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if size_bytes < 1024:
            return f"{size_bytes:.0f} {unit}" if unit == "bytes" else f"{size_bytes:.1f} {unit}"
        size_bytes /= 1024
    return f"{size_bytes:.1f} TiB"


def _moment(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
