"""Volumes as directories: what a death in the middle of a copy leaves, and who may be in the way."""

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from sandlot.host.storage import copying
from sandlot.host.storage.local_disk import LocalDiskStorage
from sandlot.model import Capability, CapabilityNotSupported, Conflict, InvalidArgument, NotFound


async def opened(data: Path) -> LocalDiskStorage:
    storage = LocalDiskStorage(data, snapshots=True)
    assert (await storage.probe()).ready
    assert not storage.was_used()
    await storage.attach()
    return storage


def there(data: Path) -> set[str]:
    return {path.name for path in (data / "local-disk" / "volumes").iterdir()}


def trash(data: Path) -> list[Path]:
    return list((data / "local-disk" / "trash").iterdir())


async def test_half_copies_are_swept(tmp_path: Path) -> None:
    storage = await opened(tmp_path)
    volume = await storage.create("v-1")
    (volume.path / "u" / "file").write_text("kept")
    taken = await storage.snapshot(volume, alone=True)
    # An engine that died leaves these: a point, a restored volume and a new one, each without all of its files.
    for name in ("p-00", "d-00", "v-00"):
        (tmp_path / "local-disk" / "volumes" / name / "u").mkdir(parents=True)
    for name in ("lost+found", "mine"):
        (tmp_path / "local-disk" / "volumes" / name).mkdir()
    later = LocalDiskStorage(tmp_path, snapshots=True)
    assert later.was_used()
    await later.attach()
    found = await later.open("v-1", volume.state)
    await later.settle([taken.point])
    assert there(tmp_path) == {"v-1", taken.point, "lost+found", "mine"}
    await later.sweep()
    assert trash(tmp_path) == []
    assert (found.path / "u" / "file").read_text() == "kept"


async def test_who_gives_up_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    storage = await opened(tmp_path)
    volume = await storage.create("v-1")
    (volume.path / "u" / "file").write_text("kept")
    begun, go_on, check = threading.Event(), threading.Event(), copying.Patience.check

    def slow(self: copying.Patience) -> None:
        begun.set()
        go_on.wait(20)
        check(self)

    monkeypatch.setattr(copying.Patience, "check", slow)
    copy = asyncio.create_task(storage.snapshot(volume, alone=True))
    assert await asyncio.to_thread(begun.wait, 20)
    assert await storage.strays([]) == [], "who is at work is not in the way"
    copy.cancel()
    with pytest.raises(asyncio.CancelledError):
        await copy
    go_on.set()
    async with asyncio.timeout(20):
        while len(there(tmp_path)) > 1:  # noqa: ASYNC110 - the thread tells nobody
            await asyncio.sleep(0.01)
    assert there(tmp_path) == {"v-1"}
    await storage.sweep()
    assert trash(tmp_path) == []


async def test_what_is_read_stays_until_that_is_done(tmp_path: Path) -> None:
    storage = await opened(tmp_path)
    volume = await storage.create("v-1")
    one = await storage.snapshot(volume, alone=True)
    async with storage.showing(one.point, volume.state) as shown:
        await storage.release(one.point, volume.state)
        assert all(path.is_dir() for path in (*shown.old, *shown.new, *shown.apart))
    assert there(tmp_path) == set()


async def test_a_volume_knows_the_point_that_it_began_with(tmp_path: Path) -> None:
    storage = await opened(tmp_path)
    volume = await storage.create("v-1")
    async with storage.showing(None, volume.state) as shown:
        assert (shown.old, shown.new) == ((), (volume.path / "u",))
    point = (await storage.snapshot(volume, alone=True)).point
    child = await storage.create("v-2", point)
    later = (await storage.snapshot(child, alone=True)).point
    restored = await storage.restore(child, later)
    for each in (child.state, later, restored.state):
        async with storage.showing(None, each) as shown:
            assert [path.parent.name for path in shown.old] == [point], each
    await storage.release(point)
    async with storage.showing(None, later) as shown:
        assert shown.old == ()


async def test_what_is_not_there_is_told(tmp_path: Path) -> None:
    storage = await opened(tmp_path)
    volume = await storage.create("v-1")
    verbs: list[Callable[[], object]] = [
        lambda: storage.open("v-2", ""),
        lambda: storage.create("v-2", "p-00"),
        lambda: storage.restore(volume, "p-00"),
        lambda: storage.usage("p-00"),
    ]
    for wrong in ("", "../v-1", "p-1/../v-1", "\0"):
        with pytest.raises(InvalidArgument):
            await storage.restore(volume, wrong)
    for verb in verbs:
        with pytest.raises(NotFound):
            await verb()  # pyright: ignore[reportGeneralTypeIssues] - each is a coroutine of its own type
    with pytest.raises(Conflict):
        await storage.create("v-1")
    with pytest.raises(CapabilityNotSupported):
        await storage.limit(volume, 1 << 20)
    assert there(tmp_path) == {"v-1"}
    assert await storage.missing("p-00") == ["p-00"]


async def test_doctor_is_told_what_snapshots_cost(tmp_path: Path) -> None:
    off, on = (LocalDiskStorage(tmp_path, snapshots=each) for each in (False, True))
    assert Capability.SNAPSHOTS not in off.capabilities
    assert "SANDLOT_LOCAL_DISK_SNAPSHOTS" in (await off.probe()).next_step
    told = await on.probe()
    assert ("shares" if copying.can_clone(tmp_path) else "copies all files") in told.reason
    gone = await LocalDiskStorage(tmp_path / "nowhere", snapshots=True).probe()
    assert not gone.ready
    assert list(tmp_path.iterdir()) == []
