"""Exposed ports: an address of the host for each, listened on as long as an engine is there, and recorded, so that the
next one listens on the same."""

import asyncio
import errno
import socket
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

from sandlot.host.background import Background
from sandlot.host.lines import Line, Lines
from sandlot.host.listening import listen, told
from sandlot.host.port_streams import SocketStream, pump, reset
from sandlot.host.process_rows import PortRow, ProcessRows
from sandlot.host.process_table import ProcessTable, ProcessTables
from sandlot.host.processes import ManagedProcess
from sandlot.host.session import Session
from sandlot.host.splicing import Splice, Splicer
from sandlot.model import (
    Conflict,
    DeadlineExceeded,
    ExposedPort,
    LimitReached,
    NotFound,
    SandlotError,
    Unavailable,
    limits,
)

_NO_ROOM = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
_AGAIN_S = 0.5  # when there is no descriptor for who comes
_ACCEPTS = 64  # in a row


@dataclass(eq=False)
class Exposed:
    """One port of one session."""

    row: PortRow
    recorded: "asyncio.Future[None] | None" = None
    listener: socket.socket | None = None
    splices: set[Splice] = field(default_factory=set[Splice])
    tasks: set["asyncio.Task[None]"] = field(default_factory=set["asyncio.Task[None]"])  # that dial, or carry bytes

    @property
    def connections(self) -> int:
        return len(self.splices) + len(self.tasks)


class Exposures:
    """Those of all sessions."""

    def __init__(self, rows: ProcessRows, background: Background, advertised: str, lines: Lines) -> None:
        self._rows = rows
        self._background = background
        self._advertised = advertised
        self._lines = lines
        self._loop: asyncio.AbstractEventLoop | None = None
        self._splicer = Splicer()
        self._ports: dict[str, dict[int, Exposed]] = {}
        self._found: dict[str, list[PortRow]] = {}  # of an earlier engine, until their session is there

    # ---- life --------------------------------------------------------------------------------------------------

    def follow(self, tables: ProcessTables) -> None:
        """Ports go with their processes, and with their sessions."""
        tables.on_process_ended, tables.on_session_gone = self.process_ended, self.gone

    async def load(self) -> None:
        self._loop = asyncio.get_running_loop()
        for row in await self._rows.ports():
            self._found.setdefault(row.session_id, []).append(row)

    def attach(self, session: Session, table: ProcessTable) -> None:
        """Of a session that is found: listen again. Where someone else has taken the address meanwhile, on another."""
        rows = self._found.pop(session.row.session_id, ())
        living = {each.row.process_id: each for each in table.all() if not each.is_ended}
        for row in rows:
            process = living.get(row.process_id or "")
            if row.process_id is not None and process is None:
                self._later(self._rows.remove_port(row.session_id, row.port))
                continue
            exposed = self._ports.setdefault(row.session_id, {})[row.port] = Exposed(row)
            self._listen_again(exposed)
            for each in (process, *(p for p in living.values() if p.spec.port == row.port and row.process_id is None)):
                if each is not None:
                    each.address = self.address(exposed)

    def _listen_again(self, exposed: Exposed) -> None:
        with suppress(SandlotError):  # without one it has no address; whoever exposes it again hears why
            try:
                self._listen(exposed, exposed.row.host_port)
            except Conflict:
                self._listen(exposed, 0)
                self._later(self._rows.add_port(exposed.row))

    def gone(self, session: Session) -> None:
        """With all that was exposed of it."""
        for exposed in self._ports.pop(session.row.session_id, {}).values():
            self._shut(exposed)
            self._later(self._rows.remove_port(exposed.row.session_id, exposed.row.port))

    async def leave(self) -> None:
        """The engine goes; the next one listens again."""
        for exposed in [each for ports in self._ports.values() for each in ports.values()]:
            self._shut(exposed)
        await asyncio.to_thread(self._splicer.close)

    def forget(self) -> None:
        """In a forked child."""
        for exposed in [each for ports in self._ports.values() for each in ports.values()]:
            if exposed.listener is not None:
                exposed.listener.close()
        self._splicer.forget()

    # ---- exposing ----------------------------------------------------------------------------------------------

    async def expose(self, session_id: str, port: int, host_port: int, process_id: str | None = None) -> Exposed:
        """Durable when it returns; one that is exposed is told. Raises Conflict, LimitReached, Unavailable."""
        ports = self._ports.setdefault(session_id, {})
        exposed = ports.get(port)
        if exposed is None:
            if len(ports) >= limits.PORTS_MAX:
                raise LimitReached(
                    f"session {session_id} exposes {limits.PORTS_MAX} ports already",
                    next_step="unexpose one",
                    limit="ports",
                )
            exposed = Exposed(PortRow(session_id, port, 0, process_id))
            self._listen(exposed, host_port)
            ports[port] = exposed
            exposed.recorded = self._rows.add_port(exposed.row)
        elif exposed.listener is None:
            self._listen(exposed, exposed.row.host_port)
        if exposed.recorded is not None:
            try:
                await asyncio.shield(exposed.recorded)
            except SandlotError:
                self._drop(exposed)
                raise
            exposed.recorded = None
        if self._ports.get(session_id, {}).get(port) is not exposed:
            raise Unavailable(f"session {session_id} is gone", session_id=session_id)
        return exposed

    async def claim(self, session: Session, port: int, process_id: str) -> Exposed:
        """For a process that is to listen there. Raises Conflict when someone else does, or may."""
        session_id = session.row.session_id
        known = self._ports.get(session_id, {}).get(port)
        if known is not None and known.row.process_id == process_id:
            return await self.expose(session_id, port, 0)
        if known is not None and known.row.process_id is not None:
            raise Conflict(
                f"port {port} is the port of process {known.row.process_id}, which has not ended",
                next_step="kill it, or choose another port",
                session_id=session_id,
            )
        if await self._is_listened_on(session_id, port):
            raise Conflict(
                f"someone in session {session_id} listens on port {port} already",
                next_step="end that program, choose another port, or expose the port by itself",
                session_id=session_id,
            )
        return await self.expose(session_id, port, 0, process_id)

    async def _is_listened_on(self, session_id: str, port: int) -> bool:
        try:
            line = await self._lines.open(session_id, port)
        except NotFound:
            return False
        except DeadlineExceeded:
            return True  # and takes no connections
        await line.leave()
        return True

    def release(self, session_id: str, process_id: str) -> None:
        """The port of a process that has ended."""
        for exposed in tuple(self._ports.get(session_id, {}).values()):
            if exposed.row.process_id == process_id:
                self._drop(exposed)

    def process_ended(self, process: ManagedProcess) -> None:
        process.address = ""
        self.release(process.row.session_id, process.row.process_id)

    async def unexpose(self, session_id: str, port: int) -> None:
        exposed = self._ports.get(session_id, {}).get(port)
        if exposed is None:
            raise NotFound(
                f"port {port} of session {session_id} is not exposed",
                next_step="`sandlot expose --list` tells which are",
                session_id=session_id,
            )
        if exposed.row.process_id is not None:
            raise Conflict(
                f"port {port} is the port of process {exposed.row.process_id}, which has not ended",
                next_step="kill the process",
                session_id=session_id,
            )
        await self._drop(exposed)

    def told(self, session_id: str) -> Sequence[ExposedPort]:
        ports = self._ports.get(session_id, {})
        return [self.one(ports[port]) for port in sorted(ports)]

    def one(self, exposed: Exposed) -> ExposedPort:
        row = exposed.row
        return ExposedPort(row.session_id, row.port, self.address(exposed), row.process_id, exposed.connections)

    def address(self, exposed: Exposed) -> str:
        return told(self._advertised, exposed.row.host_port) if exposed.listener is not None else ""

    def _drop(self, exposed: Exposed) -> "asyncio.Future[None]":
        row = exposed.row
        ports = self._ports.get(row.session_id, {})
        if ports.get(row.port) is exposed:
            del ports[row.port]
            if not ports:
                del self._ports[row.session_id]
        self._shut(exposed)
        removed = self._rows.remove_port(row.session_id, row.port)
        self._later(removed)
        return removed

    def _later(self, recorded: "asyncio.Future[None]") -> None:
        async def wait() -> None:
            await asyncio.shield(recorded)

        self._background.spawn("record a port", wait())

    # ---- connections -------------------------------------------------------------------------------------------

    def _listen(self, exposed: Exposed, host_port: int) -> None:
        assert self._loop is not None, "the engine runs"
        exposed.listener = listener = listen(self._advertised, host_port)
        exposed.row = replace(exposed.row, host_port=listener.getsockname()[1])
        self._loop.add_reader(listener.fileno(), self._accept, exposed, listener)

    def _shut(self, exposed: Exposed) -> None:
        listener, exposed.listener = exposed.listener, None
        if listener is not None:
            assert self._loop is not None, "the engine runs"
            self._loop.remove_reader(listener.fileno())
            listener.close()
        for task in tuple(exposed.tasks):
            task.cancel()
        for splice in tuple(exposed.splices):
            self._splicer.end(splice)

    def _accept(self, exposed: Exposed, listener: socket.socket) -> None:
        for _ in range(_ACCEPTS):
            try:
                outside, _who = listener.accept()
            except OSError as error:
                if error.errno in _NO_ROOM:
                    self._rest(exposed, listener)
                return
            outside.setblocking(False)
            if exposed.connections >= limits.CONNECTIONS_MAX:
                reset(outside)
                continue
            with suppress(OSError):
                outside.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._start(exposed, self._serve(exposed, outside))

    def _rest(self, exposed: Exposed, listener: socket.socket) -> None:
        """Whoever comes waits in the kernel meanwhile."""
        assert self._loop is not None, "the engine runs"
        loop = self._loop
        loop.remove_reader(listener.fileno())

        def again() -> None:
            if exposed.listener is listener:
                loop.add_reader(listener.fileno(), self._accept, exposed, listener)

        loop.call_later(_AGAIN_S, again)

    def _start(self, exposed: Exposed, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work, name=f"port {exposed.row.port}")
        exposed.tasks.add(task)
        task.add_done_callback(exposed.tasks.discard)

    async def _serve(self, exposed: Exposed, outside: socket.socket) -> None:
        try:
            line = await self._lines.open(exposed.row.session_id, exposed.row.port)
        except SandlotError:
            reset(outside)
            return
        except asyncio.CancelledError:
            reset(outside)
            raise
        if isinstance(line.stream, SocketStream):
            self._splice(exposed, outside, line, line.stream.give_up())
            return
        try:
            with suppress(SandlotError, OSError):
                await pump(outside, line.stream)
        finally:
            line.release()

    def _splice(self, exposed: Exposed, outside: socket.socket, line: Line, inside: socket.socket) -> None:
        def ended() -> None:
            line.release()
            exposed.splices.discard(splice)

        splice = Splice(outside, inside, self._in_loop(ended))
        exposed.splices.add(splice)
        self._splicer.join(splice)

    def _in_loop(self, do: Callable[[], None]) -> Callable[[], None]:
        loop = asyncio.get_running_loop()

        def tell() -> None:
            with suppress(RuntimeError):  # the loop has ended, and nobody asks
                loop.call_soon_threadsafe(do)

        return tell
