"""What a caller began, held for a while after it was cut off: a stream that comes back goes on, one that does not ends
as if it had been left."""

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

_S = TypeVar("_S")
Key = tuple[str, str, str]
"""What it is, its session, its id."""


@dataclass(slots=True, eq=False)
class Entry(Generic[_S]):
    key: Key | None
    context: AbstractAsyncContextManager[_S]
    stream: _S
    readers: int = 1
    is_closed: bool = False
    waits: asyncio.TimerHandle | None = field(default=None, repr=False)


class Held:
    def __init__(self) -> None:
        self._entries: dict[Key, Entry[Any]] = {}
        self._closing: set[asyncio.Task[None]] = set()

    async def enter(
        self, key: Key | None, again: bool, make: Callable[[], AbstractAsyncContextManager[_S]]
    ) -> Entry[_S]:
        """What is held under this key, for one who comes back; otherwise anew. Raises what entering raises."""
        known: Entry[_S] | None = self._entries.get(key) if key is not None else None
        if known is not None and (again or known.waits is not None):
            known.readers += 1
            if known.waits is not None:
                known.waits.cancel()
                known.waits = None
            return known
        context = make()
        entry = Entry(key, context, await context.__aenter__())
        if key is not None:
            self._entries.setdefault(key, entry)
        return entry

    async def leave(self, entry: Entry[Any], linger_s: float, is_over: bool) -> None:
        entry.readers -= 1
        if entry.readers > 0 or entry.is_closed:
            return
        if is_over or linger_s <= 0 or self._entries.get(entry.key or ("", "", "")) is not entry:
            await self._close(entry)
        else:
            entry.waits = asyncio.get_running_loop().call_later(linger_s, self._give_up, entry)

    async def cancel(self, key: Key) -> bool:
        """As if whoever began it had left. False when nobody holds it."""
        entry = self._entries.get(key)
        if entry is None:
            return False
        await self._close(entry)
        return True

    def forget(self) -> None:
        """The server ends: what waits is left as it is, for the next one."""
        for entry in self._entries.values():
            if entry.waits is not None:
                entry.waits.cancel()

    def _give_up(self, entry: Entry[Any]) -> None:
        task = asyncio.get_running_loop().create_task(self._close(entry))
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    async def _close(self, entry: Entry[Any]) -> None:
        if entry.is_closed:
            return
        entry.is_closed = True
        if entry.waits is not None:
            entry.waits.cancel()
            entry.waits = None
        if entry.key is not None and self._entries.get(entry.key) is entry:
            del self._entries[entry.key]
        await entry.context.__aexit__(None, None, None)
