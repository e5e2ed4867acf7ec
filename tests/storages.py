"""The storages of this machine, for tests that run on each of them; and what is left of one, seen from outside."""

import asyncio
import contextlib
import tempfile
import time
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path

from sandlot.config.settings import load
from sandlot.host.service import SandboxHostService
from sandlot.host.storage.zfs_commands import ZfsManager
from sandlot.model import Probe
from sandlot.wiring.embedded import build
from tests.scratch import files_of_pools

NAMES = ("layers", "btrfs", "zfs", "local-disk")
# So that a test has snapshots where they are an option, and a pool of a size that costs nothing.
ENVIRONMENT: Mapping[str, str] = {
    "SANDLOT_LOCAL_DISK_SNAPSHOTS": "on",
    "SANDLOT_BTRFS_BYTES": "2G",
    "SANDLOT_ZFS_BYTES": "4G",
}
_PATIENCE_S = 60
_MOMENT_S = 10
_FOLDERS = {
    "layers": "volumes",
    "btrfs": "mounts/btrfs/volumes",
    "local-disk": "local-disk/volumes",
    "zfs": "mounts/images",
}  # below the data directory: where volumes and points are entries


@cache
def probe(name: str) -> Probe:
    """What it says of this machine, on a data directory of its own. In a thread: a test may ask on its loop."""
    with tempfile.TemporaryDirectory(prefix="sandlot-probe-") as folder:
        data = Path(folder) / "data"
        data.mkdir(mode=0o700)
        with ThreadPoolExecutor(1) as thread:
            return thread.submit(lambda: asyncio.run(_ask(data, name))).result()


async def _ask(data: Path, name: str) -> Probe:
    host = build(load({**ENVIRONMENT, "SANDLOT_DATA_DIR": str(data)}))
    storages = host._parts.storages  # pyright: ignore[reportPrivateUsage] - an engine would have to be started
    if name not in storages:
        return Probe(name, False, "this engine has no such storage")
    try:
        return await storages[name].probe()
    finally:
        await storages.detach()


# ---- what is left --------------------------------------------------------------------------------------------------


def kept(data: Path, name: str) -> set[str]:
    """Everything that a storage keeps for sessions now, by its names on the machine, whatever it says itself. What
    waits to be freed is not counted: it has lost its name."""
    folder = data / _FOLDERS.get(name, name)
    return {entry.name for entry in folder.iterdir()} if folder.is_dir() else set()


async def nothing_left(host: SandboxHostService, data: Path, name: str) -> None:
    """When all sessions are gone nothing of theirs is there. What counts changes needs the files a moment longer."""
    give_up = asyncio.get_running_loop().time() + _PATIENCE_S
    part = await host.storage(name)
    while left := kept(data, name) | set(await part.strays(())):
        assert asyncio.get_running_loop().time() < give_up, left
        await part.sweep()
        await asyncio.sleep(0.02)


async def needless_in_pool(data: Path, needed: Iterable[str]) -> set[str]:
    """What the pool of zfs holds that neither these states and points need, nor anything that was made from it."""
    wanted, parent = set(needed), f"{(data / 'zfs.pool').read_text().strip()}/sessions/"
    found = await ZfsManager().properties(parent.rstrip("/"), ("origin",))
    names = {full.removeprefix(parent) for full in found if full.startswith(parent)}
    origins = {values["origin"].removeprefix(parent) for values in found.values()}
    points = {name for name in names if "@" in name and (name in origins or name.partition("@")[2] in wanted)}
    states = {name for name in names if name in wanted} | {name.partition("@")[0] for name in points}
    return names - points - states


def left_of_machine(data: Path) -> set[str]:
    """The same, when it had a moment: a filesystem goes when the last root of a guest has been dropped."""
    give_up = time.monotonic() + _MOMENT_S
    while (found := machine(data)) and time.monotonic() < give_up:
        time.sleep(0.05)
    return found


def machine(data: Path) -> set[str]:
    """What of the machine belongs to a data directory: mounts below it, loop devices and pools on its files."""
    mounts = Path("/proc/self/mountinfo").read_text(errors="replace").splitlines()
    found = {f"mount {line.split()[4]}" for line in mounts if f" {data}/" in line}
    for block in list(Path("/sys/block").iterdir()):
        with contextlib.suppress(OSError):  # not bound to anything
            backing = (block / "loop" / "backing_file").read_text().strip()
            if backing.startswith(f"{data}/"):
                found.add(f"loop device on {backing}")
    return found | {f"pool on {path}" for path in files_of_pools() if path.startswith(f"{data}/")}
