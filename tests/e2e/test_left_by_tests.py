"""A run of the tests that was killed leaves mounts, loop devices and pools; the next one clears them away."""

import asyncio
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from sandlot.host.storage import zfs_daemon
from sandlot.host.storage.zfs_commands import ZfsManager
from tests.scratch import close_scratch, files_of_pools

pytestmark = pytest.mark.root
WAIT_S = 60.0
MIB = 1 << 20


def command(*words: str | Path) -> str:
    return subprocess.run(words, timeout=WAIT_S, check=True, capture_output=True, text=True).stdout


def sparse(file: Path, size: int) -> Path:
    with file.open("wb") as image:
        image.truncate(size)
    return file


def test_mounts_and_devices_go_and_those_of_others_stay(tmp_path: Path) -> None:
    ours, others = tmp_path / "ours", tmp_path / "ours-not"
    devices: list[str] = []
    for folder in (ours, others):
        (folder / "point").mkdir(parents=True)
        image = sparse(folder / "disk.img", 8 * MIB)
        command("mkfs.ext4", "-q", "-F", image)
        devices.append(command("losetup", "--find", "--show", image).strip())
        command("mount", devices[-1], folder / "point")
    try:
        assert close_scratch(ours) == [str(ours / "point")]
        left = command("losetup", "-n", "-O", "BACK-FILE", "-l")
        assert str(ours) + "/" not in left
        assert str(others) in left
        assert not ours.exists()
        assert (others / "point" / "lost+found").is_dir()
    finally:
        command("umount", others / "point")
        command("losetup", "--detach", devices[1])


@pytest.mark.skipif(shutil.which("zpool") is None, reason="zfs is not installed")
async def test_pools_of_zfs_go(tmp_path: Path) -> None:
    ours = tmp_path / "ours"
    ours.mkdir()
    await asyncio.to_thread(zfs_daemon.ensure)
    name = f"sandlot-test-{os.urandom(4).hex()}"
    await ZfsManager().create_pool(name, str(sparse(ours / "pool.img", 80 * MIB)))
    assert any(path.startswith(f"{ours}/") for path in files_of_pools())
    close_scratch(ours)
    assert name not in await ZfsManager().pools()
    assert not ours.exists()
