"""Kill -9 anywhere, start again, and the world is consistent."""

import asyncio
import os
import random
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from sandlot.config.settings import Settings
from sandlot.host.service import SandboxHostService
from sandlot.model import CallRequest, SessionFailed, SessionSpec, SessionState
from sandlot.wiring.embedded import build
from tests.conftest import Ran, clean_up, collect, run
from tests.e2e.engine_process import SESSION, expected, request

pytestmark = pytest.mark.root

ROUNDS = 50
SEED = 20240531


class EngineProcess:
    """An engine that is meant to die. What it printed before that counts as acknowledged."""

    def __init__(self, data: Path, round_number: int, calls: int) -> None:
        command = [sys.executable, "-m", "tests.e2e.engine_process", str(data), str(round_number), str(calls)]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, cwd=Path(__file__).parents[2])

    def read_until(self, word: str) -> list[str]:
        assert self._process.stdout
        lines: list[str] = []
        for line in self._process.stdout:
            lines.append(line.decode().strip())
            if lines[-1].split()[0] == word:
                return lines
        raise AssertionError(f"the engine ended before it said {word}: {lines}")

    def kill(self) -> list[str]:
        self._process.send_signal(signal.SIGKILL)
        assert self._process.stdout
        rest = [line.decode().strip() for line in self._process.stdout]
        self._process.stdout.close()
        self._process.wait(timeout=10)
        return rest


async def read_call(host: SandboxHostService, name: str) -> Ran:
    async with host.attach(SESSION, name) as events:
        return await collect(events)


async def count_runs(host: SandboxHostService) -> Counter[str]:
    ran = await run(host, CallRequest(SESSION, ("cat", "/workspace/ran")))
    return Counter(ran.stdout.decode().split())


@pytest.mark.timeout(240)
async def test_no_byte_is_lost_and_no_command_runs_twice_when_the_engine_is_killed(settings: Settings) -> None:
    chance = random.Random(SEED)
    acknowledged: list[str] = []
    for round_number in range(ROUNDS):
        engine = EngineProcess(settings.data, round_number, calls=2)
        said: list[str] = []
        if round_number % 2:
            said = engine.read_until("session")
            await asyncio.sleep(chance.uniform(0, 0.4))
        else:
            await asyncio.sleep(chance.uniform(0.05, 0.7))  # anywhere, the start of the engine included
        said += engine.kill()
        acknowledged += [line.split()[1] for line in said if line.startswith("started")]
    assert len(acknowledged) > ROUNDS // 2, "the kills came too early to prove anything"
    async with build(settings) as host:
        for name in acknowledged:
            ran = await read_call(host, name)
            assert ran.exit_code == 0
            assert (ran.stdout, ran.stderr) == expected(name), f"output of {name} differs"
        runs = await count_runs(host)
        assert {name: runs[name] for name in acknowledged} == dict.fromkeys(acknowledged, 1)
        assert max(runs.values()) == 1, "a command ran twice"
        await clean_up(host)


async def test_a_repeated_call_id_attaches_instead_of_running_again(host: SandboxHostService) -> None:
    await host.create(SessionSpec(session_id=SESSION))
    for _again in range(3):
        async with host.call(request("only")) as events:
            ran = await collect(events)
        assert (ran.stdout, ran.stderr) == expected("only")
    await asyncio.gather(*(run(host, request("together")) for _ in range(5)))
    assert await count_runs(host) == {"only": 1, "together": 1}


@pytest.mark.timeout(120)
async def test_nothing_is_lost_when_the_keeper_is_killed(host: SandboxHostService) -> None:
    chance = random.Random(SEED)
    await host.create(SessionSpec(session_id=SESSION))
    names = [f"k{number}" for number in range(ROUNDS)]
    for name in names:
        async with host.call(request(name)) as events:
            async for _started in events:
                break
        await asyncio.sleep(chance.uniform(0, 0.05))
        await kill_keeper(host)
    for name in names:
        ran = await read_call(host, name)
        assert (ran.stdout, ran.stderr) == expected(name), f"output of {name} differs"
    assert await count_runs(host) == dict.fromkeys(names, 1)
    assert (await host.get(SESSION)).state is SessionState.ACTIVE


async def kill_keeper(host: SandboxHostService) -> None:
    """Returns when the engine has started another one."""
    old = host.keeper_pid
    os.kill(old, signal.SIGKILL)
    async with asyncio.timeout(10):
        while host.keeper_pid == old:  # noqa: ASYNC110 - the keeper is another process, it sets no event
            await asyncio.sleep(0.005)


async def test_sessions_are_made_while_the_keeper_dies(host: SandboxHostService) -> None:
    chance = random.Random(SEED)
    for number in range(40):
        creating = asyncio.create_task(host.create(SessionSpec(session_id=f"s{number}")))
        await asyncio.sleep(chance.uniform(0, 0.004))
        await kill_keeper(host)
        await creating
        ran = await run(host, CallRequest(f"s{number}", ("echo", "alive")))
        assert ran.stdout == b"alive\n"


@pytest.mark.timeout(60)
async def test_when_both_die_the_session_has_failed_and_its_files_are_there(settings: Settings) -> None:
    engine = EngineProcess(settings.data, 0, calls=1)
    said = engine.read_until("all")
    keeper = int(next(line.split()[1] for line in said if line.startswith("keeper")))
    await asyncio.sleep(0.1)
    os.kill(keeper, signal.SIGKILL)
    engine.kill()
    async with build(settings) as host:
        info = await host.get(SESSION)
        assert info.state is SessionState.FAILED
        assert info.reason
        with pytest.raises(SessionFailed, match="files are kept"):
            await run(host, CallRequest(SESSION, ("true",)))
        volume = next((settings.data / "volumes").iterdir())
        assert (volume / "u" / "workspace" / "ran").read_text() == "r0-0\n"
        (record,) = await host.calls(SESSION)
        assert str(record.state) == "lost"
        await clean_up(host)


async def test_an_idempotent_create_gives_the_first_answer_after_a_crash(settings: Settings) -> None:
    engine = EngineProcess(settings.data, 0, calls=0)
    engine.read_until("all")
    engine.kill()
    async with build(settings) as host:
        info = await host.create(SessionSpec(request_id="crash-request"))
        assert info.session_id == SESSION
        await clean_up(host)
