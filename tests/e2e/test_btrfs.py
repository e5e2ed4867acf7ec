"""What is special to the storage `btrfs`: its place, living writers, what is left of it, its limit."""

import asyncio
import os
import subprocess
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest

from sandlot.config.settings import Settings
from sandlot.host.runtimes.groups import Group
from sandlot.host.service import SandboxHostService
from sandlot.host.storage import btrfs_kernel
from sandlot.host.storage.btrfs import BtrfsStorage
from sandlot.host.storage.btrfs_place import MAKE
from sandlot.host.storage.loop_device import find_device
from sandlot.host.storage.loop_image import make_image, mount_image, unmount_image
from sandlot.model import (
    CallRequest,
    Capability,
    CapabilityNotSupported,
    ForkRequest,
    HealthStatus,
    HostUnhealthy,
    LimitHit,
    LimitReached,
    Resources,
    RollbackRequest,
    SessionSpec,
    SessionState,
    SnapshotRequest,
    TurnRequest,
    Unavailable,
)
from sandlot.wiring.embedded import build
from tests.conftest import Ran, clean_up, run
from tests.storages import left_of_machine

pytestmark = pytest.mark.root

WAIT_S = 60.0
MIB = 1 << 20
LIMIT = 64 * MIB
FILL = "head -c 200M /dev/zero > big"


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
    data = settings.data
    async with build(replace(settings, btrfs_bytes=1 << 30)) as host:
        assert not (data / "btrfs.img").exists()
        session_id = await make(host, SessionSpec(storage="btrfs"))
        assert (await host.get(session_id)).storage == "btrfs"
        assert find_device(data / "btrfs.img")
        image = (data / "btrfs.img").stat()
        assert image.st_blocks * 512 < image.st_size / 4, "the file is sparse"
        await host.destroy(session_id)
    assert not {"btrfs.img", "btrfs.img.new", "btrfs", "mounts"} & {path.name for path in data.iterdir()}
    assert str(data) not in Path("/proc/self/mountinfo").read_text()


def takes_direct_writes(folder: Path) -> bool:
    probe = folder / "direct"
    try:
        os.close(os.open(probe, os.O_RDWR | os.O_CREAT | os.O_DIRECT))
    except OSError:
        return False
    finally:
        probe.unlink(missing_ok=True)
    return True


async def test_what_it_writes_goes_past_the_memory_kept_of_its_file(settings: Settings) -> None:
    """Otherwise everything is held twice, and each snapshot waits until the one is written into the other."""
    async with build(replace(settings, btrfs_bytes=1 << 30)) as host:
        session_id = await make(host, SessionSpec(storage="btrfs"))
        device = find_device(settings.data / "btrfs.img")
        assert device
        told = Path(f"/sys/block/{Path(device).name}/loop/dio").read_text().strip()
        assert told == str(int(takes_direct_writes(settings.data)))
        await host.destroy(session_id)


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


async def test_a_probe_tries_and_leaves_nothing(settings: Settings, tmp_path: Path) -> None:
    assert (await BtrfsStorage(settings.data).probe()).ready
    small = tmp_path / "small"
    small.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "small", small], timeout=WAIT_S, check=True)
    try:
        told = await BtrfsStorage(small).probe()
        assert (told.ready, list(small.iterdir())) == (False, [])
        assert "could not be made" in told.reason
        assert told.next_step
    finally:
        subprocess.run(["umount", small], timeout=WAIT_S, check=True)
    assert {path.name for path in settings.data.iterdir()} == {"templates"}
    assert left_of_machine(settings.data) == set()


@pytest.fixture
def native(settings: Settings, tmp_path: Path, shared_templates: Path) -> Iterator[Settings]:
    """A data directory on a btrfs that is not ours."""
    image, disk = tmp_path / "disk.img", tmp_path / "disk"
    make_image(image, 512 * MIB, MAKE)
    mount_image(image, disk, "btrfs", "discard=async")
    data = disk / "data"
    data.mkdir(mode=0o700)
    (data / "templates").symlink_to(shared_templates)
    yield replace(settings, data=data)
    give_up = time.monotonic() + WAIT_S
    while True:
        try:
            unmount_image(disk)
            break
        except OSError:  # the keeper stands on it until it has ended
            assert time.monotonic() < give_up
            time.sleep(0.05)


async def test_a_data_directory_on_btrfs_needs_no_image(native: Settings) -> None:
    """`auto` takes it, everything works there, a limit turns quotas on, and what was made is gone in the end."""
    assert (await BtrfsStorage(native.data).probe()).ready
    async with build(native) as host:
        session_id = await make(host)
        assert (await host.get(session_id)).storage == "btrfs"
        await said(host, session_id, "echo one > a")
        await host.turn_complete(TurnRequest(session_id))
        await said(host, session_id, "echo two > a")
        fork = (await host.fork(ForkRequest(session_id, "1")))[0].session_id
        assert await said(host, fork, "cat a") == "one\n"
        with_limit = await make(host, limited(limit=8 * MIB))
        assert (await sh(host, with_limit, "head -c 20M /dev/zero > big")).result.limit is LimitHit.DISK
    async with build(native) as host:
        assert await said(host, session_id, "cat a") == "two\n"
        await host.rollback(RollbackRequest(session_id, "1"))
        assert await said(host, session_id, "cat a") == "one\n"
        await clean_up(host)
    assert not {"btrfs.img", "btrfs", "mounts"} & {path.name for path in native.data.iterdir()}


async def test_where_quotas_of_the_other_kind_are_on_no_limit_is_declared(native: Settings) -> None:
    subprocess.run(["btrfs", "quota", "enable", native.data], timeout=WAIT_S, check=True, capture_output=True)
    async with build(native) as host:
        with pytest.raises(CapabilityNotSupported, match="limit_disk"):
            await host.create(limited("btrfs"))
        assert Capability.LIMIT_DISK not in (await host.storage("btrfs")).capabilities
        session_id = await make(host)
        await host.turn_complete(TurnRequest(session_id))
        await clean_up(host)


# ---- turns -------------------------------------------------------------------------------------------------------


async def test_a_snapshot_under_a_living_writer_is_one_moment(
    on_btrfs: SandboxHostService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three files are written one after the other, the last a line longer each time; no snapshot has one without those
    before it. Btrfs alone has, once in about 200: it writes out file by file what it still has in memory."""
    session_id = await make(on_btrfs)
    script = (
        "i=0; while :; do i=$((i+1)); echo $i > a.new; mv a.new a; echo $i > b.new; mv b.new b; echo line >> c; done"
    )
    async with on_btrfs.call(CallRequest(session_id, ("sh", "-c", script), detach=True)):
        pass
    await said(on_btrfs, session_id, "until test -e b; do sleep 0.02; done")
    frozen: list[bool] = []
    session = on_btrfs._lifecycle.find(session_id)  # pyright: ignore[reportPrivateUsage] - what stands still is seen there
    group, take = on_btrfs._parts.runtimes["namespaces"].group(session.row.volume), btrfs_kernel.take_snapshot  # pyright: ignore[reportPrivateUsage] - the same

    def look(source: Path, folder: Path, name: str, group_id: int = 0, *, read_only: bool = False) -> None:
        frozen.append(cast(Group, group).is_frozen())
        take(source, folder, name, group_id, read_only=read_only)
        frozen.append(cast(Group, group).is_frozen())

    monkeypatch.setattr(btrfs_kernel, "take_snapshot", look)
    for _ in range(5):
        await on_btrfs.turn_complete(TurnRequest(session_id))
    monkeypatch.undo()
    assert frozen == [True] * 10
    living = int(await said(on_btrfs, session_id, "cat a"))
    assert int(await said(on_btrfs, session_id, "sleep 0.2; cat a")) > living, "the writer goes on"
    for turn in range(1, 6):
        for fork in await on_btrfs.fork(ForkRequest(session_id, str(turn))):
            a, b, lines = (await said(on_btrfs, fork.session_id, "cat a b; wc -l < c")).split()
            assert int(a) - int(b) in (0, 1)
            assert int(b) - int(lines) in (0, 1)


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


async def test_a_comparison_looks_only_at_what_changed(on_btrfs: SandboxHostService) -> None:
    """Along a line of turns, and between two that grew from one."""
    session_id = await make(on_btrfs)
    await said(on_btrfs, session_id, "mkdir t; for d in $(seq 10); do mkdir t/$d; touch $(seq -f t/$d/%g 50); done")
    await on_btrfs.turn_complete(TurnRequest(session_id))
    await said(on_btrfs, session_id, "echo one >> t/1/1; ln t/2/1 t/3/link; rm t/4/1; mv t/5 t/six; mkdir t/7/new")
    await on_btrfs.turn_complete(TurnRequest(session_id))
    await on_btrfs.rollback(RollbackRequest(session_id, "1", keep=True))
    await said(on_btrfs, session_id, "echo two >> t/8/1; rm -r t/9; mkdir t/9; touch t/9/1")
    await on_btrfs.turn_complete(TurnRequest(session_id))
    storage = await on_btrfs.storage("btrfs")
    points = [shot.name for shot in await on_btrfs.list_snapshots(session_id)]
    rows = on_btrfs._lifecycle.find(session_id).snapshots  # pyright: ignore[reportPrivateUsage] - points have no other road
    line, aside = {"/1/1", "/2/1", "/3", "/3/link", "/4", "/4/1", "/5", "/six", "/7", "/7/new"}, {"/8/1", "/9"}
    for old, new, expected in ((0, 1, line), (1, 0, line), (0, 2, aside), (1, 2, line | aside)):
        async with storage.showing(rows[points[old]].point, rows[points[new]].point) as shown:
            assert shown.places is not None
            told = {path.removeprefix("/workspace/t") for path, _whole in shown.places}
        assert told - {""} == expected


async def test_a_forks_first_turn_is_compared_with_what_it_began_with(on_btrfs: SandboxHostService) -> None:
    session_id = await make(on_btrfs)
    await said(on_btrfs, session_id, "touch $(seq 20)")
    fork = (await on_btrfs.fork(ForkRequest(session_id)))[0].session_id
    await said(on_btrfs, fork, "rm 1; echo two > 2; echo new > new")
    await on_btrfs.turn_complete(TurnRequest(fork))
    async with asyncio.timeout(WAIT_S):
        while (counts := (await on_btrfs.turns(fork))[-1].changes) is None:  # noqa: ASYNC110 - nothing tells of it
            await asyncio.sleep(0.02)
    assert (counts.added, counts.changed, counts.removed) == (1, 1, 1)


async def test_turns_tell_what_they_wrote(on_btrfs: SandboxHostService) -> None:
    session_id = await make(on_btrfs)
    for megabytes in (4, 1, 2):
        await said(on_btrfs, session_id, f"head -c {megabytes}M /dev/urandom > f{megabytes}")
        await on_btrfs.turn_complete(TurnRequest(session_id))
    spaces = [turn.space_bytes or 0 for turn in await on_btrfs.turns(session_id)]
    assert [round(space / (1 << 20)) for space in spaces] == [4, 1, 2]
    assert ((await on_btrfs.get(session_id)).space_used or 0) >= 7 << 20


# ---- the disk limit ----------------------------------------------------------------------------------------------


def limited(storage: str = "auto", limit: int = LIMIT) -> SessionSpec:
    return SessionSpec(storage=storage, resources=Resources(disk_bytes=limit))


async def used(host: SandboxHostService, settings: Settings, session_id: str) -> int:
    """When the kernel has written what it has to, and freed what was destroyed."""
    told = [-1]
    while len(told) < 4 or told[-1] != told[-3]:
        btrfs_kernel.free_destroyed(settings.data / "mounts" / "btrfs" / "volumes")
        await asyncio.sleep(0.1)
        told.append((await host.get(session_id)).space_used or 0)
    return told[-1]


async def test_one_big_file_stops_at_the_limit(on_btrfs: SandboxHostService, place: Settings) -> None:
    session_id = await make(on_btrfs, limited())
    ran = await sh(on_btrfs, session_id, FILL)
    assert (ran.exit_code, ran.result.limit) == (1, LimitHit.DISK), ran
    assert LIMIT - MIB < await used(on_btrfs, place, session_id) <= LIMIT + MIB
    assert (await sh(on_btrfs, session_id, "false")).result.limit is LimitHit.DISK, "said of all that fail meanwhile"
    await said(on_btrfs, session_id, "rm big; sync")
    assert (await sh(on_btrfs, session_id, "false")).result.limit is None
    await said(on_btrfs, session_id, "head -c 40M /dev/zero > big")


async def test_a_rollback_at_the_limit_works_and_the_limit_stays(on_btrfs: SandboxHostService, place: Settings) -> None:
    session_id = await make(on_btrfs, limited())
    await said(on_btrfs, session_id, "head -c 30M /dev/urandom > a")
    await on_btrfs.turn_complete(TurnRequest(session_id))
    for _ in range(3):
        assert (await sh(on_btrfs, session_id, FILL)).exit_code == 1
        await on_btrfs.rollback(RollbackRequest(session_id, "1"))
        assert await used(on_btrfs, place, session_id) <= LIMIT + MIB
        assert await said(on_btrfs, session_id, "ls; touch b && rm b") == "a\n"
    assert (await sh(on_btrfs, session_id, FILL)).result.limit is LimitHit.DISK
    assert await used(on_btrfs, place, session_id) <= LIMIT + MIB


async def test_history_counts_and_a_session_says_so(on_btrfs: SandboxHostService, place: Settings) -> None:
    session_id = await make(on_btrfs, limited())
    assert (await on_btrfs.get(session_id)).history_counts
    for number in range(2):
        assert (await sh(on_btrfs, session_id, "head -c 25M /dev/urandom > a")).exit_code == 0
        await on_btrfs.create_snapshot(SnapshotRequest(session_id, f"s{number}"))
    assert (await sh(on_btrfs, session_id, "head -c 25M /dev/urandom > a")).result.limit is LimitHit.DISK
    await on_btrfs.delete_snapshot(session_id, "s0")
    assert await used(on_btrfs, place, session_id) < 60 * MIB
    await said(on_btrfs, session_id, "rm a; head -c 20M /dev/urandom > a")


async def test_snapshots_at_the_limit_end_before_they_are_a_mebibyte(
    on_btrfs: SandboxHostService, place: Settings
) -> None:
    session_id = await make(on_btrfs, limited(limit=8 * MIB))
    assert (await sh(on_btrfs, session_id, FILL)).exit_code == 1

    async def snap_on() -> None:
        for number in range(100):
            await on_btrfs.create_snapshot(SnapshotRequest(session_id, f"s{number}"))
            await sh(on_btrfs, session_id, "chmod 600 big; chmod 644 big")

    with pytest.raises(LimitReached) as told:
        await snap_on()
    assert told.value.context["limit"] == "disk_bytes"
    assert await used(on_btrfs, place, session_id) <= 9 * MIB
    await on_btrfs.rollback(RollbackRequest(session_id, "s0"))
    assert (await on_btrfs.get(session_id)).state is SessionState.ACTIVE


async def test_a_fork_has_the_limit_and_counts_from_nothing(on_btrfs: SandboxHostService) -> None:
    session_id = await make(on_btrfs, limited())
    await said(on_btrfs, session_id, "head -c 40M /dev/urandom > a")
    fork = (await on_btrfs.fork(ForkRequest(session_id)))[0]
    await said(on_btrfs, fork.session_id, "head -c 40M /dev/urandom > b")
    assert (await sh(on_btrfs, fork.session_id, FILL)).result.limit is LimitHit.DISK
    await said(on_btrfs, session_id, "head -c 10M /dev/urandom > c")


async def test_a_session_at_its_limit_is_recovered_and_taken_over(place: Settings) -> None:
    async with build(place) as host:
        session_id = await make(host, limited())
        assert (await sh(host, session_id, FILL)).exit_code == 1
        os.kill(int(await said(host, session_id, "echo 0")) or host.keeper_pid, 9)
    async with build(place) as host:
        if (await host.get(session_id)).state is SessionState.FAILED:
            await host.recover(session_id)
        assert await said(host, session_id, "ls") == "big\n"
        assert (await sh(host, session_id, FILL.replace("big", "more"))).result.limit is LimitHit.DISK
        assert await used(host, place, session_id) <= LIMIT + MIB
        await clean_up(host)


async def test_auto_takes_it_for_a_session_with_a_disk_limit(settings: Settings) -> None:
    async with build(replace(settings, btrfs_bytes=1 << 30, warm_pool=1)) as host:
        assert Capability.LIMIT_DISK in await host.capabilities()
        plain, with_disk = await host.create(SessionSpec()), await host.create(limited())
        assert (plain.storage, with_disk.storage) == ("layers", "btrfs")
        with pytest.raises(CapabilityNotSupported, match="limit_disk"):
            await host.create(limited("layers"))
        await clean_up(host)
    assert not (settings.data / "btrfs.img").exists()


# ---- what goes wrong ---------------------------------------------------------------------------------------------


async def test_a_filesystem_that_is_gone_is_told_and_found_again(place: Settings) -> None:
    async with build(replace(place, health_interval_s=0.2)) as host:
        session_id, other = await make(host), await make(host, SessionSpec(storage="layers"))
        await said(host, session_id, "echo one > a")
        await host.turn_complete(TurnRequest(session_id))
        (place.data / "btrfs.img").rename(place.data / "away.img")
        subprocess.run(["umount", "--lazy", place.data / "mounts" / "btrfs"], timeout=WAIT_S, check=True)
        with pytest.raises(Unavailable, match="gone"):
            await host.turn_complete(TurnRequest(session_id))
        reasons = (await host.health()).reasons
        assert [reason.what for reason in reasons] == ["storage"], reasons
        assert await said(host, other, "echo fine") == "fine\n"
        await host.turn_complete(TurnRequest(other))
        await asyncio.sleep(0.5)
        assert not (place.data / "btrfs.img").exists(), "no other one is made in its place"
        (place.data / "away.img").rename(place.data / "btrfs.img")
        async with asyncio.timeout(WAIT_S):
            while (await host.health()).reasons:  # noqa: ASYNC110 - the engine looks by itself
                await asyncio.sleep(0.1)
        await host.turn_complete(TurnRequest(session_id))
        await host.rollback(RollbackRequest(session_id, "1"))
        assert await said(host, session_id, "cat a") == "one\n"
        await clean_up(host)


async def test_a_filesystem_that_is_read_only_is_told_and_used_again(place: Settings) -> None:
    async with build(place) as host:
        session_id = await make(host)
        subprocess.run(["mount", "-o", "remount,ro", place.data / "mounts" / "btrfs"], timeout=WAIT_S, check=True)
        with pytest.raises(Unavailable, match="read-only"):
            await host.turn_complete(TurnRequest(session_id))
        assert (await host.health()).status is HealthStatus.UNHEALTHY
        with pytest.raises(HostUnhealthy, match="btrfs"):
            await host.create(SessionSpec())
        subprocess.run(["mount", "-o", "remount,rw", place.data / "mounts" / "btrfs"], timeout=WAIT_S, check=True)
        await host.turn_complete(TurnRequest(session_id))
        assert (await host.health()).status is not HealthStatus.UNHEALTHY
        await clean_up(host)
