"""Bytes both ways, once a program has agreed to another protocol than HTTP."""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from typing import Protocol

from sandlot.model import SandlotError, limits
from sandlot.previews.connections import Line
from sandlot.previews.heads import Header


class Tunnel(Protocol):
    """The client's side, as the server gives it (`sandlot.tunnel` of a scope)."""

    def accept(self, headers: Sequence[Header]) -> None:
        """Say 101 with these. From then on it is ours."""
        ...

    async def read(self) -> bytes:
        """Nothing at the end."""
        ...

    async def write(self, data: bytes) -> None:
        """Waits while the client does not read. Raises ConnectionError when it is gone."""
        ...

    @property
    def is_gone(self) -> bool:
        """The client is, and hears nothing."""
        ...

    def is_idle(self, since: float) -> bool:
        """Whether nothing went either way since then, by the clock of the loop."""
        ...


async def join(tunnel: Tunnel, headers: Sequence[Header], line: Line) -> None:
    """Until the program has ended it, or the client is gone."""
    tunnel.accept(headers)
    outward = asyncio.ensure_future(_outward(tunnel, line))
    inward = asyncio.ensure_future(_inward(tunnel, line))
    try:
        await _first_end(tunnel, outward, inward)
        if not outward.done() and not tunnel.is_gone:  # the client says no more, and may still listen
            await asyncio.wait([outward], timeout=limits.HALF_CLOSED_S)
    finally:
        for one in (outward, inward):
            one.cancel()
        await asyncio.gather(outward, inward, return_exceptions=True)


async def _first_end(tunnel: Tunnel, outward: "asyncio.Future[None]", inward: "asyncio.Future[None]") -> None:
    loop = asyncio.get_running_loop()
    while True:
        began = loop.time()
        done, _ = await asyncio.wait(
            [outward, inward], timeout=limits.PREVIEW_IDLE_S, return_when=asyncio.FIRST_COMPLETED
        )
        if done or tunnel.is_idle(began):
            return


async def _outward(tunnel: Tunnel, line: Line) -> None:
    with suppress(SandlotError, OSError):
        while piece := await line.answering.piece():
            await tunnel.write(piece)


async def _inward(tunnel: Tunnel, line: Line) -> None:
    with suppress(SandlotError, OSError):
        while data := await tunnel.read():
            await line.stream.write(data)
        await line.stream.close_write()
