"""Snapshots, turns, rollback, fork and comparison, on real sessions."""

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from sandlot.config.settings import Settings
from sandlot.host.service import SandboxHostService
from sandlot.model import (
    CallRequest,
    Capability,
    Change,
    Conflict,
    DiffRequest,
    FileWrite,
    ForkRequest,
    InvalidArgument,
    InvalidState,
    MaxSessionsReached,
    RollbackInProgress,
    RollbackRequest,
    SandlotError,
    SessionFilter,
    SessionNotFound,
    SessionSpec,
    SessionState,
    SnapshotKind,
    SnapshotNotFound,
    SnapshotRequest,
    SnapshotsNotAvailable,
    ToolsInFlight,
    TurnRequest,
)
from sandlot.wiring.embedded import build
from tests.conftest import LOOK_AT_TAR, clean_up, collect, run
from tests.storages import kept, nothing_left

pytestmark = [pytest.mark.root, pytest.mark.usefixtures("storage")]


async def sh(host: SandboxHostService, session_id: str, script: str) -> str:
    ran = await run(host, CallRequest(session_id, ("sh", "-ec", script)))
    assert ran.exit_code == 0, ran
    return ran.stdout.decode()


async def make(host: SandboxHostService) -> str:
    return (await host.create(SessionSpec())).session_id


async def close_turn(host: SandboxHostService, session_id: str) -> int:
    return (await host.turn_complete(TurnRequest(session_id))).number


async def changes(host: SandboxHostService, request: DiffRequest) -> list[Change]:
    async with host.diff(request) as batches:
        return [change async for batch in batches for change in batch]


@pytest.mark.every_storage(slow=True)
async def test_a_rollback_restores_everything(host: SandboxHostService) -> None:
    """Workspace and root, additions, changes and removals; the same id goes on."""
    session_id = await make(host)
    await sh(host, session_id, "echo one > a; mkdir -p d/e; echo x > d/e/f; chmod 750 d; ln -s a link")
    assert await close_turn(host, session_id) == 1
    look = f"ls -lRn --time-style=full-iso . ; md5sum a d/e/f; {LOOK_AT_TAR}"
    before = await sh(host, session_id, look)
    await sh(host, session_id, "echo two >> a; rm -r d; mv link other; sudo rm /usr/bin/tar; sudo touch /etc/new")
    assert await close_turn(host, session_id) == 2
    told = await host.rollback(RollbackRequest(session_id, "1"))
    assert (told.session_id, told.state, told.head) == (session_id, SessionState.ACTIVE, "turn-0001")
    assert await sh(host, session_id, look) == before
    assert (
        await sh(host, session_id, "ls /etc/new 2>&1 || echo gone")
        == "ls: cannot access '/etc/new': No such file or directory\ngone\n"
    )


async def test_numbers_never_repeat(host: SandboxHostService) -> None:
    session_id = await make(host)
    for expected in (1, 2, 3):
        assert await close_turn(host, session_id) == expected
    await host.rollback(RollbackRequest(session_id, "turn-0001"))
    assert [turn.number for turn in await host.turns(session_id)] == [1]
    assert await close_turn(host, session_id) == 4
    assert [shot.name for shot in await host.list_snapshots(session_id)] == ["turn-0001", "turn-0004"]


async def test_a_branch_is_kept_when_asked(host: SandboxHostService) -> None:
    session_id = await make(host)
    for text in ("one", "two"):
        await sh(host, session_id, f"echo {text} > a")
        await close_turn(host, session_id)
    await host.rollback(RollbackRequest(session_id, "1", keep=True))
    await sh(host, session_id, "echo other > a")
    await close_turn(host, session_id)
    parents = {shot.name: shot.parent for shot in await host.list_snapshots(session_id)}
    assert parents == {"turn-0001": None, "turn-0002": "turn-0001", "turn-0003": "turn-0001"}
    await host.rollback(RollbackRequest(session_id, "2", keep=True))
    assert await sh(host, session_id, "cat a") == "two\n"


async def test_a_wrong_target_changes_nothing(host: SandboxHostService) -> None:
    session_id = await make(host)
    await sh(host, session_id, "echo kept > a")
    await close_turn(host, session_id)
    with pytest.raises(SnapshotNotFound):
        await host.rollback(RollbackRequest(session_id, "7"))
    with pytest.raises(SnapshotNotFound):
        await host.fork(ForkRequest(session_id, "nope"))
    with pytest.raises(SessionNotFound):
        await host.rollback(RollbackRequest("s-nope", "1"))
    assert (await host.get(session_id)).state is SessionState.ACTIVE
    assert await sh(host, session_id, "cat a") == "kept\n"


async def test_names_are_checked(host: SandboxHostService) -> None:
    session_id = await make(host)
    for wrong in ("turn-0009", "a/b", "..", ""):
        with pytest.raises(InvalidArgument):
            SnapshotRequest(session_id, wrong)
    shot = await host.create_snapshot(SnapshotRequest(session_id, "mine"))
    assert (shot.kind, shot.turn) == (SnapshotKind.NAMED, None)
    with pytest.raises(Conflict):
        await host.create_snapshot(SnapshotRequest(session_id, "mine"))


async def test_a_deleted_snapshot_leaves_the_others(host: SandboxHostService, data_dir: Path, storage: str) -> None:
    session_id = await make(host)
    for text in ("one", "two", "three"):
        await sh(host, session_id, f"echo {text} > a; echo {text} > {text}")
        await close_turn(host, session_id)
    layers = len(kept(data_dir, storage))
    await host.delete_snapshot(session_id, "turn-0002")
    with pytest.raises(SnapshotNotFound):
        await host.delete_snapshot(session_id, "turn-0002")
    assert [shot.parent for shot in await host.list_snapshots(session_id)] == [None, "turn-0001"]
    assert [turn.snapshot for turn in await host.turns(session_id)] == ["turn-0001", None, "turn-0003"]
    if storage == "layers":  # its files are still those of the third
        assert len(kept(data_dir, storage)) == layers
    await host.rollback(RollbackRequest(session_id, "3"))
    assert await sh(host, session_id, "cat a one two three") == "three\none\ntwo\nthree\n"


@pytest.mark.every_storage
async def test_forks_are_independent(host: SandboxHostService) -> None:
    session_id = await make(host)
    await sh(host, session_id, "echo one > a; sudo touch /opt/secret")
    await close_turn(host, session_id)
    await sh(host, session_id, "echo two > a")
    children = await host.fork(ForkRequest(session_id, "1", count=3, labels={"way": "new"}))
    assert len({child.session_id for child in children}) == 3
    assert {child.origin for child in children} == {f"{session_id}/turn-0001"}
    for number, child in enumerate(children):
        assert (
            await sh(host, child.session_id, f"cat a; echo child-{number} > a; sudo stat -c %u /opt/secret")
            == "one\n0\n"
        )
    assert await sh(host, session_id, "cat a") == "two\n"
    await host.destroy(session_id)
    for number, child in enumerate(children):
        assert await sh(host, child.session_id, "cat a") == f"child-{number}\n"
        assert await close_turn(host, child.session_id) == 1
        await host.rollback(RollbackRequest(child.session_id, "1"))
        assert await sh(host, child.session_id, "cat a") == f"child-{number}\n"


async def test_forks_beyond_what_fits_are_refused_whole(settings: Settings) -> None:
    async with build(replace(settings, sessions_max=4)) as host:
        session_id = await make(host)
        await close_turn(host, session_id)
        with pytest.raises(MaxSessionsReached):
            await host.fork(ForkRequest(session_id, "1", count=8))
        assert [one.session_id for one in (await host.list(SessionFilter())).sessions] == [session_id]
        assert len(await host.fork(ForkRequest(session_id, "1", count=3))) == 3
        await clean_up(host)


async def test_a_session_can_be_created_from_a_snapshot(host: SandboxHostService) -> None:
    session_id = await make(host)
    await sh(host, session_id, "echo one > a")
    await close_turn(host, session_id)
    await sh(host, session_id, "echo two > a")
    made = await host.create(SessionSpec(snapshot=f"{session_id}/1", labels={"a": "b"}))
    assert (made.origin, made.labels) == (f"{session_id}/turn-0001", {"a": "b"})
    assert await sh(host, made.session_id, "cat a") == "one\n"
    for wrong, error in ((f"{session_id}/9", SnapshotNotFound), ("s-nope/1", SessionNotFound)):
        with pytest.raises(error):
            await host.create(SessionSpec(snapshot=wrong))
    for wrong in ("one", "a/", "/b", "a/b/c"):
        with pytest.raises(InvalidArgument):
            SessionSpec(snapshot=wrong)


async def test_a_repeated_request_gives_the_first_answer(host: SandboxHostService) -> None:
    session_id = await make(host)
    first = await host.turn_complete(TurnRequest(session_id, request_id="r-1"))
    again = await host.turn_complete(TurnRequest(session_id, request_id="r-1"))
    assert (again.number, again.snapshot, again.closed) == (first.number, first.snapshot, first.closed)
    shot = await host.create_snapshot(SnapshotRequest(session_id, "mine", request_id="r-2"))
    assert await host.create_snapshot(SnapshotRequest(session_id, "mine", request_id="r-2")) == shot
    forks = await host.fork(ForkRequest(session_id, "mine", count=2, request_id="r-3"))
    same = await host.fork(ForkRequest(session_id, "mine", count=2, request_id="r-3"))
    assert sorted(fork.session_id for fork in same) == sorted(fork.session_id for fork in forks)


@pytest.mark.every_storage
async def test_a_living_process_does_not_write_into_the_past(host: SandboxHostService) -> None:
    session_id = await make(host)
    loop = "while :; do echo line >> log; sleep 0.002; done"
    async with host.call(CallRequest(session_id, ("sh", "-c", loop), detach=True)):
        pass
    await asyncio.sleep(0.1)
    await close_turn(host, session_id)
    await asyncio.sleep(0.2)
    now = len((await sh(host, session_id, "cat log")).splitlines())
    await host.rollback(RollbackRequest(session_id, "1"))
    then = (await sh(host, session_id, "cat log")).splitlines()
    assert 0 < len(then) < now, "the snapshot went on growing, or holds nothing"
    assert set(then) == {"line"}, "a torn write"
    await asyncio.sleep(0.1)
    assert len((await sh(host, session_id, "cat log")).splitlines()) == len(then), "the writer lives on"


async def test_someone_who_waits_is_not_cut_off(host: SandboxHostService) -> None:
    session_id = await make(host)
    await close_turn(host, session_id)
    async with host.call(CallRequest(session_id, ("sleep", "0.3"))) as stream:
        with pytest.raises(ToolsInFlight) as refused:
            await host.rollback(RollbackRequest(session_id, "1"))
        assert refused.value.context["count"] == 1
        assert (await collect(stream)).exit_code == 0
    await host.rollback(RollbackRequest(session_id, "1"))


async def test_two_at_once_have_one_winner(host: SandboxHostService) -> None:
    session_id = await make(host)
    await close_turn(host, session_id)
    ended = await asyncio.gather(*(close_turn(host, session_id) for _ in range(5)), return_exceptions=True)
    won = [one for one in ended if isinstance(one, int)]
    lost = [one for one in ended if not isinstance(one, int)]
    assert len(won) >= 1
    assert all(isinstance(one, InvalidState) for one in lost)
    assert [turn.number for turn in await host.turns(session_id)] == list(range(1, 2 + len(won)))

    async def calling() -> object:
        return await run(host, CallRequest(session_id, ("true",)))

    both = await asyncio.gather(
        host.rollback(RollbackRequest(session_id, "1")),
        *(calling() for _ in range(5)),
        close_turn(host, session_id),
        return_exceptions=True,
    )
    errors = [one for one in both if isinstance(one, BaseException)]
    assert all(isinstance(one, RollbackInProgress | ToolsInFlight) for one in errors), errors
    assert (await host.get(session_id)).state is SessionState.ACTIVE
    assert await sh(host, session_id, "echo usable") == "usable\n"


async def test_a_write_from_outside_is_in_or_out(host: SandboxHostService) -> None:
    """A turn waits for writes that are under way, so none lands in what is closed."""
    session_id = await make(host)
    begun = asyncio.Event()

    async def slowly():
        yield b"first "
        begun.set()
        await asyncio.sleep(0.3)
        yield b"second"
        yield b""

    writing = asyncio.create_task(host.write_file(FileWrite(session_id, "slow"), slowly()))
    await begun.wait()
    await close_turn(host, session_id)
    await writing
    assert [c.path for c in await changes(host, DiffRequest(session_id, "1"))] == []
    assert await sh(host, session_id, "cat slow") == "first second"


async def test_a_turn_without_snapshots_is_recorded(host: SandboxHostService, storage: str) -> None:
    if Capability.SNAPSHOTS in await host.capabilities_of("none", storage):
        pytest.skip(f"{storage} has snapshots without a root of their own")
    session_id = (await host.create(SessionSpec(runtime="none"))).session_id
    await sh(host, session_id, "true")
    turn = await host.turn_complete(TurnRequest(session_id))
    assert (turn.number, turn.snapshot, len(turn.calls)) == (1, None, 1)
    for attempt in (
        host.create_snapshot(SnapshotRequest(session_id, "mine")),
        host.rollback(RollbackRequest(session_id, "1")),
        host.list_snapshots(session_id),
        host.fork(ForkRequest(session_id)),
    ):
        with pytest.raises(SnapshotsNotAvailable):
            await attempt


@pytest.mark.every_storage
async def test_history_outlives_the_engine(settings: Settings) -> None:
    async with build(settings) as host:
        session_id = await make(host)
        await sh(host, session_id, "echo one > a")
        first = await host.turn_complete(TurnRequest(session_id))
        await sh(host, session_id, "echo two > a")
        await host.create_snapshot(SnapshotRequest(session_id, "mine"))
        await sh(host, session_id, "echo three > a")
    async with build(settings) as host:
        assert [turn.calls for turn in await host.turns(session_id)] == [first.calls]
        assert [shot.name for shot in await host.list_snapshots(session_id)] == ["turn-0001", "mine"]
        assert await sh(host, session_id, "cat a") == "three\n"
        await host.rollback(RollbackRequest(session_id, "mine"))
        assert await sh(host, session_id, "cat a") == "two\n"
        await host.rollback(RollbackRequest(session_id, "1"))
        assert await sh(host, session_id, "cat a") == "one\n"
        await clean_up(host)


async def test_calls_after_the_target_are_forgotten(settings: Settings) -> None:
    """Their ids are free again, their numbers are not: a guest remembers numbers."""
    async with build(settings) as host:
        session_id = await make(host)
        await close_turn(host, session_id)
        assert (await run(host, CallRequest(session_id, ("echo", "one"), call_id="c-same"))).stdout == b"one\n"
        await host.rollback(RollbackRequest(session_id, "1"))
        assert (await run(host, CallRequest(session_id, ("echo", "two"), call_id="c-same"))).stdout == b"two\n"
        await host.rollback(RollbackRequest(session_id, "1"))
    async with build(settings) as host:
        assert (await run(host, CallRequest(session_id, ("echo", "three"), call_id="c-same"))).stdout == b"three\n"
        assert [call.call_id for call in await host.calls(session_id)] == ["c-same"]
        await clean_up(host)


@pytest.mark.every_storage
async def test_nothing_is_left_behind(host: SandboxHostService, data_dir: Path, storage: str) -> None:
    session_id = await make(host)
    for _ in range(4):
        await sh(host, session_id, "date > a")
        await close_turn(host, session_id)
    await host.fork(ForkRequest(session_id, "2", count=2))
    await host.rollback(RollbackRequest(session_id, "1"))
    await clean_up(host)
    await nothing_left(host, data_dir, storage)


async def test_only_so_many_turns_are_kept(settings: Settings) -> None:
    async with build(replace(settings, turns_kept=2)) as host:
        session_id = await make(host)
        await host.create_snapshot(SnapshotRequest(session_id, "mine"))
        for number in range(1, 6):
            assert await close_turn(host, session_id) == number
        assert [shot.name for shot in await host.list_snapshots(session_id)] == ["mine", "turn-0004", "turn-0005"]
        await clean_up(host)


async def test_errors_leave_the_session_usable(host: SandboxHostService) -> None:
    session_id = await make(host)
    destroyed = asyncio.create_task(host.destroy(session_id))
    await asyncio.sleep(0)
    with pytest.raises(SandlotError):
        await host.fork(ForkRequest(session_id))
    await destroyed
