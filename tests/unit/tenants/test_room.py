"""What all sessions of a tenant may have together."""

import asyncio
from dataclasses import replace

import pytest

from sandlot.fakes.host import FakeHost
from sandlot.host.admission import Queue
from sandlot.model import (
    HostFull,
    InvalidArgument,
    MaxSessionsReached,
    Resources,
    SessionInfo,
    SessionSpec,
    TenantLimits,
    limits,
)
from sandlot.tenants.room import Room

GIB = 1 << 30


class World:
    """Sessions of one tenant, made of what they asked for."""

    def __init__(self, bounds: TenantLimits) -> None:
        self.bounds = bounds
        self.room = Room("team", lambda: self.bounds, Queue())
        self.own: list[SessionInfo] = []

    async def list(self) -> list[SessionInfo]:
        return self.own

    async def make(self, asked: Resources, count: int = 1) -> None:
        async with self.room.taken(self.list, asked, count):
            one = await FakeHost().create(SessionSpec())
            self.own += [replace(one, resources=asked)] * count


@pytest.mark.parametrize(
    ("bounds", "asked", "name"),
    [
        (TenantLimits(cpus=3), Resources(cpus=1), "cpus"),
        (TenantLimits(memory_bytes=3 * GIB), Resources(memory_bytes=GIB), "memory_bytes"),
        (TenantLimits(disk_bytes=3 * GIB), Resources(disk_bytes=GIB), "disk_bytes"),
    ],
    ids=["cpus", "memory", "disk"],
)
async def test_what_sessions_may_have_together(bounds: TenantLimits, asked: Resources, name: str) -> None:
    world = World(bounds)
    await world.make(asked)
    with pytest.raises(HostFull) as full:
        await world.make(asked, 3)
    assert full.value.context["limit"] == f"tenant_{name}"
    await world.make(asked, 2)
    with pytest.raises(HostFull):
        await world.make(asked)
    world.own.pop()
    await world.make(asked)
    world.own.clear()
    with pytest.raises(InvalidArgument, match="any amount"):
        await world.make(Resources())


async def test_a_session_from_before_counts_as_what_it_asked_for() -> None:
    world = World(TenantLimits())
    await world.make(Resources())
    await world.make(Resources(cpus=2))
    world.bounds = TenantLimits(cpus=3)
    await world.make(Resources(cpus=1))
    with pytest.raises(HostFull):
        await world.make(Resources(cpus=1))


async def test_a_bound_that_is_lowered_holds_for_the_next() -> None:
    world = World(TenantLimits(sessions=2))
    await world.make(Resources())
    world.bounds = TenantLimits(sessions=1)
    with pytest.raises(MaxSessionsReached):
        await world.make(Resources())
    assert len(world.own) == 1


async def test_a_queue_has_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who comes when it is full is refused at once, whatever he would wait."""
    monkeypatch.setattr(limits, "QUEUE_MAX", 2)
    queue, is_open = Queue(), asyncio.Event()

    async def attempt() -> str:
        if not is_open.is_set():
            raise HostFull("no room")
        return "made"

    waiting = [asyncio.ensure_future(queue.within(60, attempt)) for _ in range(2)]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    with pytest.raises(HostFull):
        await queue.within(60, attempt)
    gone = asyncio.ensure_future(queue.within(60, attempt))
    gone.cancel()
    is_open.set()
    assert await asyncio.gather(*waiting) == ["made", "made"]
    assert await queue.within(0, attempt) == "made"


async def test_who_gives_up_leaves_the_queue() -> None:
    queue = Queue()

    async def attempt() -> None:
        raise MaxSessionsReached("no room")

    first, second = (asyncio.ensure_future(queue.within(60, attempt)) for _ in range(2))
    await asyncio.sleep(0.1)
    first.cancel()
    with pytest.raises(MaxSessionsReached):
        await queue.within(0.2, attempt)
    second.cancel()
    await asyncio.gather(first, second, return_exceptions=True)

    async def succeed() -> str:
        return "made"

    assert await queue.within(60, succeed) == "made"
