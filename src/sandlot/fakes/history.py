"""Snapshots, turns, forks and comparisons of fake sessions. A point is a copy of the tree; bytes are shared."""

import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace

from sandlot.fakes.session import FakeSession, Point
from sandlot.fakes.tree import Node, Tree
from sandlot.model import (
    CURRENT,
    CapabilityNotSupported,
    Change,
    ChangeCounts,
    ChangeKind,
    Conflict,
    DiffRequest,
    EventKind,
    FileKind,
    ForkRequest,
    RollbackRequest,
    SessionInfo,
    SessionSpec,
    Snapshot,
    SnapshotKind,
    SnapshotNotFound,
    SnapshotRequest,
    ToolsInFlight,
    Turn,
    TurnRequest,
    Unavailable,
    check_id,
    new_fork_id,
    turn_snapshot,
)

Make = Callable[[SessionSpec], FakeSession]
Say = Callable[[str, EventKind, str], None]


class FakeHistory:
    def __init__(self, find: Callable[[str], FakeSession], make: Make, say: Say) -> None:
        self._find = find
        self._make = make
        self._say = say
        self._turns: dict[tuple[str, str], int] = {}
        self._snapshots: dict[tuple[str, str], str] = {}
        self._forks: dict[tuple[str, str], tuple[str, ...]] = {}

    # ---- points ------------------------------------------------------------------------------------------------

    async def create_snapshot(self, request: SnapshotRequest) -> Snapshot:
        session = self._find(request.session_id)
        session.check_active("no snapshot can be taken")
        key = (request.session_id, request.request_id or "")
        if request.request_id and key in self._snapshots:
            return _point(session, self._snapshots[key]).snapshot
        if request.memory:
            raise CapabilityNotSupported("the fake keeps no memory of processes", next_step="leave `memory` out")
        if any(point.snapshot.name == request.name for point in session.points):
            raise Conflict(f"there is a snapshot {request.name}", next_step="choose another name")
        made = _take(session, request.name, SnapshotKind.NAMED, None)
        if request.request_id:
            self._snapshots[key] = request.name
        return made

    async def list_snapshots(self, session_id: str) -> Sequence[Snapshot]:
        return [point.snapshot for point in self._find(session_id).points]

    async def delete_snapshot(self, session_id: str, name: str) -> None:
        session = self._find(session_id)
        session.points.remove(_point(session, check_id("snapshot", name)))
        session.turns = [replace(turn, snapshot=None) if turn.snapshot == name else turn for turn in session.turns]

    async def turn_complete(self, request: TurnRequest) -> Turn:
        session = self._find(request.session_id)
        session.check_active("no turn can be closed")
        key = (request.session_id, request.request_id or "")
        if request.request_id and key in self._turns:
            return next(turn for turn in session.turns if turn.number == self._turns[key])
        before = session.points[-1].tree if session.points else Tree()
        changes = [change.kind for change in _compare(before, session.tree, "/")]
        session.last_turn += 1
        made = _take(session, turn_snapshot(session.last_turn), SnapshotKind.TURN, session.last_turn)
        records = [call.record for call in list(session.calls.values())[session.told_calls :]]
        session.told_calls = len(session.calls)
        counts = ChangeCounts(*(changes.count(kind) for kind in ChangeKind))
        turn = Turn(session.session_id, session.last_turn, made.created, made.name, tuple(records), counts)
        session.turns.append(turn)
        if request.request_id:
            self._turns[key] = turn.number
        self._say(session.session_id, EventKind.TURN, str(turn.number))
        return turn

    async def turns(self, session_id: str) -> Sequence[Turn]:
        return list(self._find(session_id).turns)

    async def rollback(self, request: RollbackRequest) -> SessionInfo:
        session = self._find(request.session_id)
        session.check_active("it cannot be rolled back")
        target = _point(session, request.to)
        if any(not call.request.detach for call in session.running):
            raise ToolsInFlight(
                f"{len(session.running)} calls run in session {session.session_id}",
                next_step="wait for them, or leave them",
                count=len(session.running),
            )
        for call in session.running:
            call.lose(Unavailable("its session was rolled back", call_id=call.call_id))
        for process in session.processes.values():
            process.move()
        for context in session.contexts.values():
            context.lose("its session was rolled back")
        session.tree, session.head = target.tree.copy(), target.snapshot.name
        if not request.keep:
            session.points = session.points[: session.points.index(target) + 1]
            names = {point.snapshot.name for point in session.points}
            session.turns = [turn for turn in session.turns if turn.snapshot in names]
        self._say(session.session_id, EventKind.ROLLED_BACK, target.snapshot.name)
        return session.info()

    async def fork(self, request: ForkRequest) -> Sequence[SessionInfo]:
        session = self._find(request.session_id)
        key = (request.session_id, request.request_id or "")
        if request.request_id and key in self._forks:
            return [self._find(name).info() for name in self._forks[key]]
        session.check_active("it cannot be forked")
        if request.memory:
            raise CapabilityNotSupported("the fake keeps no memory of processes", next_step="leave `memory` out")
        if request.at is None:
            name = f"fork-{len(session.points) + 1:04d}"
            _take(session, name, SnapshotKind.CALL, None)
        else:
            name = request.at
        point = _point(session, name)
        labels = session.spec.labels if request.labels is None else request.labels
        spec = replace(session.spec, session_id=None, labels=labels, timeout_s=request.timeout_s, request_id=None)
        made: list[FakeSession] = []
        for _ in range(request.count):
            child = self._make(replace(spec, session_id=new_fork_id(session.session_id)))
            child.tree, child.origin = point.tree.copy(), f"{session.session_id}/{point.snapshot.name}"
            made.append(child)
        names = tuple(child.session_id for child in made)
        if request.request_id:
            self._forks[key] = names
        self._say(session.session_id, EventKind.FORKED, " ".join(names))
        return [child.info() for child in made]

    @asynccontextmanager
    async def diff(self, request: DiffRequest) -> AsyncGenerator[AsyncIterator[Sequence[Change]]]:
        session = self._find(request.session_id)
        if request.patch:
            raise CapabilityNotSupported("the fake writes no patches", next_step="leave `patch` out")
        old = _point(session, request.old).tree
        new = session.tree if request.new == CURRENT else _point(session, request.new).tree
        found = list(_compare(old, new, request.below))

        async def batches() -> AsyncIterator[Sequence[Change]]:
            if found:
                yield found

        yield batches()


def _point(session: FakeSession, name: str) -> Point:
    """By name, or by the number of a turn. Raises SnapshotNotFound."""
    wanted = turn_snapshot(int(name)) if name.isascii() and name.isdigit() else name
    for point in session.points:
        if point.snapshot.name == wanted:
            return point
    raise SnapshotNotFound(f"session {session.session_id} has no snapshot {name}", next_step="list its snapshots")


def _take(session: FakeSession, name: str, kind: SnapshotKind, turn: int | None) -> Snapshot:
    made = Snapshot(session.session_id, name, kind, time.time(), turn, session.head, 0)
    session.points.append(Point(made, session.tree.copy()))
    session.head = name
    return made


def _compare(old: Tree, new: Tree, below: str) -> Iterator[Change]:
    before, after = dict(old.walk()), dict(new.walk())
    for path in sorted(before.keys() | after.keys()):
        was, now = before.get(path), after.get(path)
        if not f"{path}/".startswith(f"{below.rstrip('/')}/") or (was and now and was.same_as(now)):
            continue
        kind = ChangeKind.ADDED if was is None else ChangeKind.REMOVED if now is None else ChangeKind.CHANGED
        shown = now or was
        assert shown is not None
        yield Change(path, kind, shown.kind, _mode(now), _mode(was), _size(now), _size(was))


def _mode(node: Node | None) -> int | None:
    return None if node is None else node.mode


def _size(node: Node | None) -> int | None:
    return None if node is None or node.kind is FileKind.DIRECTORY else len(node.data or node.target)
