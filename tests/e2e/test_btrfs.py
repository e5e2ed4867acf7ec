"""What is special to the storage `btrfs`: its place, living writers, what is left of it, its limit."""

import asyncio
import os
import subprocess
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from sandlot.config.settings import Settings
from sandlot.host.service import SandboxHostService
from sandlot.host.storage.loop_image import find_device
from sandlot.model import (
    CallRequest,
    ForkRequest,
    RollbackRequest,
    SessionSpec,
    TurnRequest,
)
from sandlot.wiring.embedded import build
from tests.conftest import Ran, clean_up, run

pytestmark = pytest.mark.root

WAIT_S = 60.0


@pytest.fixture
def place(settings: Settings) -> Iterator[Settings]:
    """Settings with a small btrfs; whatever a test left mounted is taken away."""
    yield replace(settings, storage="btrfs", btrfs_bytes=1 << 30)
    mount = settings.data / "mounts" / "btrfs"
    if mount.is_mount():
        subprocess.run(["umount", "--lazy", mount], timeout=WAIT_S, check=True)
        pytest.fail("the btrfs is still mounted")


@pytest.fixture
async def on_btrfs(place: Settings) -> AsyncIterator[SandboxHostService]:
    async with build(place) as engine:
        yield engine
        await clean_up(engine)


async def sh(host: SandboxHostService, session_id: str, script: str) -> Ran:
    return await run(host, CallRequest(session_id, ("sh", "-c", script)))


async def said(host: SandboxHostService, session_id: str, script: str) -> str:
    ran = await sh(host, session_id, script)
    assert ran.exit_code == 0, ran
    return ran.stdout.decode()


async def make(host: SandboxHostService, spec: SessionSpec | None = None) -> str:
    return (await host.create(spec or SessionSpec())).session_id


# ---- its place ---------------------------------------------------------------------------------------------------


async def test_it_is_made_when_it_is_asked_for_and_gone_with_the_last_session(settings: Settings) -> None:
    data, mounts = settings.data, Path("/proc/self/mountinfo").read_text()
    async with build(replace(settings, btrfs_bytes=1 << 30)) as host:
        assert not (data / "btrfs.img").exists()
        session_id = await make(host, SessionSpec(storage="btrfs"))
        assert (await host.get(session_id)).storage == "btrfs"
        assert find_device(data / "btrfs.img")
        image = (data / "btrfs.img").stat()
        assert image.st_blocks * 512 < image.st_size / 4, "the file is sparse"
        await host.destroy(session_id)
    assert not {"btrfs.img", "btrfs.img.new", "btrfs", "mounts"} & {path.name for path in data.iterdir()}
    assert Path("/proc/self/mountinfo").read_text() == mounts


async def test_the_next_engine_finds_it_mounted_or_not(place: Settings) -> None:
    """Not: as after the machine was started anew."""
    async with build(place) as host:
        session_id = await make(host)
        await said(host, session_id, "echo one > a")
        await host.turn_complete(TurnRequest(session_id))
    async with build(place) as host:
        assert await said(host, session_id, "cat a; echo two > a") == "one\n"
        await host.rollback(RollbackRequest(session_id, "1"))
        os.kill(host.keeper_pid, 9)
        await asyncio.sleep(0.1)
    subprocess.run(["umount", "--lazy", place.data / "mounts" / "btrfs"], timeout=WAIT_S, check=True)
    async with build(place) as host:
        if (await host.get(session_id)).state == "failed":
            await host.recover(session_id)
        assert await said(host, session_id, "cat a") == "one\n"
        await clean_up(host)


async def test_a_larger_size_makes_it_grow(place: Settings) -> None:
    async with build(place) as host:
        session_id = await make(host)
        before = int(await said(host, session_id, "stat -f -c '%b' /"))
    async with build(replace(place, btrfs_bytes=2 << 30)) as host:
        assert int(await said(host, session_id, "stat -f -c '%b' /")) > 1.8 * before
        await clean_up(host)


# ---- turns -------------------------------------------------------------------------------------------------------


async def test_a_snapshot_under_a_living_writer_is_one_moment(on_btrfs: SandboxHostService) -> None:
    """Two files are written one after the other; no snapshot has the second one without the first."""
    session_id = await make(on_btrfs)
    script = "i=0; while :; do i=$((i+1)); echo $i > a.new; mv a.new a; echo $i > b.new; mv b.new b; done"
    async with on_btrfs.call(CallRequest(session_id, ("sh", "-c", script), detach=True)):
        pass
    await said(on_btrfs, session_id, "until test -e b; do sleep 0.02; done")
    for _ in range(5):
        await on_btrfs.turn_complete(TurnRequest(session_id))
    living = int(await said(on_btrfs, session_id, "cat a"))
    assert int(await said(on_btrfs, session_id, "sleep 0.2; cat a")) > living, "the writer goes on"
    for turn in range(1, 6):
        for fork in await on_btrfs.fork(ForkRequest(session_id, str(turn))):
            a, b = (await said(on_btrfs, fork.session_id, "cat a b")).split()
            assert int(a) - int(b) in (0, 1)


async def test_hard_links_and_inode_numbers_survive_turns(on_btrfs: SandboxHostService) -> None:
    """What `layers` lacks."""
    session_id = await make(on_btrfs)
    await said(on_btrfs, session_id, "echo one > a; ln a b; stat -c %i a > /tmp/inode")
    for number in range(3):
        await on_btrfs.turn_complete(TurnRequest(session_id))
        await said(on_btrfs, session_id, f"echo {number} > a; test $(stat -c %i b) = $(cat /tmp/inode)")
        assert await said(on_btrfs, session_id, "cat b") == f"{number}\n"
    await on_btrfs.rollback(RollbackRequest(session_id, "1"))
    assert await said(on_btrfs, session_id, "cat b; stat -c %h b") == "one\n2\n"


async def test_turns_tell_what_they_wrote(on_btrfs: SandboxHostService) -> None:
    session_id = await make(on_btrfs)
    for megabytes in (4, 1, 2):
        await said(on_btrfs, session_id, f"head -c {megabytes}M /dev/urandom > f{megabytes}")
        await on_btrfs.turn_complete(TurnRequest(session_id))
    spaces = [turn.space_bytes or 0 for turn in await on_btrfs.turns(session_id)]
    assert [round(space / (1 << 20)) for space in spaces] == [4, 1, 2]
    assert ((await on_btrfs.get(session_id)).space_used or 0) >= 7 << 20
