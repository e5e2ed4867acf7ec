"""Sockets that are listened on, and who is let in.

Connections are taken here and not by the loop: so those that only begin a handshake count too, certificates can be
exchanged while it runs, and the peer of a socket in the file system is known before he has said anything."""

import asyncio
import errno
import logging
import os
import socket
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from secrets import token_hex

from sandlot.config.addresses import Address
from sandlot.model import Unavailable, limits
from sandlot.server.connections import answer
from sandlot.server.crowd import Crowd
from sandlot.server.peers import peer_of

_log = logging.getLogger("sandlot.server")
_BACKLOG = 4096
_AT_ONCE = 64  # taken in one turn of the loop
_BREATH_S = 0.5  # when the process has no descriptors left

Protocol = Callable[[], asyncio.Protocol]
Tls = Callable[[], ssl.SSLContext | None]


@dataclass(frozen=True, slots=True, eq=False)
class Door:
    """One socket that is listened on. `owner`: nobody else is let in; None: the file system says who is."""

    socket: socket.socket
    protocol: Protocol
    owner: int | None = None
    tls: Tls | None = None


def bind(address: Address) -> socket.socket:
    """Bound, and not yet listened on: nobody is let in before all is ready. Raises Unavailable."""
    family = socket.AF_UNIX if address.is_unix else socket.AF_INET6 if ":" in address.host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK)
    try:
        if address.is_unix:
            _bind_path(listening, Path(address.path))
        else:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                listening.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            listening.bind((address.host, address.port))
    except OSError as error:
        listening.close()
        raise Unavailable(f"{address} cannot be listened on: {error.strerror or error}") from error
    return listening


def _bind_path(listening: socket.socket, path: Path) -> None:
    """One that was left is replaced, one that answers is not."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC) as asking:
        asking.settimeout(1)
        try:
            asking.connect(str(path))
        except OSError:
            pass
        else:
            raise OSError(errno.EADDRINUSE, "someone listens there")
    aside = path.with_name(f".{path.name[:60]}.{token_hex(4)}")
    os.fchmod(listening.fileno(), 0o600)
    listening.bind(str(aside))
    aside.chmod(0o660)
    if path.is_socket() or not path.exists():
        aside.replace(path)
    else:
        aside.unlink()
        raise OSError(errno.EEXIST, "there is a file that is no socket")


def bound_address(listening: socket.socket) -> Address:
    """Where it is, with the port that the kernel chose."""
    name = listening.getsockname()
    return Address(path=name) if listening.family == socket.AF_UNIX else Address(name[0], name[1])


class Listening:
    """All doors of a server, opened and closed together."""

    def __init__(self, crowd: Crowd) -> None:
        self._crowd = crowd
        self._doors: list[Door] = []
        self._greetings: set[_Greeting] = set()
        self._loop = asyncio.get_running_loop()
        self._is_breathless = False

    def open(self, door: Door) -> None:
        door.socket.setblocking(False)
        door.socket.listen(_BACKLOG)
        self._doors.append(door)
        self._loop.add_reader(door.socket.fileno(), self._take, door)

    def close(self) -> None:
        """Nobody comes in any more. The sockets are closed by whoever made them."""
        for door in self._doors:
            self._loop.remove_reader(door.socket.fileno())
        self._doors.clear()
        for greeting in self._greetings:
            greeting.drop()

    def _take(self, door: Door) -> None:
        for _ in range(_AT_ONCE):
            try:
                taken, _peer = door.socket.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                self._breathe(error)
                return
            self._welcome(taken, door)

    def _breathe(self, error: OSError) -> None:
        """Who knocks goes on knocking: without a pause the loop would do nothing else."""
        if not self._is_breathless:
            _log.error("no connection can be taken: %s", error.strerror)
        self._is_breathless = True
        made = sum(self._crowd.make_room() for _ in range(_AT_ONCE))
        for door in self._doors:
            self._loop.remove_reader(door.socket.fileno())
        self._loop.call_later(_BREATH_S / 10 if made else _BREATH_S, self._go_on)

    def _go_on(self) -> None:
        self._is_breathless = False
        for door in self._doors:
            self._loop.add_reader(door.socket.fileno(), self._take, door)

    def _welcome(self, taken: socket.socket, door: Door) -> None:
        taken.setblocking(False)
        if door.owner is not None and peer_of(taken)[1] not in (0, door.owner):
            _log.warning("refused a connection of user %d", peer_of(taken)[1])
            taken.close()
            return
        if self._crowd.count >= self._crowd.bounds.connections_max and not self._crowd.make_room():
            self._turn_away(taken, door)
            return
        if taken.family != socket.AF_UNIX:
            _look_after(taken)
        greeting = _Greeting(taken, self._crowd)
        self._greetings.add(greeting)
        greeting.begin(door, self._greetings.discard)

    def _turn_away(self, taken: socket.socket, door: Door) -> None:
        self._crowd.refused += 1
        try:
            if door.tls is None or door.tls() is None:
                taken.send(answer(503, "unavailable", "there are too many connections; try again"))
        except OSError:
            pass
        taken.close()


class _Greeting:
    """One who was taken and is no connection yet. With TLS that takes as long as he likes, within bounds."""

    __slots__ = ("_crowd", "_taken", "_task")

    def __init__(self, taken: socket.socket, crowd: Crowd) -> None:
        self._taken = taken
        self._crowd = crowd
        self._task: asyncio.Task[None] | None = None

    def begin(self, door: Door, ended: Callable[["_Greeting"], None]) -> None:
        tls = door.tls() if door.tls else None
        self._crowd.greeting += 1
        if tls is not None:
            self._crowd.await_(self)
        self._task = asyncio.get_running_loop().create_task(self._greet(door.protocol, tls, ended))

    def goes_on(self) -> bool:
        return False

    def drop(self) -> None:
        if self._task is not None:
            self._task.cancel()

    async def _greet(
        self, protocol: Protocol, tls: ssl.SSLContext | None, ended: Callable[["_Greeting"], None]
    ) -> None:
        loop, patience = asyncio.get_running_loop(), limits.HANDSHAKE_S if tls else None
        is_connected = False
        try:
            await loop.connect_accepted_socket(protocol, self._taken, ssl=tls, ssl_handshake_timeout=patience)
            is_connected = True
        except (OSError, ssl.SSLError, TimeoutError) as error:
            self._crowd.broken += 1
            _log.debug("a connection came to nothing: %s", error)
        finally:
            if not is_connected:
                self._taken.close()
            self._crowd.greeting -= 1
            self._crowd.leave(self)
            ended(self)


def _look_after(taken: socket.socket) -> None:
    """A peer that is gone without a word is found out by the kernel."""
    for option, value in (
        (socket.TCP_NODELAY, 1),
        (socket.TCP_KEEPIDLE, 60),
        (socket.TCP_KEEPINTVL, 15),
        (socket.TCP_KEEPCNT, 4),
        (socket.TCP_USER_TIMEOUT, int(limits.WRITE_IDLE_S * 1000)),
    ):
        taken.setsockopt(socket.IPPROTO_TCP, option, value)
    taken.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
