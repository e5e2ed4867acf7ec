"""A caller who gives up half-way, and an engine that closes half-way: nothing is left half done, and nothing leaks."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from sandlot.config.settings import Settings
from sandlot.host.service import SandboxHostService
from sandlot.model import (
    CallRequest,
    ForkRequest,
    RollbackRequest,
    SandlotError,
    SessionFilter,
    SessionSpec,
    SessionState,
    SnapshotRequest,
    TurnRequest,
)
from sandlot.wiring.embedded import build
from tests.conftest import clean_up, run
from tests.e2e.standstill import PATIENCE_S, at, settled, standstill

pytestmark = [pytest.mark.root, pytest.mark.usefixtures("storage")]

Ask = Callable[[SandboxHostService], Awaitable[object]]


async def sh(host: SandboxHostService, script: str, session_id: str = "s") -> str:
    ran = await run(host, CallRequest(session_id, ("sh", "-ec", script)))
    assert ran.exit_code == 0, ran
    return ran.stdout.decode()


async def create(host: SandboxHostService) -> object:
    return await host.create(SessionSpec(session_id="other"))


async def turn(host: SandboxHostService) -> object:
    return await host.turn_complete(TurnRequest("s"))


async def snapshot(host: SandboxHostService) -> object:
    return await host.create_snapshot(SnapshotRequest("s", "new"))


async def rollback(host: SandboxHostService) -> object:
    return await host.rollback(RollbackRequest("s", "mine"))


async def delete(host: SandboxHostService) -> object:
    return await host.delete_snapshot("s", "mine")


async def fork(host: SandboxHostService) -> object:
    return await host.fork(ForkRequest("s", count=3))


async def destroy(host: SandboxHostService) -> object:
    return await host.destroy("s")


async def prepare(host: SandboxHostService, *, living: bool = False) -> None:
    await host.create(SessionSpec(session_id="s"))
    await sh(host, "echo old > a")
    await host.create_snapshot(SnapshotRequest("s", "mine"))
    await sh(host, "echo new > a")
    if living:
        async with host.call(CallRequest("s", ("sleep", "1000"), detach=True)) as stream:
            async for _started in stream:
                break


async def picture(host: SandboxHostService) -> tuple[object, ...]:
    """Which sessions there are, and what `s` holds."""
    sessions = {one.session_id for one in (await host.list(SessionFilter())).sessions}
    if "s" not in sessions:
        return (len(sessions),)
    names = [shot.name for shot in await host.list_snapshots("s")]
    return (len(sessions), names, len(await host.turns("s")), await sh(host, "cat a"))


Picture = tuple[object, ...]
BEFORE: Picture = (1, ["mine"], 0, "new\n")
TURNED = (1, ["mine", "turn-0001"], 1, "new\n")
NAMED = (1, ["mine", "new"], 0, "new\n")
BACK = (1, ["mine"], 0, "old\n")
FREED: Picture = (1, list[str](), 0, "new\n")
GONE = (0,)
MADE = (2, ["mine"], 0, "new\n")
FORKED = (4, ["mine", "fork-0001"], 0, "new\n")

# What is begun, where it stands when its caller leaves, and what there is afterwards.
GIVEN_UP: list[tuple[Ask, str, tuple[object, ...]]] = [
    (create, "create: volume made", BEFORE),
    (create, "create: guest started", BEFORE),
    (create, "create: recorded", BEFORE),
    (turn, "snapshot: layer made", TURNED),
    (turn, "snapshot: swapped", TURNED),
    (turn, "snapshot: synced", TURNED),
    (turn, "snapshot: recorded", TURNED),
    (snapshot, "snapshot: begun", NAMED),
    (rollback, "rollback: begun", BACK),
    (rollback, "rollback: cleared", BACK),
    (rollback, "rollback: layer made", BACK),
    (rollback, "rollback: swapped", BACK),
    (rollback, "rollback: recorded", BACK),
    (delete, "delete: recorded", FREED),
    (fork, "snapshot: swapped", BEFORE),
    (fork, "snapshot: recorded", BEFORE),
    (fork, "create: guest started", BEFORE),
    (fork, "fork: some made", BEFORE),
    (fork, "fork: all made", BEFORE),
    (destroy, "destroy: marked", GONE),
    (destroy, "destroy: guest ended", GONE),
    (destroy, "destroy: volume released", GONE),
]

DONE: dict[Ask, Picture] = {
    create: MADE,
    turn: TURNED,
    snapshot: NAMED,
    rollback: BACK,
    delete: FREED,
    fork: FORKED,
    destroy: GONE,
}


def _named(case: tuple[Ask, str, tuple[object, ...]]) -> str:
    return f"{case[0].__name__} at {case[1]}".replace(" ", "-").replace(":", "")


@pytest.mark.parametrize("case", GIVEN_UP, ids=map(_named, GIVEN_UP))
async def test_a_caller_gives_up(
    host: SandboxHostService, data_dir: Path, case: tuple[Ask, str, tuple[object, ...]], storage: str
) -> None:
    begin, place, expected = case
    await prepare(host)
    with standstill(at(place, storage)) as stands:
        caller = asyncio.ensure_future(begin(host))
        await stands.reached()
        caller.cancel()
        await asyncio.sleep(0)
        stands.go()
        with pytest.raises(asyncio.CancelledError):
            async with asyncio.timeout(PATIENCE_S):
                await caller
    if begin is destroy:
        await clean_up(host)  # it goes on by itself; whoever asks again waits for it
    assert await picture(host) == expected
    await settled(host, data_dir)


async def test_a_caller_gives_up_while_files_are_copied(host: SandboxHostService, data_dir: Path) -> None:
    """With a process alive the open layer is copied; nobody stays frozen, and no copy stays behind."""
    await prepare(host, living=True)
    await sh(host, "mkdir many; for i in $(seq 2000); do echo $i > many/$i; done")
    caller = asyncio.ensure_future(turn(host))
    while host._lifecycle.find("s").gate.is_open:  # pyright: ignore[reportPrivateUsage]  # noqa: ASYNC110
        await asyncio.sleep(0)
    caller.cancel()
    with pytest.raises(asyncio.CancelledError):
        await caller
    assert await picture(host) == TURNED
    assert await sh(host, "ls many | wc -l") == "2000\n"
    await settled(host, data_dir)


CLOSED: list[tuple[Ask, str]] = [(begin, place) for begin, place, _ in GIVEN_UP]


@pytest.mark.parametrize("case", CLOSED, ids=[_named((*case, ())) for case in CLOSED])
async def test_an_engine_closes(settings: Settings, case: tuple[Ask, str], storage: str) -> None:
    """What was begun is done or has not happened, and its caller heard which."""
    begin, place = case
    host = await build(settings).__aenter__()
    await prepare(host)
    with standstill(at(place, storage)) as stands:
        caller = asyncio.ensure_future(begin(host))
        await stands.reached()
        closing = asyncio.ensure_future(host.close())
        await asyncio.wait([closing], timeout=0.05)
        stands.go()
        async with asyncio.timeout(PATIENCE_S):
            answer = (await asyncio.gather(caller, return_exceptions=True))[0]
            await closing
    assert not isinstance(answer, BaseException) or isinstance(answer, SandlotError), answer
    async with build(settings) as host:
        for session in (await host.list(SessionFilter())).sessions:
            assert session.state is SessionState.ACTIVE, session
        found = await picture(host)
        assert found == DONE[begin] if not isinstance(answer, BaseException) else found in (BEFORE, DONE[begin])
        await settled(host, settings.data)
        await clean_up(host)
