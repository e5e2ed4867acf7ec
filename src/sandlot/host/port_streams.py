"""Connections to programs in sessions, as whoever asked for one has it."""

import asyncio
import socket
from contextlib import suppress

from sandlot.model import InvalidArgument, Unavailable, limits


class SocketStream:
    """On a socket that does not block."""

    def __init__(self, made: socket.socket) -> None:
        self._socket = made
        self._loop = asyncio.get_running_loop()
        self._under_way = 0
        self._has_left = False

    async def read(self, size_max: int = limits.PIECE_BYTES) -> bytes:
        if size_max < 1:
            raise InvalidArgument(f"size_max must be at least 1, not {size_max}")
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


def _broken(error: OSError) -> Unavailable:
    return Unavailable(f"the connection to the session was broken off: {error.strerror}", next_step="connect again")
