"""New sessions from a snapshot of one: all that were asked for, or none."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import cast

from sandlot.host import failpoints
from sandlot.host.history import History, SnapshotRow
from sandlot.host.lifecycle import Lifecycle
from sandlot.host.parts import HostParts
from sandlot.host.repeats import Verb
from sandlot.host.session import Session
from sandlot.host.sleeping import Sleeping
from sandlot.host.starting import serve
from sandlot.host.turns import Turns
from sandlot.model import ForkRequest, InvalidState, SandlotError, SessionInfo

_FORKS_AT_ONCE = 16
_FORK_PREFIX = "fork-"


class Forks:
    def __init__(self, lifecycle: Lifecycle, parts: HostParts, turns: Turns, sleeping: Sleeping) -> None:
        self._lifecycle = lifecycle
        self._parts = parts
        self._history = History(parts.journal)
        self._turns = turns
        self._sleeping = sleeping

    async def fork(self, request: ForkRequest) -> Sequence[SessionInfo]:
        return await self._turns.under_way.begin(self._fork(request))

    async def _fork(self, request: ForkRequest) -> Sequence[SessionInfo]:
        session = self._turns.find(request.session_id)
        self._turns.need_snapshots(session)
        async with self._turns.once(Verb.FORK, request) as known:
            if known is not None:
                return [await self._lifecycle.get(session_id) for session_id in known.split(",")]
            at = self._turns.row(session, request.at) if request.at is not None else None
            if request.memory:
                self._need_memory(session, at)
            own: list[SnapshotRow] = []  # taken for this fork; not yet anybody's
            made: list[Session] = []
            try:
                if at is None:
                    at = await self._turns.under_way.unbroken(self._snapshot(session, own, memory=request.memory))
                with self._parts.storages[session.row.storage].holding(at.point):
                    async with self._lent(at, memory=request.memory) as image:
                        await self._fork_at(session, at, request, made, image)
                self._lifecycle.sweep()  # it may have been released meanwhile
            except BaseException as error:  # noqa: BLE001 - all or none: undone, then raised again
                await asyncio.shield(self._undo(session, own, made))
                raise _first(error) from None
            return [child.info() for child in made]

    def _need_memory(self, session: Session, at: SnapshotRow | None) -> None:
        self._sleeping.need(session)
        if at is not None and not at.memory:
            raise InvalidState(
                f"snapshot {at.name} of session {session.row.session_id} was taken without memory",
                next_step="leave the memory out, or fork another one",
                session_id=session.row.session_id,
            )

    @asynccontextmanager
    async def _lent(self, at: SnapshotRow, *, memory: bool) -> AsyncGenerator[Path | None]:
        """An image that stays, whatever becomes of the snapshot meanwhile."""
        memories = self._parts.memories
        image = await asyncio.to_thread(memories.copy, at.memory) if memory else ""
        try:
            yield memories.path(image) if image else None
        finally:
            await memories.discard([image])

    async def _fork_at(
        self, session: Session, at: SnapshotRow, request: ForkRequest, made: list[Session], image: Path | None
    ) -> None:
        labels = session.labels if request.labels is None else request.labels
        room = asyncio.Semaphore(_FORKS_AT_ONCE)

        async def one() -> None:
            async with room:
                child = await self._lifecycle.fork(session, at, labels, request.timeout_s, image)
                made.append(child)
                if image is None:  # else what its template starts runs already
                    await serve(child)
                await failpoints.reach("fork: some made")

        async with asyncio.TaskGroup() as group:
            for _ in range(request.count):
                group.create_task(one())
        await failpoints.reach("fork: all made")
        await self._history.finish_fork(request, [child.row.session_id for child in made])
        for child in made:
            child.row = replace(child.row, changing="")

    async def _undo(self, session: Session, own: Sequence[SnapshotRow], made: Sequence[Session]) -> None:
        for child in made:
            with suppress(SandlotError):
                await self._lifecycle.destroy(child.row.session_id)
        with suppress(SandlotError):
            async with session.gate.shut_when_open("the removal of a snapshot"):
                await self._turns.drop(session, [row for row in own if row.name in session.snapshots])

    async def _snapshot(self, session: Session, own: list[SnapshotRow], *, memory: bool) -> SnapshotRow:
        async with self._turns.alone(session, "a snapshot"):
            names = (f"{_FORK_PREFIX}{number:04d}" for number in count(1))
            name = next(name for name in names if name not in session.snapshots)
            own.append(await self._turns.take_named(session, name, memory=memory))
            return own[0]


def _first(error: BaseException) -> BaseException:
    """What went wrong first, without the group that a group of tasks puts around it."""
    while isinstance(error, BaseExceptionGroup):
        group = cast("BaseExceptionGroup[BaseException]", error)
        error = group.exceptions[0]
    return error
