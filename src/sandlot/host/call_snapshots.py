"""A call that ends with a snapshot, where a session asked for that."""

import asyncio
from collections.abc import AsyncIterator, Callable, Container, Coroutine
from dataclasses import replace
from typing import Any

from sandlot.contracts.host import CallStream
from sandlot.model import CallEvent, CallResult, call_snapshot


class CallSnapshot:
    """The snapshot of one call: taken when the first of its readers has come to its end, for all of them."""

    def __init__(
        self, taking: dict[str, "CallSnapshot"], call_id: str, take: Callable[[], Coroutine[Any, Any, str | None]]
    ) -> None:
        self._taking = taking  # those of its session that can still be waited for
        self._call_id = call_id
        self._take = take
        self._taken: asyncio.Task[str | None] | None = None
        taking[call_id] = self

    async def name(self) -> str | None:
        if self._taken is None:
            self._taken = asyncio.create_task(self._take())
            self._taken.add_done_callback(self._forget)
        # A reader who gives up does not undo it: another may wait for the same.
        return await asyncio.shield(self._taken)

    def give_up(self) -> None:
        """Its caller has left; if nobody came to its end there is none."""
        if self._taken is None:
            self._forget()

    def _forget(self, _task: object = None) -> None:
        self._taking.pop(self._call_id, None)


class TakenSnapshot:
    """That of a call whose caller has left."""

    def __init__(self, snapshots: Container[str], call_id: str) -> None:
        self._snapshots = snapshots
        self._name = call_snapshot(call_id)

    async def name(self) -> str | None:
        return self._name if self._name in self._snapshots else None


class SnapshottedStream:
    """A call as its caller reads it. The result comes when the files that the call left are safe; a snapshot that could
    not be taken is missing from it, and the result is told all the same."""

    def __init__(self, inner: CallStream, snapshot: CallSnapshot | TakenSnapshot) -> None:
        self._inner = inner
        self._snapshot = snapshot

    @property
    def call_id(self) -> str:
        return self._inner.call_id

    async def __aiter__(self) -> AsyncIterator[CallEvent]:
        async for event in self._inner:
            yield await self._with_snapshot(event) if isinstance(event, CallResult) else event

    async def result(self) -> CallResult:
        return await self._with_snapshot(await self._inner.result())

    async def _with_snapshot(self, result: CallResult) -> CallResult:
        return replace(result, snapshot=await self._snapshot.name())

    async def write_stdin(self, data: bytes) -> None:
        await self._inner.write_stdin(data)

    async def close_stdin(self) -> None:
        await self._inner.close_stdin()

    async def signal(self, number: int) -> None:
        await self._inner.signal(number)

    async def resize(self, rows: int, columns: int) -> None:
        await self._inner.resize(rows, columns)
