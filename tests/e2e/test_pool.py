"""The warm pool: sessions that were started before anyone asked."""

import asyncio
import os
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from sandlot.config.settings import Settings
from sandlot.host.service import SandboxHostService
from sandlot.model import CallRequest, SessionFilter, SessionSpec
from sandlot.wiring.embedded import build
from tests.conftest import clean_up, run

pytestmark = pytest.mark.root


async def wait_full(data: Path, volumes: int) -> None:
    async with asyncio.timeout(10):
        while len(list((data / "volumes").iterdir())) < volumes:  # noqa: ASYNC110 - the pool has no event for others
            await asyncio.sleep(0.01)


async def use(host: SandboxHostService) -> str:
    info = await host.create(SessionSpec(envs={"WHO": "me"}))
    ran = await run(host, CallRequest(info.session_id, ("sh", "-c", "echo $WHO; ls -A /workspace; id -un")))
    assert ran.stdout == b"me\nuser\n"
    return info.session_id


async def test_sessions_from_the_pool_are_like_any_other_and_it_is_refilled(settings: Settings) -> None:
    async with build(replace(settings, warm_pool=3)) as host:
        await wait_full(settings.data, 3)
        first = {entry.name for entry in (settings.data / "volumes").iterdir()}
        await use(host)
        await wait_full(settings.data, 4)
        assert first < {entry.name for entry in (settings.data / "volumes").iterdir()}, "the pool was not used"
        await asyncio.gather(*(use(host) for _ in range(8)))  # more than it holds
        await clean_up(host)
    assert list((settings.data / "volumes").iterdir()) == []


async def test_a_pool_that_was_left_behind_is_removed(settings: Settings) -> None:
    program = (
        "import asyncio, os, sys\n"
        "from sandlot.config.settings import load\n"
        "from sandlot.wiring.embedded import build\n"
        "async def main():\n"
        "    async with build(load()):\n"
        "        print('up', flush=True)\n"
        "        await asyncio.sleep(60)\n"
        "asyncio.run(main())\n"
    )
    envs = {**os.environ, "SANDLOT_DATA_DIR": str(settings.data), "SANDLOT_WARM_POOL": "2"}
    engine = await asyncio.create_subprocess_exec(
        sys.executable, "-c", program, env=envs, stdout=asyncio.subprocess.PIPE
    )
    assert engine.stdout
    await engine.stdout.readline()
    await wait_full(settings.data, 2)
    engine.kill()
    await engine.wait()
    async with build(settings) as host:
        assert list((settings.data / "volumes").iterdir()) == []
        assert (await host.list(SessionFilter())).sessions == ()
