"""Connections to programs: those that wait for another request, and new ones.

Only a request without a body goes on a connection that had another one before, and a connection that carried a body
carries nothing else. So a program that sees the end of a body elsewhere than we do harms the one who sent it."""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from typing import Final, Protocol

from sandlot.contracts import PortStream
from sandlot.model import SandlotError, limits
from sandlot.previews.addresses import PreviewAddress
from sandlot.previews.reading import Answering


class Dialler(Protocol):
    """Of the waist, all that is needed here. A connection may be left by another task than the one that entered."""

    def connect_port(self, session_id: str, port: int) -> AbstractAsyncContextManager[PortStream]: ...


_Of = tuple[PreviewAddress, str]  # a port, and on whose behalf


class Line:
    """One connection, and whether it may be used again."""

    __slots__ = ("_entered", "answering", "is_used", "keeps", "of", "since", "stream")

    def __init__(self, of: _Of, entered: AbstractAsyncContextManager[PortStream]) -> None:
        self.of = of
        self._entered = entered
        self.is_used = False  # by an earlier request
        self.keeps = False
        self.since = 0.0

    async def open(self) -> None:
        self.stream = await self._entered.__aenter__()
        self.answering = Answering(self.stream)

    async def close(self) -> None:
        with suppress(SandlotError, OSError):
            await self._entered.__aexit__(None, None, None)


_EACH_MAX: Final = 32  # that wait, to one port
_ALL_MAX: Final = 512


class Lines:
    def __init__(self, host: Dialler) -> None:
        self._host = host
        self._waiting: dict[_Of, deque[Line]] = {}
        self._count = 0
        self._timer: asyncio.TimerHandle | None = None
        self._closing: set[asyncio.Task[None]] = set()

    @asynccontextmanager
    async def line(self, address: PreviewAddress, *, fresh: bool, whose: str = "") -> AsyncGenerator[Line]:
        """It is ended when this is left, unless it says that it keeps. Raises what `connect_port` raises."""
        of = address, whose
        line = None if fresh else self._take(of)
        if line is None:
            line = Line(of, self._host.connect_port(address.session_id, address.port))
            await line.open()
        try:
            yield line
        except BaseException:  # raised again: nobody knows where it stands
            line.keeps = False
            raise
        finally:
            if line.keeps and line.answering.is_clean and self._keep(line):
                line.is_used = True
            else:
                await line.close()

    def _take(self, of: _Of) -> Line | None:
        waiting = self._waiting.get(of)
        if not waiting:
            return None
        line = waiting.pop()
        self._count -= 1
        if not waiting:
            del self._waiting[of]
        line.keeps = line.answering.has_said = False
        return line

    def _keep(self, line: Line) -> bool:
        waiting = self._waiting.setdefault(line.of, deque())
        if len(waiting) >= _EACH_MAX or self._count >= _ALL_MAX:
            return False
        loop = asyncio.get_running_loop()
        line.since = loop.time()
        waiting.append(line)
        self._count += 1
        if self._timer is None:
            self._timer = loop.call_later(limits.PREVIEW_KEPT_S, self._sweep)
        return True

    def _sweep(self) -> None:
        """Those that have waited for too long."""
        loop = asyncio.get_running_loop()
        too_old = loop.time() - limits.PREVIEW_KEPT_S
        for of, waiting in list(self._waiting.items()):
            while waiting and waiting[0].since <= too_old:
                self._close_soon(waiting.popleft())
            if not waiting:
                del self._waiting[of]
        self._timer = loop.call_later(limits.PREVIEW_KEPT_S / 2, self._sweep) if self._waiting else None

    def _close_soon(self, line: Line) -> None:
        self._count -= 1
        closing = asyncio.get_running_loop().create_task(line.close())
        self._closing.add(closing)
        closing.add_done_callback(self._closing.discard)

    async def close(self) -> None:
        """All that wait. Those in use are ended by whoever uses them."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for waiting in self._waiting.values():
            for line in waiting:
                self._close_soon(line)
        self._waiting.clear()
        if self._closing:
            await asyncio.wait(self._closing, timeout=5)
