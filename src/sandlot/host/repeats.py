"""A request that comes twice is done once: the second waits for the first, and gets its answer."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from enum import StrEnum
from weakref import WeakValueDictionary

from sandlot.model import DeadlineExceeded, limits


class Verb(StrEnum):
    """What takes a request id. An id is of one verb on one session: the same one elsewhere is another request."""

    CREATE = "create"
    SNAPSHOT = "create_snapshot"
    TURN = "turn_complete"
    FORK = "fork"


class Repeats:
    def __init__(self) -> None:
        self._under_way: WeakValueDictionary[tuple[Verb, str, str], asyncio.Lock] = WeakValueDictionary()

    def one_at_a_time(self, verb: Verb, session_id: str, request_id: str | None) -> AbstractAsyncContextManager[None]:
        """Of requests with one id. Who waited looks for the answer; when there is none, it is his turn.

        Raises DeadlineExceeded.
        """
        return nullcontext() if request_id is None else self._in_turn(verb, session_id, request_id)

    @asynccontextmanager
    async def _in_turn(self, verb: Verb, session_id: str, request_id: str) -> AsyncGenerator[None]:
        lock = self._under_way.setdefault((verb, session_id, request_id), asyncio.Lock())
        try:
            async with asyncio.timeout(limits.REPEAT_DEADLINE_S):
                await lock.acquire()
        except TimeoutError:
            raise DeadlineExceeded(
                f"request {request_id} came before and is still under way", next_step="try again", limit="repeat"
            ) from None
        try:
            yield
        finally:
            lock.release()
