"""A session moved to another storage, in place: the same id, the same turns, the same files.

It is made whole on the other storage first, with a guest of its own; one transaction then says that it is there. What
runs in it stands still meanwhile. Before the transaction everything goes on as if nothing had been; after it, what ran
has ended, and what is left on the old storage is given back.
"""

import asyncio
import os
import secrets
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from sandlot.contracts.runtime import Guest, Runtime
from sandlot.contracts.storage import Storage, Volume
from sandlot.host import carrying, failpoints
from sandlot.host.choices import Choices, check_wishes, session_capabilities
from sandlot.host.history import History, SnapshotRow
from sandlot.host.lifecycle import Lifecycle
from sandlot.host.output import remove_outputs
from sandlot.host.parts import HostParts
from sandlot.host.room import watch_limits
from sandlot.host.session import Session
from sandlot.host.under_way import UnderWay
from sandlot.model import (
    Capability,
    InvalidState,
    LimitReached,
    MoveProgress,
    MoveRequest,
    SandlotError,
    SessionDestroying,
    SessionInfo,
    SessionSpec,
    SessionState,
    SnapshotsNotAvailable,
    ToolsInFlight,
    Unavailable,
    limits,
    refusal,
)

_MOVABLE = (SessionState.ACTIVE, SessionState.PAUSED, SessionState.FAILED)
_MOVED = "the session was moved to another storage"


@dataclass(slots=True)
class _Move:
    """One that is under way: what has to be undone when it fails."""

    session: Session
    runtime: Runtime
    old: Storage
    new: Storage
    name: str = field(default_factory=lambda: "v-" + secrets.token_hex(8))
    carrier: carrying.Carrier | None = None
    guest: Guest | None = None
    frozen_at: float | None = None
    lost: list[str] = field(default_factory=list[str])


class Moving:
    def __init__(self, lifecycle: Lifecycle, parts: HostParts, choices: Choices, outputs: Path) -> None:
        self._lifecycle = lifecycle
        self._parts = parts
        self._choices = choices
        self._outputs = outputs
        self._history = History(parts.journal)
        self._under_way = UnderWay()

    async def settle(self) -> None:
        """What is not done by now is undone."""
        await self._under_way.give_up()

    @asynccontextmanager
    async def move(self, request: MoveRequest) -> AsyncGenerator[AsyncIterator[MoveProgress]]:
        """Leaving it before the end undoes it, unless it is done."""
        news: asyncio.Queue[MoveProgress | None] = asyncio.Queue()
        work = self._under_way.begin(self._move(request, news.put_nowait))
        work.add_done_callback(lambda _work: news.put_nowait(None))

        async def told() -> AsyncIterator[MoveProgress]:
            while (progress := await news.get()) is not None:
                yield progress
            await work

        try:
            yield told()
            await work
        finally:
            if not work.done():
                work.cancel()
                await asyncio.wait([work])

    async def _move(self, request: MoveRequest, tell: Callable[[MoveProgress], None]) -> SessionInfo:
        session = self._lifecycle.find(request.session_id)
        self._check_state(session)
        new = await self._choices.storage(request.storage)
        if new.name == session.row.storage:
            return session.info()
        move = _Move(session, self._parts.runtimes[session.row.runtime], self._parts.storages[session.row.storage], new)
        self._check_abilities(move)
        async with session.gate.shut_to_move():
            self._check_state(session)
            total = await self._check_space(move)
            await self._do(move, tell, total)
        await self._lifecycle.serving.again(session)
        return session.info()

    # ---- before anything is done -------------------------------------------------------------------------------

    def _check_state(self, session: Session) -> None:
        row = session.row
        if row.state not in _MOVABLE:
            raise refusal(row.session_id, row.state, "it cannot be moved", row.reason)
        if row.memory and row.state is SessionState.PAUSED:
            raise InvalidState(f"session {row.session_id} sleeps", next_step="resume it", session_id=row.session_id)
        if session.volume is None:
            raise Unavailable(f"the files of session {row.session_id} are not there", session_id=row.session_id)
        if attended := sum(live.is_attended and live.result is None for live in session.live.values()):
            raise ToolsInFlight(
                f"session {row.session_id} runs {attended} calls that someone waits for",
                next_step="wait for them, or end them",
                session_id=row.session_id,
                count=attended,
            )

    def _check_abilities(self, move: _Move) -> None:
        session = move.session
        have = session_capabilities(move.runtime, move.new)
        check_wishes(SessionSpec(resources=session.resources, call_snapshots=session.call_snapshots), have)
        if session.snapshots and Capability.SNAPSHOTS not in have:
            raise SnapshotsNotAvailable(
                f"session {session.row.session_id} has snapshots, and the storage {move.new.name} has none",
                next_step="delete them first, or choose another storage",
                session_id=session.row.session_id,
            )

    async def _check_space(self, move: _Move) -> int:
        """About how much is to be carried. Raises LimitReached when there is no room for it."""
        rows, volume = tuple(move.session.snapshots.values()), move.session.volume
        assert volume is not None
        total = 0
        for row in (*rows, None):
            base = carrying.base_of(row, rows, move.session.row.head)
            text = volume.state if row is None else row.point
            total += await move.old.usage(text, base.point if base else "")
        free = (await move.new.health()).space.free_bytes
        if total > free * limits.IMPORT_ROOM:
            raise LimitReached(
                f"session {move.session.row.session_id} takes about {total} bytes, and {move.new.name} has {free} free",
                next_step="free space, or delete snapshots",
                limit="space",
            )
        return total

    # ---- the move ----------------------------------------------------------------------------------------------

    async def _do(self, move: _Move, tell: Callable[[MoveProgress], None], total: int) -> None:
        session = move.session
        old_row, old_volume = session.row, session.volume
        rows = tuple(session.snapshots.values())
        try:
            if old_row.state is not SessionState.FAILED:  # it has no guest that would have to be put right
                await self._history.begin(old_row.session_id, "move")
            await failpoints.reach("move: begun")
            await self._stand_still(move)
            await self._carry(move, rows, tell, total)
            await failpoints.reach("move: synced")
            await self._start(move)
            await failpoints.reach("move: guest started")
            await asyncio.to_thread(_link_outputs, self._outputs / old_row.volume, self._outputs / move.name)
            moved = await self._record(move, rows)
        except BaseException:  # undone, then raised again
            await asyncio.shield(self._undo(move))
            raise
        await failpoints.reach("move: recorded")
        await asyncio.shield(self._leave(move, moved, old_row.volume, old_volume))

    async def _stand_still(self, move: _Move) -> None:
        row = move.session.row
        if row.state is SessionState.ACTIVE:
            move.frozen_at = time.time()
            move.session.hold_calls()
            await move.runtime.group(row.volume).pause()

    async def _carry(
        self, move: _Move, rows: tuple[SnapshotRow, ...], tell: Callable[[MoveProgress], None], total: int
    ) -> None:
        session, volume = move.session, move.session.volume
        assert volume is not None
        template = Path(session.row.template_path) if session.row.template_path else None
        empty = await move.new.create(move.name, "", session.resources.disk_bytes)
        carrier = move.carrier = carrying.Carrier(move.new, template, empty)
        await failpoints.reach("move: volume made")
        done = MoveProgress(0, len(rows) + 1, 0, total)
        tell(done)

        def on_bytes(count: int) -> None:
            nonlocal done
            if session.gate.is_ending:
                raise SessionDestroying(f"session {session.row.session_id} is being destroyed")
            if count:
                done = replace(done, size_bytes=done.size_bytes + count)
                tell(done)

        async def on_point() -> None:
            nonlocal done
            done = replace(done, points=done.points + 1)
            tell(done)
            await failpoints.reach("move: point made")

        carrier.on_bytes, carrier.on_point = on_bytes, on_point
        await carrier.carry(
            rows,
            session.row.head,
            lambda base, row: carrying.showing(move.old, template, base, volume if row is None else row.point),
        )

    async def _start(self, move: _Move) -> None:
        """A guest beside the one that stands still. It is the session's when that is recorded."""
        session, row = move.session, move.session.row
        if row.state is SessionState.FAILED:
            return
        assert move.carrier is not None
        plan = replace(session.start_plan(), volume=move.carrier.volume)

        def ended(reason: str) -> None:
            move.lost.append(reason)
            if session.guest is move.guest:
                self._lifecycle.guest_ended(session, reason)

        move.guest = await move.runtime.start(plan, ended)
        if row.state is SessionState.PAUSED:
            await move.runtime.group(move.name).pause()

    async def _record(self, move: _Move, rows: tuple[SnapshotRow, ...]) -> list[SnapshotRow]:
        assert move.carrier is not None
        if move.lost:
            raise Unavailable(f"the new guest of the session ended: {move.lost[0]}")
        moved = [replace(row, point=move.carrier.points[row.name]) for row in rows]
        session_id = move.session.row.session_id
        await self._history.move(session_id, move.new.name, move.name, move.carrier.volume.state, moved)
        return moved

    async def _leave(self, move: _Move, moved: list[SnapshotRow], old_name: str, old_volume: Volume | None) -> None:
        """It is there: from here on nothing is undone."""
        session, carrier = move.session, move.carrier
        assert carrier is not None
        old = [row.point for row in session.snapshots.values()]
        state = carrier.volume.state
        session.row = replace(session.row, storage=move.new.name, volume=move.name, volume_state=state, changing="")
        session.volume, session.workspace = carrier.volume, move.runtime.workspace(carrier.volume)
        session.snapshots = {row.name: row for row in moved}
        session.find_group = partial(move.runtime.group, move.name)
        watch_limits(session, move.new)
        session.limit_watch.forget()
        session.guest, session.is_heard = move.guest, True
        await self._end_calls(session)
        session.is_leaving = True
        try:
            with suppress(SandlotError):  # the next engine ends it: no row names it
                await move.runtime.stop(old_name)
        finally:
            session.is_leaving = False
        await failpoints.reach("move: guest ended")
        if move.lost and session.row.state is not SessionState.FAILED:
            self._lifecycle.guest_ended(session, move.lost[0])
        await asyncio.to_thread(remove_outputs, self._outputs / old_name)
        await move.old.release(*old, *([old_volume.state] if old_volume else []))
        self._lifecycle.notes.remember(session)
        self._lifecycle.sweep()

    async def _end_calls(self, session: Session) -> None:
        session.note_calls()
        for live in session.everything():
            live.on_lost(_MOVED)
        await self._parts.journal.calls_lost(session.row.session_id)
        session.live.clear()

    async def _undo(self, move: _Move) -> None:
        session = move.session
        with suppress(SandlotError):
            if move.guest is not None:
                await move.runtime.stop(move.name)
        with suppress(SandlotError, OSError):
            await asyncio.to_thread(remove_outputs, self._outputs / move.name)
        with suppress(SandlotError):
            if move.carrier is not None:
                await move.new.release(*move.carrier.points.values(), move.carrier.volume.state)
        with suppress(SandlotError):
            await self._history.end(session.row.session_id)
        if move.frozen_at is not None:
            try:
                await move.runtime.group(session.row.volume).resume()
            except SandlotError as error:
                session.on_wedged(f"it could not go on: {error.message}")
            session.release_calls(max(0.0, time.time() - move.frozen_at))
        self._lifecycle.sweep()


def _link_outputs(old: Path, new: Path) -> None:
    """Further names of the same files: whichever of the two folders is removed, the other has them all."""
    if not old.is_dir():
        return
    new.mkdir(mode=0o700)
    for file in old.iterdir():
        os.link(file, new / file.name)
