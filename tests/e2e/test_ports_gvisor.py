"""Ports of sessions with a kernel of their own, whose guest carries the bytes; and of runtimes that have none."""

import asyncio
import os
import shutil
import subprocess
import sys
from contextlib import AsyncExitStack, suppress
from pathlib import Path

import pytest

from sandlot.config.settings import Settings, load
from sandlot.conformance.port_stage import dialled, read_exactly
from sandlot.host.runtimes.none import NoRuntime
from sandlot.host.service import SandboxHostService
from sandlot.model import (
    CallRequest,
    Capability,
    CapabilityNotSupported,
    ExposeRequest,
    PauseRequest,
    ProcessSpec,
    ProcessState,
    SessionSpec,
    SessionState,
    SnapshotRequest,
)
from sandlot.wiring.embedded import build
from tests.conftest import clean_up, run
from tests.e2e.port_engine import OTHER, OWN, SESSION
from tests.e2e.test_gvisor import NO_RUNSC
from tests.e2e.test_ports import says_back, serve

ENGINE = [sys.executable, "-m", "tests.e2e.port_engine"]
SOON_S = 60
HELD = 5
needs_runsc = pytest.mark.skipif(shutil.which("runsc") is None, reason=NO_RUNSC)


@pytest.fixture
def gvisor(data_dir: Path) -> Settings:
    known = {"SANDLOT_DATA_DIR": str(data_dir), "SANDLOT_STORAGE": "", "SANDLOT_RUNTIME": "gvisor"}
    return load({**os.environ, **known})


async def hold_and_kill(data: Path) -> tuple[str, str]:
    """Connections are open, and in the middle of being used, when the engine is killed. The addresses."""
    environment = {**os.environ, "SANDLOT_RUNTIME": "gvisor"}
    engine = subprocess.Popen(
        [*ENGINE, str(data)], stdout=subprocess.PIPE, cwd=Path(__file__).parents[2], env=environment
    )
    assert engine.stdout
    try:
        own, other = (await asyncio.to_thread(engine.stdout.readline)).decode().split()
        async with AsyncExitStack() as stack, asyncio.timeout(SOON_S):
            lines = [await stack.enter_async_context(dialled(each)) for each in (own, other) * HELD]
            for line in lines:
                await line.write(b"held")
                assert await read_exactly(line, 4) == b"held"
            for line in lines:
                await line.write(b"x" * 100_000)
            engine.kill()
            await asyncio.to_thread(engine.wait, 10)
            for line in lines:  # whoever had one sees that it has ended
                with suppress(ConnectionError):
                    while await line.read():
                        pass
    finally:
        engine.kill()
        engine.wait(10)
        engine.stdout.close()
    return own, other


async def carriers(host: SandboxHostService, session_id: str) -> int:
    """How many processes there are beside those of the two servers: they are of the guest, and carry connections."""
    count = "ps -eo args= | grep -vc 'python3\\|ps -eo\\|grep\\|sh -c'"
    ran = await run(host, CallRequest(session_id, ("sh", "-c", count)))
    return int(ran.stdout) - 1  # pid 1


@pytest.mark.root
@needs_runsc
@pytest.mark.timeout(240)
async def test_an_engine_that_is_killed_leaves_no_connections_and_its_addresses(gvisor: Settings) -> None:
    own, other = await hold_and_kill(gvisor.data)
    async with build(gvisor) as host:
        assert [(each.port, each.address) for each in await host.list_ports(SESSION)] == [(OWN, own), (OTHER, other)]
        async with asyncio.timeout(SOON_S):
            assert await says_back(own, b"again") == b"again"
            assert await says_back(other, b"again") == b"again"
            while await carriers(host, SESSION):  # noqa: ASYNC110 - another kernel sets no event
                await asyncio.sleep(0.1)
        await clean_up(host)


@pytest.mark.root
@needs_runsc
@pytest.mark.timeout(240)
async def test_a_sleep_breaks_off_connections_and_keeps_the_address(gvisor: Settings) -> None:
    """Also where it ends at once, as for a snapshot."""
    async with build(gvisor) as host:
        await host.create(SessionSpec(session_id=SESSION))
        address = await serve(host, SESSION, OWN)
        sleep, take = PauseRequest(SESSION, memory=True), SnapshotRequest(SESSION, "m", memory=True)
        for put_away in (host.pause(sleep), host.create_snapshot(take)):
            async with asyncio.timeout(SOON_S), dialled(address) as line:
                await line.write(b"held")
                assert await read_exactly(line, 4) == b"held"
                await put_away
                with suppress(ConnectionError):
                    assert await line.read() == b""
            await host.resume(SESSION)
            assert (await host.get(SESSION)).state is SessionState.ACTIVE
            async with asyncio.timeout(SOON_S):
                assert await says_back(address, b"again") == b"again"
        assert [each.state for each in await host.list_processes(SESSION)] == [ProcessState.RUNNING]
        await clean_up(host)


async def test_a_runtime_without_ports_says_so(host: SandboxHostService, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before anything is made."""
    without = NoRuntime.capabilities.fget
    assert without is not None
    monkeypatch.setattr(NoRuntime, "capabilities", property(lambda runtime: without(runtime) - {Capability.PORTS}))
    with pytest.raises(CapabilityNotSupported):
        await host.create(SessionSpec(runtime="none", storage="local-disk", ports=(8000,)))
    session_id = (await host.create(SessionSpec(runtime="none", storage="local-disk"))).session_id
    assert Capability.PORTS not in (await host.get(session_id)).capabilities
    for attempt in (
        host.expose_port(ExposeRequest(session_id, 8000)),
        host.launch_process(ProcessSpec(session_id, ("sleep", "600"), port=8000)),
    ):
        with pytest.raises(CapabilityNotSupported, match="none"):
            await attempt
    with pytest.raises(CapabilityNotSupported, match="none"):
        async with host.connect_port(session_id, 8000):
            pass
    assert await host.list_ports(session_id) == []
    assert await host.list_processes(session_id) == ()
