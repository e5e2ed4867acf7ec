"""A data directory, whoever holds it: the engine in this process, or a client of the one in another.

Whoever holds it serves a socket in it. Everyone else is a client there; one of them takes over when the holder ends:
it starts an engine and serves the socket, which its own client and those of the others find again. What they had begun
is found again too, by ids and offsets: the client does that, as it does when a server was started anew."""

import asyncio
import contextlib
import logging
import os
import socket
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from sandlot import registry
from sandlot.audit.files import ANCHOR_FILE, FOLDER
from sandlot.audit.host import audited
from sandlot.audit.log import AuditLog
from sandlot.audit.typed import Typed
from sandlot.config.settings import Settings
from sandlot.contracts import Host
from sandlot.host.lock import DOOR
from sandlot.host.service import SandboxHostService
from sandlot.model import DataDirectoryHeld, SandlotError, SessionFilter, limits
from sandlot.server.peers import peer_of
from sandlot.server.redaction import redact
from sandlot.tenants.ledger import KeyLedger
from sandlot.wiring.embedded import build

if TYPE_CHECKING:
    from sandlot.rpc.client import HostClient

_log = logging.getLogger("sandlot.host")
_RETRY_S = 0.02
_SLOW_RETRY_S = 0.5
_LOOK_S = 1.0  # between two looks whether keys were changed, where nobody asks with one, and who types no more
_PATH_BYTES_MAX = 107  # of a socket's address


class _Door(Protocol):
    """As `sandlot.wiring.door.Door`, which is loaded late."""

    async def close(self) -> None: ...


Taken = Callable[[Host], None]


class Holding:
    """`taken` hears of every engine that is started here."""

    def __init__(
        self, settings: Settings, progress: Callable[[int], None] | None = None, taken: Taken | None = None
    ) -> None:
        self._settings = settings
        self._progress = progress
        self._taken = taken
        self._folder = -1
        self._client: HostClient | None = None
        self._watch: socket.socket | None = None
        self._watcher: asyncio.Task[None] | None = None
        self._starting: asyncio.Task[Host] | None = None
        self._opening: asyncio.Task[None] | None = None  # of the door
        self._door: _Door | None = None
        self._is_closed = False
        self._was_found = False
        self.engine: SandboxHostService | None = None
        self._audit: AuditLog | None = None
        self._ledger: KeyLedger | None = None
        self._typed: Typed | None = None
        self._telling: asyncio.Task[None] | None = None

    async def open(self, patience_s: float) -> Host:
        """The engine, or a client of the one that there is. Who holds the directory and does not answer is waited for.
        Raises DataDirectoryHeld, and what starting an engine raises."""
        loop = asyncio.get_running_loop()
        give_up = loop.time() + patience_s
        last = loop.time() + limits.START_S
        try:
            while True:
                try:
                    return await self._hold()
                except DataDirectoryHeld:
                    if await self._join():
                        assert self._client is not None
                        self._watcher = loop.create_task(self._take_over(), name="take over")
                        return self._client
                    if self._was_found:  # it has left, and someone else may have been quicker
                        self._was_found, give_up = False, loop.time() + patience_s
                    if loop.time() >= min(give_up, last):
                        raise
                await asyncio.sleep(_RETRY_S)
        except BaseException:  # raised again: nothing is held
            await self.close()
            raise

    async def close(self) -> None:
        """Give it back. Sessions live on; what others began here they find again, wherever the engine is then."""
        self._is_closed = True
        if self._starting is not None:  # its threads would go on when it is cancelled
            await asyncio.wait([self._starting], timeout=limits.SHUTDOWN_TIMEOUT_S)
        if self._watcher is not None:
            self._watcher.cancel()
            await asyncio.gather(self._watcher, return_exceptions=True)
        if self._client is not None:
            await self._client.aclose()
        self._close_watch()
        engine, self.engine = self.engine, None
        if engine is not None:
            if engine.door is not None:
                asyncio.get_running_loop().remove_reader(engine.door.fileno())
            if self._opening is not None:
                await asyncio.gather(self._opening, return_exceptions=True)
            if self._door is not None:
                await self._door.close()
            # Those who are left are others, and were sent off. Our own calls were broken off by whoever closes us.
            await engine.close(for_calls=self._door is None)
        if self._telling is not None:
            self._telling.cancel()
            await asyncio.gather(self._telling, return_exceptions=True)
        if self._audit is not None:
            self.tell_keys()
            if self._typed is not None:
                self._typed.close()
            self._audit.close()
            self._audit = self._ledger = self._typed = None
        if self._folder >= 0:
            os.close(self._folder)
            self._folder = -1

    # ---- holding it --------------------------------------------------------------------------------------------

    async def _hold(self) -> Host:
        engine = build(self._settings, self._progress, shares=True)
        await engine.start()
        self.engine = engine
        host = self._audited(engine)
        if engine.door is not None:
            asyncio.get_running_loop().add_reader(engine.door.fileno(), self._knocked, host, engine.door)
        if self._taken is not None:
            self._taken(host)
        return host

    def _audited(self, engine: SandboxHostService) -> Host:
        """The engine, with everything that is asked of it written down. Without a log it works, too."""
        if not self._settings.audit:
            return engine
        data = self._settings.data
        log = AuditLog(data / FOLDER, self._settings.audit_anchor or data / ANCHOR_FILE)
        try:
            log.open()
        except OSError as error:
            _log.error("there is no audit log from now on: %s", error)
            log.close()
            return engine
        self._audit, self._ledger, self._typed = log, KeyLedger(data, log), Typed(log)
        self.tell_keys()  # before anything is done with them
        self._telling = asyncio.get_running_loop().create_task(self._look_after(), name="audit")
        return audited(engine, log, redact, self._typed)

    def tell_keys(self) -> None:
        """What was changed of the keys of this data directory stands in its log when this returns, if it is ours."""
        if self._ledger is not None:
            self._ledger.tell()

    async def _look_after(self) -> None:
        while True:
            await asyncio.sleep(_LOOK_S)
            self.tell_keys()
            if self._typed is not None:
                self._typed.look()

    def _knocked(self, host: Host, door: socket.socket) -> None:
        """What answers takes a tenth of a second to load, and most programs are alone."""
        loop = asyncio.get_running_loop()
        loop.remove_reader(door.fileno())
        self._opening = loop.create_task(self._answer(host, door), name="open the door")

    async def _answer(self, host: Host, listening: socket.socket) -> None:
        try:
            make: Callable[..., _Door] = await asyncio.to_thread(registry.load, "server", "door")
        except SandlotError as error:
            _log.error("others cannot use this data directory meanwhile: %s", error)
            return
        if not self._is_closed:
            self._door = make(host, listening)

    # ---- being a client ----------------------------------------------------------------------------------------

    async def _join(self) -> bool:
        """Whether its holder answers."""
        watch = await self._connect()
        if watch is None:
            return False
        self._watch, self._was_found = watch, True
        client: HostClient = self._client or registry.load("host", "client")(f"unix://{self._address()}")
        try:
            async with asyncio.timeout(limits.START_S):
                await client.list(SessionFilter(limit=1))  # the cheapest that only an engine can answer
        except (SandlotError, TimeoutError) as error:
            _log.debug("the holder of %s does not answer: %s", self._settings.data, error)
            await client.aclose()
            self._close_watch()
            return False
        self._client = client
        return True

    async def _connect(self) -> socket.socket | None:
        """A connection that says nothing, and ends when the holder does. None: there is nobody, or someone else."""
        connected = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK)
        try:
            async with asyncio.timeout(limits.CONNECT_S):
                await asyncio.get_running_loop().sock_connect(connected, self._address())
            if peer_of(connected)[1] in (0, os.geteuid()):
                return connected
        except (OSError, TimeoutError):
            pass
        connected.close()
        return None

    def _address(self) -> str:
        """Through a descriptor where the path is too long for a socket."""
        path = self._settings.data / DOOR
        if len(os.fsencode(path)) <= _PATH_BYTES_MAX:
            return str(path)
        if self._folder < 0:
            self._folder = os.open(self._settings.data, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        return f"/proc/self/fd/{self._folder}/{DOOR}"

    def _close_watch(self) -> None:
        if self._watch is not None:
            self._watch.close()
            self._watch = None

    async def _take_over(self) -> None:
        """As soon as the holder ends, unless someone else is quicker. Then he is watched."""
        while True:
            assert self._watch is not None
            with contextlib.suppress(OSError):
                while await asyncio.get_running_loop().sock_recv(self._watch, 4096):
                    pass
            self._close_watch()
            while self._watch is None:
                if await self._attempt():
                    return
                if self._is_closed:
                    return
                self._watch = await self._connect()
                await asyncio.sleep(_RETRY_S)

    async def _attempt(self) -> bool:
        """Whether the engine is here now."""
        if self._is_closed:
            return False
        try:
            self._starting = asyncio.get_running_loop().create_task(self._hold(), name="start engine")
            await self._starting
        except DataDirectoryHeld:
            return False
        except SandlotError as error:
            _log.error("the engine of %s ended, and none can be started here: %s", self._settings.data, error)
            await asyncio.sleep(_SLOW_RETRY_S)
            return False
        return True
