"""What goes wrong below the storage `btrfs`: its disk is full, or gone, and comes back."""

import asyncio
import fcntl
import os
import struct
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from sandlot.config.settings import Settings
from sandlot.host.service import SandboxHostService
from sandlot.host.storage.btrfs_place import MAKE
from sandlot.host.storage.loop_image import make_image
from sandlot.model import (
    CallRequest,
    HealthStatus,
    HostUnhealthy,
    RollbackRequest,
    SessionFailed,
    SessionSpec,
    SessionState,
    TurnRequest,
    Unavailable,
)
from sandlot.wiring.embedded import build
from tests.conftest import Ran, clean_up, run
from tests.storages import left_of_machine

pytestmark = pytest.mark.root

WAIT_S = 60.0
MIB = 1 << 20
BELOW_BYTES = 160 * MIB
_SHUTDOWN = 0x8004587D  # of ext4: nothing is read or written any more, as when its device is pulled out


def command(*words: str | Path) -> None:
    subprocess.run(words, timeout=WAIT_S, check=True, capture_output=True)


@pytest.fixture
def below(tmp_path: Path) -> Iterator[Path]:
    """A small disk for the image alone, so that the journal is not on what fails."""
    image, point = tmp_path / "below.img", tmp_path / "below"
    with image.open("wb") as file:
        file.truncate(BELOW_BYTES)
    point.mkdir()
    command("mkfs.ext4", "-q", "-F", "-m", "0", image)
    command("mount", "-o", "loop", image, point)
    yield point
    command("umount", point)


@pytest.fixture
async def place(settings: Settings, below: Path) -> AsyncIterator[Settings]:
    chosen = replace(settings, storage="btrfs", btrfs_bytes=1 << 30, health_interval_s=0.2)
    make_image(below / "btrfs.img", 1 << 30, MAKE)
    (settings.data / "btrfs.img").symlink_to(below / "btrfs.img")
    yield chosen
    assert left_of_machine(settings.data) == set()


async def sh(host: SandboxHostService, session_id: str, script: str) -> Ran:
    return await run(host, CallRequest(session_id, ("sh", "-c", script)))


async def made(host: SandboxHostService) -> tuple[str, str]:
    """A session with a turn, and one on another storage."""
    session_id = (await host.create(SessionSpec())).session_id
    assert (await sh(host, session_id, "echo one > a")).exit_code == 0
    await host.turn_complete(TurnRequest(session_id))
    return session_id, (await host.create(SessionSpec(storage="layers"))).session_id


async def told_of(host: SandboxHostService, session_id: str, other: str) -> None:
    """Health tells, the session fails with a reason, and nothing else is touched."""
    async with asyncio.timeout(WAIT_S):
        while (info := await host.get(session_id)).state is not SessionState.FAILED:  # noqa: ASYNC110 - by itself
            await asyncio.sleep(0.05)
    assert "storage" in (info.reason or "")
    health = await host.health()
    assert health.status is HealthStatus.UNHEALTHY
    assert any("btrfs" in reason.message for reason in health.reasons), health.reasons
    with pytest.raises(HostUnhealthy, match="btrfs"):
        await host.create(SessionSpec())
    assert (await sh(host, other, "echo fine > b && cat b")).stdout == b"fine\n"
    await host.turn_complete(TurnRequest(other))


async def back(host: SandboxHostService, session_id: str) -> None:
    """The engine finds it by itself, and the session can be recovered."""
    async with asyncio.timeout(WAIT_S):
        while (await host.health()).status is HealthStatus.UNHEALTHY:  # noqa: ASYNC110 - the engine looks by itself
            await asyncio.sleep(0.1)
    await host.recover(session_id)
    await host.rollback(RollbackRequest(session_id, "1"))
    assert (await sh(host, session_id, "cat a && echo two > a && sync")).stdout == b"one\n"
    await host.turn_complete(TurnRequest(session_id))


async def test_a_full_disk_below_is_told_and_its_sessions_come_back_when_there_is_room(
    place: Settings, below: Path
) -> None:
    ballast = below / "ballast"
    ballast.write_bytes(bytes(64 * MIB))
    async with build(place) as host:
        session_id, other = await made(host)
        with suppress(Unavailable):  # it may have failed before that ends
            await sh(host, session_id, "head -c 200M /dev/zero > big; sync")
        with pytest.raises((Unavailable, SessionFailed)):
            await host.turn_complete(TurnRequest(session_id))
        await told_of(host, session_id, other)
        ballast.unlink()
        await back(host, session_id)
        await clean_up(host)


async def test_a_disk_that_is_pulled_out_is_told_and_its_sessions_come_back_with_it(
    place: Settings, below: Path, tmp_path: Path
) -> None:
    async with build(place) as host:
        session_id, other = await made(host)
        fd = os.open(below, os.O_RDONLY)
        try:
            fcntl.ioctl(fd, _SHUTDOWN, struct.pack("=I", 2))
        finally:
            os.close(fd)
        with suppress(Unavailable):
            await sh(host, session_id, "echo lost > b; sync")
        with pytest.raises((Unavailable, SessionFailed)):
            await host.turn_complete(TurnRequest(session_id))
        await told_of(host, session_id, other)
        async with asyncio.timeout(WAIT_S):
            while subprocess.run(["umount", below], check=False, capture_output=True).returncode:  # noqa: ASYNC110 - the engine lets go of it by itself
                await asyncio.sleep(0.1)
        command("mount", "-o", "loop", tmp_path / "below.img", below)
        await back(host, session_id)
        await clean_up(host)
