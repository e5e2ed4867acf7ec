"""What the storage `zfs` says and does when its pool is hurt, full or gone; on pools that each test makes itself."""

import asyncio
import contextlib
import os
import signal
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from sandlot.contracts.storage import Volume
from sandlot.host.storage import zfs_daemon
from sandlot.host.storage.zfs import ZfsStorage
from sandlot.host.storage.zfs_commands import Stream, ZfsManager
from sandlot.host.storage.zfs_pool import ZfsSettings
from sandlot.model import CapabilityNotSupported, Conflict, LimitReached, NotFound, SandlotError, Unavailable
from sandlot.model.health import DEGRADED, ONLINE

pytestmark = pytest.mark.root
MIB = 1 << 20
POOL_BYTES = 160 * MIB
CAP_SYS_RESOURCE = 24


def command(*words: str) -> str:
    return subprocess.run(words, capture_output=True, text=True, check=True, timeout=60).stdout


def zpool(*words: str) -> str:
    return command("zpool", *words)


@pytest.fixture
async def pool(tmp_path: Path) -> AsyncIterator[str]:
    """A mirror of two files."""
    await asyncio.to_thread(zfs_daemon.ensure)
    manager, name = ZfsManager(), f"sandlot-test-{os.urandom(4).hex()}"
    for file in ("a", "b"):
        with (tmp_path / file).open("wb") as image:
            image.truncate(POOL_BYTES)
    await manager.create_pool(name, str(tmp_path / "a"), str(tmp_path / "b"), mirror=True)
    yield name
    if name not in await manager.pools():
        await manager.import_pool(name, str(tmp_path))
    await manager.destroy_pool(name)


@pytest.fixture
async def zfs(tmp_path: Path, pool: str) -> AsyncIterator[ZfsStorage]:
    data = tmp_path / "data"
    data.mkdir()
    zfs = ZfsStorage(data, ZfsSettings(pool=pool))
    await zfs.attach()
    yield zfs
    if not zfs.is_attached:
        await zfs.attach()
    kept = zfs._kept  # pyright: ignore[reportPrivateUsage] - whatever a test left
    while left := [*kept.in_use()]:
        await zfs.release(*left)
    await swept(zfs)
    for base in (data / "mounts" / "images").iterdir():
        zfs._mounts.close(base.name)  # pyright: ignore[reportPrivateUsage] - as above


async def swept(zfs: ZfsStorage) -> None:
    """Nothing is left but what is needed or held."""
    await zfs.sweep()
    kept = zfs._kept  # pyright: ignore[reportPrivateUsage] - what is due is no stray
    assert {*kept.sizes} - {*kept.in_use()} <= kept._carriers  # pyright: ignore[reportPrivateUsage] - nothing tells it


async def make_many(zfs: ZfsStorage) -> None:
    """Each with a base of its own."""
    for number in range(20):
        await zfs.create(f"v-more-{number}", disk_bytes=64 * MIB + 4096 * number)


def write(volume: Volume, text: str) -> None:
    (volume.path / "u" / "file").write_text(text)


def read(volume: Volume) -> str:
    return (volume.path / "u" / "file").read_text()


async def test_a_mirror_that_lost_a_side_is_degraded(tmp_path: Path, pool: str, zfs: ZfsStorage) -> None:
    assert (await zfs.health()).state == ONLINE
    zpool("offline", pool, str(tmp_path / "b"))
    await asyncio.sleep(1.1)  # what a pool told is believed for a second
    told = await zfs.health()
    assert told.state == DEGRADED
    assert 0 <= told.space.capacity < 1
    assert 0.8 * POOL_BYTES < told.space.size_bytes <= POOL_BYTES
    assert zfs.is_attached
    volume = await zfs.create("v-degraded")
    write(volume, "still")
    assert (await ZfsManager().status(pool)).state == "DEGRADED"
    zpool("online", pool, str(tmp_path / "b"))


async def test_a_pool_that_went_comes_back_with_everything(tmp_path: Path, pool: str, zfs: ZfsStorage) -> None:
    volume = await zfs.create("v-gone")
    write(volume, "one")
    taken = await zfs.snapshot(volume, alone=True)
    write(volume, "two")
    zfs._mounts.close(volume.state)  # pyright: ignore[reportPrivateUsage] - a pool in use is not let go
    for base in (tmp_path / "data" / "mounts" / "images").iterdir():
        zfs._mounts.close(base.name)  # pyright: ignore[reportPrivateUsage] - as above
    zpool("export", pool)
    await asyncio.sleep(1.1)
    with pytest.raises(Unavailable, match="is gone"):
        await zfs.health()
    assert not zfs.is_attached
    with pytest.raises(Unavailable, match="is not there"):
        await zfs.attach()
    with pytest.raises(SandlotError):
        await zfs.create("v-nowhere")
    await ZfsManager().import_pool(pool, str(tmp_path))
    await zfs.attach()
    assert read(volume) == "two"
    assert read(await zfs.restore(volume, taken.point)) == "one"


async def test_a_killed_daemon_is_started_again(tmp_path: Path) -> None:
    zfs, manager = ZfsStorage(tmp_path, ZfsSettings(bytes=512 * MIB)), ZfsManager()
    await zfs.attach()
    volume = await zfs.create("v-killed")
    write(volume, "one")
    taken = await zfs.snapshot(volume, alone=True)
    if len(await manager.pools()) == 1 and (daemon := zfs_daemon.find()) is not None:
        os.kill(daemon, signal.SIGKILL)
        while zfs_daemon.find() is not None:  # noqa: ASYNC110 - a process of others
            await asyncio.sleep(0.01)
        for attempt in (zfs.create("v-none"), zfs.snapshot(volume, alone=True)):
            with pytest.raises(SandlotError):
                await attempt
        await asyncio.sleep(1.1)
        with pytest.raises(Unavailable):
            await zfs.health()
        assert not zfs.is_attached
        await zfs.attach()
        assert (await zfs.health()).state == ONLINE
        after = await zfs.restore(volume, taken.point)
        assert read(after) == "one"
        await zfs.release(after.state)
    # Else other pools live on the same daemon: they are not to be hurt, and this is shown where it is alone.
    assert read(volume) == "one"
    await zfs.release(volume.state, taken.point)
    await swept(zfs)
    await zfs.detach()
    assert not (tmp_path / "zfs.img").exists()


async def test_a_full_pool_is_told_and_can_be_emptied(zfs: ZfsStorage) -> None:
    volume = await zfs.create("v-full")
    with contextlib.suppress(OSError), (volume.path / "u" / "big").open("wb") as file:
        for _piece in range(POOL_BYTES // MIB):
            file.write(os.urandom(MIB))
            os.fsync(file.fileno())
    await asyncio.sleep(1.1)
    assert (await zfs.health()).space.capacity > 0.75  # ZFS keeps 32 MiB to itself
    with pytest.raises((LimitReached, Unavailable)):
        await make_many(zfs)
    await zfs.release(volume.state)
    await swept(zfs)
    await asyncio.sleep(1.1)
    assert (await zfs.health()).space.capacity < 0.5
    write(await zfs.create("v-again"), "room")


async def test_what_is_held_goes_when_it_is_let_go(pool: str, zfs: ZfsStorage) -> None:
    manager = ZfsManager()
    volume = await zfs.create("v-held")
    taken = await zfs.snapshot(volume, alone=True)
    full = f"{pool}/sessions/{volume.state}@{taken.point}"
    await manager.hold("mine", full)
    with pytest.raises(Conflict):
        await manager.destroy_snapshot(full)
    await zfs.release(taken.point, volume.state)
    await swept(zfs)
    assert await manager.exists(full)
    await manager.release("mine", full)
    assert not await manager.exists(full)
    volume = await zfs.create("v-other")
    await zfs.release(volume.state)
    await swept(zfs)
    assert [name for name in await manager.properties(f"{pool}/sessions", ("type",)) if "/z-" in name] == []


async def test_what_outlives_its_origin_does_not_drag_it_along(pool: str, zfs: ZfsStorage) -> None:
    """Rolled back again and again: one dataset is left, not one for each time."""
    volume = await zfs.create("v-chain")
    for number in range(4):
        write(volume, f"round {number}")
        taken = await zfs.snapshot(volume, alone=True)
        after = await zfs.restore(volume, taken.point)
        assert read(after) == f"round {number}"
        await zfs.release(volume.state, taken.point)
        await swept(zfs)
        volume = after
    left = [name for name in await ZfsManager().properties(f"{pool}/sessions", ("type",)) if "/z-" in name]
    assert [name for name in left if "@" not in name] == [f"{pool}/sessions/{volume.state}"]
    assert read(volume) == "round 3"


async def test_a_volume_grows_and_does_not_shrink(zfs: ZfsStorage) -> None:
    volume = await zfs.create("v-grows", disk_bytes=64 * MIB)
    before = os.statvfs(volume.path).f_blocks
    effective = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("CapEff:"))
    if int(effective.split()[1], 16) >> CAP_SYS_RESOURCE & 1:
        await zfs.limit(volume, 128 * MIB)
        assert os.statvfs(volume.path).f_blocks > 1.8 * before
    else:  # a root that lacks it, as in containers
        with pytest.raises(CapabilityNotSupported, match="larger"):
            await zfs.limit(volume, 128 * MIB)
    with pytest.raises(CapabilityNotSupported, match="not shrink"):
        await zfs.limit(volume, 32 * MIB)
    write(volume, "fine")


async def test_datasets_travel_as_streams(tmp_path: Path, pool: str) -> None:
    manager = ZfsManager()
    await manager.create(f"{pool}/from", {"mountpoint": "none", "sandlot:mark": "here"})
    await manager.snapshot(f"{pool}/from@one")
    await manager.snapshot(f"{pool}/from@two")
    assert [info.name for info in await manager.list_snapshots(f"{pool}/from")] == ["one", "two"]
    assert await manager.estimate(Stream(f"{pool}/from@one")) > 0
    size = await manager.send_to(Stream(f"{pool}/from@one"), tmp_path / "stream")
    assert size == (tmp_path / "stream").stat().st_size > 0

    async def pieces() -> AsyncIterator[bytes]:
        yield (tmp_path / "stream").read_bytes()

    await manager.receive(f"{pool}/to", pieces())
    async with manager.sending(Stream(f"{pool}/from@two", since=f"{pool}/from@one")) as stream:
        await manager.receive(f"{pool}/to", stream)
    assert [info.name for info in await manager.list_snapshots(f"{pool}/to")] == ["one", "two"]
    with pytest.raises(Conflict):
        await manager.receive(f"{pool}/to@one", pieces())
    with pytest.raises(NotFound):
        await manager.send_to(Stream(f"{pool}/from@three"), tmp_path / "none")
    assert not (tmp_path / "none").exists()
    assert (await manager.info(f"{pool}/from")).mountpoint == "none"
    await manager.rollback(f"{pool}/to@one", newer=True)
    assert not await manager.exists(f"{pool}/to@two")
    await manager.destroy(f"{pool}/to", recursive=True)
    assert not await manager.exists(f"{pool}/to")


async def test_a_pool_that_is_read_only_is_told_and_used_again(pool: str, zfs: ZfsStorage) -> None:
    volume = await zfs.create("v-kept")
    write(volume, "one")
    taken = await zfs.snapshot(volume, alone=True)
    command("zfs", "set", "readonly=on", pool)
    with pytest.raises(SandlotError):
        await zfs.create("v-none", disk_bytes=48 * MIB)  # of a size that there is no base for yet
    assert read(volume) == "one"
    command("zfs", "set", "readonly=off", pool)
    assert read(await zfs.restore(volume, taken.point)) == "one"
    assert (await zfs.create("v-none", disk_bytes=48 * MIB)).path.is_dir()


async def test_a_loop_device_that_went_is_attached_again(zfs: ZfsStorage) -> None:
    """Of the image in a dataset: its files are there when the volume is opened again."""
    volume = await zfs.create("v-loop")
    write(volume, "one")
    point = volume.path.parent.parent
    device = command("findmnt", "-n", "-o", "SOURCE", str(point)).strip()
    command("umount", str(point))
    subprocess.run(["losetup", "--detach", device], capture_output=True, check=False, timeout=60)  # if it did not go
    with pytest.raises(OSError, match="No such file"):
        read(volume)
    assert read(await zfs.open("v-loop", volume.state)) == "one"
    write(volume, "two")
    taken = await zfs.snapshot(volume, alone=True)
    assert read(await zfs.restore(volume, taken.point)) == "two"
