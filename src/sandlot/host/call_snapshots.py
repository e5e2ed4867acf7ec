"""A call that ends with a snapshot, where a session asked for that."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import replace
from typing import Any

from sandlot.contracts.host import CallStream
from sandlot.model import CallEvent, CallResult


class SnapshottedStream:
    """A call as its caller reads it. The result comes when the files that the call left are safe; a snapshot that could
    not be taken is missing from it, and the result is told all the same."""

    def __init__(self, inner: CallStream, take: Callable[[], Coroutine[Any, Any, str | None]]) -> None:
        self._inner = inner
        self._take = take
        self._taken: asyncio.Task[str | None] | None = None

    @property
    def call_id(self) -> str:
        return self._inner.call_id

    async def __aiter__(self) -> AsyncIterator[CallEvent]:
        async for event in self._inner:
            yield await self._with_snapshot(event) if isinstance(event, CallResult) else event

    async def result(self) -> CallResult:
        return await self._with_snapshot(await self._inner.result())

    async def _with_snapshot(self, result: CallResult) -> CallResult:
        if self._taken is None:
            self._taken = asyncio.create_task(self._take())
        # A reader who gives up does not undo it: another may wait for the same.
        return replace(result, snapshot=await asyncio.shield(self._taken))

    async def write_stdin(self, data: bytes) -> None:
        await self._inner.write_stdin(data)

    async def close_stdin(self) -> None:
        await self._inner.close_stdin()

    async def signal(self, number: int) -> None:
        await self._inner.signal(number)

    async def resize(self, rows: int, columns: int) -> None:
        await self._inner.resize(rows, columns)
