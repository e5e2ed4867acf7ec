"""Pause and resume: everything in a session stands still, and goes on where it stood.

The journal and the kernel are told at the same time. An engine that dies in between leaves one of them ahead; the next
one makes the kernel do what the journal says. A pause need not survive a power cut: no guest does.
"""

import asyncio
import time
from contextlib import suppress
from dataclasses import replace

from sandlot.contracts.runtime import Group
from sandlot.host import failpoints, gate
from sandlot.host.lifecycle import Lifecycle
from sandlot.host.parts import HostParts
from sandlot.host.rests import Rests
from sandlot.host.session import Session
from sandlot.host.sleeping import Sleeping
from sandlot.host.under_way import UnderWay
from sandlot.model import (
    Capability,
    InvalidState,
    LimitReached,
    PauseReason,
    PauseRequest,
    SandlotError,
    SessionEvent,
    SessionInfo,
    SessionState,
    ToolsInFlight,
    transition,
)
from sandlot.model.capability import need


class Pausing:
    def __init__(self, lifecycle: Lifecycle, parts: HostParts, sleeping: Sleeping, drain_s: float) -> None:
        """`drain_s`: how long calls may end first, where nothing is asked for."""
        self._drain_s = drain_s
        self._lifecycle = lifecycle
        self._parts = parts
        self._sleeping = sleeping
        self._rests = Rests(parts.journal)
        self._under_way = UnderWay()

    async def settle(self) -> None:
        """Let what was begun come to its end."""
        await self._under_way.settle()

    async def pause(self, request: PauseRequest) -> SessionInfo:
        session = self._lifecycle.find(request.session_id)
        drain_s = self._drain_s if request.drain_s is None else request.drain_s
        if request.memory:
            self._sleeping.need(session)
        await self.stop(session, PauseReason.ASKED, drain_s=drain_s, freeze=request.freeze, memory=request.memory)
        return session.info()

    async def stop(
        self,
        session: Session,
        reason: PauseReason,
        *,
        drain_s: float = 0.0,
        freeze: bool = True,
        memory: bool = False,
    ) -> None:
        """Nothing is changed when it raises, unless memory was to be kept and its processes did not survive that."""
        if _is_done(session, reason, memory=memory):
            return
        transition(session.row.session_id, session.row.state, SessionEvent.PAUSE)
        group = None if session.row.memory else self._group(session)
        # Whoever comes while an idle session is being paused will wake it.
        async with session.gate.shut_to_pause(refuse=reason != PauseReason.IDLE):
            transition(session.row.session_id, session.row.state, SessionEvent.PAUSE)  # it may have ended meanwhile
            await self._drain(session, drain_s, freeze=freeze)
            if group is None:
                await self._under_way.unbroken(self._say_why(session, reason))
            elif memory:
                await self._under_way.unbroken(self._sleep(session, group, reason))
            else:
                await self._under_way.unbroken(self._stop(session, group, reason))

    async def resume(self, session_id: str) -> SessionInfo:
        session = self._lifecycle.find(session_id)
        transition(session_id, session.row.state, SessionEvent.RESUME)
        await self.go_on(session)
        return session.info()

    def _need_time(self, session: Session) -> None:
        session_id = session.row.session_id
        if session.row.state is SessionState.PAUSED and session.row.expires <= time.time():
            raise InvalidState(
                f"the time of session {session_id} is up", next_step="extend it first", session_id=session_id
            )

    async def go_on(self, session: Session) -> None:
        self._need_time(session)
        async with session.gate.shut_when_open(gate.RESUMPTION):
            if transition(session.row.session_id, session.row.state, SessionEvent.RESUME) != session.row.state:
                if session.row.memory:
                    await self._under_way.unbroken(self._sleeping.wake(session))
                else:
                    await self._under_way.unbroken(self._go_on(session, self._group(session)))
                self._lifecycle.changed.set()

    def _group(self, session: Session) -> Group:
        runtime = self._parts.runtimes[session.row.runtime]
        step = "`sandlot doctor` says what control groups need"
        need(runtime.capabilities, Capability.PAUSE, f"the runtime {runtime.name} on this machine", step)
        return runtime.group(session.row.volume)

    async def _drain(self, session: Session, drain_s: float, *, freeze: bool) -> None:
        """Calls that run may end first. Raises ToolsInFlight when they do not and must not be frozen."""
        with suppress(TimeoutError):
            async with asyncio.timeout(drain_s):
                for live in session.running() if drain_s else ():
                    with suppress(SandlotError):
                        await live.wait()
        running = len(session.running())
        if running and not freeze:
            raise ToolsInFlight(
                f"session {session.row.session_id} runs {running} calls",
                next_step="wait for them, give them more time, or let them be frozen",
                session_id=session.row.session_id,
                count=running,
            )

    async def _say_why(self, session: Session, reason: PauseReason) -> None:
        """One that sleeps does already what a pause wants."""
        await self._rests.set_paused(session.row.session_id, reason, session.row.paused_at)
        session.row = replace(session.row, reason=reason)

    async def _sleep(self, session: Session, group: Group, reason: PauseReason) -> None:
        before = session.row
        try:
            await self._sleeping.sleep(session, reason, before.paused_at or time.time())
        except LimitReached:
            if before.state is SessionState.PAUSED and session.row.state is SessionState.ACTIVE:
                await self._stop(session, group, PauseReason(before.reason))
            raise

    async def _stop(self, session: Session, group: Group, reason: PauseReason) -> None:
        row = session.row
        since = row.paused_at if row.state is SessionState.PAUSED else time.time()
        session.hold_calls()
        recorded = self._rests.set_paused(row.session_id, reason, since)
        try:
            group.freeze()
            await failpoints.reach("pause: freezing")
            await recorded
            await failpoints.reach("pause: recorded")
            await group.pause()
        except BaseException:  # undone, then raised again
            if row.state is SessionState.ACTIVE:
                await self._undo_stop(session, group, recorded)
            raise
        if session.row.state is row.state:
            session.row = replace(session.row, state=SessionState.PAUSED, reason=reason, paused_at=since)

    async def _undo_stop(self, session: Session, group: Group, recorded: "asyncio.Future[None]") -> None:
        await asyncio.gather(recorded, return_exceptions=True)
        with suppress(SandlotError):
            await group.resume()
            await self._rests.set_resumed(session.row.session_id, 0.0, "it could not be paused")
        session.release_calls(0.0)

    async def _go_on(self, session: Session, group: Group) -> None:
        row = session.row
        paused_s = max(0.0, time.time() - row.paused_at)
        recorded = self._rests.set_resumed(row.session_id, paused_s, row.reason)
        try:
            await group.resume()
            await failpoints.reach("resume: thawed")
            await recorded
            await failpoints.reach("resume: recorded")
        except BaseException:  # undone, then raised again
            await asyncio.gather(recorded, return_exceptions=True)
            with suppress(SandlotError):
                await self._rests.set_paused(row.session_id, row.reason, row.paused_at)
                await group.pause()
            raise
        if not session.is_heard:
            await self._hear(session)
        session.active_at = time.time()
        if session.row.state is row.state:
            session.row = replace(session.row, state=SessionState.ACTIVE, reason="", paused_at=0.0)
        session.release_calls(paused_s)

    async def _hear(self, session: Session) -> None:
        """A guest that was paused when this engine came has not been asked for its calls."""
        assert session.guest is not None, "a paused session has a guest"
        try:
            await session.resume_calls(session.guest)
        except SandlotError as error:
            session.on_wedged(error.message)
            raise


def _is_done(session: Session, reason: PauseReason, *, memory: bool) -> bool:
    row = session.row
    return row.state is SessionState.PAUSED and row.reason == reason and bool(row.memory or not memory)
