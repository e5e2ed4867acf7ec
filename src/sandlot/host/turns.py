"""Snapshots, turns and rollback. Each changes what a session stands on, with nobody else at work in it.

What is recorded has happened, what is not recorded has not: an engine that dies in between leaves a mark, and the next
one puts the guest back onto the root that the journal knows.
"""

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import ExitStack, asynccontextmanager, suppress
from dataclasses import replace

from sandlot.contracts.runtime import Group, Runtime
from sandlot.contracts.storage import Storage, Taken, Volume
from sandlot.host import changes, failpoints
from sandlot.host.background import Background
from sandlot.host.choices import no_snapshots, session_capabilities
from sandlot.host.history import History, SnapshotRow, TurnRow
from sandlot.host.journal import Journal
from sandlot.host.lifecycle import Lifecycle
from sandlot.host.parts import HostParts
from sandlot.host.repeats import Repeats, Verb
from sandlot.host.room import room
from sandlot.host.session import Session
from sandlot.host.sleeping import Sleeping
from sandlot.host.under_way import UnderWay
from sandlot.model import (
    CURRENT,
    Capability,
    Change,
    Conflict,
    DiffRequest,
    ForkRequest,
    NotFound,
    RollbackRequest,
    SandlotError,
    SessionInfo,
    SessionState,
    Snapshot,
    SnapshotKind,
    SnapshotNotFound,
    SnapshotRequest,
    ToolsInFlight,
    Turn,
    TurnRequest,
    Unavailable,
    call_snapshot,
    check_given_name,
    check_id,
    limits,
    refusal,
    turn_snapshot,
)

SNAPSHOT = "snapshot"  # what is under way with its files, as the journal has it
_TIDY_AFTER_S = 0.05  # whoever took a snapshot is about to do something, and the two would fight for the processor
_WITH_FILES = (SessionState.ACTIVE, SessionState.PAUSED)
_log = logging.getLogger("sandlot.host")


class Turns:
    def __init__(
        self,
        lifecycle: Lifecycle,
        parts: HostParts,
        background: Background,
        sleeping: Sleeping,
        turns_kept: int,
        prefix: str,
    ) -> None:
        self._lifecycle = lifecycle
        self._background = background
        self._sleeping = sleeping
        self._parts = parts
        self._journal: Journal = parts.journal
        self._history = History(parts.journal)
        self._repeats = Repeats()
        self.under_way = UnderWay()
        self._turns_kept = turns_kept
        self._prefix = prefix

    # ---- snapshots ---------------------------------------------------------------------------------------------

    async def create_snapshot(self, request: SnapshotRequest) -> Snapshot:
        return await self.under_way.unbroken(self._create_snapshot(request))

    async def _create_snapshot(self, request: SnapshotRequest) -> Snapshot:
        session = self.find(request.session_id)
        self.need_snapshots(session)
        if request.memory:
            self._sleeping.need(session)
        check_given_name(request.name, self._prefix)
        async with self.once(Verb.SNAPSHOT, request) as known:
            if known is not None:
                return self.row(session, known).told()
            return await self._name_snapshot(session, request)

    async def _name_snapshot(self, session: Session, request: SnapshotRequest) -> Snapshot:
        async with self.alone(session, "a snapshot"):
            if request.name in session.snapshots:
                raise Conflict(
                    f"session {request.session_id} has a snapshot {request.name} already",
                    next_step="choose another name, or delete it",
                    session_id=request.session_id,
                )
            row = await self.take_named(session, request.name, request.request_id, memory=request.memory)
        return row.told()

    async def snapshot_call(self, session: Session, call_id: str) -> str | None:
        return await self.under_way.unbroken(self._snapshot_call(session, call_id))

    async def _snapshot_call(self, session: Session, call_id: str) -> str | None:
        """After a call that has ended. Its result stands, whatever becomes of the snapshot."""
        try:
            async with session.snapping:
                await session.gate.wait()
                async with session.gate.shut("the snapshot of a call"):
                    if session.row.state is not SessionState.ACTIVE:
                        return None
                    row = await self._take(session, call_snapshot(call_id), SnapshotKind.CALL, None, None)
        except SandlotError as error:
            _log.warning("no snapshot of call %s in session %s: %s", call_id, session.row.session_id, error.message)
            return None
        return row.name

    async def list_snapshots(self, session_id: str) -> Sequence[Snapshot]:
        session = self._lifecycle.find(session_id)
        self.need_snapshots(session)
        return [row.told(await self._space(session, row.name)) for row in tuple(session.snapshots.values())]

    async def delete_snapshot(self, session_id: str, name: str) -> None:
        await self.under_way.unbroken(self._delete_snapshot(session_id, check_id("snapshot", name)))

    async def _delete_snapshot(self, session_id: str, name: str) -> None:
        session = self._lifecycle.find(session_id)
        self.need_snapshots(session)
        async with session.gate.shut("the removal of a snapshot"):
            await self.drop(session, [self.row(session, name)])

    async def drop(self, session: Session, rows: Sequence[SnapshotRow]) -> None:
        await self._history.remove(session.row.session_id, *(row.name for row in rows))
        await failpoints.reach("delete: recorded")
        session.forget_snapshots(*(row.name for row in rows))
        await self._parts.memories.discard(row.memory for row in rows)
        await self._storage(session).release(*(row.point for row in rows))
        self._lifecycle.sweep()

    # ---- turns -------------------------------------------------------------------------------------------------

    async def turn_complete(self, request: TurnRequest) -> Turn:
        return await self.under_way.unbroken(self._turn_complete(request))

    async def _turn_complete(self, request: TurnRequest) -> Turn:
        session = self.find(request.session_id)
        async with self.once(Verb.TURN, request) as known:
            if known is not None:
                return await self._turn(session, known)
            return await self._told(session, await self._close_turn(session, request))

    async def _close_turn(self, session: Session, request: TurnRequest) -> TurnRow:
        async with self.alone(session, "the end of a turn"):
            number = session.row.last_turn + 1
            if session.turned is None:
                session.turned = await self._history.last_process_id(request.session_id)
            first = session.turned + 1
            if self._has_snapshots(session):
                name = turn_snapshot(number, self._prefix)
                turn = TurnRow(request.session_id, number, time.time(), name, first, session.last_process_id)
                row = await self._take(session, name, SnapshotKind.TURN, turn, request.request_id)
                self._count_later(session, row)
            else:
                turn = TurnRow(request.session_id, number, time.time(), None, first, session.last_process_id)
                await self._history.add_turn(turn, request.request_id)
            session.row = replace(session.row, last_turn=number)
            session.turned = turn.last_process_id
            with suppress(SandlotError):  # the turn is closed; what stays too long goes with the next one
                await self._prune(session)
        return turn

    async def turns(self, session_id: str) -> Sequence[Turn]:
        session = self._lifecycle.find(session_id)
        return [
            replace(await self._told(session, row), space_bytes=await self._space(session, row.snapshot))
            for row in await self._history.turns(session_id)
        ]

    async def _space(self, session: Session, name: str | None) -> int | None:
        """Of a snapshot, that no older one needs. None: it is gone."""
        row = session.snapshots.get(name or "")
        parent = session.snapshots.get(row.parent or "") if row else None
        with suppress(NotFound):
            if row:
                image = await asyncio.to_thread(self._parts.memories.used, row.memory) if row.memory else 0
                return image + await self._storage(session).usage(row.point, parent.point if parent else "")
        return None

    async def _turn(self, session: Session, answer: str) -> Turn:
        for row in await self._history.turns(session.row.session_id):
            if answer == str(row.number):
                return await self._told(session, row)
        raise SnapshotNotFound(f"the turn of session {session.row.session_id} that was asked for is gone")

    async def _told(self, session: Session, row: TurnRow) -> Turn:
        calls = await session.calls(row.first_process_id, row.last_process_id)
        return Turn(row.session_id, row.number, row.closed, row.snapshot, tuple(calls), row.changes)

    def _count_later(self, session: Session, row: SnapshotRow) -> None:
        parent = session.snapshots.get(row.parent or "")
        sight = changes.Sight(session.start_plan().template, session.workspace)
        held = ExitStack()  # from now on: both points may be removed before the counting begins
        held.callback(self._lifecycle.sweep)  # last: what was released meanwhile has waited for this
        held.enter_context(self._storage(session).holding(row.point, parent.point if parent else ""))
        session.counting.add(held)
        held.callback(session.counting.discard, held)
        counting = changes.count_later(self._storage(session), self._history, sight, row, parent, held)
        self._background.spawn("count changes", counting)

    @asynccontextmanager
    async def diff(self, request: DiffRequest) -> AsyncGenerator[AsyncIterator[Sequence[Change]]]:
        session = self._lifecycle.find(request.session_id)
        self.need_snapshots(session)
        if session.volume is None:
            raise Unavailable(f"the volume of session {request.session_id} is missing")
        old = self.row(session, request.old).point
        new = session.volume.state if request.new == CURRENT else self.row(session, request.new).point
        sight = changes.Sight(session.start_plan().template, session.workspace)
        async with changes.diff(self._storage(session), sight, old, new, request) as batches:
            yield batches
        self._lifecycle.sweep()

    async def _prune(self, session: Session) -> None:
        """Only turns, and the calls within them: what a user named stays until he deletes it."""
        if self._turns_kept <= 0:
            return
        turns = [row for row in session.snapshots.values() if row.kind is SnapshotKind.TURN]
        if old := turns[: -self._turns_kept]:
            calls = [row for row in session.snapshots.values() if row.kind is SnapshotKind.CALL]
            await self.drop(session, [*old, *(row for row in calls if row.serial < old[-1].serial)])

    # ---- how a snapshot is taken -------------------------------------------------------------------------------

    async def _take(
        self,
        session: Session,
        name: str,
        kind: SnapshotKind,
        turn: TurnRow | None,
        request_id: str | None,
        memory: str = "",
    ) -> SnapshotRow:
        """With the gate shut. Raises what `Snapshots.create_snapshot` raises; then everything is as before."""
        session_id, runtime, storage = session.row.session_id, self._runtime(session), self._storage(session)
        volume = session.volume
        assert volume is not None, "an active session has a volume"
        taken: Taken | None = None
        marked: asyncio.Future[None] | None = None
        try:
            is_frozen = session.row.state is SessionState.PAUSED
            if session.row.memory:  # it has no guest
                taken = await storage.snapshot(volume, alone=True)
            else:
                taken = await self._freeze_and_take(storage, volume, runtime.group(volume.name), is_frozen=is_frozen)
            # Nobody writes to what is closed: the disk can have it while the guest is moved.
            synced = None if taken.is_on_disk else asyncio.ensure_future(storage.sync())
            marked = asyncio.ensure_future(self._history.begin(session_id, SNAPSHOT))
            try:
                await failpoints.reach("snapshot: layer made")
                await marked
                await failpoints.reach("snapshot: begun")
                if taken.volume != volume:
                    session.volume = taken.volume
                    if not session.row.memory:
                        await runtime.swap(session.start_plan())
                    await failpoints.reach("snapshot: swapped")
            finally:
                if synced:
                    await synced
            await failpoints.reach("snapshot: synced")
            serial = session.last_snapshot + 1
            number = turn.number if turn else None
            head = (session_id, name, serial, kind, number, session.row.head, time.time())
            row = SnapshotRow(*head, taken.point, session.last_process_id, memory)
            await self._history.add(row, taken.volume.state, turn, request_id)
        except BaseException:  # undone, then raised again
            await asyncio.shield(self._undo(session, volume, taken, marked))
            raise
        await failpoints.reach("snapshot: recorded")
        session.row = replace(session.row, head=name, volume_state=taken.volume.state)
        session.add_snapshot(row)
        if taken.volume != volume:
            await storage.release(volume.state)
        self._lifecycle.notes.remember(session)
        self._background.spawn("merge layers", self._tidy(storage, taken.volume.state))
        return row

    async def _tidy(self, storage: Storage, state: str) -> None:
        await asyncio.sleep(_TIDY_AFTER_S)
        await storage.tidy(state)
        self._lifecycle.sweep()

    async def take_named(
        self, session: Session, name: str, request_id: str | None = None, *, memory: bool = False
    ) -> SnapshotRow:
        if not memory:
            return await self._take(session, name, SnapshotKind.NAMED, None, request_id)
        async with self._sleeping.asleep(session) as image:
            return await self._take(session, name, SnapshotKind.NAMED, None, request_id, image)

    async def _freeze_and_take(self, storage: Storage, volume: Volume, group: Group, *, is_frozen: bool) -> Taken:
        is_alone = not storage.is_atomic and await group.is_alone()
        if is_alone or is_frozen or storage.is_atomic:
            return await storage.snapshot(volume, alone=is_alone)
        try:
            await group.pause()
            return await storage.snapshot(volume, alone=False)
        finally:  # also of those that did not all stand still in time
            await group.resume()

    async def _undo(
        self, session: Session, volume: Volume, taken: Taken | None, marked: "asyncio.Future[None] | None"
    ) -> None:
        if marked is not None:
            await asyncio.gather(marked, return_exceptions=True)
        moved = session.volume != volume
        session.volume = volume
        if moved and not session.row.memory:
            await self._move_back(session)
        with suppress(SandlotError):
            if taken is not None:
                await self._release_taken(session, volume, taken)
            await self._history.end(session.row.session_id)

    async def _move_back(self, session: Session) -> None:
        """A guest that cannot be moved back stands on files that nobody knows: then it ends."""
        try:
            async with room(self._storage(session), session):
                await self._runtime(session).swap(session.start_plan())
        except SandlotError as error:
            session.on_wedged(f"its files could not be put back: {error.message}")

    async def _release_taken(self, session: Session, volume: Volume, taken: Taken) -> None:
        after = () if taken.volume == volume else (taken.volume.state,)
        await self._storage(session).release(taken.point, *after)

    # ---- rollback ----------------------------------------------------------------------------------------------

    async def rollback(self, request: RollbackRequest) -> SessionInfo:
        return await self.under_way.unbroken(self._rollback(request))

    async def _rollback(self, request: RollbackRequest) -> SessionInfo:
        session = self.find(request.session_id)
        self.need_snapshots(session)
        self._need_state(session, SessionState.ACTIVE)
        target = self.row(session, request.to)
        attended = sum(live.is_attended for live in session.live.values())
        if attended:
            raise ToolsInFlight(
                f"session {request.session_id} runs {attended} calls that someone waits for",
                next_step="wait for them, or end them",
                session_id=request.session_id,
                count=attended,
            )
        async with self.alone(session, "a rollback", refuse=True):
            await self._roll_back(session, target, keep=request.keep)
        return session.info()

    async def _roll_back(self, session: Session, target: SnapshotRow, *, keep: bool) -> None:
        if not target.memory:
            await self._change_root(session, target, keep=keep)
            return
        async with self._sleeping.lent(target.memory) as image:
            await self._change_root(session, target, keep=keep, image=image)
        await self._sleeping.come_back(session, image)

    async def _change_root(self, session: Session, target: SnapshotRow, *, keep: bool, image: str = "") -> None:
        """Under the guest that it has; with an image the guest stays where it is, and is nobody's from then on."""
        session_id, runtime, storage = session.row.session_id, self._runtime(session), self._storage(session)
        old = session.volume
        assert old is not None, "an active session has a volume"
        newer = [] if keep else _grown_from(target.name, tuple(session.snapshots.values()))
        await self._history.begin(session_id, "rollback")
        await failpoints.reach("rollback: begun")
        new: Volume | None = None
        try:
            session.processes.expect_ends("its session was rolled back")
            await runtime.group(old.name).clear()
            await self._wait_for_ends(session)
            await failpoints.reach("rollback: cleared")
            new = await storage.restore(old, target.point)
            await failpoints.reach("rollback: layer made")
            session.volume = new
            if not image:
                async with room(storage, session):
                    await runtime.swap(session.start_plan())
            await failpoints.reach("rollback: swapped")
            await self._history.roll_back(
                target,
                new.state,
                forget=tuple(row.name for row in newer),
                calls_until=None if keep else session.last_process_id,
                memory=image,
            )
        except BaseException:  # undone, then raised again
            await asyncio.shield(self._undo_rollback(session, old, new))
            raise
        await failpoints.reach("rollback: recorded")
        session.row = replace(session.row, head=target.name, volume_state=new.state)
        session.forget_snapshots(*(row.name for row in newer))
        session.turned = None  # turns may be gone
        await self._parts.memories.discard(row.memory for row in newer)
        await storage.release(old.state, *(row.point for row in newer))
        self._lifecycle.notes.remember(session)
        self._lifecycle.sweep()

    async def _wait_for_ends(self, session: Session) -> None:
        """Of commands that were left running and are ended now: their records must come before, not after."""
        for live in session.everything():
            with suppress(SandlotError, TimeoutError):
                async with asyncio.timeout(limits.KILL_DEADLINE_S):
                    await live.wait()
            await live.settle()

    async def _undo_rollback(self, session: Session, old: Volume, new: Volume | None) -> None:
        session.volume = old
        if new is not None:
            await self._move_back(session)
        with suppress(SandlotError):
            if new is not None:
                await self._storage(session).release(new.state)
            await self._history.end(session.row.session_id)

    # ---- one at a time -----------------------------------------------------------------------------------------

    async def settle(self) -> None:
        """Let what was begun come to its end."""
        await self.under_way.settle()

    @asynccontextmanager
    async def once(
        self, verb: Verb, request: SnapshotRequest | TurnRequest | ForkRequest
    ) -> AsyncGenerator[str | None]:
        """What the request was answered with, if it came before; while it is under way, a second one waits."""
        about = (verb, request.session_id, request.request_id)
        async with self._repeats.one_at_a_time(*about):
            yield await self._history.answer(*about)

    @asynccontextmanager
    async def alone(self, session: Session, what: str, *, refuse: bool = False) -> AsyncGenerator[None]:
        async with session.gate.shut(what, refuse=refuse):
            # It may have ended meanwhile. What changes the files on its own accord needs them to be in use.
            self._need_state(session, *((SessionState.ACTIVE,) if refuse else _WITH_FILES))
            yield

    # ---- looking up --------------------------------------------------------------------------------------------

    def find(self, session_id: str) -> Session:
        session = self._lifecycle.find(session_id)
        self._need_state(session, *_WITH_FILES)
        return session

    def _need_state(self, session: Session, *states: SessionState) -> None:
        row = session.row
        if row.state not in states:
            raise refusal(row.session_id, row.state, "it cannot be changed", row.reason)

    def _runtime(self, session: Session) -> Runtime:
        return self._parts.runtimes[session.row.runtime]

    def _storage(self, session: Session) -> Storage:
        return self._parts.storages[session.row.storage]

    def _has_snapshots(self, session: Session) -> bool:
        return Capability.SNAPSHOTS in session_capabilities(self._runtime(session), self._storage(session))

    def need_snapshots(self, session: Session) -> None:
        if not self._has_snapshots(session):
            raise no_snapshots(self._runtime(session), self._storage(session), session.row.session_id)

    def row(self, session: Session, asked: str) -> SnapshotRow:
        if (row := session.find_snapshot(asked)) is not None:
            return row
        raise SnapshotNotFound(
            f"session {session.row.session_id} has no snapshot {asked}",
            next_step="`sandlot log` shows its history",
            session_id=session.row.session_id,
        )


def _grown_from(name: str, rows: Sequence[SnapshotRow]) -> list[SnapshotRow]:
    """Every snapshot whose files grew from this one, itself not."""
    grown = {name}
    found: list[SnapshotRow] = []
    for row in rows:  # oldest first: parents come before
        if row.parent in grown:
            grown.add(row.name)
            found.append(row)
    return found
