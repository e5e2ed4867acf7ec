"""A real engine and its shadow, asked the same in any order."""

import asyncio
import os
import shutil
import signal
import sys
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from hypothesis import HealthCheck, note
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from sandlot.config.settings import load
from sandlot.host.service import SandboxHostService
from sandlot.model import (
    CURRENT,
    CallRequest,
    DiffRequest,
    FileKind,
    FileList,
    FileRead,
    FileRemove,
    FileRename,
    FileWrite,
    ForkRequest,
    InvalidState,
    RollbackRequest,
    SandlotError,
    SessionFilter,
    SessionSpec,
    SessionState,
    SnapshotRequest,
    TurnRequest,
)
from sandlot.wiring.embedded import build
from tests import storages
from tests.conftest import run
from tests.e2e.standstill import PATIENCE_S, settled
from tests.model import tree
from tests.model.shadow import SESSIONS_MAX, Session, Shadow, Turn

_T = TypeVar("_T")
_U = TypeVar("_U")

PICK = st.integers(0, 25)
REQUEST = st.sampled_from([None, None, None, "r1", "r2"])
FILE = st.sampled_from(tree.FILES)
FOLDER = st.sampled_from(tree.FOLDERS)
CONTENT = st.sampled_from(["one", "two", "three" * 2000])

ANY_HEALTH = (HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much)  # a world takes seconds

steps: Counter[str] = Counter()
errors: Counter[str] = Counter()
templates = Path(__file__).parents[2] / "build" / "test-templates"


class HostAndShadow(RuleBasedStateMachine):
    """Rules that name a session pick an existing one, and sometimes none."""

    storage = "layers"

    @initialize()
    def begin(self) -> None:
        self.shadow = Shadow()
        self.runner = asyncio.Runner()
        self.folder = Path(tempfile.mkdtemp(prefix="sandlot-model-"))
        self.data = self.folder / "data"
        self.data.mkdir(mode=0o700)
        (self.data / "templates").symlink_to(templates)
        environment = {**os.environ, **storages.ENVIRONMENT, "SANDLOT_DATA_DIR": str(self.data), "SANDLOT_RUNTIME": ""}
        self.settings = replace(load(environment), storage=self.storage, sessions_max=SESSIONS_MAX)
        self.count = 0
        self.open()
        print(f"\r{steps.total()} steps", end="", file=sys.stderr)

    def open(self) -> None:
        async def opened() -> SandboxHostService:
            return await build(self.settings).__aenter__()

        self.host = self.run(opened())

    def run(self, work: Coroutine[Any, Any, _T]) -> _T:
        async def bounded() -> _T:
            async with asyncio.timeout(PATIENCE_S):
                return await work

        return self.runner.run(bounded())

    def ask(
        self, what: str, foretold: Callable[[], _T], real: Callable[[], Coroutine[Any, Any, _U]]
    ) -> tuple[_T, _U] | None:
        """Both, or None when both refused it in the same way."""
        steps[what] += 1
        want: type[SandlotError] | None = None
        got: type[SandlotError] | None = None
        told: list[_T] = []
        answer: list[_U] = []
        try:
            told.append(foretold())
        except SandlotError as error:
            want = type(error)
        try:
            answer.append(self.run(real()))
        except SandlotError as error:
            got = type(error)
            note(f"{what}: {error}")
        assert got == want, f"{what}: {got} instead of {want}"
        if got:
            errors[got.__name__] += 1
            return None
        return told[0], answer[0]

    # ---- choosing ----------------------------------------------------------------------------------------------

    def some(self, pick: int) -> str:
        if not self.shadow.sessions:
            self._create("s-0", {}, None, None)
        names = list(self.shadow.sessions)
        return names[pick % len(names)] if pick < 24 else "s-nope"

    def point(self, session_id: str, pick: int) -> str:
        """A snapshot by its name, a turn by its number, or what is not there."""
        session = self.shadow.sessions.get(session_id)
        names = list(session.shots) if session else []
        if not names or pick >= 22:
            return ("nope", "99")[pick % 2]
        shot = names[pick % len(names)]
        turn = session.shots[shot].turn if session else None
        return str(turn) if turn and pick % 3 == 0 else shot

    # ---- sessions ----------------------------------------------------------------------------------------------

    @rule(pick=PICK, label=st.sampled_from(["x", "y"]), request=REQUEST)
    def create(self, pick: int, label: str, request: str | None) -> None:
        self._create(f"s-{pick % 8}", {"kind": label}, None, request)

    @rule(pick=PICK, source=PICK, at=PICK, request=REQUEST)
    def create_from_snapshot(self, pick: int, source: int, at: int, request: str | None) -> None:
        session_id = self.some(source)
        self._create(f"s-{pick % 8}", {}, f"{session_id}/{self.point(session_id, at)}", request)

    def _create(self, session_id: str, labels: dict[str, str], snapshot: str | None, request: str | None) -> None:
        spec = SessionSpec(session_id=session_id, labels=labels, snapshot=snapshot, request_id=request)
        both = self.ask(
            "create",
            lambda: self.shadow.create(session_id, labels, snapshot, request),
            lambda: self.host.create(spec),
        )
        if both:
            assert both[1].session_id == both[0].session_id
            self.check(both[0])

    @rule(pick=PICK)
    def destroy(self, pick: int) -> None:
        session_id = self.some(pick)
        self.ask("destroy", lambda: self.shadow.destroy(session_id), lambda: self.host.destroy(session_id))

    @rule(pick=PICK)
    def fail(self, pick: int) -> None:
        """Its guest is killed from outside."""
        session = self.shadow.sessions.get(self.some(pick))
        if session is None or session.failed:
            return
        steps["fail"] += 1
        self.run(self._kill(session.session_id))
        session.failed = True
        self.check(session)

    async def _kill(self, session_id: str) -> None:
        guest = self.host._lifecycle.find(session_id).guest  # pyright: ignore[reportPrivateUsage] - nobody else has it
        assert guest is not None
        os.kill(guest.pid, signal.SIGKILL)
        while (await self.host.get(session_id)).state is not SessionState.FAILED:  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0.01)

    @rule(pick=PICK)
    def recover(self, pick: int) -> None:
        session_id = self.some(pick)

        def foretold() -> Session:
            session = self.shadow.find(session_id)
            if not session.failed:
                raise InvalidState(session_id)
            session.failed = False
            return session

        if both := self.ask("recover", foretold, lambda: self.host.recover(session_id)):
            self.check(both[0])

    @rule()
    def restart(self) -> None:
        steps["restart"] += 1
        self.run(self.host.close())
        self.open()
        self.list()
        for session in self.shadow.sessions.values():
            self.check(session)

    @rule()
    def list(self) -> None:
        steps["list"] += 1
        found = self.run(self.host.list(SessionFilter())).sessions
        assert {one.session_id for one in found} == set(self.shadow.sessions)

    # ---- commands and files ------------------------------------------------------------------------------------

    def _call(self, pick: int, script: str, change: Callable[[tree.Tree], None]) -> None:
        session_id = self.some(pick)
        self.count += 1
        request = CallRequest(session_id, ("sh", "-ec", script), call_id=f"c-{self.count}")

        def foretold() -> int:
            session = self.shadow.find(session_id)
            session.call(f"c-{self.count}")
            with suppress(SandlotError):
                change(session.tree)
                return 0
            return 1

        async def real() -> int | None:
            return (await run(self.host, request)).exit_code

        if both := self.ask("call", foretold, real):
            assert both[0] == both[1], f"{script}: exit code {both[1]}"
            self.check(self.shadow.sessions[session_id])

    @rule(pick=PICK, path=FILE, content=CONTENT)
    def call_writes(self, pick: int, path: str, content: str) -> None:
        script = f"mkdir -p $(dirname {path}); printf %s {content} > {path}"
        self._call(pick, script, lambda files: tree.write(files, path, content))

    @rule(pick=PICK, path=FILE | FOLDER)
    def call_removes(self, pick: int, path: str) -> None:
        self._call(pick, f"rm -r {path}", lambda files: tree.remove(files, path))

    @rule(pick=PICK, names=st.tuples(FILE, FILE) | st.sampled_from([("d", "e"), ("e", "d")]))
    def call_renames(self, pick: int, names: tuple[str, str]) -> None:
        path, to = names
        if path == to:
            return
        self._call(pick, f"mv -T {path} {to}", lambda files: tree.rename(files, path, to))

    @rule(pick=PICK)
    def call_stays(self, pick: int) -> None:
        """A process that lives on: the next snapshot has to copy."""
        session_id = self.some(pick)
        self.count += 1
        request = CallRequest(session_id, ("sleep", "1000"), call_id=f"c-{self.count}", detach=True)

        async def real() -> None:
            async with self.host.call(request) as events:
                async for _started in events:
                    break

        self.ask("call", lambda: self.shadow.find(session_id).call(f"c-{self.count}"), real)

    @rule(pick=PICK, call=PICK)
    def call_again(self, pick: int, call: int) -> None:
        """One that is known is read, not run."""
        session = self.shadow.sessions.get(self.some(pick))
        known = list(session.calls.values()) if session else []
        if session is None or not known:
            return
        steps["call"] += 1
        again = CallRequest(session.session_id, ("sh", "-c", "echo > must-not-be"), call_id=known[call % len(known)])

        async def attach() -> None:
            async with self.host.call(again):
                pass

        self.run(attach())
        self.check(session)

    def _touch(
        self, what: str, pick: int, change: Callable[[tree.Tree], None], real: Callable[[str], Awaitable[object]]
    ) -> None:
        session_id = self.some(pick)

        def foretold() -> Session:
            session = self.shadow.find(session_id)
            session.need_active()
            change(session.tree)
            return session

        async def touch() -> None:
            await real(session_id)

        if both := self.ask(what, foretold, touch):
            self.check(both[0])

    @rule(pick=PICK, path=FILE, content=CONTENT)
    def write_file(self, pick: int, path: str, content: str) -> None:
        async def pieces() -> AsyncIterator[bytes]:
            yield content.encode()

        self._touch(
            "write_file",
            pick,
            lambda files: tree.write(files, path, content),
            lambda name: self.host.write_file(FileWrite(name, path), pieces()),
        )

    @rule(pick=PICK, path=FILE | FOLDER)
    def remove_file(self, pick: int, path: str) -> None:
        self._touch(
            "remove_file",
            pick,
            lambda files: tree.remove(files, path),
            lambda name: self.host.remove_file(FileRemove(name, path, recursive=True)),
        )

    @rule(pick=PICK, path=FILE, to=FILE)
    def rename_file(self, pick: int, path: str, to: str) -> None:
        self._touch(
            "rename_file",
            pick,
            lambda files: tree.rename(files, path, to),
            lambda name: self.host.rename_file(FileRename(name, path, to=to)),
        )

    # ---- snapshots and turns -----------------------------------------------------------------------------------

    @rule(pick=PICK, name=st.sampled_from(["one", "two", "three"]), request=REQUEST)
    def create_snapshot(self, pick: int, name: str, request: str | None) -> None:
        session_id = self.some(pick)
        both = self.ask(
            "create_snapshot",
            lambda: self.shadow.find(session_id).create_snapshot(name, request),
            lambda: self.host.create_snapshot(SnapshotRequest(session_id, name, request)),
        )
        if both:
            assert both[0] == both[1].name
            self.check(self.shadow.sessions[session_id])

    @rule(pick=PICK, request=REQUEST)
    def turn_complete(self, pick: int, request: str | None) -> None:
        session_id = self.some(pick)
        both = self.ask(
            "turn_complete",
            lambda: self.shadow.find(session_id).turn_complete(request),
            lambda: self.host.turn_complete(TurnRequest(session_id, request)),
        )
        if both:
            session = self.shadow.sessions[session_id]
            assert (both[1].number, both[1].snapshot) == (both[0].number, both[0].snapshot)
            assert [call.call_id for call in both[1].calls] == session.calls_of(both[0])
            self.check(session)

    @rule(pick=PICK, at=PICK)
    def delete_snapshot(self, pick: int, at: int) -> None:
        session_id = self.some(pick)
        name = self.point(session_id, at)
        both = self.ask(
            "delete_snapshot",
            lambda: self.shadow.find(session_id).delete(name),
            lambda: self.host.delete_snapshot(session_id, name),
        )
        if both:
            self.check(self.shadow.sessions[session_id])

    @rule(pick=PICK, at=PICK, keep=st.booleans())
    def rollback(self, pick: int, at: int, keep: bool) -> None:
        session_id = self.some(pick)
        to = self.point(session_id, at)
        both = self.ask(
            "rollback",
            lambda: self.shadow.find(session_id).roll_back(to, keep=keep),
            lambda: self.host.rollback(RollbackRequest(session_id, to, keep)),
        )
        if both:
            self.check(self.shadow.sessions[session_id])

    @rule(pick=PICK, at=st.none() | PICK, count=st.integers(1, 3), request=REQUEST)
    def fork(self, pick: int, at: int | None, count: int, request: str | None) -> None:
        session_id = self.some(pick)
        point = None if at is None else self.point(session_id, at)
        both = self.ask(
            "fork",
            lambda: self.shadow.fork(session_id, point, count, request),
            lambda: self.host.fork(ForkRequest(session_id, point, count=count, request_id=request)),
        )
        if both is None:
            return
        known, made = both[0], sorted(one.session_id for one in both[1])
        if known is not None:
            assert made == sorted(known)
            return
        assert len(made) == count
        origin = self.shadow.forked(session_id, point, request, made)
        assert {one.origin for one in both[1]} == {origin}
        for name in (session_id, *made):
            self.check(self.shadow.sessions[name])

    @rule(pick=PICK, old=PICK, new=PICK | st.just(-1))
    def diff(self, pick: int, old: int, new: int) -> None:
        session_id = self.some(pick)
        before = self.point(session_id, old)
        after = CURRENT if new < 0 else self.point(session_id, new)

        def foretold() -> set[tuple[str, str]]:
            session = self.shadow.find(session_id)
            start = session.find(before).tree
            return tree.differences(start, session.tree if after == CURRENT else session.find(after).tree)

        async def real() -> set[tuple[str, str]]:
            async with self.host.diff(DiffRequest(session_id, before, after)) as batches:
                return {(change.path, str(change.kind)) async for batch in batches for change in batch}

        if both := self.ask("diff", foretold, real):
            assert both[0] == both[1]

    # ---- looking -----------------------------------------------------------------------------------------------

    def check(self, session: Session) -> None:
        self.run(self._check(session))

    async def _check(self, session: Session) -> None:
        name = session.session_id
        info = await self.host.get(name)
        state = SessionState.FAILED if session.failed else SessionState.ACTIVE
        assert (info.state, info.head, info.origin) == (state, session.head, session.origin)
        assert (info.turn_count, info.snap_count) == (session.last_turn, len(session.shots))
        assert info.labels == session.labels
        shots = [(shot.name, shot.parent, shot.turn) for shot in await self.host.list_snapshots(name)]
        assert shots == [(shot.name, shot.parent, shot.turn) for shot in session.shots.values()]
        turns = [Turn(turn.number, turn.snapshot, 0, 0) for turn in await self.host.turns(name)]
        assert turns == [Turn(turn.number, turn.snapshot, 0, 0) for turn in session.turns]
        calls = [call.call_id for call in await self.host.calls(name)]
        assert calls == list(session.calls.values()), (calls, session.calls)
        if not session.failed:
            assert await self._files(name) == session.tree

    async def _files(self, session_id: str) -> tree.Tree:
        found: tree.Tree = {}
        async with self.host.list_files(FileList(session_id, "/workspace", depth=9)) as batches:
            entries = [info async for batch in batches for info in batch]
        for info in entries:
            content = None
            if info.kind is FileKind.FILE:
                async with self.host.read_file(FileRead(session_id, info.path)) as stream:
                    content = b"".join([piece async for piece in stream]).decode()
            found[info.path.removeprefix("/workspace/")] = content
        return found

    def teardown(self) -> None:
        """Nothing on disk without a name; and nothing at all when all sessions are gone."""
        try:
            self.run(settled(self.host, self.data))
            for session_id in tuple(self.shadow.sessions):
                self.run(self.host.destroy(session_id))
            self.run(settled(self.host, self.data))
            self.run(storages.nothing_left(self.host, self.data, self.storage))
        finally:
            self.run(self.host.close())
            assert storages.left_of_machine(self.data) == set()
            self.runner.close()
            (self.data / "templates").unlink()
            shutil.rmtree(self.folder)
