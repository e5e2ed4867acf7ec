"""What is below a storage turns read-only, or its loop device goes: that is told, and put right when it is back."""

import asyncio
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from sandlot.config.settings import Settings, load
from sandlot.host.service import SandboxHostService
from sandlot.model import (
    CallRequest,
    HealthStatus,
    HostUnhealthy,
    RollbackRequest,
    SandlotError,
    SessionFilter,
    SessionSpec,
    SessionState,
    SnapshotRequest,
    TurnRequest,
    Unavailable,
)
from sandlot.wiring.embedded import build
from tests import storages
from tests.conftest import clean_up, run
from tests.e2e.test_recover import guests
from tests.storages import left_of_machine

pytestmark = [pytest.mark.root, pytest.mark.timeout(600)]
WAIT_S = 60.0
DISK_BYTES = 2500 << 20  # of a sparse file


def command(*words: str | Path) -> str:
    return subprocess.run(words, timeout=WAIT_S, check=True, capture_output=True, text=True).stdout


def let_go(point: Path) -> None:
    """The keeper and the kernel let go of it a moment after the engine."""
    give_up = time.monotonic() + WAIT_S
    while subprocess.run(["umount", point], capture_output=True, timeout=WAIT_S, check=False).returncode:
        assert time.monotonic() < give_up, f"someone still uses {point}"
        time.sleep(0.1)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A filesystem of its own, for the journal too."""
    image, point = tmp_path / "disk.img", tmp_path / "disk"
    with image.open("wb") as file:
        file.truncate(DISK_BYTES)
    command("mkfs.ext4", "-q", "-F", "-m", "0", image)
    point.mkdir()
    command("mount", "-o", "loop", image, point)
    yield point
    let_go(point)


def settings_on(name: str, data: Path) -> Settings:
    if not (ready := storages.probe(name)).ready:
        pytest.skip(f"{name}: {ready.reason}")
    known = {"SANDLOT_DATA_DIR": str(data), "SANDLOT_STORAGE": name, "SANDLOT_RUNTIME": ""}
    return load({**os.environ, **storages.ENVIRONMENT, "SANDLOT_HEALTH_INTERVAL_S": "0.2", **known})


async def sh(host: SandboxHostService, script: str) -> tuple[int | None, str]:
    ran = await run(host, CallRequest("s", ("sh", "-c", script)))
    return ran.exit_code, ran.stdout.decode()


async def unwell(host: SandboxHostService) -> None:
    async with asyncio.timeout(WAIT_S):
        while (await host.health()).status is not HealthStatus.UNHEALTHY:  # noqa: ASYNC110 - the engine looks by itself
            await asyncio.sleep(0.1)
    with pytest.raises(HostUnhealthy):
        await host.create(SessionSpec())


@pytest.mark.parametrize("name", ["layers", "local-disk", "btrfs"])
async def test_a_disk_that_turns_read_only_is_told_and_used_again(
    name: str, disk: Path, tmp_path: Path, shared_templates: Path
) -> None:
    data = disk / "data"
    data.mkdir(mode=0o700)
    (data / "templates").symlink_to(shared_templates)
    settings = settings_on(name, data)
    async with build(settings) as host:
        await host.create(SessionSpec(session_id="s"))
        assert await sh(host, "echo one > a; sync") == (0, "")
        await host.turn_complete(TurnRequest("s"))
        # As the kernel does by itself after an error of the disk.
        command("mount", "-o", "remount,abort", disk)
        assert (await sh(host, "cat a"))[1] == "one\n", "what is there can still be read"
        for attempt in (host.turn_complete(TurnRequest("s")), host.create_snapshot(SnapshotRequest("s", "mine"))):
            with pytest.raises(Unavailable):
                await attempt
        await unwell(host)
        for attempt in (host.rollback(RollbackRequest("s", "1")), host.destroy("s")):
            with pytest.raises(SandlotError):
                await attempt
        assert [one.session_id for one in (await host.list(SessionFilter())).sessions] == ["s"]
    let_go(disk)
    command("mount", "-o", "loop", tmp_path / "disk.img", disk)
    async with build(settings) as host:
        if (await host.get("s")).state is SessionState.FAILED:  # its guest ended with the attempt to destroy it
            await host.recover("s")
        assert await sh(host, "cat a; echo two > b") == (0, "one\n")
        await host.turn_complete(TurnRequest("s"))
        await clean_up(host)
    (data / "templates").unlink()
    assert left_of_machine(data) == set()


def devices(file: Path) -> list[str]:
    return command("losetup", "-n", "-O", "NAME", "-j", file).split()


async def test_a_loop_device_that_is_detached_in_use_stays_for_its_sessions(data_dir: Path) -> None:
    """The kernel keeps it until nobody has it any more; the next engine attaches the file again."""
    settings = settings_on("btrfs", data_dir)
    async with build(settings) as host:
        await host.create(SessionSpec(session_id="s"))
        assert await sh(host, "echo one > a") == (0, "")
        await host.turn_complete(TurnRequest("s"))
        command("losetup", "--detach", *devices(data_dir / "btrfs.img"))
        assert await sh(host, "cat a; echo two > a; sync") == (0, "one\n")
        await host.turn_complete(TurnRequest("s"))
    async with build(settings) as host:
        assert await sh(host, "cat a") == (0, "two\n")
        await host.rollback(RollbackRequest("s", "1"))
        assert await sh(host, "cat a") == (0, "one\n")
        await clean_up(host)
    assert left_of_machine(data_dir) == set()


async def test_a_loop_device_that_went_is_told_and_attached_again(data_dir: Path) -> None:
    settings = settings_on("btrfs", data_dir)
    image, away = data_dir / "btrfs.img", data_dir / "away.img"
    async with build(settings) as host:
        await host.create(SessionSpec(session_id="s"))
        await host.create(SessionSpec(session_id="other", storage="layers"))
        assert await sh(host, "echo one > a") == (0, "")
        await host.turn_complete(TurnRequest("s"))
        image.rename(away)
        command("umount", "--lazy", data_dir / "mounts" / "btrfs")
        command("losetup", "--detach", *devices(away))
        for guest in guests(host):
            os.kill(guest, signal.SIGKILL)
        async with asyncio.timeout(WAIT_S):
            while devices(away):  # noqa: ASYNC110 - nothing tells of it
                await asyncio.sleep(0.1)
        await unwell(host)
        with pytest.raises(SandlotError):
            await host.recover("s")
        assert (await host.get("s")).state is SessionState.FAILED
        assert (await host.recover("other")).state is SessionState.ACTIVE, "nothing else broke"
        assert not image.exists(), "no other one is made in its place"
        away.rename(image)
        async with asyncio.timeout(WAIT_S):
            while (await host.health()).status is HealthStatus.UNHEALTHY:  # noqa: ASYNC110 - the engine looks by itself
                await asyncio.sleep(0.1)
        await host.recover("s")
        assert await sh(host, "cat a") == (0, "one\n")
        await clean_up(host)
    assert left_of_machine(data_dir) == set()
