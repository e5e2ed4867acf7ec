"""One timer for many: what is added is done in time, what is taken back is not."""

import asyncio

from sandlot.rpc.rounds import Rounds
from tests.waiting import until

PERIOD_S = 0.05


class Done:
    def __init__(self) -> None:
        self.at: list[float] = []

    def __call__(self) -> None:
        self.at.append(asyncio.get_running_loop().time())


async def test_it_is_done_once_and_not_too_early() -> None:
    rounds, loop, began = Rounds(PERIOD_S), asyncio.get_running_loop(), dict[Done, float]()
    for _ in range(5):
        done = Done()
        began[done] = loop.time()
        rounds.add(done)
        await asyncio.sleep(PERIOD_S / 4)
    assert await until(lambda: all(done.at for done in began))
    await asyncio.sleep(3 * PERIOD_S)
    assert all(len(done.at) == 1 for done in began)
    assert all(done.at[0] - since >= PERIOD_S for done, since in began.items())


async def test_what_is_taken_back_is_not_done() -> None:
    rounds, early, stays = Rounds(PERIOD_S), Done(), Done()
    rounds.add(early)
    rounds.discard(early)
    rounds.discard(early)
    rounds.add(stays)
    assert await until(lambda: bool(stays.at))
    assert not early.at


async def test_what_is_taken_back_late_is_not_done_either() -> None:
    loop, period_s = asyncio.get_running_loop(), 0.2
    for _attempt in range(20):  # a machine that is busy may be too late for it
        rounds, late, stays = Rounds(period_s), Done(), Done()
        rounds.add(late)
        since = loop.time()
        await asyncio.sleep(period_s * 1.2)  # it is among the older ones now
        if loop.time() - since < period_s * 1.9:
            rounds.discard(late)
            rounds.add(stays)
            assert await until(lambda found=stays: bool(found.at))
            assert not late.at
            return
    raise AssertionError("this machine is too busy to tell")


async def test_it_may_be_added_again_by_what_is_done() -> None:
    rounds, times = Rounds(PERIOD_S), list[float]()

    def again() -> None:
        times.append(asyncio.get_running_loop().time())
        if len(times) < 3:
            rounds.add(again)

    rounds.add(again)
    assert await until(lambda: len(times) == 3)
