"""What a host must answer, in plain Python: no files, no processes, no journal. Errors are raised as a host raises
them, before anything is changed."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from sandlot.model import (
    Conflict,
    MaxSessionsReached,
    SessionExists,
    SessionFailed,
    SessionNotFound,
    SnapshotNotFound,
)
from tests.model.tree import Tree

SESSIONS_MAX = 6


@dataclass
class Shot:
    name: str
    parent: str | None
    turn: int | None
    tree: Tree
    last_call: int


@dataclass
class Turn:
    number: int
    snapshot: str | None
    first_call: int
    last_call: int


@dataclass
class Session:
    session_id: str
    labels: dict[str, str]
    tree: Tree = field(default_factory=Tree)
    origin: str | None = None
    failed: bool = False
    head: str | None = None
    shots: dict[str, Shot] = field(default_factory=dict[str, Shot])
    turns: list[Turn] = field(default_factory=list[Turn])
    last_turn: int = 0
    calls: dict[int, str] = field(default_factory=dict[int, str])  # by number
    last_call: int = 0
    answers: dict[tuple[str, str], str] = field(default_factory=dict[tuple[str, str], str])

    def need_active(self) -> None:
        if self.failed:
            raise SessionFailed(self.session_id)

    def find(self, asked: str) -> Shot:
        for shot in self.shots.values():
            if shot.name == asked or (asked.isdigit() and shot.turn == int(asked)):
                return shot
        raise SnapshotNotFound(asked)

    # ---- calls -------------------------------------------------------------------------------------------------

    def call(self, call_id: str) -> bool:
        """Whether it is run: one that is known is only read again."""
        if call_id in self.calls.values():
            return False
        self.need_active()
        self.last_call += 1
        self.calls[self.last_call] = call_id
        return True

    # ---- snapshots and turns -----------------------------------------------------------------------------------

    def take(self, name: str, turn: int | None = None) -> Shot:
        self.shots[name] = Shot(name, self.head, turn, dict(self.tree), self.last_call)
        self.head = name
        return self.shots[name]

    def create_snapshot(self, name: str, request_id: str | None) -> str:
        self.need_active()
        if (known := self.answers.get(("snapshot", request_id or ""))) is not None:
            return self.find(known).name
        if name in self.shots:
            raise Conflict(name)
        if request_id:
            self.answers["snapshot", request_id] = name
        return self.take(name).name

    def turn_complete(self, request_id: str | None) -> Turn:
        self.need_active()
        if (known := self.answers.get(("turn", request_id or ""))) is not None:
            for turn in self.turns:
                if str(turn.number) == known:
                    return turn
            raise SnapshotNotFound(known)
        self.last_turn += 1
        first = self.turns[-1].last_call + 1 if self.turns else 1
        shot = self.take(f"turn-{self.last_turn:04d}", self.last_turn)
        self.turns.append(Turn(self.last_turn, shot.name, first, self.last_call))
        if request_id:
            self.answers["turn", request_id] = str(self.last_turn)
        return self.turns[-1]

    def calls_of(self, turn: Turn) -> list[str]:
        return [name for number, name in self.calls.items() if turn.first_call <= number <= turn.last_call]

    def delete(self, asked: str) -> None:
        """What grew from it grew from what it grew from; its turn stays, without it."""
        gone = self.find(asked)
        self.forget(gone)
        for turn in self.turns:
            if turn.snapshot == gone.name:
                turn.snapshot = None

    def forget(self, gone: Shot) -> None:
        del self.shots[gone.name]
        for shot in self.shots.values():
            if shot.parent == gone.name:
                shot.parent = gone.parent
        if self.head == gone.name:
            self.head = gone.parent
        for key, answer in self.answers.items():
            if key[0] == "snapshot" and answer == gone.name:
                self.answers[key] = ""

    def roll_back(self, asked: str, *, keep: bool) -> None:
        self.need_active()
        target = self.find(asked)
        self.tree, self.head = dict(target.tree), target.name
        if keep:
            return
        grown = {target.name}
        for shot in tuple(self.shots.values()):  # parents come before
            if shot.parent in grown:
                grown.add(shot.name)
        for name in grown - {target.name}:
            self.forget(self.shots[name])
        gone = grown - {target.name}
        self.turns = [turn for turn in self.turns if turn.snapshot not in gone]
        self.calls = {number: name for number, name in self.calls.items() if number <= target.last_call}

    def fork_name(self) -> str:
        return next(name for number in range(1, 1000) if (name := f"fork-{number:04d}") not in self.shots)


class Shadow:
    def __init__(self) -> None:
        self.sessions: dict[str, Session] = {}
        self.requests: dict[str, str] = {}

    def find(self, session_id: str) -> Session:
        if session_id not in self.sessions:
            raise SessionNotFound(session_id)
        return self.sessions[session_id]

    def _need_room(self, count: int) -> None:
        if len(self.sessions) + count > SESSIONS_MAX:
            raise MaxSessionsReached(str(count))

    def create(self, session_id: str, labels: dict[str, str], snapshot: str | None, request_id: str | None) -> Session:
        if known := self.requests.get(request_id or ""):
            session = self.sessions[known]
            if session.failed and not session.calls:
                session.failed = False  # nobody heard of it yet: it is made now
            return session
        if session_id in self.sessions:
            raise SessionExists(session_id)
        self._need_room(1)
        made = Session(session_id, labels)
        if snapshot:
            source, _, asked = snapshot.partition("/")
            shot = self.find(source).find(asked)
            made.origin, made.tree = f"{source}/{shot.name}", dict(shot.tree)
        if request_id:
            self.requests[request_id] = session_id
        self.sessions[session_id] = made
        return made

    def fork(self, session_id: str, at: str | None, count: int, request_id: str | None) -> list[str] | None:
        """The sessions that were made for the same request before; None: new ones, which `forked` is told of."""
        source = self.find(session_id)
        source.need_active()
        if (known := source.answers.get(("fork", request_id or ""))) is not None:
            return [self.find(name).session_id for name in known.split(",")]
        if at is not None:
            source.find(at)
        self._need_room(count)
        return None

    def forked(self, session_id: str, at: str | None, request_id: str | None, made: Sequence[str]) -> str:
        """What they come from."""
        source = self.sessions[session_id]
        shot = source.find(at) if at is not None else source.take(source.fork_name())
        for name in made:
            self.sessions[name] = Session(name, source.labels, dict(shot.tree), f"{session_id}/{shot.name}")
        if request_id:
            source.answers["fork", request_id] = ",".join(made)
        return f"{session_id}/{shot.name}"

    def destroy(self, session_id: str) -> None:
        self.find(session_id)
        del self.sessions[session_id]
        self.requests = {key: name for key, name in self.requests.items() if name != session_id}
