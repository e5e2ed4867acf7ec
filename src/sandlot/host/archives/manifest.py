"""What an export tells of a session beside its files: what was asked for it, its snapshots, turns and calls."""

import base64
import binascii
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, cast

from sandlot.host.archives.reading import as_document, damaged
from sandlot.host.archives.writing import FORMAT, VERSION
from sandlot.host.history import SnapshotRow, TurnRow
from sandlot.host.journal import CallRow, SessionRow
from sandlot.host.wishes import Wishes
from sandlot.model import (
    CallRecord,
    CallResult,
    CallState,
    ChangeCounts,
    InvalidArgument,
    LimitHit,
    OnExpiry,
    Resources,
    SandlotError,
    SessionSpec,
    SnapshotKind,
    check_id,
    check_session_id,
    check_template,
    limits,
)

NOW = "now"  # the section of the files as they were last
_CALLS_BYTES = 1 << 22  # of one member that tells of calls
_TEXT_MAX = 1 << 16
_TURN_CHANGES = ("added", "changed", "removed")


@dataclass(frozen=True, slots=True)
class Manifest:
    """All of it, checked."""

    session_id: str
    wishes: Wishes
    template: str
    template_mark: str  # what tells one build of a template from another
    runtime: str
    storage: str
    head: str | None
    last_turn: int
    forgotten: int
    snapshots: Sequence[SnapshotRow]  # without points; oldest first
    turns: Sequence[TurnRow]

    def sections(self) -> Iterator[tuple[str, SnapshotRow | None]]:
        """In the order of the file. The last has no snapshot."""
        for number, row in enumerate(self.snapshots, start=1):
            yield f"points/{number:04d}", row
        yield NOW, None


def to_document(manifest: Manifest, exported: float) -> Mapping[str, object]:
    return {
        "format": FORMAT,
        "version": VERSION,
        "exported": exported,
        "session": {
            "id": manifest.session_id,
            **asdict(manifest.wishes),
            "template": manifest.template,
            "template_mark": manifest.template_mark,
            "runtime": manifest.runtime,
            "storage": manifest.storage,
            "head": manifest.head,
            "last_turn": manifest.last_turn,
            "forgotten": manifest.forgotten,
        },
        "snapshots": [
            {"section": section, **{name: value for name, value in asdict(row).items() if name in _SNAPSHOT}}
            for section, row in manifest.sections()
            if row is not None
        ],
        "turns": [{name: value for name, value in asdict(row).items() if name in _TURN} for row in manifest.turns],
    }


_SNAPSHOT = ("name", "serial", "kind", "turn", "parent", "created", "last_process_id")
_TURN = ("number", "closed", "snapshot", "first_process_id", "last_process_id", "changes")


def of_session(
    row: SessionRow, template_mark: str, snapshots: Sequence[SnapshotRow], turns: Sequence[TurnRow]
) -> Manifest:
    return Manifest(
        row.session_id,
        Wishes.from_text(row.spec),
        row.template,
        template_mark,
        row.runtime,
        row.storage,
        row.head,
        row.last_turn,
        row.forgotten,
        snapshots,
        turns,
    )


def calls_to_documents(rows: Sequence[CallRow]) -> Iterator[Mapping[str, object]]:
    """In pieces that are easy to hold. A call that has not ended is not going to, elsewhere."""
    batch: list[object] = []
    size = 0
    for row in rows:
        record = row.record
        state = CallState.LOST if record.state is CallState.RUNNING else record.state
        output = None if row.output is None else base64.b64encode(row.output).decode()
        batch.append(
            {
                "process_id": row.process_id,
                "call_id": record.call_id,
                "state": state,
                "started": record.started,
                "argv": record.argv,
                "result": asdict(record.result) if record.result else None,
                "output": output,
                "paused_s": row.paused_s,
            }
        )
        size += sum(map(len, record.argv)) + len(output or "") + 512
        if size >= _CALLS_BYTES:
            yield {"calls": batch}
            batch, size = [], 0
    if batch:
        yield {"calls": batch}


# ---- back again ----------------------------------------------------------------------------------------------------


def from_document(document: Mapping[str, object]) -> Manifest:
    """Raises InvalidArgument for anything that no engine of ours has written."""
    if document.get("format") != FORMAT:
        raise damaged("it says that it is something else")
    version = document.get("version")
    if not isinstance(version, int) or not 1 <= version <= VERSION:
        raise InvalidArgument(
            f"the export is of version {str(version)[:32]}, and this engine reads up to {VERSION}",
            next_step="use the newer release that wrote it",
        )
    try:
        return _manifest(document)
    except SandlotError:
        raise
    except (TypeError, ValueError, KeyError) as error:
        raise damaged(f"its manifest cannot be read ({type(error).__name__})") from None


def _manifest(document: Mapping[str, object]) -> Manifest:
    told = as_document(document["session"])
    session_id = check_session_id(_text(told, "id"))
    snapshots: list[SnapshotRow] = []
    for item in _list(document, "snapshots"):
        snapshots.append(_snapshot(session_id, as_document(item), snapshots))
        if as_document(item).get("section") != f"points/{len(snapshots):04d}":
            raise damaged("its snapshots are not in order")
    names = {row.name for row in snapshots}
    turns = [_turn(session_id, as_document(item), names) for item in _list(document, "turns")]
    if [row.number for row in turns] != sorted({row.number for row in turns}):
        raise damaged("its turns are not in order")
    head, last_turn = _optional_text(told, "head"), _count(told, "last_turn")
    if head is not None and head not in names:
        raise damaged("its files grew from a snapshot that is not there")
    if any(row.number > last_turn for row in turns):
        raise damaged("it has more turns than it says")
    return Manifest(
        session_id,
        _wishes(told),
        check_template(_text(told, "template")),
        _text(told, "template_mark"),
        _text(told, "runtime"),
        _text(told, "storage"),
        head,
        last_turn,
        _count(told, "forgotten"),
        snapshots,
        turns,
    )


def _wishes(told: Mapping[str, object]) -> Wishes:
    """Checked as when they were asked for."""
    resources = cast("dict[str, Any]", dict(as_document(told["resources"])))
    idle = told.get("idle_timeout_s")
    spec = SessionSpec(
        labels=_strings(told, "labels"),
        envs=_strings(told, "envs"),
        user=_text(told, "user") or None,
        resources=Resources(**{name: _limit(value) for name, value in resources.items()}),
        on_expiry=OnExpiry(_text(told, "on_expiry")),
        idle_timeout_s=None if idle is None else _number(told, "idle_timeout_s"),
        call_snapshots=told.get("call_snapshots") is True,
    )
    return Wishes(
        dict(spec.labels),
        dict(spec.envs),
        spec.user or "",
        spec.call_snapshots,
        spec.resources,
        (),
        spec.on_expiry,
        spec.idle_timeout_s,
    )


def _limit(value: object) -> Any:
    if value is not None and (isinstance(value, bool) or not isinstance(value, int | float)):
        raise damaged("a limit of it is no number")
    return value


def _snapshot(session_id: str, told: Mapping[str, object], before: Sequence[SnapshotRow]) -> SnapshotRow:
    parent = _optional_text(told, "parent")
    turn = None if told.get("turn") is None else _count(told, "turn")
    row = SnapshotRow(
        session_id,
        check_id("snapshot", _text(told, "name")),
        _count(told, "serial"),
        SnapshotKind(_text(told, "kind")),
        turn,
        parent,
        _number(told, "created"),
        "",
        _count(told, "last_process_id"),
    )
    if any(row.name == other.name or row.serial <= other.serial for other in before):
        raise damaged("a snapshot of it comes twice")
    if parent is not None and parent not in {other.name for other in before}:
        raise damaged("a snapshot of it grew from one that is not there")
    return row


def _turn(session_id: str, told: Mapping[str, object], names: set[str]) -> TurnRow:
    snapshot = _optional_text(told, "snapshot")
    if snapshot is not None and snapshot not in names:
        raise damaged("a turn of it has a snapshot that is not there")
    changes = told.get("changes")
    counts = as_document(changes) if changes is not None else None
    counted = ChangeCounts(*(_count(counts, name) for name in _TURN_CHANGES)) if counts else None
    first, last = _count(told, "first_process_id"), _count(told, "last_process_id")
    return TurnRow(session_id, _count(told, "number"), _number(told, "closed"), snapshot, first, last, counted)


def call_from_document(session_id: str, told: Mapping[str, object]) -> CallRow:
    """Raises InvalidArgument."""
    try:
        return _call(session_id, told)
    except SandlotError:
        raise
    except (TypeError, ValueError, KeyError, binascii.Error) as error:
        raise damaged(f"a call of it cannot be read ({type(error).__name__})") from None


def _call(session_id: str, told: Mapping[str, object]) -> CallRow:
    argv = tuple(_checked_text(word) for word in _list(told, "argv"))
    limits.at_most("arguments", len(argv), limits.ARGUMENTS_MAX)
    call_id = check_id("call", _text(told, "call_id"))
    state = CallState(_text(told, "state"))
    result = _result(call_id, as_document(told["result"])) if told.get("result") is not None else None
    if state is CallState.RUNNING or (result is None) is (state is CallState.ENDED):
        raise damaged("a call of it has no end")
    output = None
    if (packed := told.get("output")) is not None:
        output = base64.b64decode(cast("str", packed), validate=True)
    record = CallRecord(session_id, call_id, argv, state, _number(told, "started"), result)
    return CallRow(_count(told, "process_id"), record, output, _number(told, "paused_s"))


def _result(call_id: str, told: Mapping[str, object]) -> CallResult:
    known = {each.name for each in fields(CallResult)}
    values = cast("dict[str, Any]", {name: value for name, value in told.items() if name in known})
    for name, value in values.items():
        if isinstance(value, dict | list):
            raise damaged(f"{name} of a call of it is no value")
    result = replace(CallResult(call_id, 0), **{**values, "call_id": call_id})
    numbers = ("duration_s", "user_s", "system_s", "exit_code", "stdout_bytes", "stderr_bytes", "rss_bytes_max")
    if not all(_is_number(values.get(name, 0)) for name in numbers):
        raise damaged("a call of it has a result that cannot be")
    return replace(result, limit=LimitHit(result.limit) if result.limit else None)


# ---- values --------------------------------------------------------------------------------------------------------


def _checked_text(value: object) -> str:
    if not isinstance(value, str) or "\0" in value or len(value) > limits.COMMAND_BYTES_MAX:
        raise damaged("a text of it is none")
    return value


def _text(told: Mapping[str, object], name: str) -> str:
    value = _checked_text(told[name])
    limits.at_most(name, len(value), _TEXT_MAX)
    return value


def _optional_text(told: Mapping[str, object], name: str) -> str | None:
    return None if told.get(name) is None else _text(told, name)


def _count(told: Mapping[str, object], name: str) -> int:
    value = told[name]
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 1 << 62:
        raise damaged(f"{name} is no number")
    return value


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _number(told: Mapping[str, object], name: str) -> float:
    value = told[name]
    if not isinstance(value, int | float) or isinstance(value, bool) or not math.isfinite(value):
        raise damaged(f"{name} is no number")
    return float(value)


def _list(told: Mapping[str, object], name: str) -> list[object]:
    value = told[name]
    if not isinstance(value, list):
        raise damaged(f"{name} is no list")
    return cast("list[object]", value)


def _strings(told: Mapping[str, object], name: str) -> dict[str, str]:
    return {_checked_text(key): _checked_text(value) for key, value in as_document(told[name]).items()}


def template_mark(path: str) -> str:
    """Of the template at a path: its folder is named for what it was made of."""
    found = re.search(r"([^/]+)/[^/]+$", path)
    return found[1] if found else ""
