"""What of sessions is written beside their files, where a storage has room for it; so that sessions can be found again
when the journal is lost.

Notes come behind the answer: what they tell of is in the journal already. They tell no variables of sessions, because
others on the machine may read them.
"""

import asyncio
import json
import logging
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from typing import Any, cast

from sandlot.contracts.storage import Storage
from sandlot.host.background import Background
from sandlot.host.history import History, SnapshotRow, TurnRow
from sandlot.host.journal import SessionRow
from sandlot.host.parts import HostParts
from sandlot.host.session import Session
from sandlot.host.wishes import Wishes
from sandlot.model import (
    OnExpiry,
    Resources,
    SandlotError,
    SessionState,
    SnapshotKind,
    check_id,
    check_labels,
    check_session_id,
    limits,
)

_log = logging.getLogger("sandlot.host")
_VERSION = 1
_REASON = "it was found again without its journal"
_TOLD_MAX = 7000  # beyond that, without labels: they are all that can be long
_NAMES_MAX = 5
_WISHES = ("labels", "user", "call_snapshots", "on_expiry", "idle_timeout_s")
WRONG = (SandlotError, KeyError, TypeError, ValueError, AttributeError, OverflowError)  # of a note that is none
REBUILD = "`sandlot doctor --storage --rebuild` finds them again"


@dataclass(slots=True)
class Found:
    """One session that another journal knew."""

    row: SessionRow
    at: float  # when that was written
    snapshots: list[SnapshotRow] = field(default_factory=list[SnapshotRow])
    turns: list[TurnRow] = field(default_factory=list[TurnRow])


@dataclass(frozen=True, slots=True)
class Lost:
    """What lies in a storage and is of another journal."""

    sessions: Mapping[str, Found]
    unread: Sequence[str]  # states and points whose notes cannot be understood

    def told(self) -> str:
        names = ", ".join(sorted(self.sessions)[:_NAMES_MAX])
        return f"holds {len(self.sessions)} sessions that the journal does not know, because another one did: {names}"


class Notes:
    def __init__(self, parts: HostParts, background: Background) -> None:
        self._parts = parts
        self._history = History(parts.journal)
        self._background = background
        self._writing = asyncio.Lock()

    def remember(self, session: Session) -> None:
        if self._parts.storages[session.row.storage].notebook is not None:
            self._background.spawn("note a session", self._remember(session))

    async def _remember(self, session: Session) -> None:
        """What has not been told yet, or is told otherwise. What fails is told the next time."""
        async with self._writing:
            storage = self._parts.storages[session.row.storage]
            if storage.notebook is None or session.row.state is SessionState.DESTROYING:
                return
            journal = await self._parts.journal.identity()
            turns = {turn.snapshot: turn for turn in await self._history.turns(session.row.session_id)}
            wanted = {row.point: _of_snapshot(journal, row, turns.get(row.name)) for row in session.snapshots.values()}
            wanted[session.row.volume_state] = _of_session(journal, session)
            for text, told in wanted.items():
                if session.noted.get(text) != told:
                    with suppress(SandlotError):  # it was released meanwhile, or its storage has gone
                        await storage.notebook.write(text, json.dumps(told | {"at": time.time()}))
                        session.noted[text] = told
            session.noted = {text: told for text, told in session.noted.items() if text in wanted}

    # ---- finding -----------------------------------------------------------------------------------------------

    async def lost(self, storage: Storage, known: Mapping[str, dict[str, dict[str, Any]]]) -> Lost:
        """Sessions that this journal does not know, because another one did. What was noted of those that are known is
        added to what is given. Raises Unavailable."""
        sessions: dict[str, Found] = {}
        rows: dict[str, list[tuple[SnapshotRow, TurnRow | None]]] = {}
        unread: list[str] = []
        if storage.notebook is None:
            return Lost({}, ())
        mine = await self._parts.journal.identity()
        for text, words in (await storage.notebook.read()).items():
            try:
                told = cast("dict[str, Any]", json.loads(words))
                session_id = check_session_id(told["session"])
                at = float(told.pop("at"))
                if session_id in known:
                    known[session_id][text] = told
                elif told["journal"] != mine and "name" in told:
                    rows.setdefault(session_id, []).append(_snapshot(session_id, text, told))
                elif told["journal"] != mine and at >= (sessions[session_id].at if session_id in sessions else 0.0):
                    sessions[session_id] = Found(_session(session_id, text, storage.name, told), at)
            except WRONG as error:
                _log.warning("the note of %s cannot be understood: %s", text, error)
                unread.append(text)
        for session_id, found in sessions.items():
            _add_points(found, rows.pop(session_id, []))
        unread += [row.point for each in rows.values() for row, _turn in each]
        return Lost(sessions, unread)


def _add_points(found: Found, rows: Sequence[tuple[SnapshotRow, TurnRow | None]]) -> None:
    ordered = sorted(rows, key=lambda pair: pair[0].serial)
    names = {row.name for row, _turn in ordered}
    # What one grew from may be gone with the rest of a day.
    found.snapshots = [row if row.parent in names else replace(row, parent=None) for row, _turn in ordered]
    found.turns = sorted((turn for _row, turn in ordered if turn), key=lambda turn: turn.number)
    row = found.row
    last_turn = max([row.last_turn, *(turn.number for turn in found.turns)])
    forgotten = max([row.forgotten, *(shot.last_process_id for shot in found.snapshots)])
    head = row.head if row.head in names else None
    found.row = replace(row, head=head, last_turn=last_turn, forgotten=forgotten)


# ---- as words ------------------------------------------------------------------------------------------------------


def _of_session(journal: str, session: Session) -> dict[str, Any]:
    row = session.row
    wishes = json.loads(row.spec)
    told: dict[str, Any] = {"v": _VERSION, "journal": journal, "session": row.session_id}
    for name in ("volume", "runtime", "template", "template_path", "created", "expires", "origin", "head", "last_turn"):
        told[name] = getattr(row, name)
    told["forgotten"] = session.row.forgotten
    told["resources"] = {name: value for name, value in asdict(session.resources).items() if value is not None}
    told |= {name: wishes[name] for name in _WISHES if name in wishes}
    return told if len(json.dumps(told)) < _TOLD_MAX else told | {"labels": {}}


def _of_snapshot(journal: str, row: SnapshotRow, turn: TurnRow | None) -> dict[str, Any]:
    told: dict[str, Any] = {"v": _VERSION, "journal": journal, "session": row.session_id}
    for name in ("name", "serial", "kind", "turn", "parent", "created", "last_process_id"):
        told[name] = getattr(row, name)
    return told | ({"closed": turn.closed, "first": turn.first_process_id} if turn else {})


def _session(session_id: str, state: str, storage: str, told: dict[str, Any]) -> SessionRow:
    """Checked as if a stranger had written it: a pool may have come from anywhere. Raises as values do."""
    labels = {str(key): str(value) for key, value in told["labels"].items()}
    check_labels(labels)
    wishes = Wishes(
        labels,
        {},
        str(told["user"]),
        told["call_snapshots"] is True,
        Resources(**told["resources"]),
        on_expiry=OnExpiry(told["on_expiry"]),
        idle_timeout_s=None if told["idle_timeout_s"] is None else float(told["idle_timeout_s"]),
    )
    return SessionRow(
        session_id=session_id,
        serial=0,
        state=SessionState.FAILED,
        reason=_REASON,
        volume=check_id("volume", told["volume"]),
        id_range=0,
        storage=storage,
        runtime=check_id("runtime", told["runtime"]),
        template=str(told["template"]),
        template_path=str(told["template_path"]),
        created=float(told["created"]),
        # Nobody could extend it meanwhile.
        expires=max(float(told["expires"]), time.time() + limits.SESSION_LIFETIME_S),
        request_id=None,
        spec=wishes.to_text(),
        volume_state=check_id("state", state),
        head=_optional_id(told["head"]),
        origin=None if told["origin"] is None else str(told["origin"]),
        last_turn=int(told["last_turn"]),
        forgotten=int(told["forgotten"]),
    )


def _snapshot(session_id: str, point: str, told: dict[str, Any]) -> tuple[SnapshotRow, TurnRow | None]:
    number = None if told["turn"] is None else int(told["turn"])
    row = SnapshotRow(
        session_id,
        check_id("snapshot", told["name"]),
        int(told["serial"]),
        SnapshotKind(told["kind"]),
        number,
        _optional_id(told["parent"]),
        float(told["created"]),
        check_id("point", point),
        int(told["last_process_id"]),
    )
    if number is None or "closed" not in told:
        return row, None
    turn = TurnRow(session_id, number, float(told["closed"]), row.name, int(told["first"]), row.last_process_id)
    return row, turn


def _optional_id(value: Any) -> str | None:
    return None if value is None else check_id("snapshot", value)
