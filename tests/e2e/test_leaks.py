"""What a session took from the machine comes back when it ends."""

import asyncio
import os
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from sandlot.config.settings import Settings
from sandlot.host.service import SandboxHostService
from sandlot.model import CallRequest, MaxSessionsReached, SessionFilter, SessionSpec
from sandlot.wiring.embedded import build
from tests.ahead import networks_ahead
from tests.conftest import clean_up, run
from tests.own_mounts import ours
from tests.soak.leaks import group_folders

pytestmark = pytest.mark.root

ROUNDS = 500


def count_open(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


def count_children(pid: int) -> int:
    return len(Path(f"/proc/{pid}/task/{pid}/children").read_text().split())


def inventory(host: SandboxHostService, data: Path) -> Counter[str]:
    """Everything of the machine that a session uses."""
    keeper = host.keeper_pid
    return Counter(
        {
            "mounts of the host": len(ours(data)),
            "mounts of the keeper": len(Path(f"/proc/{keeper}/mountinfo").read_text().splitlines()),
            "processes of the keeper": count_children(keeper),
            "descriptors of the engine": count_open(os.getpid()),
            # What is made ahead of sessions comes and goes by itself; test_ahead.py holds it to its bound.
            "descriptors of the keeper": count_open(keeper) - 2 * len(networks_ahead(keeper)),
            **{name: len(list((data / name).iterdir())) for name in ("volumes", "trash", "outputs")},
            "cgroups": len(group_folders(data)),
        }
    )


async def settle(host: SandboxHostService, data: Path, before: Counter[str]) -> Counter[str]:
    """The trash is swept behind the answer; nothing else may lag."""
    for _ in range(200):
        if (now := inventory(host, data)) == before:
            return now
        await asyncio.sleep(0.02)
    return inventory(host, data)


async def rest(host: SandboxHostService, data: Path) -> Counter[str]:
    """What there is when nothing is under way."""
    async with asyncio.timeout(10):
        while list((data / "trash").iterdir()):  # noqa: ASYNC110 - a thread of the engine empties it
            await asyncio.sleep(0.02)
        now = inventory(host, data)
        while now != (now := await _a_moment_later(host, data)):
            pass
    return now


async def _a_moment_later(host: SandboxHostService, data: Path) -> Counter[str]:
    await asyncio.sleep(0.2)
    return inventory(host, data)


@pytest.mark.timeout(180)
async def test_500_sessions_leave_nothing_behind(host: SandboxHostService, settings: Settings) -> None:
    async def once(number: int) -> None:
        info = await host.create(SessionSpec(labels={"round": str(number)}))
        if number % 5 == 0:
            script = "head -c 400000 /dev/zero; echo x > /tmp/x; sleep 1000 & echo done"
            assert (await run(host, CallRequest(info.session_id, ("sh", "-c", script)))).exit_code == 0
        await host.destroy(info.session_id)

    for number in range(20):  # the first ones open what stays open: id maps, template, /dev
        await once(number)
    before = await rest(host, settings.data)
    for number in range(ROUNDS):
        await once(number)
    assert await settle(host, settings.data, before) == before


async def test_an_engine_without_sessions_leaves_no_process(settings: Settings) -> None:
    async with build(settings) as host:
        info = await host.create(SessionSpec())
        keeper = host.keeper_pid
        await host.destroy(info.session_id)
    async with asyncio.timeout(5):
        while Path(f"/proc/{keeper}/fd/0").exists():  # noqa: ASYNC110 - another process, it sets no event
            await asyncio.sleep(0.01)


async def test_a_create_that_is_cancelled_leaves_nothing(host: SandboxHostService, settings: Settings) -> None:
    await host.destroy((await host.create(SessionSpec())).session_id)
    before = await rest(host, settings.data)
    for number in range(40):
        creating = asyncio.create_task(host.create(SessionSpec()))
        await asyncio.sleep(0.0004 * (number % 20))
        creating.cancel()
        await asyncio.gather(creating, return_exceptions=True)
    await clean_up(host)
    # Each id range keeps two descriptors of its maps for the next session of that range.
    maps = (await rest(host, settings.data))["descriptors of the keeper"] - before["descriptors of the keeper"]
    assert 0 <= maps <= 2 * 40
    before["descriptors of the keeper"] += maps
    assert await settle(host, settings.data, before) == before


async def test_hundred_creates_at_once_all_succeed_and_the_limit_holds(settings: Settings) -> None:
    async with build(replace(settings, sessions_max=100)) as host:
        made = await asyncio.gather(*(host.create(SessionSpec()) for _ in range(105)), return_exceptions=True)
        refused = [error for error in made if isinstance(error, MaxSessionsReached)]
        assert len(refused) == 5
        assert len((await host.list(SessionFilter(limit=1000))).sessions) == 100
        await clean_up(host)


@pytest.mark.root
async def test_a_tree_of_any_depth_goes_with_its_session(settings: Settings, data_dir: Path) -> None:
    """Deeper than a path can name, and than a recursion can go; the engine must be able to close all the same."""
    script = "import os\nfor _ in range(2500):\n    os.mkdir('deep'); os.chdir('deep')"
    async with build(settings) as host:
        session_id = (await host.create(SessionSpec())).session_id
        assert (await run(host, CallRequest(session_id, ("python3", "-c", script)))).exit_code == 0
        await host.destroy(session_id)
    assert list((data_dir / "trash").iterdir()) == []
