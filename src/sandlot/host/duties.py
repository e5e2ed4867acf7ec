"""What is done to sessions without being asked: those whose time is up end or are paused, idle ones are paused.

All of it needs an engine. What became due while there was none is done when the next one starts.
"""

import asyncio
import math
import time
from contextlib import suppress
from dataclasses import replace

from sandlot.host.lifecycle import Lifecycle
from sandlot.host.parts import HostParts
from sandlot.host.pausing import Pausing
from sandlot.host.rests import Rests
from sandlot.host.session import Session
from sandlot.model import (
    EventKind,
    OnExpiry,
    PauseReason,
    RelabelRequest,
    SandlotError,
    SessionInfo,
    SessionState,
    limits,
    refusal,
)

_LABELS = "its labels cannot be changed"
_AGAIN_S = 1.0  # after something that could not be done


class Duties:
    def __init__(self, lifecycle: Lifecycle, parts: HostParts, pausing: Pausing) -> None:
        self._lifecycle = lifecycle
        self._rests = Rests(parts.journal)
        self._pausing = pausing

    async def prepare(self) -> None:
        """Find out since when the sessions of earlier engines are idle."""
        for session in self._lifecycle.all():
            if session.idle_timeout_s is not None:
                told = await self._rests.last_activity(session.row.session_id)
                session.active_at = max(session.active_at, session.row.active_at, told)

    async def run(self) -> None:
        while not self._lifecycle.is_closing:
            self._lifecycle.changed.clear()
            now = time.time()
            # In the order of the list, which may change while something is done.
            undone = [await self._do(session) for session in self._lifecycle.all() if _due(session, now) <= now]
            soonest = min((_due(session, now) for session in self._lifecycle.all()), default=math.inf)
            wait = _AGAIN_S if False in undone else max(0.0, soonest - time.time())
            with suppress(TimeoutError):
                async with asyncio.timeout(None if wait == math.inf else wait):
                    await self._lifecycle.changed.wait()

    async def _do(self, session: Session) -> bool:
        """Whether it was done."""
        try:
            if session.row.expires > time.time():
                # Refused when a call has begun meanwhile.
                await self._pausing.stop(session, PauseReason.IDLE, freeze=False)
            elif session.on_expiry is OnExpiry.PAUSE:
                await self._pausing.stop(session, PauseReason.EXPIRED)
            else:
                await self._lifecycle.destroy(session.row.session_id, EventKind.EXPIRED)
        except SandlotError:
            return False
        return True

    async def settle(self) -> None:
        """Idleness does not begin anew with the next engine."""
        idle = {s.row.session_id: s.active_at for s in self._lifecycle.all() if s.idle_timeout_s is not None}
        if idle:
            await self._rests.note_activity(idle)

    async def extend(self, session_id: str, timeout_s: float) -> SessionInfo:
        session = self._lifecycle.find(session_id)
        limits.within("timeout_s", timeout_s, 0.001, limits.SESSION_LIFETIME_S_MAX)
        self._need_alive(session)
        expires = time.time() + timeout_s
        await self._rests.set_expires(session_id, expires, f"{timeout_s:g} s")
        self._need_alive(session)  # its time may have been up meanwhile
        session.row = replace(session.row, expires=expires)
        self._lifecycle.changed.set()
        return session.info()

    async def relabel(self, request: RelabelRequest) -> SessionInfo:
        """To its end, also when whoever asked goes away: memory and journal say the same."""
        session = self._lifecycle.find(request.session_id)
        await asyncio.shield(asyncio.ensure_future(self._relabel(session, request)))
        self._need_alive(session, _LABELS)
        return session.info()

    async def _relabel(self, session: Session, request: RelabelRequest) -> None:
        async with session.relabeling:
            self._need_alive(session, _LABELS)
            wishes = session.wishes_with(request.applied_to(session.labels))
            spec = wishes.to_text()
            await self._rests.set_spec(request.session_id, spec)
            session.row = replace(session.row, spec=spec)
            session.wish(wishes)

    def _need_alive(self, session: Session, what: str = "its time cannot be extended") -> None:
        if session.row.state is SessionState.DESTROYING:
            raise refusal(session.row.session_id, session.row.state, what)

    async def ready(self, session: Session) -> None:
        """Wait until nobody else changes the session, and wake it if it was paused because it was idle. What it raises
        otherwise is for whoever uses it."""
        while True:
            await session.gate.wait()
            if session.row.state is not SessionState.PAUSED or session.row.reason != PauseReason.IDLE:
                return
            await self._pausing.go_on(session)


def _due(session: Session, now: float) -> float:
    row = session.row
    rests = row.state is SessionState.PAUSED
    keeps = session.on_expiry is OnExpiry.PAUSE
    if row.state is SessionState.DESTROYING and row.expires > now:
        return math.inf
    if keeps and (row.state is SessionState.FAILED or (rests and row.reason == PauseReason.EXPIRED)):
        return math.inf
    if session.idle_timeout_s is None or row.state is not SessionState.ACTIVE:
        return row.expires
    since = now if session.is_busy else session.active_at
    return min(row.expires, since + session.idle_timeout_s)
