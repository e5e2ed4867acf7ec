"""The transport of whoever waits in his own thread: the same requests on sockets that block, without a loop.

What is written for a loop runs on it unchanged, as long as it waits for nothing but answers: then it never has to be
woken, and is at its end when it was begun. Not for TLS, and not for streams of requests."""

import select
import socket
import threading
import time
import weakref
from collections.abc import AsyncIterable
from contextlib import AbstractAsyncContextManager, suppress

from sandlot.model import InvalidArgument, InvalidState, limits
from sandlot.rpc.transport import IDLE_MAX, IDLE_S, Cut, Place, Reading, Response, Unreached, tune

_PIECE = 256 * limits.KIB
_CLOSE_S = 5.0  # for whoever is told that it closes


class StraightConnection:
    """Of one thread at a time."""

    def __init__(self, sock: socket.socket, pool: "StraightPool") -> None:
        self._sock = sock
        self._pool = pool
        self._poll = select.poll()
        self._poll.register(sock, select.POLLIN)
        self._reading = Reading(self._answered)
        self._keeps: bool | None = None  # None: it is not answered
        self._timeout_s: float | None = None
        self._is_broken_off = False
        self.deadline: float | None = None
        self.idle_since = 0.0

    def send(self, data: bytes) -> Response:
        """Raises Cut, TimeoutError, InvalidState when it was broken off."""
        self._reading.response = response = Response(self, self._pump)
        self._keeps = None
        try:
            self._hurry()
            self._sock.sendall(data)
        except BaseException as error:  # noqa: BLE001 - raised again, or as what it is
            raise self._failed(error) from None
        return response

    def is_there(self) -> bool:
        """Whether the other side has neither ended it nor said what nobody asked."""
        return not self._poll.poll(0)

    def _pump(self) -> None:
        try:
            self._hurry()
            data = self._sock.recv(_PIECE)
            if not data:
                raise Cut("the connection ended")
            self._reading.feed(data)
        except BaseException as error:  # noqa: BLE001 - raised again, or as what it is
            raise self._failed(error) from None
        if self._keeps is not None:  # not before: another thread may have it then
            self._pool.leave(self, keeps=self._keeps)

    def _failed(self, error: BaseException) -> BaseException:
        """Whatever it was, nobody knows where the connection stands."""
        self.abort()
        if self._is_broken_off and isinstance(error, Cut | OSError):
            return InvalidState("the client was closed meanwhile")
        if isinstance(error, OSError) and not isinstance(error, TimeoutError):
            return Cut(f"the connection ended: {error.strerror}")
        return error

    def _hurry(self) -> None:
        left = None if self.deadline is None else self.deadline - time.monotonic()
        if left is not None and left <= 0:
            raise TimeoutError
        if left != self._timeout_s:
            self._sock.settimeout(left)
            self._timeout_s = left

    def _answered(self, keeps: bool) -> None:
        self._keeps = keeps

    def abort(self) -> None:
        self._pool.leave(self, keeps=False)

    def pause_reading(self) -> None:
        """Nothing is read that nobody waits for."""

    def resume_reading(self) -> None:
        """The same."""

    def break_off(self) -> None:
        """From another thread: whoever waits here hears of it."""
        self._is_broken_off = True
        with suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._sock.close()


class _Own(threading.local):
    """Of each thread."""

    deadline: float | None = None


class _Within:
    def __init__(self, own: _Own, deadline_s: float | None) -> None:
        self._own = own
        self._deadline = None if deadline_s is None else time.monotonic() + deadline_s

    async def __aenter__(self) -> None:
        self._before, self._own.deadline = self._own.deadline, self._deadline

    async def __aexit__(self, *failure: object) -> None:
        self._own.deadline = self._before


class StraightPool:
    """Connections to one server, each of the thread that took it until its answer was read."""

    def __init__(self, place: Place) -> None:
        """Raises InvalidArgument for a place that wants TLS."""
        if place.is_secret:
            raise InvalidArgument("TLS is not spoken without a loop")
        self._place = place
        self._idle: list[StraightConnection] = []
        self._busy: set[StraightConnection] = set()
        self._changed = threading.Condition()
        self._own = _Own()
        self._closed = threading.Event()
        weakref.finalize(self, _close, self._idle)

    def within(self, deadline_s: float | None) -> AbstractAsyncContextManager[object]:
        """What is asked inside, by this thread, raises TimeoutError when the time is up."""
        return _Within(self._own, deadline_s)

    async def pause(self, seconds: float) -> None:
        self._closed.wait(seconds)

    async def post(self, path: str, content_type: str, body: bytes, more: str = "") -> Response:
        """`more`: header lines. Raises Unreached, Cut, TimeoutError, InvalidState when it was broken off."""
        data = self._place.request(path, content_type, body, more)
        connection = self._take_idle() or self._connect()
        connection.deadline = self._own.deadline
        return connection.send(data)

    async def post_stream(self, path: str, content_type: str, pieces: AsyncIterable[bytes]) -> Response:
        del path, content_type, pieces
        raise InvalidArgument("a request that is a stream needs a loop")

    def _take_idle(self) -> StraightConnection | None:
        while self._idle:
            with self._changed:
                if not self._idle:  # another thread was quicker
                    return None
                connection = self._idle.pop()
                self._busy.add(connection)
            if time.monotonic() - connection.idle_since < IDLE_S and connection.is_there():
                return connection
            connection.abort()
        return None

    def _connect(self) -> StraightConnection:
        """Raises Unreached."""
        place = self._place
        try:
            if place.path:
                sock = _connected(place.path)
            else:
                sock = socket.create_connection((place.name, place.port), timeout=limits.CONNECT_S)
                tune(sock)
        except OSError as error:
            raise Unreached(str(error) or "it does not take connections") from error
        sock.settimeout(None)
        connection = StraightConnection(sock, self)
        with self._changed:
            self._busy.add(connection)
        return connection

    def leave(self, connection: StraightConnection, *, keeps: bool) -> None:
        """By the thread that has it; twice is fine."""
        with self._changed:
            if connection not in self._busy:
                return
            self._busy.discard(connection)
            keeps = keeps and not self._closed.is_set() and len(self._idle) < IDLE_MAX
            if keeps:
                connection.idle_since = time.monotonic()
                self._idle.append(connection)
            elif self._closed.is_set():
                self._changed.notify_all()
        if not keeps:
            connection.close()

    async def aclose(self) -> None:
        """Whoever waits in another thread is told so, and has some time to leave in order."""
        with self._changed:
            self._closed.set()
            for connection in self._busy:
                connection.break_off()
            self._changed.wait_for(lambda: not self._busy, _CLOSE_S)
        _close(self._idle)


def _connected(path: str) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        sock.settimeout(limits.CONNECT_S)
        sock.connect(path)
    except BaseException:  # raised again
        sock.close()
        raise
    return sock


def _close(connections: list[StraightConnection]) -> None:
    while connections:
        connections.pop().close()
