"""Which guests are expected next, and when they are made ready for."""

import asyncio
from collections.abc import Iterable

from sandlot.host.runtimes import ahead
from sandlot.host.runtimes.ahead import Ahead
from sandlot.model import Unavailable
from tests.waiting import until


class Told:
    """A keeper that notes what it is asked to make."""

    def __init__(self, *, fails: bool = False) -> None:
        self.words: list[str] = []
        self.held: set[int] = set()
        self._fails = fails
        self.ahead = Ahead(self._make, lambda: self.held)

    async def _make(self, word: str) -> None:
        self.words.append(word)
        if self._fails:
            raise Unavailable("there is no room")

    def start(self, *ranges: int, limit: str = ":100") -> None:
        for one in ranges:
            self.held.add(one)
            self.ahead.started(one, f"{one}{limit}")

    def stop(self, *ranges: int) -> None:
        for one in ranges:
            self.held.discard(one)
            self.ahead.stopped(one)

    async def has(self, words: Iterable[str]) -> bool:
        return await until(lambda: set(self.words) == set(words))


async def test_the_next_range_is_made_ready_and_the_one_that_became_free() -> None:
    told = Told()
    told.start(1, 2, 3)
    assert await told.has(["4:100"])
    told.stop(2)
    assert await told.has(["4:100", "2:100"])
    assert told.ahead.wanted() == []
    told.start(2)
    assert told.ahead.wanted() == [], "it stands on 4 all the same"
    told.start(4)
    assert told.ahead.wanted() == [5]
    told.ahead.close()


async def test_ranges_of_others_are_not_made_ready() -> None:
    told = Told()
    told.held = {2, 3}
    told.start(1)
    told.stop(0)  # a probe
    assert await told.has(["4:100"])
    told.ahead.close()


async def test_nothing_is_made_while_guests_come_and_go() -> None:
    told = Told()
    for number in range(1, 40):
        told.start(number)
        assert told.words == []
        await asyncio.sleep(0)
    assert await told.has(["40:100"])
    told.ahead.close()


async def test_what_was_made_for_other_limits_is_made_again() -> None:
    told = Told()
    told.start(1)
    assert await told.has(["2:100"])
    told.start(3, limit=":50")
    assert await told.has(["2:100", "4:50"])
    told.stop(1)
    assert await told.has(["2:100", "4:50", "1:50"])
    told.ahead.close()


async def test_another_keeper_has_made_nothing() -> None:
    told = Told()
    told.start(1)
    assert await told.has(["2:100"])
    told.ahead.forget()
    assert told.ahead.wanted() == [2]
    told.ahead.close()


async def test_a_keeper_that_cannot_is_not_asked_at_once_again() -> None:
    told = Told(fails=True)
    told.start(1)
    assert await told.has(["2:100"])
    assert told.ahead.wanted() == [2]
    await asyncio.sleep(0)
    assert told.words == ["2:100"]
    told.ahead.close()


async def test_no_more_are_remembered_than_a_keeper_keeps() -> None:
    told = Told()
    told.start(*range(1, 9))
    for number in range(1, 8):
        told.stop(number)
        words = told.words
        assert await until(lambda number=number, words=words: f"{number}:100" in words)
    told.start(20)
    assert told.ahead.wanted() == [21]
    told.stop(20)
    assert set(told.ahead.wanted()) == {20, 21}
    assert ahead.MADE_MAX == 4, "as guest/src/ahead.c has it"
    told.ahead.close()
