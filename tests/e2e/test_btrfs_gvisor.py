"""The storage `btrfs` below the runtime `gvisor`, which keeps files of a root open that was taken from it."""

import os
import shutil
from pathlib import Path

import pytest

from sandlot.config.settings import Settings, load
from sandlot.conformance import Verdict, conform_storage
from sandlot.host.service import SandboxHostService
from sandlot.model import (
    CallOutput,
    CallRequest,
    LimitReached,
    PauseRequest,
    Resources,
    SessionSpec,
    SessionState,
    SnapshotRequest,
)
from tests import storages
from tests.conftest import collect

pytestmark = [pytest.mark.root, pytest.mark.skipif(shutil.which("runsc") is None, reason="runsc is not installed")]
MIB = 1 << 20
# Memory that nothing can pack; it says so, and again when it is asked.
HOLDS = "import os; held = os.urandom(40 << 20); print('ready', flush=True); input(); print(len(held))"
CHECK = "the_limit_holds_after_a_rollback"


@pytest.fixture
def settings(data_dir: Path) -> Settings:
    if not (ready := storages.probe("btrfs")).ready:
        pytest.skip(f"btrfs: {ready.reason}")
    known = {"SANDLOT_DATA_DIR": str(data_dir), "SANDLOT_STORAGE": "btrfs", "SANDLOT_RUNTIME": "gvisor"}
    return load({**os.environ, **storages.ENVIRONMENT, **known})


async def test_room_comes_back_though_files_are_still_open(host: SandboxHostService) -> None:
    part, have = await host.storage("btrfs"), await host.capabilities_of("gvisor", "btrfs")
    outcomes = [outcome async for outcome in conform_storage(host, "gvisor", part, have, frozenset({CHECK}))]
    assert [(one.check, one.verdict, one.detail) for one in outcomes] == [(CHECK, Verdict.PASSED, "")]


async def test_memory_that_is_kept_counts_in_the_disk_limit(host: SandboxHostService, settings: Settings) -> None:
    """What does not fit is refused, and what ran runs on, or stands still as before."""
    await host.create(SessionSpec(session_id="s", resources=Resources(disk_bytes=32 * MIB)))
    request = CallRequest("s", ("python3", "-c", HOLDS), stdin=True, detach=True)
    async with host.call(request) as call:
        async for event in call:
            if isinstance(event, CallOutput):
                break
        with pytest.raises(LimitReached, match="disk limit"):
            await host.pause(PauseRequest("s", memory=True))
        assert (await host.get("s")).state is SessionState.ACTIVE
        with pytest.raises(LimitReached, match="disk limit"):
            await host.create_snapshot(SnapshotRequest("s", "m", memory=True))
        assert await host.list_snapshots("s") == []
        await host.pause(PauseRequest("s"))
        with pytest.raises(LimitReached, match="disk limit"):
            await host.pause(PauseRequest("s", memory=True))
        info = await host.get("s")
        assert (info.state, info.sleeps) == (SessionState.PAUSED, False)
        await host.resume("s")
        assert not list((settings.data / "memory").iterdir()), "nothing of it is kept"
        await call.write_stdin(b"\n")
        assert (await collect(call)).stdout == b"ready\n%d\n" % (40 * MIB)
    assert (await host.pause(PauseRequest("s", memory=True))).sleeps, "without that program it fits"
    await host.resume("s")
