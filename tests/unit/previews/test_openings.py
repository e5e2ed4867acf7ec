"""What was let in ends when it may not go on, and nothing else does."""

import asyncio
import time
from contextlib import suppress
from pathlib import Path

from sandlot.model import Unavailable
from sandlot.previews.addresses import PreviewAddress
from sandlot.previews.book import PreviewBook
from sandlot.previews.openings import Admission, Openings
from sandlot.previews.tokens import Grant

ADDRESS = PreviewAddress("s", 3000)
LATER = time.time() + 3600


class Stage:
    def __init__(self, folder: Path) -> None:
        self.good = {"one", "two"}
        self.is_broken = False
        self.public: int | None = 1
        self.openings = Openings(_Book(folder, self), self._is_good)

    def _is_good(self, key: str) -> bool:
        if self.is_broken:
            raise Unavailable("it cannot be read")
        return key in self.good

    async def ended(self, admission: Admission | None) -> bool:
        """Whether it is, at the next look."""
        with suppress(TimeoutError):
            async with asyncio.timeout(None) as patience:
                with self.openings.opened(admission, patience):
                    self.openings.end_what_may_not_go_on()
                    await asyncio.sleep(0)
                    await asyncio.sleep(0)
                return False
        return True


class _Book(PreviewBook):
    def __init__(self, folder: Path, stage: Stage) -> None:
        super().__init__(folder)
        self._stage = stage

    def public(self, address: PreviewAddress) -> int | None:
        return self._stage.public


def token(key: str, expires: float = LATER) -> Grant:
    return Grant(1, expires, key)


async def test_what_a_key_opened_ends_with_it(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    both, own = Admission(ADDRESS, 1, False, [token("one"), token("two")]), Admission(ADDRESS, 1, False, [token("one")])
    without = Admission(ADDRESS, 1, False, [token("")])
    assert [await stage.ended(one) for one in (both, own, without, None)] == [False] * 4
    stage.good = {"two"}
    assert [await stage.ended(one) for one in (both, own, without, None)] == [False, True, False, False]
    late = Admission(ADDRESS, 1, False, [token("one"), token("two", time.time() - 1)])
    assert await stage.ended(late), "what is left of it has ended by itself"
    assert not stage.openings.is_good(token("one"))
    stage.is_broken = True
    assert [await stage.ended(one) for one in (both, own, without, None)] == [True, True, False, False]
    assert not stage.openings.is_good(token("two"))
    assert stage.openings.is_good(token(""))


async def test_what_everybody_may_ends_when_nobody_may(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    public = Admission(ADDRESS, 1, True)
    known = Admission(ADDRESS, 1, True, [token("one")])
    assert [await stage.ended(one) for one in (public, known)] == [False, False]
    for changed in (None, 2):
        stage.public = changed
        assert [await stage.ended(one) for one in (public, known)] == [True, False]
