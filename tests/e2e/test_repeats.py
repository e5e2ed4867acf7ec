"""A request that comes twice is done once, also when both come together or an engine died in between."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from sandlot.config.settings import Settings
from sandlot.host.service import SandboxHostService
from sandlot.model import (
    Conflict,
    ForkRequest,
    SessionFilter,
    SessionInfo,
    SessionNotFound,
    SessionSpec,
    SnapshotNotFound,
    SnapshotRequest,
    TurnRequest,
)
from sandlot.wiring.embedded import build
from tests.conftest import clean_up
from tests.e2e.standstill import PATIENCE_S, settled, standstill
from tests.storages import ENVIRONMENT

pytestmark = [pytest.mark.root, pytest.mark.usefixtures("storage")]
ROOT = Path(__file__).parents[2]


async def make(host: SandboxHostService) -> str:
    return (await host.create(SessionSpec())).session_id


async def ids(host: SandboxHostService) -> set[str]:
    return {session.session_id for session in (await host.list(SessionFilter())).sessions}


async def test_an_id_is_of_one_verb_on_one_session(host: SandboxHostService) -> None:
    first, second = await make(host), await make(host)
    shot = await host.create_snapshot(SnapshotRequest(first, "mine", request_id="r"))
    turn = await host.turn_complete(TurnRequest(first, request_id="r"))
    forks = await host.fork(ForkRequest(first, "mine", request_id="r"))
    other = await host.turn_complete(TurnRequest(second, request_id="r"))
    made = await host.create(SessionSpec(request_id="r"))
    assert (shot.name, turn.number, other.session_id, other.number) == ("mine", 1, second, 1)
    assert len({first, second, forks[0].session_id, made.session_id}) == 4
    # And each of them again.
    assert await host.create_snapshot(SnapshotRequest(first, "mine", request_id="r")) == shot
    assert (await host.turn_complete(TurnRequest(first, request_id="r"))).snapshot == turn.snapshot
    assert [one.session_id for one in await host.fork(ForkRequest(first, "mine", request_id="r"))] == [
        forks[0].session_id
    ]
    assert (await host.turn_complete(TurnRequest(second, request_id="r"))).closed == other.closed
    assert (await host.create(SessionSpec(request_id="r"))).session_id == made.session_id
    assert len(await host.list_snapshots(first)) == 2


Ask = Callable[[SandboxHostService, str], Awaitable[object]]


async def _turn(host: SandboxHostService, session_id: str) -> object:
    return (await host.turn_complete(TurnRequest(session_id, request_id="r"))).number


async def _snapshot(host: SandboxHostService, session_id: str) -> object:
    return await host.create_snapshot(SnapshotRequest(session_id, "mine", request_id="r"))


async def _fork(host: SandboxHostService, session_id: str) -> object:
    made = await host.fork(ForkRequest(session_id, count=2, request_id="r"))
    return {child.session_id for child in made}


async def _create(host: SandboxHostService, session_id: str) -> object:
    del session_id
    return (await host.create(SessionSpec(request_id="r"))).session_id


VERBS: list[tuple[str, Ask]] = [
    ("snapshot: recorded", _turn),
    ("snapshot: synced", _snapshot),
    ("fork: all made", _fork),
    ("create: recorded", _create),
]


@pytest.mark.parametrize(("place", "ask"), VERBS)
async def test_a_second_one_waits_for_the_first(host: SandboxHostService, data_dir: Path, place: str, ask: Ask) -> None:
    session_id = await make(host)
    with standstill(place) as stands:
        first = asyncio.ensure_future(ask(host, session_id))
        await stands.reached()
        second = asyncio.ensure_future(ask(host, session_id))
        done, _ = await asyncio.wait([second], timeout=0.2)
        assert not done, "it was answered before the first was done"
        stands.go()
        assert await first == await second
    await settled(host, data_dir)


@pytest.mark.parametrize(("place", "ask"), VERBS)
async def test_one_that_was_given_up_does_not_take_the_next_with_it(
    host: SandboxHostService, data_dir: Path, place: str, ask: Ask
) -> None:
    session_id = await make(host)
    before = await ids(host)
    with standstill(place) as stands:
        first = asyncio.ensure_future(ask(host, session_id))
        await stands.reached()
        second = asyncio.ensure_future(ask(host, session_id))
        await asyncio.sleep(0)
        first.cancel()
        stands.go()
        answer = await second
        with pytest.raises(asyncio.CancelledError):
            await first
    assert await ask(host, session_id) == answer
    made = await ids(host) - before
    assert len(made) == (2 if ask is _fork else 1 if ask is _create else 0)
    assert len(await host.list_snapshots(session_id)) == (0 if ask is _create else 1)
    await settled(host, data_dir)


async def test_one_that_failed_is_done_by_the_next(host: SandboxHostService) -> None:
    session_id = await make(host)
    await host.create_snapshot(SnapshotRequest(session_id, "mine"))
    with pytest.raises(Conflict):
        await _snapshot(host, session_id)
    await host.delete_snapshot(session_id, "mine")
    await _snapshot(host, session_id)
    with pytest.raises(SnapshotNotFound):
        await host.create(SessionSpec(snapshot=f"{session_id}/nope", request_id="r"))
    assert (await host.create(SessionSpec(snapshot=f"{session_id}/mine", request_id="r"))).origin


async def test_what_was_made_and_is_gone_is_not_made_again(host: SandboxHostService) -> None:
    session_id = await make(host)
    await _snapshot(host, session_id)
    await host.delete_snapshot(session_id, "mine")
    with pytest.raises(SnapshotNotFound):
        await _snapshot(host, session_id)
    await host.create_snapshot(SnapshotRequest(session_id, "mine"))
    with pytest.raises(SnapshotNotFound):
        await _snapshot(host, session_id)  # the one that is there now is of another request
    forks = await host.fork(ForkRequest(session_id, "mine", request_id="r"))
    await host.destroy(forks[0].session_id)
    with pytest.raises(SessionNotFound):
        await host.fork(ForkRequest(session_id, "mine", request_id="r"))


async def test_a_session_takes_its_answers_with_it(settings: Settings) -> None:
    async with build(settings) as host:
        for _ in range(2):
            await host.create(SessionSpec(session_id="same", request_id="made"))
            assert await _turn(host, "same") == 1
            await _snapshot(host, "same")
            assert [shot.name for shot in await host.list_snapshots("same")] == ["turn-0001", "mine"]
            forked = await _fork(host, "same")
            assert forked == await _fork(host, "same")
            await host.destroy("same")
        with standstill("fork: all made") as stands:
            session_id = await make(host)
            fork = asyncio.ensure_future(_fork(host, session_id))
            await stands.reached()
            await host.destroy(session_id)
            stands.go()
            await fork
        journal = host._journal  # pyright: ignore[reportPrivateUsage]
        left = await journal.transact(lambda db: db.execute("SELECT count(*) FROM answers").fetchone()[0])
        assert left == 0
        await clean_up(host)


DYING = """
import asyncio, os, signal, sys
from sandlot.config.settings import load
from sandlot.host import failpoints
from sandlot.model import ForkRequest, SessionSpec, SnapshotRequest, TurnRequest
from sandlot.wiring.embedded import build

async def main(place, ask):
    async with build(load()) as host:
        failpoints.arm(place, lambda: os.kill(os.getpid(), signal.SIGKILL))
        await eval(ask)

asyncio.run(main(*sys.argv[1:]))
"""


async def die(settings: Settings, place: str, ask: str) -> None:
    words = (sys.executable, "-c", DYING, place, ask)
    env = {**os.environ, **ENVIRONMENT, "SANDLOT_DATA_DIR": str(settings.data), "SANDLOT_STORAGE": settings.storage}
    ended = await asyncio.to_thread(
        subprocess.run, words, cwd=ROOT, env=env, capture_output=True, timeout=PATIENCE_S, check=False
    )
    assert ended.returncode == -signal.SIGKILL, ended.stderr.decode()


@pytest.mark.every_storage
async def test_a_repeat_after_a_crash_gets_the_first_answer(settings: Settings) -> None:
    """Each was recorded, and its engine died before it could say so."""
    await die(settings, "create: recorded", 'host.create(SessionSpec(session_id="s", request_id="r"))')
    await die(settings, "snapshot: recorded", 'host.turn_complete(TurnRequest("s", request_id="r"))')
    await die(settings, "snapshot: recorded", 'host.create_snapshot(SnapshotRequest("s", "mine", request_id="r"))')
    async with build(settings) as host:
        made: SessionInfo = await host.create(SessionSpec(session_id="s", request_id="r"))
        assert (made.session_id, made.turn_count, made.snap_count, made.head) == ("s", 1, 2, "mine")
        assert await _turn(host, "s") == 1
        await _snapshot(host, "s")
        assert [shot.name for shot in await host.list_snapshots("s")] == ["turn-0001", "mine"]
        await clean_up(host)


async def test_a_fork_that_died_is_made_by_the_next(settings: Settings) -> None:
    async with build(settings) as host:
        await host.create(SessionSpec(session_id="s"))
        await host.create_snapshot(SnapshotRequest("s", "mine"))
    await die(settings, "fork: all made", 'host.fork(ForkRequest("s", "mine", count=2, request_id="r"))')
    async with build(settings) as host:
        assert await ids(host) == {"s"}
        made = await _fork(host, "s")
        assert await ids(host) - {"s"} == made
        await settled(host, settings.data)
        await clean_up(host)
