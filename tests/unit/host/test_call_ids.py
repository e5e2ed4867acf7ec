"""What a session says of ids that it has seen, and of those that it has not."""

import asyncio
import contextlib

from sandlot.host import call_ids
from sandlot.host.call_ids import CallIds


async def test_an_id_is_new_only_when_nobody_had_it() -> None:
    ids = CallIds()
    assert ids.may_hold("a"), "nothing is known before the journal was asked"
    asked: list[int] = []

    async def recorded(count: int) -> list[str]:
        asked.append(count)
        ids.add("meanwhile")
        await asyncio.sleep(0)
        return ["a"]

    await asyncio.gather(ids.load(recorded), ids.load(recorded))
    assert asked == [call_ids.KEPT_MAX + 1]
    ids.add("b")
    assert [ids.may_hold(one) for one in ("a", "b", "meanwhile", "c")] == [True, True, True, False]


async def test_a_journal_that_cannot_be_asked_is_asked_again() -> None:
    ids = CallIds()

    async def fails(count: int) -> list[str]:
        raise OSError(count)

    async def works(count: int) -> list[str]:
        return [str(count)]

    with contextlib.suppress(OSError):
        await ids.load(fails)
    assert ids.may_hold("a")
    await ids.load(works)
    assert not ids.may_hold("a")


async def test_beyond_the_limit_everything_may_be_known() -> None:
    ids = CallIds()

    async def recorded(count: int) -> list[str]:
        return [f"c-{number}" for number in range(count)]

    await ids.load(recorded)
    assert ids.may_hold("nobody had this one")
    ids.add("more")
    assert len(ids._seen) <= call_ids.KEPT_MAX + 1  # pyright: ignore[reportPrivateUsage]
