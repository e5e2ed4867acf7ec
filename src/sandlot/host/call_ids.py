"""Which ids of calls a session has seen: who gives each call an id of its own does not wait for the journal."""

from collections.abc import Awaitable, Callable, Iterable

KEPT_MAX = 16384  # of one session; beyond it the journal is asked, as before


class CallIds:
    """Only their hashes are kept: two ids that have one are told apart by the journal."""

    def __init__(self) -> None:
        self._seen: set[int] = set()
        self._is_loaded = False
        self._is_loading = False

    def add(self, call_id: str) -> None:
        if len(self._seen) <= KEPT_MAX:
            self._seen.add(hash(call_id))

    def may_hold(self, call_id: str) -> bool:
        """False only for an id that no call of this session has had."""
        return not self._is_loaded or len(self._seen) > KEPT_MAX or hash(call_id) in self._seen

    def begin_empty(self) -> None:
        """The session is new: the journal knows no call of it but those that were added here."""
        self._is_loaded = True

    async def load(self, recorded: Callable[[int], Awaitable[Iterable[str]]]) -> None:
        """Once: those that the journal knows, at most so many. What begins meanwhile is added by whoever begins it."""
        if self._is_loaded or self._is_loading:
            return
        self._is_loading = True
        try:
            self._seen.update(hash(call_id) for call_id in await recorded(KEPT_MAX + 1))
            self._is_loaded = True
        finally:
            self._is_loading = False
