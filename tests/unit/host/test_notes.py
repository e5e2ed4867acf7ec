"""What lies beside files may have been written by anyone: it is understood as a whole, or told as wrong."""

import json
from typing import Any

import pytest

from sandlot.host.notes import (
    WRONG,
    _session,  # pyright: ignore[reportPrivateUsage] - one note, without a pool around it
    _snapshot,  # pyright: ignore[reportPrivateUsage] - pure, and the heart of it
)
from sandlot.model import SessionState, SnapshotKind

SESSION: dict[str, Any] = {
    "v": 1,
    "journal": "ab",
    "session": "s-1",
    "volume": "v-1",
    "runtime": "none",
    "template": "builtin",
    "template_path": "",
    "created": 1.5,
    "expires": 2.5,
    "origin": None,
    "head": "turn-0001",
    "last_turn": 1,
    "forgotten": 3,
    "resources": {"pids": 64},
    "labels": {"a": "b"},
    "user": "user",
    "call_snapshots": False,
    "on_expiry": "destroy",
    "idle_timeout_s": None,
}
SNAPSHOT: dict[str, Any] = {
    "name": "turn-0001",
    "serial": 1,
    "kind": "turn",
    "turn": 1,
    "parent": None,
    "created": 1.5,
    "last_process_id": 3,
    "closed": 1.25,
    "first": 1,
}


def test_a_note_is_understood() -> None:
    row = _session("s-1", "z-1", "zfs", SESSION)
    assert (row.state, row.volume_state, row.head, row.forgotten) == (SessionState.FAILED, "z-1", "turn-0001", 3)
    assert json.loads(row.spec)["resources"]["pids"] == 64
    shot, turn = _snapshot("s-1", "p-1", SNAPSHOT)
    assert (shot.kind, shot.point, turn and (turn.number, turn.closed)) == (SnapshotKind.TURN, "p-1", (1, 1.25))


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("volume", "../../etc"),
        ("volume", None),
        ("runtime", "a/b"),
        ("head", "-rf"),
        ("created", "soon"),
        ("resources", {"walls": 0}),
        ("resources", {"pids": -1}),
        ("labels", ["a"]),
        ("on_expiry", "explode"),
        ("last_turn", 1e400),
        ("idle_timeout_s", {}),
    ],
)
def test_a_note_of_a_session_that_is_none_is_told(key: str, value: object) -> None:
    with pytest.raises(WRONG):
        _session("s-1", "z-1", "zfs", SESSION | {key: value})


@pytest.mark.parametrize(("key", "value"), [("name", "a/b"), ("kind", "none"), ("serial", None), ("parent", "..")])
def test_a_note_of_a_snapshot_that_is_none_is_told(key: str, value: object) -> None:
    with pytest.raises(WRONG):
        _snapshot("s-1", "p-1", SNAPSHOT | {key: value})
