"""Bytes between two sockets, both ways, in a thread that does nothing else: the loop of the engine is not in their way.

Small pieces are read and written; where much comes at once it goes through a pipe and never through this program. An
idle connection costs its two sockets.
"""

import os
import select
import socket
import struct
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from fcntl import F_SETPIPE_SZ, fcntl

from sandlot.model import limits

_PIECE = 64 * limits.KIB
_PIPE = limits.MIB
_ROUNDS = 8  # of one connection, before others have their turn
_EVENTS = select.EPOLLIN | select.EPOLLOUT | select.EPOLLRDHUP | select.EPOLLET
_AT_ONCE = 256
_LOOK_S = 5.0
_FLAGS = os.SPLICE_F_MOVE | os.SPLICE_F_NONBLOCK
_RESET = struct.pack("ii", 1, 0)


class _Flow:
    """One way."""

    __slots__ = ("_from", "_held", "_pipe", "_source_ended", "_to", "_waiting", "is_done")

    def __init__(self, source: socket.socket, target: socket.socket) -> None:
        self._from = source
        self._to = target
        self._waiting: memoryview | None = None
        self._pipe: tuple[int, int] | None = None
        self._held = 0  # bytes in the pipe
        self._source_ended = False
        self.is_done = False

    def run(self) -> bool:
        """Whether there may be more to do at once. Raises OSError when a side has broken off."""
        try:
            for _ in range(_ROUNDS):
                if self.is_done:
                    return False
                self._step()
        except BlockingIOError:
            return False
        return not self.is_done

    def _step(self) -> None:
        if self._waiting is not None:
            sent = self._to.send(self._waiting)
            self._waiting = self._waiting[sent:] if sent < len(self._waiting) else None
        elif self._held:
            assert self._pipe is not None, "something is in it"
            self._held -= os.splice(self._pipe[0], self._to.fileno(), self._held, flags=_FLAGS)
        elif self._source_ended:
            self.is_done = True
            with suppress(OSError):  # it has ended altogether
                self._to.shutdown(socket.SHUT_WR)
        elif self._pipe is not None:
            self._held = os.splice(self._from.fileno(), self._pipe[1], _PIPE, flags=_FLAGS)
            self._source_ended = not self._held
        else:
            self._read()

    def _read(self) -> None:
        data = self._from.recv(_PIECE)
        self._source_ended = not data
        if not data:
            return
        sent = 0
        with suppress(BlockingIOError):
            sent = self._to.send(data)
        if sent < len(data):
            self._waiting = memoryview(data)[sent:]
        if len(data) == _PIECE:
            with suppress(OSError):  # without one it is slower
                self._pipe = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
                fcntl(self._pipe[1], F_SETPIPE_SZ, _PIPE)

    def close(self) -> None:
        for end in self._pipe or ():
            os.close(end)
        self._pipe = None


class Splice:
    """Two sockets that are one connection."""

    def __init__(self, outside: socket.socket, inside: socket.socket, on_end: Callable[[], None]) -> None:
        self.sides = (outside, inside)
        self.flows = (_Flow(outside, inside), _Flow(inside, outside))
        self.on_end = on_end
        self.is_over = False
        self.moved_at = 0.0

    def run(self) -> bool:
        more = self.flows[0].run() | self.flows[1].run()
        self.is_over = self.flows[0].is_done and self.flows[1].is_done
        return more and not self.is_over

    def close(self, *, broken: bool) -> None:
        self.is_over = True
        for flow in self.flows:
            flow.close()
        for side in self.sides:
            if broken:
                with suppress(OSError):
                    side.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            side.close()


class Splicer:
    """The thread begins with the first connection. All verbs are for the loop of the engine."""

    def __init__(self) -> None:
        self._orders: deque[tuple[bool, Splice]] = deque()
        self._bell = -1
        self._thread: threading.Thread | None = None
        self._is_closing = False
        # What follows is the thread's alone.
        self._epoll: select.epoll | None = None
        self._by_fd: dict[int, Splice] = {}
        self._half: dict[Splice, None] = {}
        self._looked_at = 0.0

    def join(self, splice: Splice) -> None:
        """Both sockets are its own from now on. `on_end` is called once, in the thread."""
        self._start()
        self._orders.append((True, splice))
        os.eventfd_write(self._bell, 1)

    def end(self, splice: Splice) -> None:
        """At once. One that has ended is fine."""
        if self._thread is not None and not self._is_closing:
            self._orders.append((False, splice))
            os.eventfd_write(self._bell, 1)

    def close(self) -> None:
        if self._thread is None or self._is_closing:
            return
        self._is_closing = True
        os.eventfd_write(self._bell, 1)
        self._thread.join(limits.CONNECT_DEADLINE_S)
        os.close(self._bell)

    def forget(self) -> None:
        """In a forked child, which has no thread: close what is the parent's."""
        for splice in {*self._by_fd.values(), *(each for _, each in self._orders)}:
            splice.close(broken=False)
        self._thread = None

    def _start(self) -> None:
        if self._thread is None:
            self._bell = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
            self._epoll = select.epoll()
            self._epoll.register(self._bell, select.EPOLLIN)
            self._thread = threading.Thread(target=self._run, args=(self._epoll,), name="sandlot-splicer", daemon=True)
            self._thread.start()

    # ---- in the thread -----------------------------------------------------------------------------------------

    def _run(self, epoll: select.epoll) -> None:
        busy: dict[Splice, None] = {}
        while not self._is_closing:
            for fd, _ in epoll.poll(0 if busy else _LOOK_S if self._half else -1, _AT_ONCE):
                if fd == self._bell:
                    os.eventfd_read(self._bell)
                elif (found := self._by_fd.get(fd)) is not None:
                    busy[found] = None
            while self._orders:
                is_new, splice = self._orders.popleft()
                if is_new:
                    self._admit(epoll, splice)
                    busy[splice] = None
                elif not splice.is_over:
                    self._drop(splice, broken=True)
            turn, busy = busy, {}
            for splice in turn:
                if not splice.is_over and self._turn(splice):
                    busy[splice] = None
            self._look()
        late = [splice for is_new, splice in self._orders if is_new]
        for splice in {*self._by_fd.values(), *late}:
            self._drop(splice, broken=True)
        epoll.close()

    def _admit(self, epoll: select.epoll, splice: Splice) -> None:
        for side in splice.sides:
            self._by_fd[side.fileno()] = splice
            epoll.register(side.fileno(), _EVENTS)

    def _turn(self, splice: Splice) -> bool:
        try:
            more = splice.run()
        except OSError:
            self._drop(splice, broken=True)
            return False
        if splice.is_over:
            self._drop(splice, broken=False)
        elif splice.flows[0].is_done != splice.flows[1].is_done:
            splice.moved_at = time.monotonic()
            self._half[splice] = None
        return more

    def _drop(self, splice: Splice, *, broken: bool) -> None:
        for side in splice.sides:
            self._by_fd.pop(side.fileno(), None)
        self._half.pop(splice, None)
        splice.close(broken=broken)
        splice.on_end()

    def _look(self) -> None:
        """After those of whom one side has ended, and the other says nothing."""
        now = time.monotonic()
        if self._half and now - self._looked_at > _LOOK_S:
            self._looked_at = now
            for splice in [each for each in self._half if now - each.moved_at > limits.HALF_CLOSED_S]:
                self._drop(splice, broken=True)
