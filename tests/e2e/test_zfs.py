"""The storage `zfs`, on a real pool: one on a file that the engine makes itself."""

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from sandlot.config.settings import Settings
from sandlot.host.service import SandboxHostService
from sandlot.host.storage.zfs_images import freeze
from sandlot.model import (
    CallRequest,
    DiffRequest,
    FindingKind,
    ForkRequest,
    Resources,
    RollbackRequest,
    SessionFilter,
    SessionSpec,
    SessionState,
    SnapshotRequest,
    TurnRequest,
    Unavailable,
)
from sandlot.wiring.embedded import build
from tests.conftest import clean_up, run

pytestmark = pytest.mark.root
MIB = 1 << 20
# Until nothing more fits, then tells how much is there.
FILL = "dd if=/dev/zero of=big bs=64k 2>/dev/null || true; sync; du -sk --apparent-size . | cut -f1"
SMALL = """
import os
try:
    for number in range(100_000):
        with open(f"small-{number}", "wb") as file:
            file.write(b"x" * 4096)
except OSError:
    pass
print(sum(entry.stat().st_size for entry in os.scandir(".")) >> 10)
"""
KILLED = """
import asyncio, os, signal, sys
from sandlot.config.settings import load
from sandlot.model import CallRequest, SessionSpec, TurnRequest
from sandlot.wiring.embedded import build

async def main():
    mine = {"SANDLOT_DATA_DIR": sys.argv[1], "SANDLOT_STORAGE": "zfs", "SANDLOT_ZFS_BYTES": "2G"}
    async with build(load({**os.environ, **mine})) as host:
        await host.create(SessionSpec(session_id="killed"))
        for text in ("one", "two"):
            async with host.call(CallRequest("killed", ("sh", "-c", f"echo {text} > a; sync"))) as events:
                await events.result()
            await host.turn_complete(TurnRequest("killed"))
        print(host.keeper_pid, flush=True)
        os.kill(os.getpid(), signal.SIGKILL)

asyncio.run(main())
"""


@pytest.fixture
def zfs_settings(settings: Settings) -> Settings:
    return replace(settings, storage="zfs", zfs_bytes=2 << 30)


@pytest.fixture
async def zfs(zfs_settings: Settings) -> AsyncIterator[SandboxHostService]:
    async with build(zfs_settings) as host:
        yield host
        await clean_up(host)


async def sh(host: SandboxHostService, session_id: str, script: str) -> str:
    ran = await run(host, CallRequest(session_id, ("sh", "-ec", script)))
    assert ran.exit_code == 0, ran
    return ran.stdout.decode()


def pools() -> list[str]:
    return subprocess.run(
        ["zpool", "list", "-H", "-o", "name"], capture_output=True, text=True, check=True
    ).stdout.split()


def left(data: Path) -> list[str]:
    """Mounts, and files of the pool."""
    mounts = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    below = [point for point in mounts if point.startswith(f"{data}/")]
    return [*below, *(name for name in ("zfs.img", "zfs.pool") if (data / name).exists())]


async def test_a_session_goes_back_and_forks_and_leaves_nothing(zfs_settings: Settings) -> None:
    async with build(zfs_settings) as host:
        session_id = (await host.create(SessionSpec())).session_id
        assert (await host.get(session_id)).storage == "zfs"
        await sh(host, session_id, "echo one > a; sudo touch /etc/mine")
        await host.turn_complete(TurnRequest(session_id))
        await sh(host, session_id, "echo two > a; mkdir b; sudo rm /etc/mine")
        await host.turn_complete(TurnRequest(session_id))
        async with host.diff(DiffRequest(session_id, "1", "2")) as batches:
            told = {change.path: change.kind.value async for batch in batches for change in batch}
        assert told == {"/etc/mine": "removed", "/workspace/a": "changed", "/workspace/b": "added"}
        await host.rollback(RollbackRequest(session_id, "1", keep=True))
        assert await sh(host, session_id, "cat a; ls /etc/mine") == "one\n/etc/mine\n"
        child = (await host.fork(ForkRequest(session_id, "2")))[0].session_id
        await host.destroy(session_id)
        assert await sh(host, child, "cat a; ls -d b") == "two\nb\n"
        pool = (zfs_settings.data / "zfs.pool").read_text()
        assert pool in pools()
        await clean_up(host)
    assert left(zfs_settings.data) == []
    assert pool not in pools()


async def test_killed_and_frozen_engines_lose_nothing(zfs_settings: Settings) -> None:
    data = zfs_settings.data
    words = [sys.executable, "-c", KILLED, str(data)]
    died = subprocess.run(words, stdout=subprocess.PIPE, text=True, check=False, timeout=100)
    assert died.returncode == -9, died
    # As if it had died while it took a snapshot: whatever writes then stands still until someone thaws it.
    volume = next(path for path in (data / "mounts").iterdir() if path.name.startswith("z-"))
    freeze(volume)
    async with build(zfs_settings) as host:
        assert await sh(host, "killed", "cat a; echo three > a; cat a") == "two\nthree\n"
        await host.rollback(RollbackRequest("killed", "1"))
        assert await sh(host, "killed", "cat a") == "one\n"
        await clean_up(host)
    assert left(data) == []


async def test_a_lost_journal_is_written_again(zfs_settings: Settings) -> None:
    """From what lies beside the files: sessions, turns, snapshots, and what they hold. Until then nothing goes."""
    data = zfs_settings.data
    async with build(zfs_settings) as host:
        made = await host.create(SessionSpec(session_id="kept", labels={"of": "mine"}, envs={"SECRET": "word"}))
        for text in ("one", "two"):
            await sh(host, "kept", f"echo {text} > a; sudo touch /etc/{text}")
            await host.turn_complete(TurnRequest("kept"))
        await host.create_snapshot(SnapshotRequest("kept", "named"))
        await host.rollback(RollbackRequest("kept", "1", keep=True))
        await sh(host, "kept", "echo three > a")
        child = (await host.fork(ForkRequest("kept", "2")))[0].session_id
        await host.create(SessionSpec(session_id="gone"))
        await host.destroy("gone")
        turns = [(turn.number, turn.closed, turn.snapshot) for turn in await host.turns("kept")]
        shots = [replace(shot, space_bytes=None) for shot in await host.list_snapshots("kept")]
        pool = (data / "zfs.pool").read_text()
    words = ["zfs", "get", "-r", "-H", "-o", "value", "sandlot:note", pool]
    told = subprocess.run(words, capture_output=True, text=True, check=True, timeout=60).stdout
    assert "mine" in told
    assert "SECRET" not in told
    for path in data.glob("journal.db*"):
        path.unlink()
    async with build(zfs_settings) as host:
        assert (await host.list(SessionFilter())).sessions == ()
        with pytest.raises(Unavailable, match=r"kept.*--rebuild"):
            await host.create(SessionSpec())
    found = await build(zfs_settings).examine_alone(repair=True)
    assert [(finding.kind, finding.mended) for finding in found.findings] == [(FindingKind.JOURNAL, False)]
    words = [sys.executable, "-m", "sandlot", "--data-dir", str(data), "doctor", "--storage", "--rebuild"]
    ran = await asyncio.to_thread(subprocess.run, words, capture_output=True, text=True, check=False, timeout=100)
    assert (ran.returncode, ran.stdout.splitlines()[-1]) == (0, "2 sessions were found again"), ran
    async with build(zfs_settings) as host:
        after = await host.get("kept")
        assert (after.state, after.labels, after.head) == (SessionState.FAILED, {"of": "mine"}, "turn-0001")
        assert after.created == made.created
        await host.recover("kept")
        assert await sh(host, "kept", "cat a; ls /etc/one; ls /etc | grep -c two || :") == "three\n/etc/one\n0\n"
        assert [(turn.number, turn.closed, turn.snapshot) for turn in await host.turns("kept")] == turns
        assert [replace(shot, space_bytes=None) for shot in await host.list_snapshots("kept")] == shots
        await host.rollback(RollbackRequest("kept", "named"))
        assert await sh(host, "kept", "cat a; ls /etc/two") == "two\n/etc/two\n"
        assert (await host.turn_complete(TurnRequest("kept"))).number == 3
        await host.recover(child)
        assert await sh(host, child, "cat a") == "two\n"
        assert (await host.examine()).findings == ()
        await clean_up(host)
    assert left(data) == []


async def test_a_disk_limit_is_hard(zfs: SandboxHostService) -> None:
    """What is there now counts, history does not."""
    limit = 64 * MIB
    session_id = (await zfs.create(SessionSpec(resources=Resources(disk_bytes=limit)))).session_id
    await zfs.create_snapshot(SnapshotRequest(session_id, "empty"))
    for fill in (FILL, f"python3 -c '{SMALL}'"):
        there = int(await sh(zfs, session_id, fill)) << 10
        assert limit * 0.75 < there <= limit + MIB
        await zfs.create_snapshot(SnapshotRequest(session_id, f"full-{len(fill)}"))
        await sh(zfs, session_id, "rm -rf big small-*")
    await sh(zfs, session_id, FILL)
    await zfs.rollback(RollbackRequest(session_id, f"full-{len(FILL)}", keep=True))
    ran = await run(zfs, CallRequest(session_id, ("sh", "-c", "head -c 2M /dev/zero > more; cat more | wc -c")))
    assert int(ran.stdout) < MIB
    await sh(zfs, session_id, "rm big; echo again > a; cat a")
