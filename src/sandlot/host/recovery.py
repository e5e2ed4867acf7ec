"""What an earlier engine left: brought together with what the journal says."""

import asyncio
import logging
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

from sandlot.contracts.runtime import Runtime
from sandlot.contracts.storage import Storage
from sandlot.host import failpoints
from sandlot.host.history import History
from sandlot.host.lifecycle import FORKING, IMPORTING, Lifecycle
from sandlot.host.notes import REBUILD, Found
from sandlot.host.output import last_output, remove_other_outputs
from sandlot.host.parts import HostParts
from sandlot.host.room import room
from sandlot.host.session import Session
from sandlot.host.sleeping import Sleeping
from sandlot.host.turns import SNAPSHOT
from sandlot.host.wishes import Wishes
from sandlot.model import (
    Capability,
    CapabilityNotSupported,
    EventKind,
    NotFound,
    SandlotError,
    SessionEvent,
    SessionInfo,
    SessionState,
    Unavailable,
    refusal,
    transition,
)

_log = logging.getLogger("sandlot.host")
_VOLUME_MISSING = "its volume is missing"


class Recovery:
    def __init__(self, lifecycle: Lifecycle, parts: HostParts, outputs: Path, sleeping: Sleeping) -> None:
        self._lifecycle = lifecycle
        self._parts = parts
        self._history = History(parts.journal)
        self._outputs = outputs
        self._sleeping = sleeping
        self._is_rebuilding = False

    async def take_over(self) -> None:
        """Nothing acknowledged is lost, nothing that nobody asked for stays."""
        rows = await self._parts.journal.sessions()
        await self._end_strangers({row.volume for row in rows if row.state is not SessionState.FAILED})
        await asyncio.to_thread(remove_other_outputs, self._outputs, {row.volume for row in rows})
        sessions = {row.session_id: self._lifecycle.adopt(row, None) for row in rows}
        for snapshot in await self._history.snapshots():
            if session := sessions.get(snapshot.session_id):
                session.add_snapshot(snapshot)
        await asyncio.to_thread(self._remove_other_images, tuple(sessions.values()))
        self._parts.storages.take_over = self._take_over_storage
        self._parts.storages.give_up = self._give_up
        used = [name for name, storage in self._parts.storages.items() if storage.was_used()]
        for name in dict.fromkeys((*used, *(row.storage for row in rows))):
            with suppress(SandlotError):  # its sessions are told as failed, with that reason
                await self._parts.storages.attach(name)
        for session in sessions.values():
            await self._take_over_session(session)

    def _give_up(self, storage: str) -> None:
        """Of a storage that failed under its sessions. They can be recovered when it is back."""
        for session in self._lifecycle.all():
            if session.row.storage == storage and session.guest is not None:
                session.on_wedged("the filesystem of its storage has failed")

    async def recover(self, session_id: str) -> SessionInfo:
        """One at a time; who asks meanwhile waits for the same answer."""
        session = self._lifecycle.find(session_id)
        transition(session_id, session.row.state, SessionEvent.RECOVER)
        task = session.recovering
        if task is None:
            # In a task of its own: whoever is cancelled meanwhile does not leave a guest that nobody knows.
            task = session.recovering = asyncio.create_task(self._recover(session), name=f"recover {session_id}")
            task.add_done_callback(lambda _task: setattr(session, "recovering", None))
        await asyncio.shield(task)
        await self._lifecycle.serving.again(session)
        return session.info()

    async def revive(self, request_id: str | None) -> None:
        """An engine that died while it made a session leaves one that failed before anything ran in it. Whoever asks
        again with the same request wants it made, not told of. Nothing that was written is lost by that."""
        session = self._lifecycle.requested(request_id)
        if session is None or session.row.state is not SessionState.FAILED:
            return
        calls = await self._parts.journal.calls(session.row.session_id)
        if any(not session.is_start(row.record.call_id, row.process_id) for row in calls):
            return
        if session.volume is None and session.row.origin is None and not session.snapshots:
            await self._lifecycle.destroy(session.row.session_id)  # it has no files at all
        else:
            await self.recover(session.row.session_id)

    async def _recover(self, session: Session) -> None:
        async with session.gate.shut("a recovery"):
            try:
                await self._start_again(session)
            except SandlotError as error:
                with suppress(SandlotError):
                    await self._parts.runtimes[session.row.runtime].stop(session.row.volume)
                await self._fail_found(session, error.message)
                raise refusal(
                    session.row.session_id, SessionState.FAILED, "it was not recovered", session.row.reason
                ) from error

    async def _start_again(self, session: Session) -> None:
        """A new guest on what the journal knows. An engine that dies in between leaves a failed session, whose guest
        the next engine ends, or an active one."""
        row, runtime = session.row, self._parts.runtimes[session.row.runtime]
        lost: list[str] = []

        def ended(reason: str) -> None:
            lost.append(reason)
            self._lifecycle.guest_ended(session, reason)

        await self._open_again(session)
        await runtime.stop(row.volume)
        await self._lifecycle.record_failure(session, row.reason)  # its calls are lost, should that not be recorded yet
        recorded = await self._parts.journal.last_process_id(row.session_id)
        on_disk = await asyncio.to_thread(last_output, self._outputs / row.volume)
        session.last_process_id = max(session.last_process_id, row.forgotten, recorded, on_disk)
        async with room(self._parts.storages[row.storage], session):
            guest = await runtime.start(session.start_plan(), ended)
        failpoints.reach("recover: guest started")
        await self._sleeping.forget(session)
        await self._history.end(row.session_id)
        await self._parts.journal.set_state(row.session_id, SessionState.ACTIVE, event=EventKind.RECOVERED)
        failpoints.reach("recover: recorded")
        session.row = replace(session.row, changing="")
        session.guest, session.is_heard = guest, True
        session.set_state(SessionState.ACTIVE)
        self._lifecycle.changed.set()
        if lost:
            self._lifecycle.guest_ended(session, lost[0])

    async def _open_again(self, session: Session) -> None:
        """What was not there when the engine started may be back."""
        await self._parts.storages.attach(session.row.storage)
        if session.volume is None:
            await self._place(session)
        if session.volume is None:
            raise Unavailable(_VOLUME_MISSING)

    def _remove_other_images(self, sessions: Sequence[Session]) -> None:
        kept = {session.row.memory for session in sessions}
        kept |= {snapshot.memory for session in sessions for snapshot in session.snapshots.values()}
        self._parts.memories.remove(*self._parts.memories.others(kept))

    async def _end_strangers(self, known: set[str]) -> None:
        """Also those of sessions that have failed: their engine died before it ended them, or while it recovered
        them."""
        for runtime in self._parts.runtimes.values():
            for name in await runtime.names():
                if name not in known:
                    await runtime.stop(name)

    async def _take_over_storage(self, storage: Storage) -> None:
        """Everything in it that a session needs is found; what nobody needs goes. Sessions of a journal that is lost
        stay as they are until someone asks for them."""
        lost = await self._lifecycle.notes.lost(storage, {s.row.session_id: s.noted for s in self._lifecycle.all()})
        if lost.sessions and not self._is_rebuilding:
            await storage.detach()
            raise Unavailable(f"{storage.name} {lost.told()}; {REBUILD}", next_step=REBUILD)
        points = [*lost.unread, *await self._adopt_lost(lost.sessions.values())]
        for session in self._lifecycle.all():
            row = session.row
            if row.storage != storage.name:
                continue
            points += [snapshot.point for snapshot in session.snapshots.values()]
            if session.volume is None:
                await self._place(session)
            if session.volume is None:
                points.append(row.volume_state or row.volume)  # what is left of it is still its own
        await storage.settle(points)

    async def rebuild(self) -> Sequence[SessionInfo]:
        """Write sessions into this journal again that another one knew, from what was noted beside their files. They
        have failed, and can be recovered. Raises Unavailable."""
        before = {session.row.session_id for session in self._lifecycle.all()}
        self._is_rebuilding = True
        try:
            for name, storage in self._parts.storages.items():
                if storage.notebook is not None and storage.was_used():
                    await self._parts.storages.attach(name)
        finally:
            self._is_rebuilding = False
        found = [session for session in self._lifecycle.all() if session.row.session_id not in before]
        for session in found:
            self._lifecycle.notes.remember(session)
        return [session.info() for session in found]

    async def _adopt_lost(self, sessions: Iterable[Found]) -> list[str]:
        """In the order in which they were made. What cannot be taken is left where it is: its states and points."""
        left: list[str] = []
        taken: list[Found] = []
        for found in sorted(sessions, key=lambda found: found.row.created):
            row, runtime = found.row, self._parts.runtimes.get(found.row.runtime)
            has_root = runtime is not None and Capability.OWN_ROOT in runtime.capabilities
            if runtime is None or (has_root and not self._parts.templates.holds(row.template_path)):
                _log.warning("session %s cannot be found again: its runtime or template is not here", row.session_id)
                left += [row.volume_state, *(shot.point for shot in found.snapshots)]
                continue
            template = self._parts.templates.at(row.template, row.template_path)
            spec = Wishes.from_text(row.spec).below(template).to_text()
            found.row = replace(self._lifecycle.number(row), spec=spec)
            taken.append(found)
        await self._history.find_again([(found.row, found.snapshots, found.turns) for found in taken])
        for found in taken:
            session = self._lifecycle.adopt(found.row, None)
            for snapshot in found.snapshots:
                session.add_snapshot(snapshot)
        return left

    async def _place(self, session: Session) -> None:
        """Find its files. Raises Unavailable."""
        row = session.row
        if row.state is SessionState.DESTROYING:
            return  # some of them may be gone, and nobody needs them
        with suppress(NotFound):
            storage = self._parts.storages[row.storage]
            volume = await storage.open(row.volume, row.volume_state)
            if session.resources.disk_bytes is not None:
                # An engine that died while it assembled a root left it raised.
                with suppress(CapabilityNotSupported):
                    await storage.limit(volume, session.resources.disk_bytes)
            session.volume, session.workspace = volume, self._parts.runtimes[row.runtime].workspace(volume)

    async def _take_over_session(self, session: Session) -> None:
        row = session.row
        runtime = self._parts.runtimes[row.runtime]
        if row.state is SessionState.DESTROYING or row.changing in (FORKING, IMPORTING):
            await self._lifecycle.finish_destroy(session)
            return
        if session.volume is None:
            away = self._parts.storages.away.get(row.storage)
            await self._fail_found(session, f"its storage is not there: {away}" if away else _VOLUME_MISSING)
            return
        if row.state is SessionState.FAILED:
            return
        guest = await runtime.find(row.volume, partial(self._lifecycle.guest_ended, session))
        try:
            if row.memory and await self._sleeping.take_over(session, guest):
                return
        except SandlotError as error:
            await self._fail_found(session, error.message)
            return
        row = session.row
        if guest is None:
            await self._fail_found(session, "its guest ended while no engine was there")
            return
        try:
            await self._put_right(session, runtime)
            if row.state is SessionState.PAUSED:
                await session.rest(guest)
                await runtime.group(row.volume).pause()
                return
            with suppress(CapabilityNotSupported):
                await runtime.group(row.volume).resume()  # its engine died while it was frozen
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
        storage = self._parts.storages[session.row.storage]
        if not (storage.is_in_place and session.row.changing == SNAPSHOT):
            async with room(storage, session):
                await runtime.swap(session.start_plan())
        await self._history.end(session.row.session_id)
        session.row = replace(session.row, changing="")

    async def _fail_found(self, session: Session, reason: str) -> None:
        session.guest = None
        session.set_state(SessionState.FAILED, reason)
        await self._lifecycle.record_failure(session, reason)
