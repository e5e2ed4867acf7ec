"""The storage `local-disk`: sessions on plain directories, with snapshots and without."""

import asyncio
import os
import re
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from sandlot.config.settings import Settings
from sandlot.host.service import SandboxHostService
from sandlot.host.storage.lacks import LOCAL_DISK
from sandlot.model import (
    CallRequest,
    Capability,
    DiffRequest,
    ForkRequest,
    RollbackRequest,
    SandlotError,
    SessionSpec,
    SnapshotRequest,
    SnapshotsNotAvailable,
    TurnRequest,
)
from sandlot.wiring.embedded import build
from tests.conftest import clean_up, is_root, run
from tests.waiting import until

ROOT = Path(__file__).parents[2]
MIB = 1 << 20


async def sh(host: SandboxHostService, session_id: str, script: str) -> str:
    ran = await run(host, CallRequest(session_id, ("sh", "-ec", script)))
    assert ran.exit_code == 0, ran
    return ran.stdout.decode()


@pytest.fixture
def settings(settings: Settings) -> Settings:
    return replace(settings, storage="local-disk", local_disk_snapshots=True)


def volumes(data: Path) -> set[str]:
    return {path.name for path in (data / "local-disk" / "volumes").iterdir()}


def used(data: Path) -> int:
    return sum(path.lstat().st_blocks * 512 for path in (data / "local-disk").rglob("*"))


@pytest.mark.root
async def test_a_rollback_restores_everything(host: SandboxHostService, data_dir: Path) -> None:
    session_id = (await host.create(SessionSpec())).session_id
    assert (await host.get(session_id)).storage == "local-disk"
    await sh(host, session_id, "echo one > a; ln a b; mkdir -p d/e; mkfifo d/e/p; chmod 750 d; sudo rm /usr/bin/tar")
    await host.turn_complete(TurnRequest(session_id))
    look = "ls -lRn --time-style=full-iso . ; cat a; ls /usr/bin/tar 2>&1 || true"
    before = await sh(host, session_id, look)
    await sh(host, session_id, "echo two >> a; rm -r d; sudo touch /etc/new; sudo rm -r /etc/skel")
    await host.turn_complete(TurnRequest(session_id))
    async with host.diff(DiffRequest(session_id, "1", "2")) as batches:
        told = {(change.kind, change.path) async for batch in batches for change in batch}
    assert {("removed", "/workspace/d"), ("added", "/etc/new"), ("removed", "/etc/skel")} <= told
    assert {("changed", "/workspace/a"), ("changed", "/workspace/b")} <= told, "a link is one file under two names"
    await host.rollback(RollbackRequest(session_id, "1"))
    assert await sh(host, session_id, look) == before
    assert await sh(host, session_id, "echo three > a; cat b") == "three\n", "links hold over turns and rollbacks"
    async with asyncio.timeout(20):  # the changes of the second turn may still be counted
        while len(volumes(data_dir)) > 2:  # noqa: ASYNC110 - where it stands, and the one point that is left
            await asyncio.sleep(0.05)


@pytest.mark.root
async def test_forks_are_independent(host: SandboxHostService, data_dir: Path) -> None:
    session_id = (await host.create(SessionSpec())).session_id
    await sh(host, session_id, "echo common > a")
    one, other = await host.fork(ForkRequest(session_id, count=2))
    await sh(host, one.session_id, "echo one > a")
    assert await sh(host, other.session_id, "cat a") == "common\n"
    await host.turn_complete(TurnRequest(one.session_id))
    await host.destroy(session_id)
    assert await sh(host, one.session_id, "cat a") == "one\n"
    await host.destroy(one.session_id)
    await host.destroy(other.session_id)
    assert await until(lambda: volumes(data_dir) == set()), "the changes of the turn may still be counted for a moment"


async def refusals(host: SandboxHostService, session_id: str) -> AsyncIterator[type[SandlotError]]:
    spec = SessionSpec(runtime="none", call_snapshots=True)
    for verb in (
        host.create_snapshot(SnapshotRequest(session_id, "mine")),
        host.rollback(RollbackRequest(session_id, "1")),
        host.fork(ForkRequest(session_id)),
        host.list_snapshots(session_id),
        host.delete_snapshot(session_id, "mine"),
        host.create(spec),
    ):
        with pytest.raises(SandlotError) as refused:
            await verb
        assert refused.value.next_step
        yield type(refused.value)
    with pytest.raises(SandlotError) as refused:
        async with host.diff(DiffRequest(session_id, "1")):
            pass
    yield type(refused.value)


async def test_without_snapshots_everything_else_works(settings: Settings) -> None:
    runtime = "namespaces" if is_root() else "none"
    async with build(replace(settings, local_disk_snapshots=False, runtime=runtime)) as host:
        session_id = (await host.create(SessionSpec())).session_id
        assert Capability.SNAPSHOTS not in await host.capabilities()
        assert await sh(host, session_id, "echo one > a; cat a") == "one\n"
        turn = await host.turn_complete(TurnRequest(session_id))
        assert (turn.number, turn.snapshot, len(turn.calls)) == (1, None, 1)
        assert {kind async for kind in refusals(host, session_id)} == {SnapshotsNotAvailable}
    async with build(replace(settings, local_disk_snapshots=False, runtime=runtime)) as host:
        assert [turn.number for turn in await host.turns(session_id)] == [1]
        assert await sh(host, session_id, "cat a") == "one\n"
        await clean_up(host)


@pytest.mark.root
async def test_snapshots_are_kept_while_they_are_switched_off(settings: Settings) -> None:
    async with build(settings) as host:
        session_id = (await host.create(SessionSpec())).session_id
        await sh(host, session_id, "echo one > a")
        await host.turn_complete(TurnRequest(session_id))
    async with build(replace(settings, local_disk_snapshots=False)) as host:
        await sh(host, session_id, "echo two > a")
        assert (await host.turn_complete(TurnRequest(session_id))).snapshot is None
    async with build(settings) as host:
        await host.rollback(RollbackRequest(session_id, "1"))
        assert await sh(host, session_id, "cat a") == "one\n"
        await clean_up(host)


@pytest.mark.root
async def test_full_copies(host: SandboxHostService, data_dir: Path) -> None:
    session_id = (await host.create(SessionSpec())).session_id
    await sh(host, session_id, "head -c 8M /dev/urandom > a")
    before = used(data_dir)
    await host.turn_complete(TurnRequest(session_id))
    assert used(data_dir) - before >= 8 * MIB
    (snapshot,) = await host.list_snapshots(session_id)
    assert (snapshot.space_bytes or 0) >= 8 * MIB


@pytest.mark.root
async def test_living_processes(host: SandboxHostService) -> None:
    """Two files that a process writes one after the other: a point never has the second without the first."""
    session_id = (await host.create(SessionSpec())).session_id
    script = "i=0; while :; do i=$((i+1)); echo $i > n; mv n z; echo $i > n; mv n a; done"
    async with host.call(CallRequest(session_id, ("sh", "-c", script), detach=True)) as stream:
        async for _started in stream:
            break
    await asyncio.sleep(0.2)
    for _ in range(5):
        snapshot = await host.create_snapshot(SnapshotRequest(session_id, f"s{os.urandom(4).hex()}"))
        (child,) = await host.fork(ForkRequest(session_id, snapshot.name))
        first, second = map(int, (await sh(host, child.session_id, "cat z a")).split())
        assert first - second in (0, 1)
        await host.destroy(child.session_id)


def test_the_list_and_the_page_are_the_same() -> None:
    page = (ROOT / "docs/operating/local-disk.md").read_text().replace("\n  ", " ")
    rows = dict(re.findall(r"^- `([a-z-]+)`: ([^.(]+)", page, re.MULTILINE))
    assert rows.keys() == LOCAL_DISK.keys()
    for name, text in LOCAL_DISK.items():
        assert text.startswith(rows[name].strip()), name
