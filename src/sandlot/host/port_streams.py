"""Connections to programs in sessions, as whoever asked for one has it."""

import asyncio
import socket
import struct
from contextlib import suppress
from typing import Protocol

from sandlot.contracts.ports import PortStream
from sandlot.model import InvalidArgument, Unavailable, limits

_RESET = struct.pack("ii", 1, 0)


class Connection(PortStream, Protocol):
    """One that somebody has to end."""

    async def leave(self) -> None: ...


class SocketStream:
    """On a socket that does not block."""

    def __init__(self, made: socket.socket) -> None:
        self._socket = made
        self._loop = asyncio.get_running_loop()
        self._under_way = 0
        self._has_left = False

    async def read(self, size_max: int = limits.PIECE_BYTES) -> bytes:
        check_size(size_max)
        self._need_open()
        self._under_way += 1
        try:
            return await self._loop.sock_recv(self._socket, min(size_max, limits.PIECE_BYTES))
        except OSError as error:
            raise _broken(error) from None
        finally:
            self._under_way -= 1

    async def write(self, data: bytes) -> None:
        self._need_open()
        self._under_way += 1
        try:
            await self._loop.sock_sendall(self._socket, data)
        except OSError as error:
            raise _broken(error) from None
        finally:
            self._under_way -= 1

    async def close_write(self) -> None:
        self._need_open()
        try:
            self._socket.shutdown(socket.SHUT_WR)
        except OSError as error:
            raise _broken(error) from None

    def _need_open(self) -> None:
        if self._has_left:
            raise Unavailable("the connection has ended")

    def give_up(self) -> socket.socket:
        """To whoever closes it then."""
        self._has_left = True
        return self._socket

    async def leave(self) -> None:
        """Whoever reads or writes hears of it first: a number that is closed may be another file's."""
        self._has_left = True
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        try:
            while self._under_way:  # noqa: ASYNC110 - the kernel has told them already
                await asyncio.sleep(0)
        finally:
            self._socket.close()


def check_size(size_max: int) -> None:
    if size_max < 1:
        raise InvalidArgument(f"size_max must be at least 1, not {size_max}")


def _broken(error: OSError) -> Unavailable:
    return Unavailable(f"the connection to the session was broken off: {error.strerror}", next_step="connect again")


def reset(outside: socket.socket) -> None:
    """End it so that whoever is there sees that it did not end by itself."""
    with suppress(OSError):
        outside.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
    outside.close()


async def pump(outside: socket.socket, inside: Connection) -> None:
    """Carry bytes until both sides have ended, or one has broken off. Both are closed then."""
    loop = asyncio.get_running_loop()
    moved_at = loop.time()

    async def inward() -> None:
        nonlocal moved_at
        while data := await loop.sock_recv(outside, limits.PIECE_BYTES):
            moved_at = loop.time()
            await inside.write(data)
        await inside.close_write()

    async def outward() -> None:
        nonlocal moved_at
        while data := await inside.read():
            moved_at = loop.time()
            await loop.sock_sendall(outside, data)
        outside.shutdown(socket.SHUT_WR)

    ways = [asyncio.ensure_future(inward()), asyncio.ensure_future(outward())]
    is_broken = True
    try:
        done, left = await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        while left and not any(each.exception() for each in done):
            more, left = await asyncio.wait(left, timeout=limits.HALF_CLOSED_S)
            done |= more
            if not more and loop.time() - moved_at >= limits.HALF_CLOSED_S:
                break
        is_broken = bool(left) or any(each.exception() for each in done)
    finally:
        for each in ways:
            each.cancel()
        await asyncio.gather(*ways, return_exceptions=True)
        await inside.leave()
        reset(outside) if is_broken else outside.close()
