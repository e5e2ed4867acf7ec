"""The part of the waist that is about ports: how whoever is outside reaches what listens in a session."""

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from typing import Protocol

from sandlot.model import ExposedPort, ExposeRequest, limits


class PortStream(Protocol):
    """One connection to a program in a session. Given out by a context manager: leaving it ends the connection. One
    reads and one writes at a time."""

    async def read(self, size_max: int = limits.PIECE_BYTES) -> bytes:
        """What has come, at least a byte; nothing when the program says no more, which it may still hear. Raises
        Unavailable when the connection was broken off."""
        ...

    async def write(self, data: bytes) -> None:
        """Waits while the program does not read. Raises Unavailable when it takes no more."""
        ...

    async def close_write(self) -> None:
        """Say that nothing more comes; what the program says can be read on. Raises Unavailable."""
        ...


class Ports(Protocol):
    """A port is one of the session's own loopback, on 127.0.0.1 or ::1; whoever uses it reaches that session and
    nothing else. On a runtime without isolation it is one that a program of the session listens on.

    Every verb raises InvalidArgument and SessionNotFound, and what is said of it.
    """

    def connect_port(self, session_id: str, port: int) -> AbstractAsyncContextManager[PortStream]:
        """A connection to whoever listens there. It ends with the session and with a rollback, waits while the session
        is paused, and does not outlive this host's program.

        Entering raises NotFound when nobody listens there, CapabilityNotSupported, LimitReached, SessionPaused,
        SessionDestroying, SessionFailed, RollbackInProgress, InvalidState, DeadlineExceeded when whoever listens takes
        no connection, Unavailable.
        """
        ...

    async def expose_port(self, request: ExposeRequest) -> ExposedPort:
        """An address on the host that reaches the port of this session, also where the program listens on 127.0.0.1
        inside. It stays until `unexpose_port` or the end of the session, also when the engine ends and another begins.
        A port that is exposed already is told as it is.

        Raises CapabilityNotSupported, Conflict when the port of the host is taken, LimitReached, SessionDestroying,
        SessionFailed, Unavailable.
        """
        ...

    async def list_ports(self, session_id: str) -> Sequence[ExposedPort]:
        """Those of processes included, by their number."""
        ...

    async def unexpose_port(self, session_id: str, port: int) -> None:
        """Connections through it end. Raises NotFound when it is not exposed, Conflict when it is the port of a process
        that has not ended."""
        ...
