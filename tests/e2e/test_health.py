"""How a host is, told; and what it does when it is not well: on a real disk that is full to the last byte."""

import asyncio
import errno
import json
import os
import resource
import shutil
import subprocess
import time
from collections.abc import AsyncIterator, Generator, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from sandlot import Client
from sandlot.config.settings import Settings, load
from sandlot.host.service import SandboxHostService
from sandlot.model import (
    CallRequest,
    FileRead,
    FileWrite,
    ForkRequest,
    HealthStatus,
    HostUnhealthy,
    SessionSpec,
    SnapshotRequest,
    limits,
)
from sandlot.wiring.embedded import build
from tests.conftest import clean_up, run
from tests.e2e.test_cli import Program

pytestmark = [pytest.mark.root, pytest.mark.timeout(180)]

WAIT_S = 40
DISK_BYTES = 96 * limits.MIB


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A filesystem of its own, small enough to be filled. Nothing of it is kept back for root."""
    if not shutil.which("mkfs.ext4"):
        pytest.skip("mkfs.ext4 is not installed here")
    image, place = tmp_path / "disk.img", tmp_path / "disk"
    with image.open("wb") as file:
        file.truncate(DISK_BYTES)
    subprocess.run(["mkfs.ext4", "-q", "-m", "0", "-N", "4096", image], check=True, timeout=WAIT_S)
    place.mkdir()
    mounted = subprocess.run(["mount", "-o", "loop", image, place], capture_output=True, timeout=WAIT_S, check=False)
    if mounted.returncode:
        pytest.skip(f"no loop device can be had here: {mounted.stderr.decode()}")
    try:
        yield place
    finally:
        # The keeper and the kernel let go of it a moment after the engine.
        give_up = time.monotonic() + WAIT_S
        while subprocess.run(["umount", place], capture_output=True, timeout=WAIT_S, check=False).returncode:
            if time.monotonic() >= give_up:
                subprocess.run(["umount", "--lazy", place], timeout=WAIT_S, check=True)
                raise AssertionError(f"someone still uses {place}")
            time.sleep(0.1)


@pytest.fixture
def small_settings(small_disk: Path, shared_templates: Path) -> Settings:
    data = small_disk / "data"
    data.mkdir(mode=0o700)
    (data / "templates").symlink_to(shared_templates)
    return load({**os.environ, "SANDLOT_DATA_DIR": str(data), "SANDLOT_STORAGE": "", "SANDLOT_RUNTIME": ""})


@contextmanager
def no_space_left() -> Generator[None]:
    try:
        yield
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise


def fill(path: Path) -> None:
    """To the last byte."""
    with path.open("ab", buffering=0) as file:
        for size in (limits.MIB, 4096, 1):
            with no_space_left():
                while True:
                    file.write(bytes(size))
    for number in range(64):  # what a new file takes may be kept back from an old one
        with no_space_left():
            (path.parent / f"{path.name}.{number}").write_bytes(bytes(4096))


async def write(host: SandboxHostService, session_id: str, text: str) -> None:
    async def content() -> AsyncIterator[bytes]:
        yield text.encode()

    await host.write_file(FileWrite(session_id, "file"), content())


async def read(host: SandboxHostService, session_id: str) -> str:
    async with host.read_file(FileRead(session_id, "file")) as stream:
        return b"".join([piece async for piece in stream]).decode()


def reasons(what: tuple[object, ...]) -> list[str]:
    return [getattr(reason, "what") for reason in what]  # noqa: B009 - of values of any kind


async def test_a_healthy_host_tells_its_figures(host: SandboxHostService) -> None:
    await host.create(SessionSpec(session_id="s"))
    async with host.call(CallRequest("s", ("sleep", "1000"), detach=True)) as stream:
        async for _started in stream:
            break
    health = await host.health()
    assert (health.status, health.reasons, health.errors) == (HealthStatus.HEALTHY, (), ())
    assert (health.session_count, health.active_calls) == (1, 1)
    assert health.pool_state == "online"
    space = health.pool_space
    assert 0 < space.capacity < 1
    assert space.fragmentation is None
    assert 0 < space.allocated_bytes < space.size_bytes
    assert 0 < space.free_bytes <= space.size_bytes - space.allocated_bytes
    for share in (health.inodes, health.memory, health.descriptors):
        assert 0 < share.used < share.total
    later = await host.health()
    assert later.uptime_s > health.uptime_s > 0


async def test_a_full_disk_refuses_sessions_and_lets_them_be_used_and_destroyed(small_settings: Settings) -> None:
    data = small_settings.data
    async with build(small_settings) as host:
        await host.create(SessionSpec(session_id="a"))
        await write(host, "a", "kept")
        await host.create(SessionSpec(session_id="b"))
        await host.create_snapshot(SnapshotRequest("a", "point"))
        assert (data / "reserve").stat().st_blocks * 512 >= limits.RESERVE_BYTES
        await run(host, CallRequest("b", ("sh", "-c", "cat /dev/zero > big; cat /dev/zero > bigger; true")))
        fill(data.parent / "filler")
        health = await host.health()
        assert health.status is HealthStatus.UNHEALTHY
        (space,) = [reason for reason in health.reasons if reason.what == "space"]
        assert space.value >= space.threshold == small_settings.space_critical
        assert space.next_step
        for refused in (
            host.create(SessionSpec(session_id="c")),
            host.fork(ForkRequest("a", "point")),
        ):
            with pytest.raises(HostUnhealthy) as caught:
                await refused
            assert caught.value.retryable
            assert caught.value.next_step
        # Calls are recorded until the journal has met the end of the disk, and the reserve is used up.
        for _ in range(40):
            ran = await run(host, CallRequest("a", ("sh", "-c", "cat file; head -c 15000 /dev/urandom >&2")))
            assert (ran.exit_code, ran.stdout) == (0, b"kept")
            await host.calls("a")
            fill(data.parent / "filler")
        assert await read(host, "a") == "kept"
        assert not (data / "reserve").exists()
        await host.destroy("b")
        await wait_for_room(host)
        await host.create(SessionSpec(session_id="c"))
        assert (await run(host, CallRequest("c", ("echo", "alive")))).stdout == b"alive\n"
        await clean_up(host)


async def wait_for_room(host: SandboxHostService) -> None:
    """Space comes back behind the answer of a destroy."""
    async with asyncio.timeout(WAIT_S):
        while (await host.health()).status is not HealthStatus.HEALTHY:  # noqa: ASYNC110 - the disk sets no event
            await asyncio.sleep(0.05)


async def test_an_engine_starts_on_a_full_disk_and_can_make_room(small_settings: Settings) -> None:
    data = small_settings.data
    async with build(small_settings) as host:
        await host.create(SessionSpec(session_id="a"))
        await write(host, "a", "kept")
        await host.create(SessionSpec(session_id="b"))
        await run(host, CallRequest("b", ("sh", "-c", "cat /dev/zero > big; true")))
        fill(data.parent / "filler")
    fill(data.parent / "filler")
    async with build(small_settings) as host:
        assert await read(host, "a") == "kept"
        with pytest.raises(HostUnhealthy):
            await host.create(SessionSpec(session_id="c"))
        await host.destroy("b")
        await wait_for_room(host)
        assert (data / "reserve").stat().st_size == limits.RESERVE_BYTES
        await host.create(SessionSpec(session_id="c"))
        await clean_up(host)


async def test_a_disk_without_inodes_is_told_and_sessions_can_be_destroyed(small_settings: Settings) -> None:
    async with build(small_settings) as host:
        await host.create(SessionSpec(session_id="a"))
        count = os.statvfs(small_settings.data).f_files
        await run(host, CallRequest("a", ("sh", "-c", f"seq {count} | xargs touch 2>/dev/null; true")))
        health = await host.health()
        assert "inodes" in reasons(health.reasons)
        with pytest.raises(HostUnhealthy, match="inodes"):
            await host.create(SessionSpec(session_id="b"))
    async with build(small_settings) as host:
        await host.destroy("a")
        await wait_for_room(host)
        await host.create(SessionSpec(session_id="b"))
        await clean_up(host)


async def test_thresholds_and_the_interval_are_settings(settings: Settings, caplog: pytest.LogCaptureFixture) -> None:
    asked = replace(settings, space_warn=0.01, space_critical=1.0, health_interval_s=0.1)
    async with build(asked) as host:
        health = await host.health()
        assert (health.status, reasons(health.reasons)[0]) == (HealthStatus.DEGRADED, "space")
        await host.create(SessionSpec(session_id="s"))  # a degraded host still makes sessions
        async with asyncio.timeout(WAIT_S):
            while "this host is degraded" not in caplog.text:  # noqa: ASYNC110 - a log sets no event
                await asyncio.sleep(0.02)
        await clean_up(host)


async def test_descriptors_that_run_out_are_told(host: SandboxHostService) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    used = len(list(Path("/proc/self/fd").iterdir()))
    resource.setrlimit(resource.RLIMIT_NOFILE, (used + 20, hard))
    held = [os.open("/dev/null", os.O_RDONLY) for _ in range(16)]
    try:
        health = await host.health()
    finally:
        for fd in held:
            os.close(fd)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert "descriptors" in reasons(health.reasons)
    assert health.descriptors.total == used + 20
    assert (await host.health()).status is HealthStatus.HEALTHY


async def test_the_command_line_and_the_sdk_tell(data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sandlot = Program(data_dir)
    ran = sandlot("health")
    assert ran.returncode == 0, ran
    for word in (b"healthy", b"space", b"inodes", b"memory", b"descriptors"):
        assert word in ran.stdout
    monkeypatch.setenv("SANDLOT_SPACE_WARN", "0.01")
    ran = sandlot("health")
    assert (ran.returncode, b"degraded" in ran.stdout) == (1, True), ran
    ran = sandlot("health", "--json")
    document = json.loads(ran.stdout)
    assert (ran.returncode, document["status"]) == (1, "degraded")
    assert document["reasons"][0]["what"] == "space"
    with Client(data_dir=data_dir) as client:
        assert client.health().status is HealthStatus.DEGRADED
    async with Client(data_dir=data_dir) as client:
        assert (await client.ahealth()).session_count == 0
