"""What an earlier engine left: brought together with what the journal says."""

import asyncio
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

from sandlot.contracts.runtime import Runtime
from sandlot.host.history import History
from sandlot.host.journal import SessionRow
from sandlot.host.lifecycle import FORKING, Lifecycle
from sandlot.host.output import remove_other_outputs
from sandlot.host.parts import HostParts
from sandlot.host.session import Session
from sandlot.model import NotFound, SandlotError, SessionState


class Recovery:
    def __init__(self, lifecycle: Lifecycle, parts: HostParts, outputs: Path) -> None:
        self._lifecycle = lifecycle
        self._parts = parts
        self._history = History(parts.journal)
        self._outputs = outputs

    async def take_over(self) -> None:
        """Nothing acknowledged is lost, nothing that nobody asked for stays."""
        rows = await self._parts.journal.sessions()
        await self._end_strangers({row.volume for row in rows})
        sessions = {row.session_id: await self._adopt(row) for row in rows}
        await self._settle_storages(sessions)
        for session in sessions.values():
            await self._take_over_session(session)

    async def _end_strangers(self, known: set[str]) -> None:
        for runtime in self._parts.runtimes.values():
            for name in await runtime.names():
                if name not in known:
                    await runtime.stop(name)
        await asyncio.to_thread(remove_other_outputs, self._outputs, known)

    async def _adopt(self, row: SessionRow) -> Session:
        volume = None
        with suppress(NotFound):
            volume = await self._parts.storages[row.storage].open(row.volume, row.volume_state)
        return self._lifecycle.adopt(row, volume)

    async def _settle_storages(self, sessions: dict[str, Session]) -> None:
        points: dict[str, list[str]] = {name: [] for name in self._parts.storages}
        for snapshot in await self._history.snapshots():
            if session := sessions.get(snapshot.session_id):
                points[session.row.storage].append(snapshot.point)
                session.add_snapshot(snapshot)
        for name, storage in self._parts.storages.items():
            await storage.settle(points[name])

    async def _take_over_session(self, session: Session) -> None:
        row = session.row
        runtime = self._parts.runtimes[row.runtime]
        if row.state is SessionState.DESTROYING or row.changing == FORKING:
            await self._lifecycle.finish_destroy(session)
            return
        if session.volume is None:
            await self._fail_found(session, "its volume is missing")
            return
        if row.state is SessionState.FAILED:
            return
        guest = await runtime.find(row.volume, partial(self._lifecycle.guest_ended, session))
        if guest is None:
            await self._fail_found(session, "its guest ended while no engine was there")
            return
        try:
            await self._put_right(session, runtime)
            await session.resume_calls(guest)
        except SandlotError as error:
            with suppress(SandlotError):
                await runtime.stop(row.volume)  # what cannot be understood must not run on unseen
            await self._fail_found(session, error.message)

    async def _put_right(self, session: Session, runtime: Runtime) -> None:
        """A change of its root that was begun and not recorded did not happen: the guest goes back to the root that the
        journal knows. Nothing has run on another one, because calls waited for the record."""
        if not session.row.changing:
            return
        await runtime.swap(session.start_plan())
        await self._history.end(session.row.session_id)
        session.row = replace(session.row, changing="")

    async def _fail_found(self, session: Session, reason: str) -> None:
        session.guest = None
        session.set_state(SessionState.FAILED, reason)
        await self._lifecycle.record_failure(session, reason)
