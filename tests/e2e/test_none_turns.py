"""Turns without isolation: the runtime `none` on every storage whose volumes are whole, and as an ordinary user."""

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import pytest

from sandlot.config.settings import Settings, load
from sandlot.host import failpoints
from sandlot.host.service import SandboxHostService
from sandlot.model import (
    CallRequest,
    Capability,
    CapabilityNotSupported,
    DiffRequest,
    ForkRequest,
    InvalidArgument,
    PauseRequest,
    RollbackRequest,
    SessionSpec,
    SessionState,
    SnapshotRequest,
    SnapshotsNotAvailable,
    TurnRequest,
)
from sandlot.wiring.embedded import build
from tests.conftest import clean_up, is_root, run
from tests.nobody import as_nobody, own_folder
from tests.waiting import until

WHOLE = ("local-disk", "btrfs", "zfs")
KILLED = 9
PATIENCE_S = 60


@pytest.fixture(params=WHOLE)
async def host(request: pytest.FixtureRequest, settings: Settings) -> AsyncIterator[SandboxHostService]:
    chosen = replace(settings, storage=str(request.param), runtime="none", local_disk_snapshots=True)
    async with build(chosen) as engine:
        try:
            await engine.destroy((await engine.create(SessionSpec())).session_id)
        except (InvalidArgument, CapabilityNotSupported) as error:
            pytest.skip(f"the storage {request.param} does not work here: {error.message}")
        yield engine
        await clean_up(engine)


async def sh(host: SandboxHostService, session_id: str, script: str) -> str:
    ran = await run(host, CallRequest(session_id, ("sh", "-ec", script)))
    assert ran.exit_code == 0, ran
    return ran.stdout.decode()


async def leave_running(host: SandboxHostService, session_id: str, script: str) -> None:
    async with host.call(CallRequest(session_id, ("sh", "-c", script), detach=True)) as stream:
        async for _started in stream:
            break


async def rolls_back(host: SandboxHostService) -> None:
    """The path stays, the files come back, and what ran is ended with all of its children."""
    session = await host.create(SessionSpec())
    session_id, told = session.session_id, session.workspace
    await sh(host, session_id, "echo one > a; mkdir d; echo x > d/f; ln a b")
    assert (await host.turn_complete(TurnRequest(session_id))).snapshot == "turn-0001"
    await sh(host, session_id, "echo two >> a; rm -r d; touch new")
    await host.turn_complete(TurnRequest(session_id))
    await leave_running(host, session_id, "setsid sh -c 'sleep 1000 & echo $! > pid; wait' & wait")
    pid = int(await sh(host, session_id, "until [ -s pid ]; do sleep 0.02; done; cat pid"))
    back = await host.rollback(RollbackRequest(session_id, "1"))
    assert (back.workspace, back.state) == (told, SessionState.ACTIVE)
    assert not _lives(pid)
    assert await sh(host, session_id, "pwd; cat a d/f; ls; cat $HOME/a") == f"{told}\none\nx\na\nb\nd\none\n"
    assert await sh(host, session_id, f"cd {told}; echo three > a; cat b") == "three\n", "links hold"
    assert (Path(told) / "a").read_text() == "three\n"
    await host.turn_complete(TurnRequest(session_id))
    assert [turn.number for turn in await host.turns(session_id)] == [1, 3]


def _lives(pid: int) -> bool:
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False


async def forks(host: SandboxHostService) -> None:
    session = await host.create(SessionSpec())
    await sh(host, session.session_id, "echo common > a")
    one, other = await host.fork(ForkRequest(session.session_id, count=2))
    assert len({session.workspace, one.workspace, other.workspace}) == 3
    await sh(host, one.session_id, "echo one > a")
    assert await sh(host, other.session_id, "pwd; cat a") == f"{other.workspace}\ncommon\n"
    again = await host.create(SessionSpec(snapshot=f"{session.session_id}/{(one.origin or '').split('/')[1]}"))
    assert await sh(host, again.session_id, "cat a") == "common\n"
    for each in (session, one, other, again):
        await host.destroy(each.session_id)
        assert not os.path.lexists(each.workspace)


async def compares(host: SandboxHostService) -> None:
    """Paths are those that the session sees."""
    session = await host.create(SessionSpec())
    session_id, told = session.session_id, session.workspace
    await sh(host, session_id, "echo one > a; mkdir d e; echo x > d/f; echo y > same; chmod 700 e")
    await host.turn_complete(TurnRequest(session_id))
    await sh(host, session_id, "echo two > a; rm -r d; mkdir n; echo z > n/g; echo y > same; chmod 755 e")

    async def changes(below: str, *, patch: bool = False) -> dict[str, str]:
        async with host.diff(DiffRequest(session_id, "1", below=below, patch=patch)) as batches:
            return {each.path: each.patch if patch else each.kind async for batch in batches for each in batch}

    everything = {"a": "changed", "d": "removed", "d/f": "removed", "e": "changed", "n": "added", "n/g": "added"}
    for below in ("/", told, str(Path(told).parent)):
        assert await changes(below) == {f"{told}/{path}": kind for path, kind in everything.items()}
    assert await changes(f"{told}/n") == {f"{told}/n": "added", f"{told}/n/g": "added"}
    assert await changes("/etc") == {}
    assert "-one\n+two\n" in (await changes(told, patch=True))[f"{told}/a"]
    async with asyncio.timeout(PATIENCE_S):
        while (counts := (await host.turns(session_id))[0].changes) is None:  # noqa: ASYNC110 - counted behind the back
            await asyncio.sleep(0.02)
    assert (counts.added, counts.changed, counts.removed) == (5, 0, 0)


async def keeps_moments(host: SandboxHostService) -> None:
    """Of two files that a process writes in turn, a snapshot has a state that there was; and the process goes on."""
    session_id = (await host.create(SessionSpec())).session_id
    script = "i=0; while :; do i=$((i+1)); echo $i > n; mv n z; echo $i > n; mv n a; done"
    await sh(host, session_id, "echo 0 > a; echo 0 > z")
    await leave_running(host, session_id, script)
    last = -1
    for number in range(3):
        await host.create_snapshot(SnapshotRequest(session_id, f"at-{number}"))
        (child,) = await host.fork(ForkRequest(session_id, f"at-{number}"))
        first, second = map(int, (await sh(host, child.session_id, "cat z a")).split())
        assert first - second in (0, 1)
        assert first > last, "it went on"
        last = first
        await host.destroy(child.session_id)
        await sh(host, session_id, f"until [ $(cat a) -gt {last} ]; do sleep 0.02; done")


SCENES: tuple[Callable[[SandboxHostService], Awaitable[None]], ...] = (rolls_back, forks, compares, keeps_moments)


@pytest.mark.parametrize("scene", SCENES)
async def test_turns(host: SandboxHostService, scene: Callable[[SandboxHostService], Awaitable[None]]) -> None:
    assert Capability.ISOLATION not in await host.capabilities()
    await scene(host)


# ---- as an ordinary user -----------------------------------------------------------------------------------------


def settings_below(folder: Path) -> Settings:
    keeper = folder.parent / "keeper"
    return load(
        {
            "SANDLOT_DATA_DIR": str(folder / "data"),
            "SANDLOT_KEEPER": str(keeper),
            "SANDLOT_STORAGE": "local-disk",
            "SANDLOT_RUNTIME": "none",
            "SANDLOT_LOCAL_DISK_SNAPSHOTS": "on",
        }
    )


def engine_of_nobody(folder: Path, act: Callable[[SandboxHostService], Awaitable[None]]) -> Callable[[], None]:
    async def live() -> None:
        async with asyncio.timeout(PATIENCE_S), build(settings_below(folder)) as host:
            await act(host)

    return lambda: asyncio.run(live())


@pytest.mark.root
@pytest.mark.parametrize("scene", SCENES)
def test_turns_without_root(scene: Callable[[SandboxHostService], Awaitable[None]]) -> None:
    async def act(host: SandboxHostService) -> None:
        assert os.geteuid() != 0
        assert Capability.PAUSE not in await host.capabilities(), "there are no groups, so signals do the work"
        await scene(host)
        await clean_up(host)

    with own_folder() as folder:
        as_nobody(engine_of_nobody(folder, act))
        left = {path.name for path in (folder / "data" / "local-disk" / "volumes").iterdir()}
        assert left == set()
        assert list((folder / "data" / "workspaces").iterdir()) == []


def state_of(pid: str) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0]


@pytest.mark.root
def test_without_groups_there_is_no_pause_and_who_stopped_himself_stays_so() -> None:
    async def act(host: SandboxHostService) -> None:
        session_id = (await host.create(SessionSpec())).session_id
        with pytest.raises(CapabilityNotSupported):
            await host.pause(PauseRequest(session_id))
        await leave_running(host, session_id, "echo $$ > own; kill -STOP $$; echo on > went")
        await leave_running(host, session_id, "echo $$ > pid; exec sleep 1000")
        own, pid = (await sh(host, session_id, "until [ -s own -a -s pid ]; do sleep 0.02; done; cat own pid")).split()
        await host.turn_complete(TurnRequest(session_id))
        assert state_of(own) == "T"
        assert await until(lambda: state_of(pid) == "S")  # it may have been on its way to its sleep
        await clean_up(host)

    with own_folder() as folder:
        as_nobody(engine_of_nobody(folder, act))


@pytest.mark.root
@pytest.mark.parametrize(
    "place", ["snapshot: layer made", "rollback: layer made", "rollback: swapped", "rollback: recorded", "copying"]
)
def test_an_engine_is_killed_in_between(place: str) -> None:
    """The next one finds the session on the files that the journal knows, and nothing else."""

    async def first(host: SandboxHostService) -> None:
        session_id = (await host.create(SessionSpec(session_id="s"))).session_id
        await sh(host, session_id, "echo one > a")
        await host.turn_complete(TurnRequest(session_id))
        await sh(host, session_id, "echo two > a")
        await leave_running(host, session_id, "echo $$ > pid; while :; do echo x > busy; sleep 0.01; done")
        await sh(host, session_id, "until [ -s pid ]; do sleep 0.02; done")
        if place == "copying":
            os.mkfifo(f"{(await host.get('s')).workspace}/pipe")
            _die_when_it_is_copied()
        else:
            failpoints.arm(place, lambda: os._exit(KILLED))
        if place.startswith("rollback"):
            await host.rollback(RollbackRequest(session_id, "1"))
        await host.turn_complete(TurnRequest(session_id))

    async def second(host: SandboxHostService) -> None:
        session = await host.get("s")
        assert session.state is SessionState.ACTIVE
        rolled_back = place == "rollback: recorded"
        assert await sh(host, "s", "pwd; cat a") == f"{session.workspace}\n{'one' if rolled_back else 'two'}\n"
        assert (Path(session.workspace) / "a").read_text() == ("one\n" if rolled_back else "two\n")
        if not place.startswith("rollback"):
            pid = int(await sh(host, "s", "cat pid"))
            assert _lives(pid)
            await sh(host, "s", "rm -f busy; until [ -e busy ]; do sleep 0.02; done")  # it goes on
        assert [turn.number for turn in await host.turns("s")] == [1]
        found = await host.examine()
        assert found.findings == ()
        await clean_up(host)

    with own_folder() as folder:
        as_nobody(engine_of_nobody(folder, first), ends_with=KILLED)
        as_nobody(engine_of_nobody(folder, second))


def _die_when_it_is_copied() -> None:
    def die(*_words: object, **_options: object) -> None:
        os._exit(KILLED)

    os.mknod = die  # of this process alone, which ends with it


# ---- where it cannot be had --------------------------------------------------------------------------------------


async def test_layers_hold_a_session_in_pieces_and_say_so(settings: Settings) -> None:
    async with build(replace(settings, storage="layers", runtime="none")) as host:
        session_id = (await host.create(SessionSpec())).session_id
        assert (await host.turn_complete(TurnRequest(session_id))).snapshot is None
        with pytest.raises(SnapshotsNotAvailable, match="layers") as refused:
            await host.create_snapshot(SnapshotRequest(session_id, "mine"))
        assert "local-disk" in refused.value.next_step
        await clean_up(host)
        assert is_root() or Capability.PAUSE not in await host.capabilities()
