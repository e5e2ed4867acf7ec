"""Readers of a call: of one that lives, and of one whose story is recorded."""

import asyncio
from collections.abc import AsyncIterator

from sandlot.host.calls import LiveCall
from sandlot.host.output import OutputLog
from sandlot.host.terminal_log import WindowLog
from sandlot.model import CallEvent, CallResult, CallStarted, Unavailable


class LiveStream:
    """One reader of a call, from its beginning."""

    def __init__(self, live: LiveCall) -> None:
        self._live = live

    @property
    def call_id(self) -> str:
        return self._live.ticket.call_id

    async def __aiter__(self) -> AsyncIterator[CallEvent]:
        live, position, started = self._live, 0, False
        while True:
            if not started and live.pid is not None:
                started = True
                yield CallStarted(live.ticket.call_id, live.pid)
            near = live.log.is_near(position)
            found = live.log.read(position) if near else await asyncio.to_thread(live.log.read, position)
            if found:
                position = found.position
                yield found.event
            elif live.result is not None:
                live.check()
                yield live.result
                return
            else:
                live.check()
                await live.changed()

    async def result(self) -> CallResult:
        return await self._live.wait()

    async def write_stdin(self, data: bytes) -> None:
        await self._live.write_stdin(data)

    async def close_stdin(self) -> None:
        self._live.close_stdin()

    async def signal(self, number: int) -> None:
        self._live.signal(number)

    async def resize(self, rows: int, columns: int) -> None:
        self._live.resize(rows, columns)


class RecordedStream:
    """A call that ended before anyone looked; read from the journal and its file."""

    def __init__(self, result: CallResult | None, log: OutputLog | WindowLog, call_id: str) -> None:
        self._result = result
        self._log = log
        self.call_id = call_id

    async def __aiter__(self) -> AsyncIterator[CallEvent]:
        position = 0
        while found := await asyncio.to_thread(self._log.read, position):
            position = found.position
            yield found.event
        yield await self.result()

    async def result(self) -> CallResult:
        if self._result is None:
            raise Unavailable(f"call {self.call_id} was lost with its guest", call_id=self.call_id)
        return self._result

    async def write_stdin(self, data: bytes) -> None:
        del data  # it has ended: nobody reads

    async def close_stdin(self) -> None:
        return

    async def signal(self, number: int) -> None:
        del number

    async def resize(self, rows: int, columns: int) -> None:
        del rows, columns
