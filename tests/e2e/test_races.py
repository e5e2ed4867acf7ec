"""Two who want different things of one session at once: one wins, the other gets a typed error or his turn, and the
session is whole afterwards. Who comes first is forced, not left to chance."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from sandlot.host.service import SandboxHostService
from sandlot.model import (
    CallRequest,
    DiffRequest,
    FileWrite,
    ForkRequest,
    InvalidState,
    RollbackInProgress,
    RollbackRequest,
    SandlotError,
    SessionDestroying,
    SessionExists,
    SessionFilter,
    SessionNotFound,
    SessionSpec,
    SessionState,
    SnapshotNotFound,
    SnapshotRequest,
    TurnRequest,
)
from tests.conftest import run
from tests.e2e.standstill import PATIENCE_S, at, settled, standstill
from tests.storages import nothing_left

pytestmark = [pytest.mark.root, pytest.mark.usefixtures("storage")]

Ask = Callable[[SandboxHostService], Awaitable[object]]


async def sh(host: SandboxHostService, script: str, session_id: str = "s") -> str:
    ran = await run(host, CallRequest(session_id, ("sh", "-ec", script)))
    assert ran.exit_code == 0, ran
    return ran.stdout.decode()


async def turn(host: SandboxHostService) -> object:
    return await host.turn_complete(TurnRequest("s"))


async def snapshot(host: SandboxHostService) -> object:
    return await host.create_snapshot(SnapshotRequest("s", "new"))


async def rollback(host: SandboxHostService) -> object:
    return await host.rollback(RollbackRequest("s", "mine"))


async def delete(host: SandboxHostService) -> object:
    return await host.delete_snapshot("s", "mine")


async def fork(host: SandboxHostService) -> object:
    return await host.fork(ForkRequest("s", "mine", count=2))


async def destroy(host: SandboxHostService) -> object:
    return await host.destroy("s")


async def call(host: SandboxHostService) -> object:
    return await sh(host, "echo there")


async def write(host: SandboxHostService) -> object:
    async def content():
        yield b"written"

    return await host.write_file(FileWrite("s", "written"), content())


async def diff(host: SandboxHostService) -> object:
    async with host.diff(DiffRequest("s", "mine")) as batches:
        return [change.path async for batch in batches for change in batch]


@pytest.fixture
async def world(host: SandboxHostService) -> SandboxHostService:
    """A session `s` with a snapshot `mine` and something newer."""
    await host.create(SessionSpec(session_id="s"))
    await sh(host, "echo old > a")
    await host.create_snapshot(SnapshotRequest("s", "mine"))
    await sh(host, "echo new > a; echo more > b")
    return host


async def usable(host: SandboxHostService, data: Path) -> None:
    """Whoever won: what is there is consistent, and everything can be done with it."""
    await settled(host, data)
    for session in (await host.list(SessionFilter())).sessions:
        name = session.session_id
        assert session.state is SessionState.ACTIVE
        before = await sh(host, "cat a", name)
        await host.turn_complete(TurnRequest(name))
        await sh(host, "echo later > a", name)
        await host.rollback(RollbackRequest(name, str((await host.get(name)).turn_count)))
        assert await sh(host, "cat a", name) == before
    await settled(host, data)


# Who is first, where he stands when the second comes, the second, and what becomes of him: an error, or None when he
# waits or goes on beside the first.
RACES: list[tuple[Ask, str, Ask, type[SandlotError] | None]] = [
    (turn, "snapshot: swapped", turn, InvalidState),
    (turn, "snapshot: swapped", snapshot, InvalidState),
    (turn, "snapshot: swapped", rollback, InvalidState),
    (turn, "snapshot: swapped", delete, InvalidState),
    (turn, "snapshot: synced", fork, None),
    (turn, "snapshot: synced", diff, None),
    (turn, "snapshot: swapped", call, None),
    (turn, "snapshot: swapped", write, None),
    (turn, "snapshot: swapped", destroy, None),
    (turn, "snapshot: recorded", destroy, None),
    (snapshot, "snapshot: layer made", destroy, None),
    (rollback, "rollback: swapped", turn, RollbackInProgress),
    (rollback, "rollback: cleared", snapshot, RollbackInProgress),
    (rollback, "rollback: swapped", rollback, RollbackInProgress),
    (rollback, "rollback: cleared", call, RollbackInProgress),
    (rollback, "rollback: swapped", write, RollbackInProgress),
    (rollback, "rollback: swapped", delete, RollbackInProgress),
    (rollback, "rollback: swapped", fork, None),
    (rollback, "rollback: swapped", diff, None),
    (rollback, "rollback: layer made", destroy, None),
    (rollback, "rollback: recorded", destroy, None),
    (delete, "delete: recorded", fork, None),
    (delete, "delete: recorded", rollback, InvalidState),
    (delete, "delete: recorded", destroy, None),
    (fork, "fork: some made", delete, None),
    (fork, "fork: some made", rollback, None),
    (fork, "fork: all made", destroy, None),
    (fork, "fork: some made", turn, None),
    (destroy, "destroy: guest ended", turn, SessionDestroying),
    (destroy, "destroy: marked", fork, SessionDestroying),
    (destroy, "destroy: guest ended", rollback, SessionDestroying),
    (destroy, "destroy: guest ended", call, SessionDestroying),
    (destroy, "destroy: volume released", write, SessionDestroying),
    (destroy, "destroy: volume released", delete, SessionDestroying),
    (destroy, "destroy: guest ended", destroy, None),
]


def _named(race: tuple[Ask, str, Ask, type[SandlotError] | None]) -> str:
    first, place, second, _error = race
    return f"{first.__name__} at {place.partition(': ')[2]}, {second.__name__}".replace(" ", "-")


@pytest.mark.parametrize("race", RACES, ids=map(_named, RACES))
async def test_the_second_comes_when_the_first_is_half_way(
    world: SandboxHostService, data_dir: Path, race: tuple[Ask, str, Ask, type[SandlotError] | None], storage: str
) -> None:
    begin, place, come, error = race
    with standstill(at(place, storage)) as stands:
        first = asyncio.ensure_future(begin(world))
        await stands.reached()
        second = asyncio.ensure_future(come(world))
        if error:
            with pytest.raises(error):
                async with asyncio.timeout(PATIENCE_S):
                    await second
        else:
            await asyncio.wait([second], timeout=0.05)
        stands.go()
        await first
        if not error:
            await second
    await usable(world, data_dir)


async def test_a_turn_that_waits_for_a_write_does_not_hold_up_the_end(world: SandboxHostService) -> None:
    goes_on = asyncio.Event()

    async def content():
        yield b"begun"
        await goes_on.wait()

    writing = asyncio.ensure_future(world.write_file(FileWrite("s", "slow"), content()))
    closing = asyncio.ensure_future(turn(world))
    while world._lifecycle.find("s").gate.is_open:  # pyright: ignore[reportPrivateUsage]  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    await world.destroy("s")
    with pytest.raises(SessionDestroying):
        await closing
    goes_on.set()
    ended = (await asyncio.gather(writing, return_exceptions=True))[0]
    assert not isinstance(ended, BaseException) or isinstance(ended, SandlotError)


async def test_what_is_being_made_cannot_be_destroyed(host: SandboxHostService, data_dir: Path, storage: str) -> None:
    with standstill("create: guest started") as stands:
        making = asyncio.ensure_future(host.create(SessionSpec(session_id="s")))
        await stands.reached()
        with pytest.raises(SessionNotFound):
            await host.destroy("s")
        with pytest.raises(SessionExists):
            await host.create(SessionSpec(session_id="s"))
        stands.go()
        await making
    await host.destroy("s")
    await settled(host, data_dir)
    await nothing_left(host, data_dir, storage)


@pytest.mark.every_storage
async def test_what_a_session_was_to_begin_with_goes_away(world: SandboxHostService, data_dir: Path) -> None:
    """It has it, or it is not made."""
    with standstill("create: volume made") as stands:
        making = asyncio.ensure_future(world.create(SessionSpec(session_id="child", snapshot="s/mine")))
        await stands.reached()
        await world.delete_snapshot("s", "mine")
        await world.destroy("s")
        stands.go()
        await making
    assert await sh(world, "cat a", "child") == "old\n"
    with pytest.raises(SessionNotFound):
        await world.create(SessionSpec(snapshot="s/mine"))
    await usable(world, data_dir)


async def test_of_a_snapshot_that_is_removed_nothing_begins(world: SandboxHostService, data_dir: Path) -> None:
    for _ in range(20):
        await world.create_snapshot(SnapshotRequest("s", "brief"))
        made = asyncio.ensure_future(world.create(SessionSpec(snapshot="s/brief")))
        await asyncio.sleep(0)
        await world.delete_snapshot("s", "brief")
        try:
            await world.destroy((await made).session_id)
        except SnapshotNotFound:
            continue
    await usable(world, data_dir)


@pytest.mark.every_storage
async def test_a_process_that_holds_a_file_loses_it_with_a_rollback(world: SandboxHostService) -> None:
    script = "exec 3>>held; echo begun >&3; while :; do echo line >&3; sleep 0.01; done"
    async with world.call(CallRequest("s", ("sh", "-c", script), detach=True)) as stream:
        async for _started in stream:
            break
    async with asyncio.timeout(PATIENCE_S):
        while "begun" not in await sh(world, "cat held || true"):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    await rollback(world)
    assert await sh(world, "ls; ps ax | grep -c 'held[;]' || true") == "a\n0\n"


@pytest.mark.every_storage
async def test_a_diff_that_is_read_slowly_sees_what_was_there(world: SandboxHostService, data_dir: Path) -> None:
    await sh(world, "mkdir many; for i in $(seq 450); do echo $i > many/$i; done")
    await turn(world)
    async with world.diff(DiffRequest("s", "mine", "1")) as batches:
        seen = [change.path for change in await anext(batches)]
        await rollback(world)
        await world.delete_snapshot("s", "mine")
        seen += [change.path async for batch in batches for change in batch]
    assert len([path for path in seen if path.startswith("/workspace/many/")]) == 450
    await settled(world, data_dir)
