"""Talks to the keeper, the small resident program that starts guests and holds their host ends while no engine does."""

import array
import asyncio
import contextlib
import errno
import fcntl
import itertools
import os
import select
import signal
import socket
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import partial
from pathlib import Path

from sandlot.host.runtimes import frames
from sandlot.host.runtimes.ahead import Ahead
from sandlot.host.runtimes.groups import Group, Groups
from sandlot.host.runtimes.link import GuestLink
from sandlot.model import CapabilityNotSupported, DeadlineExceeded, Resources, Unavailable, limits

VERSION = 5
RUNSC_SINCE = 4
_BORN_IN_GROUP_SINCE = 2
_ENTERS_GROUPS_SINCE = 3
_AHEAD_SINCE = 5
_HEADER = struct.Struct("<IiQ")
_REPLY_BYTES_MAX = 4096
_START_ATTEMPTS = 4
_CONNECT_ATTEMPTS = 4


class Ask(IntEnum):
    HELLO = 1
    START = 2
    LIST = 3
    ADOPT = 4
    SWAP = 5
    STOP = 6
    LEAVE = 7
    VIEW = 8
    AHEAD = 9


@dataclass(slots=True)
class _Waiting:
    """A request under way. LIST answers with several replies, the last of which is empty."""

    done: asyncio.Future[list["_Reply"]]
    many: bool
    replies: list["_Reply"]


@dataclass(frozen=True, slots=True)
class _Reply:
    error: int
    words: tuple[str, ...]
    fds: tuple[int, ...]


@dataclass(slots=True)
class _Held:
    runtime: str
    range: int
    link: GuestLink


class KeeperLost(Unavailable):
    """The keeper went away before it answered. Guests live on; the next request meets a new keeper."""


class Keeper:
    """One keeper per data directory. Starts it when there is none, and again when it dies."""

    def __init__(self, data: Path, program: Path, default_pids: int | None = None) -> None:
        self._data = data
        self._program = program
        self._socket: socket.socket | None = None
        self._child = 0  # pid of the keeper, when it is our child
        self._loop = asyncio.get_running_loop()
        self._waiting: dict[int, _Waiting] = {}
        self._last_request = 0
        self._guests: dict[str, _Held] = {}
        self._found: dict[str, _Reply] = {}
        self._buffer = bytearray(frames.MESSAGE_BYTES_MAX)
        self._connecting = asyncio.Lock()
        self._stopping: dict[str, asyncio.Event] = {}
        self._restart: asyncio.Task[None] | None = None
        self._closed = False
        self._version = 0
        self.pid = 0
        self.groups = Groups(data, default_pids)
        self._ahead = Ahead(
            lambda word: self._ask(Ask.AHEAD, word), lambda: {held.range for held in self._guests.values()}
        )

    # ---- verbs -------------------------------------------------------------------------------------------------

    async def open(self) -> None:
        """Find the keeper of an earlier engine with its guests, or start one."""
        await self._connect()
        for reply in await self._ask(Ask.LIST, many=True):
            self._found[reply.words[0]] = reply
        self.groups.open()
        await self.groups.sweep(self._found)

    async def peek(self) -> None:
        """As `open`, but nothing is started and nothing is removed."""
        found = self._reach()
        if found is not None:
            with contextlib.suppress(KeeperLost):
                await self._greet(found)
                for reply in await self._exchange(Ask.LIST, many=True):
                    if _has_ended(reply.fds[1]):
                        for fd in reply.fds:
                            os.close(fd)
                    else:
                        self._found[reply.words[0]] = reply
        self.groups.open()

    def names(self) -> tuple[str, ...]:
        return (*self._guests, *self._found)

    async def start(
        self,
        runtime: str,
        name: str,
        words: Sequence[str],
        guest_range: int,
        resources: Resources,
        on_end: Callable[[str], None],
    ) -> GuestLink:
        group = self.groups.make(name)
        fds = [] if group is None else [group]
        enters = self._version >= _ENTERS_GROUPS_SINCE
        try:
            if enters and runtime == "namespaces" and (born_with := self.groups.controllers.born_with(resources)):
                words = (words[0], f"{guest_range}:{born_with}", *words[2:])
            if enters:
                fds += self.groups.controllers.prepare(name, resources)
            reply = await self._start(name, runtime, *words, fds=fds)
        except BaseException:  # undone, then raised again
            self.groups.remove(name)
            raise
        finally:
            for fd in fds:
                os.close(fd)
        pid = int(reply.words[0])
        link = self._hold(name, runtime, guest_range, pid, reply.fds, on_end)
        born_there = group is not None and self._version >= _BORN_IN_GROUP_SINCE
        self.groups.settle(name, pid, born_there=born_there)
        if enters:
            self.groups.pin(name, pid, resources)
        else:  # a keeper of an earlier release
            self.groups.controllers.limit(name, pid, resources)
        if runtime == "namespaces" and self._version >= _AHEAD_SINCE:
            self._ahead.started(guest_range, words[1])
        return link

    async def _start(self, *words: str, fds: Sequence[int]) -> _Reply:
        for attempt in range(_START_ATTEMPTS):
            try:
                (reply,) = await self._ask(Ask.START, *words, fds=fds)
                return reply
            except KeeperLost:
                # What it had begun ends by itself: nobody holds the other end of its line.
                if attempt + 1 == _START_ATTEMPTS:
                    raise
        raise AssertionError("unreachable")

    def group(self, name: str) -> Group:
        """All processes of a guest. Raises Unavailable when it is gone, CapabilityNotSupported without groups."""
        return self.groups.find(name, self.link(name).pid, partial(self.show, name))

    async def show(self, name: str, resources: Resources) -> None:
        """Let a guest that has begun see what its limits leave of the machine."""
        if told := self.groups.controllers.views(name, resources):
            await self._ask(Ask.VIEW, name, *itertools.chain(*told.items()))

    @property
    def program(self) -> Path:
        return self._program

    @property
    def version(self) -> int:
        """Of the keeper that is there; 0 before one was met."""
        return self._version

    def link(self, name: str) -> GuestLink:
        """Raises Unavailable when the guest is gone."""
        held = self._guests.get(name)
        if held is None:
            raise Unavailable("the guest of the session is gone")
        return held.link

    def take(self, name: str, on_end: Callable[[str], None]) -> GuestLink | None:
        """A guest that an earlier engine left with the keeper."""
        reply = self._found.pop(name, None)
        if reply is None:
            return None
        _name, runtime, guest_range, pid = reply.words
        self.groups.controllers.adopt(name, int(pid))
        return self._hold(name, runtime, int(guest_range), int(pid), reply.fds, on_end)

    async def swap(self, name: str, words: Sequence[str]) -> None:
        await self._ask(Ask.SWAP, name, *words)

    async def stop(self, name: str) -> None:
        """End a guest. The reply comes when everything in it is dead."""
        while (other := self._stopping.get(name)) is not None:  # the keeper answers one of those who ask
            await other.wait()
        over = self._stopping[name] = asyncio.Event()
        try:
            await self._stop(name)
        finally:
            del self._stopping[name]
            over.set()

    async def _stop(self, name: str) -> None:
        held = self._guests.pop(name, None)
        stale = self._found.pop(name, None)
        fds = held.link.descriptors() if held else stale.fds if stale else ()
        runtime = held.runtime if held else stale.words[1] if stale else ""
        self.groups.let_die(name, by_itself=runtime == "none")
        # Our own copies: whatever happens to the link, this guest can still be ended.
        own = [os.dup(fd) for fd in fds if fd >= 0]
        try:
            await self._ask(Ask.STOP, name)
        except KeeperLost:
            # The next keeper is not told of it: we are the only one who still can.
            if len(own) == 2:
                await self._end_alone(own[0], own[1], confined=runtime != "none")
        except Unavailable as error:
            if error.context.get("errno") != errno.ESRCH:
                raise
        finally:
            if held:
                held.link.close()
            for fd in (*own, *(stale.fds if stale else ())):
                os.close(fd)
        self.groups.remove(name)
        if held and runtime == "namespaces" and self._version >= _AHEAD_SINCE and not self._closed:
            self._ahead.stopped(held.range)

    async def _end_alone(self, line: int, pidfd: int, *, confined: bool) -> None:
        ended: asyncio.Future[None] = self._loop.create_future()
        self._loop.add_reader(pidfd, lambda: ended.done() or ended.set_result(None))
        try:
            with contextlib.suppress(ProcessLookupError):
                if confined:
                    signal.pidfd_send_signal(pidfd, signal.SIGKILL)
            with socket.socket(fileno=os.dup(line)) as end, contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)  # a plain guest ends its descendants, then itself
            async with asyncio.timeout(limits.KEEPER_DEADLINE_S):
                await ended
        except TimeoutError:
            raise DeadlineExceeded("a guest did not end") from None
        finally:
            self._loop.remove_reader(pidfd)

    async def close(self) -> None:
        """Leave guests to the keeper, and let it go when it has none."""
        self._ahead.close()
        if not self._closed and self._socket:
            try:
                async with asyncio.timeout(2):
                    await self._ask(Ask.LEAVE)
            except (Unavailable, TimeoutError):
                pass
        self._closed = True
        if self._restart:
            self._restart.cancel()
        for held in self._guests.values():
            held.link.close()
        for reply in self._found.values():
            for fd in reply.fds:
                os.close(fd)
        self._guests.clear()
        self._found.clear()
        self._disconnect()
        self._reap()
        self.groups.close()

    def forget(self) -> None:
        """In a forked child: close every line, without a word. They are its parent's."""
        self._closed = True
        for held in self._guests.values():
            for fd in held.link.descriptors():
                os.close(fd)
        for reply in self._found.values():
            for fd in reply.fds:
                os.close(fd)
        if self._socket:
            os.close(self._socket.detach())

    # ---- guests ------------------------------------------------------------------------------------------------

    def _hold(
        self, name: str, runtime: str, guest_range: int, pid: int, fds: Sequence[int], on_end: Callable[[str], None]
    ) -> GuestLink:
        end = socket.socket(fileno=fds[0])
        link = GuestLink(end, pid, fds[1], self._buffer, on_end)
        self._guests[name] = _Held(runtime, guest_range, link)
        return link

    # ---- the line ----------------------------------------------------------------------------------------------

    async def _connect(self) -> None:
        async with self._connecting:
            for attempt in range(_CONNECT_ATTEMPTS):
                if self._socket:
                    return
                try:
                    # One that went away in the middle of a greeting is not asked again.
                    await self._greet(None if attempt else self._reach())
                    return
                except KeeperLost:
                    # It was about to leave, or was killed again.
                    if attempt + 1 == _CONNECT_ATTEMPTS:
                        raise

    async def _greet(self, found: socket.socket | None) -> None:
        end = found or self._launch()
        end.setblocking(False)
        self._socket = end
        self._loop.add_reader(end.fileno(), self._readable)
        (hello,) = await self._exchange(Ask.HELLO)
        if int(hello.words[0]) > VERSION:
            raise CapabilityNotSupported(
                f"the keeper speaks version {hello.words[0]}, this engine knows up to {VERSION}",
                next_step="start the newer engine that it belongs to",
            )
        self._version, self.pid = int(hello.words[0]), int(hello.words[1])
        for name, held in self._guests.items():
            words = (name, held.runtime, str(held.range), str(held.link.pid))
            await self._exchange(Ask.ADOPT, *words, fds=held.link.descriptors())

    def _reach(self) -> socket.socket | None:
        """The keeper that is already there."""
        end = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        folder = os.open(self._data / "run", os.O_PATH | os.O_DIRECTORY)
        try:
            # By descriptor: a path of a socket may have 107 bytes only.
            end.connect(f"/proc/self/fd/{folder}/keeper.sock")
            return end
        except (ConnectionRefusedError, FileNotFoundError):
            end.close()
            return None
        finally:
            os.close(folder)

    def _launch(self) -> socket.socket:
        if not self._program.is_file():
            raise CapabilityNotSupported(
                "the guest program is missing from this install",
                next_step="install gcc and libc6-dev, then run `make guest`",
            )
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        folder = os.open(self._data / "run", os.O_PATH | os.O_DIRECTORY)
        data = os.open(self._data, os.O_RDONLY | os.O_DIRECTORY)
        self._reap()
        try:
            (self._data / "run" / "keeper.sock").unlink(missing_ok=True)
            listener.bind(f"/proc/self/fd/{folder}/keeper.sock")
            listener.listen(8)
            with (self._data / "run" / "keeper.log").open("ab") as log:
                self._child = _spawn_with_fds(self._program, (theirs.fileno(), listener.fileno(), data), log.fileno())
        except OSError as error:
            ours.close()
            raise Unavailable(f"the keeper could not be started: {error.strerror}") from error
        finally:
            theirs.close()
            listener.close()
            os.close(folder)
            os.close(data)
        return ours

    def _reap(self) -> None:
        if self._child:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(self._child, os.WNOHANG)

    def _disconnect(self) -> None:
        if self._socket:
            self._loop.remove_reader(self._socket.fileno())
            self._socket.close()
            self._socket = None

    def _lost(self) -> None:
        if self._socket is None:
            return
        self._disconnect()
        self._reap()
        self._ahead.forget()
        waiting, self._waiting = self._waiting, {}
        for entry in waiting.values():
            if not entry.done.done():
                entry.done.set_exception(KeeperLost("the keeper went away", next_step="try again"))
        if not self._closed and self._guests:
            # Guests must never depend on one process alone.
            self._restart = self._loop.create_task(self._connect(), name="keeper-restart")

    async def _ask(self, kind: Ask, *words: str, fds: Sequence[int] = (), many: bool = False) -> list[_Reply]:
        if self._closed:
            raise Unavailable("the engine is closed")
        if self._socket is None:
            await self._connect()
        return await self._exchange(kind, *words, fds=fds, many=many)

    async def _exchange(self, kind: Ask, *words: str, fds: Sequence[int] = (), many: bool = False) -> list[_Reply]:
        """One request and its answer on the line as it is. Raises KeeperLost, DeadlineExceeded, Unavailable."""
        if self._socket is None:
            raise KeeperLost("the keeper went away", next_step="try again")
        self._last_request += 1
        request = self._last_request
        entry = _Waiting(self._loop.create_future(), many, [])
        message = _HEADER.pack(kind, 0, request) + b"".join(os.fsencode(word) + b"\0" for word in words)
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
        self._waiting[request] = entry
        try:
            self._socket.sendmsg([message], rights)
            async with asyncio.timeout(limits.KEEPER_DEADLINE_S):
                replies = await entry.done
        except TimeoutError:
            raise DeadlineExceeded(f"the keeper did not answer in {limits.KEEPER_DEADLINE_S:g} s") from None
        except OSError as error:
            if isinstance(error, Unavailable):
                raise
            self._lost()  # the loop has not heard of it yet; the next request must not meet the dead line again
            raise KeeperLost(f"the keeper went away: {error.strerror}", next_step="try again") from None
        finally:
            self._waiting.pop(request, None)
        failed = replies[-1]
        if failed.error:
            why = failed.words[0] if failed.words else kind.name.lower()
            raise Unavailable(f"{why}: {os.strerror(failed.error)}", errno=failed.error)
        return replies[:-1] if many else replies

    def _readable(self) -> None:
        assert self._socket is not None
        try:
            data, ancillary, _flags, _address = self._socket.recvmsg(
                _REPLY_BYTES_MAX, socket.CMSG_SPACE(16), socket.MSG_CMSG_CLOEXEC
            )
        except BlockingIOError:
            return
        except OSError:
            data, ancillary = b"", []
        if not data:
            self._lost()
            return
        fds = tuple(fd for _level, _kind, payload in ancillary for fd in array.array("i", payload))
        _kind, error, request = _HEADER.unpack_from(data)
        words = tuple(os.fsdecode(word) for word in data[_HEADER.size :].split(b"\0")[:-1])
        reply = _Reply(error, words, fds)
        entry = self._waiting.get(request)
        if entry is None or entry.done.done():
            for fd in fds:
                os.close(fd)
            return
        entry.replies.append(reply)
        if error or not entry.many or not words:
            entry.done.set_result(entry.replies)


def _spawn_with_fds(program: Path, fds: tuple[int, int, int], log: int) -> int:
    """Start the keeper with its three descriptors as 3, 4 and 5, and nothing of our environment. Gives its pid."""
    # Sources far above the targets, so that no dup2 overwrites what a later one reads.
    high = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 64) for fd in (*fds, log)]
    null = os.open(os.devnull, os.O_RDWR)
    high.append(fcntl.fcntl(null, fcntl.F_DUPFD_CLOEXEC, 64))
    os.close(null)
    targets = ((high[4], 0), (high[4], 1), (high[3], 2), (high[0], 3), (high[1], 4), (high[2], 5))
    try:
        actions = [(os.POSIX_SPAWN_DUP2, source, target) for source, target in targets]
        return os.posix_spawn(program, ["sandlot-keeper", "keeper"], {}, file_actions=actions)
    finally:
        for fd in high:
            os.close(fd)


def _has_ended(pidfd: int) -> bool:
    watch = select.poll()  # `select` itself knows no number above 1023
    watch.register(pidfd, select.POLLIN)
    return bool(watch.poll(0))
