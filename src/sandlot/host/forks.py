"""New sessions from a snapshot of one: all that were asked for, or none."""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import count
from typing import cast

from sandlot.host import failpoints
from sandlot.host.history import History, SnapshotRow
from sandlot.host.lifecycle import Lifecycle
from sandlot.host.parts import HostParts
from sandlot.host.repeats import Verb
from sandlot.host.session import Session
from sandlot.host.starting import serve
from sandlot.host.turns import Turns
from sandlot.model import ForkRequest, SandlotError, SessionInfo

_FORKS_AT_ONCE = 16
_FORK_PREFIX = "fork-"


class Forks:
    def __init__(self, lifecycle: Lifecycle, parts: HostParts, turns: Turns) -> None:
        self._lifecycle = lifecycle
        self._parts = parts
        self._history = History(parts.journal)
        self._turns = turns

    async def fork(self, request: ForkRequest) -> Sequence[SessionInfo]:
        return await self._turns.under_way.begin(self._fork(request))

    async def _fork(self, request: ForkRequest) -> Sequence[SessionInfo]:
        session = self._turns.find(request.session_id)
        self._turns.need_snapshots(session)
        async with self._turns.once(Verb.FORK, request) as known:
            if known is not None:
                return [await self._lifecycle.get(session_id) for session_id in known.split(",")]
            at = self._turns.row(session, request.at) if request.at is not None else None
            own: list[SnapshotRow] = []  # taken for this fork; not yet anybody's
            made: list[Session] = []
            try:
                if at is None:
                    at = await self._turns.under_way.unbroken(self._snapshot(session, own))
                with self._parts.storages[session.row.storage].holding(at.point):
                    await self._fork_at(session, at, request, made)
                self._lifecycle.sweep()  # it may have been released meanwhile
            except BaseException as error:  # noqa: BLE001 - all or none: undone, then raised again
                await asyncio.shield(self._undo(session, own, made))
                raise _first(error) from None
            return [child.info() for child in made]

    async def _fork_at(self, session: Session, at: SnapshotRow, request: ForkRequest, made: list[Session]) -> None:
        labels = session.labels if request.labels is None else request.labels
        origin = f"{request.session_id}/{at.name}"
        room = asyncio.Semaphore(_FORKS_AT_ONCE)

        async def one() -> None:
            async with room:
                child = await self._lifecycle.fork(session, origin, at.point, labels, request.timeout_s)
                made.append(child)
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

    async def _snapshot(self, session: Session, own: list[SnapshotRow]) -> SnapshotRow:
        async with self._turns.alone(session, "a snapshot"):
            names = (f"{_FORK_PREFIX}{number:04d}" for number in count(1))
            name = next(name for name in names if name not in session.snapshots)
            own.append(await self._turns.take_named(session, name))
            return own[0]


def _first(error: BaseException) -> BaseException:
    """What went wrong first, without the group that a group of tasks puts around it."""
    while isinstance(error, BaseExceptionGroup):
        group = cast("BaseExceptionGroup[BaseException]", error)
        error = group.exceptions[0]
    return error
