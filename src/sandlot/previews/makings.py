"""Which making of a session there is now: an id may be another session's tomorrow, and its tokens are not."""

import asyncio
from contextlib import suppress
from typing import Final, Protocol

from sandlot.contracts.host import Events
from sandlot.model import EventFilter, EventKind, SandlotError, SessionInfo
from sandlot.previews.tokens import made_us

_KNOWN_MAX: Final = 10_000
_AGAIN_S: Final = 1.0
_OF_A_LIFE: Final = frozenset([EventKind.CREATED, EventKind.DESTROYED, EventKind.EXPIRED, EventKind.GAP])


class Sessions(Events, Protocol):
    async def get(self, session_id: str) -> SessionInfo: ...


class Makings:
    def __init__(self, host: Sessions) -> None:
        self._host = host
        self._known: dict[str, int] = {}
        self._is_told = False  # of every session that ends

    async def of(self, session_id: str) -> int:
        """Raises what `get` raises. Asked for once: telling all of a session may mean to measure its files."""
        known = self._known.get(session_id)
        if known is not None:
            return known
        made = made_us((await self._host.get(session_id)).created)
        if self._is_told:
            if len(self._known) >= _KNOWN_MAX:
                self._known.clear()
            self._known[session_id] = made
        return made

    def forget(self, session_id: str) -> None:
        self._known.pop(session_id, None)

    async def watch(self) -> None:
        """As long as the server runs. What is not told is not kept."""
        last: int | None = None
        while True:
            with suppress(SandlotError, OSError):
                async with self._host.events(EventFilter(after=last, follow=True)) as events:
                    self._is_told = True
                    async for event in events:
                        last = event.offset
                        if event.kind is EventKind.GAP:
                            self._known.clear()
                        elif event.kind in _OF_A_LIFE:
                            self.forget(event.session_id)
            self._is_told = False
            self._known.clear()
            await asyncio.sleep(_AGAIN_S)
