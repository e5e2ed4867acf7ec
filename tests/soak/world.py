"""What must be true of the world, told by what was acknowledged; and a look at the real one."""

import copy
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sandlot.host.service import SandboxHostService
from sandlot.model import CallOutput, CallRequest, RollbackRequest, SessionFilter, SessionInfo, SessionState

NOTHING = ""  # what a session holds before anything was written


@dataclass
class Known:
    """One session. `value` is what its file holds."""

    value: str = NOTHING
    head: str | None = None
    snapshots: dict[str, str] = field(default_factory=dict[str, str])
    parents: dict[str, str | None] = field(default_factory=dict[str, str | None])


class World:
    """Follows the log. The last operation may have been begun and not acknowledged: then both outcomes are right."""

    def __init__(self) -> None:
        self.sessions: dict[str, Known] = {}
        self.pending: dict[str, Any] | None = None
        self.problems: list[str] = []

    def read(self, log: Path) -> None:
        self.sessions, self.pending = {}, None
        for line in log.read_text().splitlines():
            entry = json.loads(line)
            if "begin" in entry:
                self.pending = entry["begin"]
            elif "settled" in entry:
                self._adopt(entry["settled"])
                self.pending = None
            else:
                assert self.pending is not None
                self._apply(self.pending, entry["answer"])
                self.pending = None

    def _adopt(self, seen: dict[str, dict[str, Any]]) -> None:
        """What was looked at after a kill is what the next worker begins with."""
        self.sessions = {
            name: Known(one["value"], one["head"], dict(one["snapshots"]), dict(one["parents"]))
            for name, one in seen.items()
        }

    def _apply(self, about: dict[str, Any], answer: Any) -> None:
        kind, name = about["op"], about["session"]
        if kind == "create":
            self.sessions[name] = Known()
            return
        known = self.sessions[name]
        if kind == "write":
            known.value = about["tag"]
        elif kind in ("turn", "snapshot"):
            known.snapshots[answer], known.parents[answer] = known.value, known.head
            known.head = answer
        elif kind == "rollback":
            self._roll_back(known, about)
        elif kind == "delete":
            _forget(known, about["name"])
        elif kind == "fork":
            if answer["at"] not in known.snapshots:
                known.snapshots[answer["at"]], known.parents[answer["at"]] = known.value, known.head
                known.head = answer["at"]
            for child in answer["children"]:
                self.sessions[child] = Known(known.snapshots[answer["at"]])
        elif kind == "import":
            self.sessions[f"i-{about['tag']}"] = copy.deepcopy(known)
        elif kind == "destroy":
            del self.sessions[name]

    def _roll_back(self, known: Known, about: dict[str, Any]) -> None:
        known.value, known.head = known.snapshots[about["name"]], about["name"]
        if not about["keep"]:
            grown = {about["name"]}
            for name in list(known.snapshots):
                if known.parents[name] in grown:
                    grown.add(name)
            for name in grown - {about["name"]}:
                del known.snapshots[name], known.parents[name]


def _forget(known: Known, name: str) -> None:
    parent = known.parents.pop(name)
    del known.snapshots[name]
    if known.head == name:
        known.head = parent
    for other, its in known.parents.items():
        if its == name:
            known.parents[other] = parent


async def look(host: SandboxHostService, pending: dict[str, Any] | None) -> dict[str, dict[str, Any]]:
    """The real world, in the same words. Values of snapshots are looked at by rolling a fork to them: not here, that
    would change it; here only what can be read. A session that was about to rest, or to be recovered, may have been
    left on the way; it goes on first."""
    seen: dict[str, dict[str, Any]] = {}
    for session in (await host.list(SessionFilter(limit=1000))).sessions:
        session = await _go_on(host, session, pending)
        shots = await host.list_snapshots(session.session_id)
        seen[session.session_id] = {
            "state": session.state,
            "reason": session.reason,
            "value": await value_of(host, session.session_id) if session.state is SessionState.ACTIVE else None,
            "head": session.head,
            "parents": {shot.name: shot.parent for shot in shots},
        }
    return seen


async def _go_on(host: SandboxHostService, session: SessionInfo, pending: dict[str, Any] | None) -> SessionInfo:
    if pending is None or pending["session"] != session.session_id:
        return session
    if pending["op"] == "rest" and session.state is SessionState.PAUSED:
        return await host.resume(session.session_id)
    if pending["op"] == "recover" and session.state is SessionState.FAILED:
        return await host.recover(session.session_id)
    return session


async def value_of(host: SandboxHostService, session_id: str) -> str:
    text = bytearray()
    script = (
        "! ls -A | grep '^[.]sandlot-' || exit 9; "  # a name of ours that an engine left
        'cat value 2>/dev/null || true; t=$(cat value 2>/dev/null) || exit 0; test "$(cat d/$t/f)" = "$t"'
    )
    async with host.call(CallRequest(session_id, ("sh", "-c", script))) as stream:
        async for event in stream:
            if isinstance(event, CallOutput):
                text += event.data
        result = await stream.result()
    assert result.exit_code == 0, f"{session_id}: its files do not fit together: {text!r}"
    return text.decode().strip()


async def try_snapshot(host: SandboxHostService, session_id: str, name: str) -> str:
    """What a snapshot holds: the session goes there, keeping everything."""
    await host.rollback(RollbackRequest(session_id, name, keep=True))
    return await value_of(host, session_id)
