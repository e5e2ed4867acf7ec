"""Emptying a host, in the words of the waist: it is cordoned, and its sessions end, are paused, or move to another.

Whoever drains does it, not the host: when he dies, the host stays cordoned, and he or someone else goes on."""

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from sandlot.contracts import Host
from sandlot.model import (
    CordonRequest,
    Drained,
    DrainLeft,
    ExportRequest,
    ImportRequest,
    PauseRequest,
    SandlotError,
    SessionFilter,
    SessionInfo,
    SessionNotFound,
    SessionState,
    limits,
)

_POLL_S = 0.25
_TELL_S = 0.5
_AT_ONCE, _MOVES_AT_ONCE = 16, 2
_MORE_S = 0.5  # behind the deadline of a host, which tells more than ours
_LATE = "it did not end in time"
_RESTING = (SessionState.PAUSED, SessionState.FAILED)


@dataclass(frozen=True, slots=True)
class _Wish:
    timeout_s: float
    pause: bool
    memory: bool
    to: Host | None


async def drain(
    host: Host,
    reason: str = "",
    timeout_s: float = limits.HOST_DRAIN_S,
    *,
    pause: bool = False,
    memory: bool = False,
    to: Host | None = None,
) -> AsyncGenerator[Drained]:
    """How far it is, and last how it ended: what is left is told with the reason. `to` is where they are to go. Raises
    InvalidArgument, Unavailable."""
    limits.within("timeout_s", timeout_s, 0.0, limits.HOST_DRAIN_S_MAX)
    wish = _Wish(timeout_s, pause, memory, to)
    if reason or not (await host.health()).cordoned_at:  # or the reason that someone gave before would be forgotten
        await host.cordon(CordonRequest(reason))
    draining = _Draining(host, wish, await all_sessions(host))
    work = asyncio.create_task(draining.run(), name="drain")
    try:
        while not work.done():
            await asyncio.wait([work], timeout=_TELL_S)
            yield draining.told()
        await work
    finally:
        work.cancel()
        await asyncio.gather(work, return_exceptions=True)
    yield draining.told()


async def all_sessions(host: Host) -> list[SessionInfo]:
    found: list[SessionInfo] = []
    after: str | None = None
    while True:
        page = await host.list(SessionFilter(limit=limits.LIST_PAGE_MAX, after=after))
        found += page.sessions
        if (after := page.next) is None:
            return found


class _Draining:
    def __init__(self, host: Host, wish: _Wish, sessions: Sequence[SessionInfo]) -> None:
        self._host = host
        self._wish = wish
        self._first = sessions
        self._give_up = time.monotonic() + wish.timeout_s
        self._open = {info.session_id: DrainLeft(info.session_id, info.state, _LATE) for info in sessions}
        self._ended: list[str] = []
        self._paused: list[str] = []
        self._moved: list[str] = []

    def told(self) -> Drained:
        lists = (tuple(self._ended), tuple(self._paused), tuple(self._moved))
        return Drained(len(self._first), *lists, tuple(self._open.values()))

    def _left_s(self) -> float:
        return max(0.0, self._give_up - time.monotonic())

    async def run(self) -> None:
        if self._wish.to is not None:
            await self._each(self._move, _MOVES_AT_ONCE)
        elif self._wish.pause:
            await self._each(self._pause, _AT_ONCE)
        else:
            await self._wait()

    def _done(self, session_id: str, where: list[str]) -> None:
        self._open.pop(session_id, None)
        where.append(session_id)

    async def _wait(self) -> None:
        """For those that are there to end by themselves."""
        while True:
            there = {info.session_id: info for info in await all_sessions(self._host)}
            for session_id in [one for one in self._open if one not in there]:
                self._done(session_id, self._ended)
            self._open |= {one.session_id: DrainLeft(one.session_id, one.state, _LATE) for one in there.values()}
            if not self._open or not self._left_s():
                return
            await asyncio.sleep(min(_POLL_S, self._left_s()))

    async def _each(self, work: Callable[[SessionInfo], Coroutine[Any, Any, None]], at_once: int) -> None:
        slots = asyncio.Semaphore(at_once)

        async def one(info: SessionInfo) -> None:
            async with slots:
                try:
                    await work(info)
                except SessionNotFound:
                    self._done(info.session_id, self._ended)
                except (SandlotError, TimeoutError) as error:
                    await self._keep(info, str(error) or _LATE)

        await asyncio.gather(*map(one, self._first))

    async def _keep(self, info: SessionInfo, why: str) -> None:
        state = str(info.state)
        with suppress(SandlotError):
            state = (await self._host.get(info.session_id)).state
        self._open[info.session_id] = DrainLeft(info.session_id, state, why)

    # ---- pausing -----------------------------------------------------------------------------------------------

    async def _pause(self, info: SessionInfo) -> None:
        await self._stop(info.session_id, info.state, memory=self._wish.memory)
        self._done(info.session_id, self._paused)

    async def _stop(self, session_id: str, state: SessionState, *, memory: bool) -> None:
        """Calls have until the deadline to end; then they stand still too."""
        if state is SessionState.FAILED or (state is SessionState.PAUSED and not memory):
            return
        drain_s = min(self._left_s(), limits.PAUSE_DRAIN_S_MAX)
        await self._host.pause(PauseRequest(session_id, drain_s, memory=memory))

    # ---- moving ------------------------------------------------------------------------------------------------

    async def _move(self, info: SessionInfo) -> None:
        """It stands still from before its export until it is gone here, so that nothing is written in between."""
        session_id, to = info.session_id, self._wish.to
        assert to is not None
        await self._stop(session_id, info.state, memory=False)
        try:
            async with (
                asyncio.timeout(self._left_s() + _MORE_S),
                self._host.export(ExportRequest(session_id)) as pieces,
            ):
                lives_s = min(max(info.expires - time.time(), 1.0), limits.SESSION_LIFETIME_S_MAX)
                await to.import_session(ImportRequest(session_id, timeout_s=lives_s), aiter(pieces))
        except BaseException:  # it goes on here as it was, then raised again
            if info.state not in _RESTING:
                with suppress(SandlotError):
                    await asyncio.shield(self._host.resume(session_id))
            raise
        if info.state is SessionState.PAUSED:
            with suppress(SandlotError):  # it is there, with its files: a pause is the lesser part
                await to.pause(PauseRequest(session_id))
        try:
            await self._host.destroy(session_id)
        except SessionNotFound:
            pass
        except SandlotError as error:
            why = f"it was moved, and could not be destroyed here: {error.message}; destroy it"
            self._open[session_id] = DrainLeft(session_id, info.state, why)
            return
        self._done(session_id, self._moved)
