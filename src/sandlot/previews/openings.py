"""What previews let in, and that it ends when it may not go on: with the key that a token is of, and when a port is no
longer public."""

import asyncio
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Final

from sandlot.model import SandlotError
from sandlot.previews.addresses import PreviewAddress
from sandlot.previews.book import PreviewBook
from sandlot.previews.tokens import Grant

LOOK_S: Final = 0.5  # so often what is open is looked at
ANYBODY: Final = "anybody"
PREVIEW: Final = "preview"
_FOREVER: Final = float("inf")
IsGood = Callable[[str], bool]


@dataclass(frozen=True, slots=True)
class Admission:
    """Why a request was let in."""

    address: PreviewAddress
    made_us: int
    is_public: bool
    grants: Sequence[Grant] = ()  # good ones, of this making

    @property
    def until(self) -> float:
        return _FOREVER if self.is_public else max(grant.expires for grant in self.grants)

    @property
    def whose(self) -> str:
        """In one word: the first key that gave it on; else whoever has a token that is of no key, or anybody."""
        if not self.grants:
            return ANYBODY
        key = next((grant.key for grant in self.grants if grant.key), "")
        return f"{key}~{PREVIEW}" if key else PREVIEW


class Openings:
    """Of one server, whoever serves them. `is_key_good`: by its id. What is done within `as_whom` is done on behalf of
    whoever the word says."""

    def __init__(
        self,
        book: PreviewBook,
        is_key_good: IsGood,
        as_whom: Callable[[str], AbstractContextManager[object]] = nullcontext,
    ) -> None:
        self._book = book
        self._as_whom = as_whom
        self._is_key_good = is_key_good
        self._open: dict[asyncio.Timeout, Admission] = {}

    def is_good(self, grant: Grant) -> bool:
        """Whether its key is. A file of keys that cannot be read lets nobody in."""
        if not grant.key:
            return True
        try:
            return self._is_key_good(grant.key)
        except SandlotError:
            return False

    @contextmanager
    def opened(self, admission: Admission | None, patience: asyncio.Timeout) -> Generator[None]:
        """Its patience ends at once when it may not go on. None: whoever let it in looks himself."""
        if admission is None:
            yield
            return
        is_watched = admission.is_public or any(grant.key for grant in admission.grants)
        if is_watched:
            self._open[patience] = admission
        try:
            with self._as_whom(admission.whose):
                yield
        finally:
            if is_watched:
                del self._open[patience]

    async def watch(self) -> None:
        """As long as the server runs."""
        while True:
            await asyncio.sleep(LOOK_S)
            self.end_what_may_not_go_on()

    def end_what_may_not_go_on(self) -> None:
        now, at = time.time(), asyncio.get_running_loop().time()
        known: dict[str, bool] = {}
        for patience, admission in list(self._open.items()):
            if not self._may_go_on(admission, now, known):
                patience.reschedule(at)

    def _may_go_on(self, admission: Admission, now: float, known: dict[str, bool]) -> bool:
        for grant in admission.grants:
            if grant.key not in known:
                known[grant.key] = self.is_good(grant)
            if known[grant.key] and now < grant.expires:
                return True
        try:
            return admission.is_public and self._book.public(admission.address) == admission.made_us
        except SandlotError:
            return False
