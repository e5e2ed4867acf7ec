"""Who may work in a session while its root is changed: nobody. Calls and writes pass a gate; a snapshot shuts it for a
moment and they wait, a rollback shuts it and they are refused."""

import asyncio
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager

from sandlot.model import InvalidState, RollbackInProgress, SandlotError, ToolsInFlight, limits


class Gate:
    def __init__(self, session_id: str) -> None:
        self._session_id = session_id
        self._shut_for = ""
        self._refuses = False
        self._writers = 0
        self._changed = asyncio.Event()

    @property
    def is_open(self) -> bool:
        return not self._shut_for

    async def wait(self) -> None:
        """Until it is open. Raises RollbackInProgress: who calls then cannot mean the files that will be there."""
        give_up = asyncio.get_running_loop().time() + limits.GATE_DEADLINE_S
        while self._shut_for:
            if self._refuses:
                raise RollbackInProgress(
                    f"session {self._session_id} is being rolled back",
                    next_step="try again",
                    session_id=self._session_id,
                )
            await self._wait_for_change(
                give_up, InvalidState(f"session {self._session_id}: {self._shut_for} takes long")
            )

    @asynccontextmanager
    async def writing(self) -> AsyncGenerator[None]:
        """For whoever changes files from outside."""
        await self.wait()
        self._writers += 1
        try:
            yield
        finally:
            self._writers -= 1
            self._tell()

    @asynccontextmanager
    async def shut(self, what: str, *, refuse: bool = False) -> AsyncGenerator[None]:
        """Nobody else works in the session. One at a time: who comes second gets an error, and has changed nothing.

        Raises RollbackInProgress, InvalidState, ToolsInFlight when writes do not end in time.
        """
        with self._claim(what, refuse=refuse):
            give_up = asyncio.get_running_loop().time() + limits.GATE_DEADLINE_S
            busy = ToolsInFlight(
                f"session {self._session_id}: files are being written from outside",
                next_step="try again when that is done",
                session_id=self._session_id,
            )
            while self._writers:
                await self._wait_for_change(give_up, busy)
            yield

    @contextmanager
    def _claim(self, what: str, *, refuse: bool) -> Generator[None]:
        if self._shut_for:
            if self._refuses:
                raise RollbackInProgress(
                    f"session {self._session_id} is being rolled back",
                    next_step="try again",
                    session_id=self._session_id,
                )
            raise InvalidState(
                f"session {self._session_id}: {self._shut_for} is under way",
                next_step="try again when it is done",
                session_id=self._session_id,
            )
        self._shut_for, self._refuses = what, refuse
        try:
            yield
        finally:
            self._shut_for, self._refuses = "", False
            self._tell()

    def _rolling_back(self) -> SandlotError:
        return RollbackInProgress(
            f"session {self._session_id} is being rolled back", next_step="try again", session_id=self._session_id
        )

    def _tell(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def _wait_for_change(self, give_up: float, otherwise: SandlotError) -> None:
        try:
            async with asyncio.timeout_at(give_up):
                await self._changed.wait()
        except TimeoutError:
            raise otherwise from None
