"""The part of the waist that is about terminals."""

from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Protocol

from sandlot.model import (
    Terminal,
    TerminalAttach,
    TerminalEvent,
    TerminalInput,
    TerminalKill,
    TerminalRequest,
    TerminalResize,
)


class TerminalStream(Protocol):
    """One client of a terminal. Given out by a context manager: leaving it never ends the program."""

    @property
    def client_id(self) -> str: ...

    @property
    def terminal(self) -> Terminal:
        """As it was when this client came."""
        ...

    def __aiter__(self) -> AsyncIterator[TerminalEvent]:
        """What is kept, then what comes; last its end. A reader that is slower than the window misses what fell out
        of it, and sees so by the offsets. Raises Unavailable when the guest is lost."""
        ...


class Terminals(Protocol):
    """Programs on terminals that outlive their clients, and the engine. Only the newest part of their output is kept,
    so they may print without end. What they print is raw: it is for a terminal.

    A terminal is a call too, with the same id: `calls` tells it, and a turn has it. Every verb raises InvalidArgument,
    SessionNotFound, Unavailable, and all but the first CallNotFound.
    """

    async def open_terminal(self, request: TerminalRequest) -> Terminal:
        """It runs when this returns. A known id gives what is there. Raises what `call` raises,
        CapabilityNotSupported where there are no terminals."""
        ...

    async def terminals(self, session_id: str) -> Sequence[Terminal]:
        """Those that live, oldest first."""
        ...

    async def get_terminal(self, session_id: str, terminal_id: str) -> Terminal:
        """One that has ended, too."""
        ...

    def attach_terminal(self, request: TerminalAttach) -> AbstractAsyncContextManager[TerminalStream]:
        """Read one, and have its input if that is asked for, until this is left. Entering raises Conflict when another
        client holds the input and it is not to be taken."""
        ...

    async def write_terminal(self, request: TerminalInput) -> None:
        """As if it were typed; waits while the program does not read. Dropped when the program has ended. Raises
        Conflict while another client holds the input, InvalidState when the call has no terminal."""
        ...

    async def resize_terminal(self, request: TerminalResize) -> None:
        """Raises as writing does."""
        ...

    async def kill_terminal(self, request: TerminalKill) -> None:
        """Whoever reads is told how it ended. One that has ended is fine."""
        ...
