"""The events of all sessions as a stream, from any offset on, for as many readers as want it."""

import asyncio
import sqlite3
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from typing import cast

from sandlot.host import event_rows
from sandlot.host.journal import Journal
from sandlot.model import Event, EventFilter, EventKind, InvalidArgument, Unavailable

_PAGE = 256


class Events:
    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._readers = 0
        self._news = asyncio.Event()
        self._closed = False

    def close(self) -> None:
        """Whoever waits for more hears that none will come."""
        self._closed = True
        self._wake()

    @asynccontextmanager
    async def stream(self, request: EventFilter) -> AsyncGenerator[AsyncIterator[Event]]:
        oldest, newest = cast("tuple[int, int]", await self._journal.transact(event_rows.bounds))
        if request.after is not None and request.after > newest:
            raise InvalidArgument(
                f"there is no event {request.after} yet, the newest is {newest}",
                next_step="the data directory may be another one; leave `after` out to see all that is kept",
            )
        self._readers += 1
        self._journal.on_events = self._wake
        reader = self._read(request, oldest)
        try:
            yield reader
        finally:
            await reader.aclose()
            self._readers -= 1
            if not self._readers:
                self._journal.on_events = None

    async def _read(self, request: EventFilter, oldest: int) -> AsyncGenerator[Event]:
        after = oldest - 1 if request.after is None else request.after
        if after < oldest - 1:
            yield Event(oldest - 1, 0.0, "", EventKind.GAP, f"events {after + 1} to {oldest - 1} are not kept any more")
        while True:
            news = self._news  # before looking: what comes meanwhile must wake us
            found, seen = await self._page(after, request.session_id)
            for event in found:
                yield event
            after = found[-1].offset if len(found) == _PAGE else seen
            if len(found) == _PAGE:
                continue
            if not request.follow:
                return
            if self._closed:
                raise Unavailable("the engine is closed", next_step="go on from the last offset with the next engine")
            await news.wait()

    async def _page(self, after: int, session_id: str | None) -> tuple[list[Event], int]:
        def look(db: sqlite3.Connection) -> tuple[list[Event], int]:
            return event_rows.read(db, after, session_id, _PAGE), max(after, event_rows.bounds(db)[1])

        return await self._journal.transact(look)

    def _wake(self) -> None:
        self._news.set()
        self._news = asyncio.Event()
