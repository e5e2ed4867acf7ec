"""Connections to what listens inside: through a socket that is made in the network namespace of the session, and on a
machine without one, to a program of the session alone."""

import asyncio
import errno
import os
import socket
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from sandlot.contracts.runtime import Guest
from sandlot.host.kernel import enter_network
from sandlot.host.runtimes.listeners import Listener, find_listeners
from sandlot.model import DeadlineExceeded, LimitReached, NotFound, Unavailable, limits

_LOOPBACK = ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1"))
_NOBODY = (errno.ECONNREFUSED, errno.ENETUNREACH, errno.EADDRNOTAVAIL)


def no_listener(port: int) -> NotFound:
    return NotFound(
        f"nobody listens on port {port} of the session", next_step="start a program there, and wait for it", port=port
    )


class Dialler:
    """Makes sockets in networks of sessions: in a thread of its own, since a thread is in one network at a time."""

    def __init__(self) -> None:
        self._thread: ThreadPoolExecutor | None = None

    async def dial(self, guest: Guest, port: int) -> socket.socket:
        for family, address in _LOOPBACK:
            made = await self._make(guest, family)
            if made is not None and await _connected(made, address, port):
                return made
        raise no_listener(port)

    async def _make(self, guest: Guest, family: int) -> socket.socket | None:
        """None where the session does not have this kind of address."""
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, "sandlot-network")
        try:
            made = await asyncio.get_running_loop().run_in_executor(self._thread, _made_in, guest.pid, family)
        except _Astray:
            self._thread = None  # it ends with whoever waits for it, and nobody uses it again
            raise Unavailable("the network of the session could not be left", next_step="try again") from None
        except OSError as error:
            if error.errno == errno.EAFNOSUPPORT:
                return None
            if error.errno in (errno.EMFILE, errno.ENFILE):
                raise LimitReached("the engine has no descriptor left", limit="open_files") from None
            raise Unavailable("the guest of the session is gone") from None
        # Asked afterwards: a guest that is alive now had its pid then, and this is its network.
        if not guest.is_alive():
            made.close()
            raise Unavailable("the guest of the session is gone")
        return made


class _Astray(Exception):
    """The thread is in another network, for good."""


def _made_in(pid: int, family: int) -> socket.socket:
    home = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    try:
        there = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        try:
            enter_network(there)
            try:
                return socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
            finally:
                try:
                    enter_network(home)
                except OSError as error:
                    raise _Astray from error
        finally:
            os.close(there)
    finally:
        os.close(home)


async def dial_own(guest: Guest, processes: Callable[[], Collection[int]], port: int) -> socket.socket:
    """On the machine's own network: a port that these processes listen on, and no other has a share in."""
    for listener in await asyncio.to_thread(_own_listeners, guest, processes, port):
        made = socket.socket(listener.family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        if not await _connected(made, listener.address, port):
            continue
        # Looked at again: whoever listens now listened when the connection was made.
        if listener in await asyncio.to_thread(_own_listeners, guest, processes, port):
            return made
        made.close()
    raise no_listener(port)


def _own_listeners(guest: Guest, processes: Callable[[], Collection[int]], port: int) -> Sequence[Listener]:
    if not guest.is_alive():
        raise Unavailable("the guest of the session is gone")
    return find_listeners(processes(), port)


async def _connected(made: socket.socket, address: str, port: int) -> bool:
    """False, and the socket is closed, when nobody listens there."""
    try:
        async with asyncio.timeout(limits.CONNECT_DEADLINE_S):
            await asyncio.get_running_loop().sock_connect(made, (address, port))
        with suppress(OSError):
            made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    except TimeoutError:
        made.close()
        raise DeadlineExceeded(
            f"whoever listens on port {port} took no connection in {limits.CONNECT_DEADLINE_S:g} s", port=port
        ) from None
    except OSError as error:
        made.close()
        if error.errno in _NOBODY:
            return False
        raise Unavailable(f"port {port} of the session cannot be reached: {error.strerror}") from None
    except BaseException:  # whoever asked has left
        made.close()
        raise
    return True
