"""Who may work in a session while its root is changed: nobody. Calls and writes pass a gate; a snapshot shuts it for a
moment and they wait, a rollback shuts it and they are refused."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager

from sandlot.model import (
    DeadlineExceeded,
    InvalidState,
    RollbackInProgress,
    SandlotError,
    SessionDestroying,
    SessionPaused,
    ToolsInFlight,
    limits,
)

_PAUSE, RESUMPTION = "a pause", "its resumption"
_BACKUP = "a backup"


class Gate:
    def __init__(self, session_id: str) -> None:
        self._session_id = session_id
        self._shut_for = ""
        self._refusal: Callable[[], SandlotError] | None = None
        self._ends = False
        self._writers = 0
        self._changed = asyncio.Event()

    @property
    def is_open(self) -> bool:
        return not self._shut_for

    @property
    def is_resting(self) -> bool:
        """Someone brings the session to rest, or wakes it."""
        return self._shut_for in (_PAUSE, RESUMPTION)

    @property
    def is_quiet(self) -> bool:
        """Nobody works in the session from outside."""
        return not self._shut_for and self._writers == 0

    async def wait(self) -> None:
        """Until it is open. Raises RollbackInProgress: who calls then cannot mean the files that will be there."""
        give_up = asyncio.get_running_loop().time() + limits.GATE_DEADLINE_S
        while self._shut_for:
            if self._ends:
                raise self._destroying()
            if self._refusal:
                raise self._refusal()
            await self._wait_for_change(
                give_up, InvalidState(f"session {self._session_id}: {self._shut_for} takes long")
            )

    async def begin_writing(self) -> Callable[[], None]:
        """For whoever changes files from outside. Gives what tells that it is over, from any thread, once."""
        await self.wait()
        self._writers += 1
        loop = asyncio.get_running_loop()

        def over() -> None:
            loop.call_soon_threadsafe(self._end_writing)

        return over

    def _end_writing(self) -> None:
        self._writers -= 1
        self._tell()

    @asynccontextmanager
    async def shut(self, what: str, *, refuse: bool = False) -> AsyncGenerator[None]:
        """Nobody else works in the session. One at a time: who comes second gets an error, and has changed nothing.

        Raises RollbackInProgress, InvalidState, ToolsInFlight when writes do not end in time.
        """
        with await self._claim_behind_backup(what, self._rolling_back if refuse else None):
            await self._wait_for_writers()
            yield

    @asynccontextmanager
    async def shut_for_backup(self) -> AsyncGenerator[None]:
        """It waits for its turn, and who comes meanwhile waits too: nobody in the session has asked for it. Raises
        DeadlineExceeded, ToolsInFlight, SessionDestroying."""
        with await self._claim_when_open(_BACKUP, None):
            await self._wait_for_writers()
            yield

    @asynccontextmanager
    async def shut_to_pause(self, *, refuse: bool) -> AsyncGenerator[None]:
        """It waits for its turn; who comes later may be refused at once. Raises DeadlineExceeded, ToolsInFlight."""
        with await self._claim_when_open(_PAUSE, self._pausing if refuse else None):
            await self._wait_for_writers()
            yield

    @asynccontextmanager
    async def shut_to_move(self) -> AsyncGenerator[None]:
        """Nobody works in the session, for as long as its files are many. Raises InvalidState, ToolsInFlight."""
        with await self._claim_behind_backup("a move", self._moving):
            await self._wait_for_writers()
            yield

    @property
    def is_ending(self) -> bool:
        """Whether someone waits for the session to end."""
        return self._ends

    async def _wait_for_writers(self) -> None:
        give_up = asyncio.get_running_loop().time() + limits.GATE_DEADLINE_S
        busy = ToolsInFlight(
            f"session {self._session_id}: files are being written from outside",
            next_step="try again when that is done",
            session_id=self._session_id,
        )
        while self._writers:
            if self._ends:
                raise self._destroying()
            await self._wait_for_change(give_up, busy)

    @asynccontextmanager
    async def shut_when_open(self, what: str) -> AsyncGenerator[None]:
        """For what must be done, and can wait for its turn. Writes from outside may go on. Raises DeadlineExceeded."""
        with await self._claim_when_open(what, None):
            yield

    @asynccontextmanager
    async def shut_for_good(self) -> AsyncGenerator[None]:
        """The session ends. Whoever waits is told so. Raises DeadlineExceeded."""
        self._ends = True
        self._tell()
        with await self._claim_when_open("its end", self._destroying):
            yield

    async def _claim_when_open(
        self, what: str, refusal: Callable[[], SandlotError] | None
    ) -> AbstractContextManager[None]:
        give_up = asyncio.get_running_loop().time() + limits.GATE_DEADLINE_S
        while self._shut_for:
            late = DeadlineExceeded(f"session {self._session_id}: {self._shut_for} takes long", next_step="try again")
            await self._wait_for_change(give_up, late)
        return self._claim(what, refusal)

    async def _claim_behind_backup(
        self, what: str, refusal: Callable[[], SandlotError] | None
    ) -> AbstractContextManager[None]:
        if self._shut_for == _BACKUP:
            return await self._claim_when_open(what, refusal)
        return self._claim(what, refusal)

    @contextmanager
    def _claim(self, what: str, refusal: Callable[[], SandlotError] | None) -> Generator[None]:
        if self._shut_for:
            if self._refusal:
                raise self._refusal()
            raise InvalidState(
                f"session {self._session_id}: {self._shut_for} is under way",
                next_step="try again when it is done",
                session_id=self._session_id,
            )
        self._shut_for, self._refusal = what, refusal
        try:
            yield
        finally:
            self._shut_for, self._refusal = "", None
            self._tell()

    def _rolling_back(self) -> SandlotError:
        return RollbackInProgress(
            f"session {self._session_id} is being rolled back", next_step="try again", session_id=self._session_id
        )

    def _moving(self) -> SandlotError:
        return InvalidState(
            f"session {self._session_id} is being moved to another storage",
            next_step="try again when that is done",
            session_id=self._session_id,
        )

    def _pausing(self) -> SandlotError:
        return SessionPaused(
            f"session {self._session_id} is being paused", next_step="resume it", session_id=self._session_id
        )

    def _destroying(self) -> SandlotError:
        return SessionDestroying(f"session {self._session_id} is being destroyed", session_id=self._session_id)

    def _tell(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def _wait_for_change(self, give_up: float, otherwise: SandlotError) -> None:
        try:
            async with asyncio.timeout_at(give_up):
                await self._changed.wait()
        except TimeoutError:
            raise otherwise from None
