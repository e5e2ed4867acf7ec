"""Failed sessions come back, with their files, whatever made them fail and whenever an engine dies meanwhile."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from sandlot import AsyncSandbox, Client
from sandlot.config.settings import Settings, load
from sandlot.host.service import SandboxHostService
from sandlot.model import (
    CallRequest,
    CallState,
    DiffRequest,
    FileRead,
    FileWrite,
    InvalidState,
    RollbackRequest,
    SessionFailed,
    SessionInfo,
    SessionNotFound,
    SessionSpec,
    SessionState,
    TurnRequest,
)
from sandlot.wiring.embedded import build
from tests.conftest import clean_up, run
from tests.e2e.test_cli import Program

pytestmark = [pytest.mark.root, pytest.mark.timeout(120)]

WAIT_S = 40
# An engine that makes a session, lets it fail, and dies at a named place; or dies while it makes the session.
VICTIM = """
import asyncio, os, signal, sys
from sandlot.config.settings import load
from sandlot.host import failpoints
from sandlot.model import SessionSpec
from sandlot.wiring.embedded import build
from tests.e2e.test_recover import let_fail, write

async def main(data, place):
    async with build(load({**os.environ, "SANDLOT_DATA_DIR": data})) as host:
        failpoints.arm(place, lambda: os.kill(os.getpid(), signal.SIGKILL))
        await host.create(SessionSpec(session_id="s", request_id="once"))
        await write(host, "kept")
        await let_fail(host)
        await host.recover("s")

asyncio.run(main(*sys.argv[1:]))
"""


def die_at(data: Path, place: str) -> None:
    command = [sys.executable, "-c", VICTIM, str(data), place]
    ran = subprocess.run(command, cwd=Path(__file__).parents[2], capture_output=True, timeout=WAIT_S, check=False)
    assert ran.returncode == -signal.SIGKILL, ran.stderr.decode()


def guests(host: SandboxHostService) -> list[int]:
    """What the keeper has started and still holds; its janitor has ended when nothing is being dropped."""
    children = Path(f"/proc/{host.keeper_pid}/task/{host.keeper_pid}/children").read_text().split()
    return [int(pid) for pid in children if is_guest(int(pid))]


def is_guest(pid: int) -> bool:
    """Only guests are pid 1 of something."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False
    return any(line.split()[1:] == [str(pid), "1"] for line in status.splitlines() if line.startswith("NSpid:"))


async def wait_for_state(host: SandboxHostService, state: SessionState, session_id: str = "s") -> SessionInfo:
    async with asyncio.timeout(WAIT_S):
        while (info := await host.get(session_id)).state is not state:  # noqa: ASYNC110 - the guest is another process
            await asyncio.sleep(0.01)
    return info


async def let_fail(host: SandboxHostService) -> SessionInfo:
    """The only guest there is dies."""
    (pid,) = guests(host)
    os.kill(pid, signal.SIGKILL)
    return await wait_for_state(host, SessionState.FAILED)


async def write(host: SandboxHostService, text: str) -> None:
    async def content() -> AsyncIterator[bytes]:
        yield text.encode()

    await host.write_file(FileWrite("s", "file"), content())


async def read(host: SandboxHostService) -> str:
    async with host.read_file(FileRead("s", "file")) as stream:
        return b"".join([piece async for piece in stream]).decode()


async def test_a_session_whose_guest_died_comes_back_with_its_files_and_its_history(host: SandboxHostService) -> None:
    await host.create(SessionSpec(session_id="s"))
    await run(host, CallRequest("s", ("sh", "-c", "echo one > file; echo root > /var/tmp/x"), call_id="first"))
    await host.turn_complete(TurnRequest("s"))
    await run(host, CallRequest("s", ("sh", "-c", "echo two > file"), call_id="second"))
    async with host.call(CallRequest("s", ("sleep", "1000"), call_id="asleep", detach=True)) as stream:
        async for _started in stream:
            break
    failed = await let_fail(host)
    assert failed.reason
    with pytest.raises(SessionFailed, match="recover"):
        await run(host, CallRequest("s", ("true",)))

    again = await host.recover("s")
    assert (again.state, again.reason) == (SessionState.ACTIVE, "")
    ran = await run(host, CallRequest("s", ("cat", "file", "/var/tmp/x"), call_id="third"))
    assert ran.stdout == b"two\nroot\n"
    records = {record.call_id: record.state for record in await host.calls("s")}
    assert records == {
        "first": CallState.ENDED,
        "second": CallState.ENDED,
        "asleep": CallState.LOST,
        "third": CallState.ENDED,
    }
    turn = await host.turn_complete(TurnRequest("s"))
    assert [call.call_id for call in turn.calls] == ["second", "asleep", "third"]
    async with host.diff(DiffRequest("s", "1", "2")) as batches:
        assert "/workspace/file" in [change.path async for batch in batches for change in batch]
    await host.rollback(RollbackRequest("s", "1"))
    assert await read(host) == "one\n"


async def test_what_has_not_failed_is_refused(host: SandboxHostService) -> None:
    await host.create(SessionSpec(session_id="s"))
    with pytest.raises(InvalidState):
        await host.recover("s")
    with pytest.raises(SessionNotFound):
        await host.recover("nobody")
    assert (await run(host, CallRequest("s", ("echo", "alive")))).stdout == b"alive\n"


async def test_all_who_ask_at_once_get_one_guest_and_a_destroy_waits(host: SandboxHostService) -> None:
    await host.create(SessionSpec(session_id="s"))
    await write(host, "kept")
    await let_fail(host)
    answers = await asyncio.gather(*(host.recover("s") for _ in range(5)))
    assert {answer.state for answer in answers} == {SessionState.ACTIVE}
    assert len(guests(host)) == 1
    assert await read(host) == "kept"
    await let_fail(host)
    recovering = asyncio.create_task(host.recover("s"))
    await asyncio.sleep(0)
    await host.destroy("s")
    await asyncio.gather(recovering, return_exceptions=True)
    with pytest.raises(SessionNotFound):
        await host.get("s")
    assert guests(host) == []


async def test_a_recovery_that_is_cancelled_is_whole(host: SandboxHostService) -> None:
    await host.create(SessionSpec(session_id="s"))
    await let_fail(host)
    recovering = asyncio.create_task(host.recover("s"))
    await asyncio.sleep(0)
    recovering.cancel()
    await asyncio.gather(recovering, return_exceptions=True)
    await wait_for_state(host, SessionState.ACTIVE)
    assert len(guests(host)) == 1
    assert (await run(host, CallRequest("s", ("echo", "alive")))).stdout == b"alive\n"


@pytest.mark.parametrize("place", ["recover: guest started", "recover: recorded"])
async def test_an_engine_that_dies_meanwhile_leaves_a_session_that_can_be_had(settings: Settings, place: str) -> None:
    die_at(settings.data, place)
    async with build(settings) as host:
        info = await host.get("s")
        if info.state is SessionState.FAILED:
            assert guests(host) == [], "the guest of a failed session lives"
            await host.recover("s")
        assert len(guests(host)) == 1
        assert await read(host) == "kept"
        assert (await run(host, CallRequest("s", ("cat", "file")))).stdout == b"kept"
        await clean_up(host)


async def test_a_session_without_its_volume_stays_failed_and_keeps_what_is_left(settings: Settings) -> None:
    async with build(settings) as host:
        await host.create(SessionSpec(session_id="s"))
        await run(host, CallRequest("s", ("sh", "-c", "echo one > file")))
        await host.turn_complete(TurnRequest("s"))
        await run(host, CallRequest("s", ("sh", "-c", "echo two > new")))
    volumes = settings.data / "volumes"
    (closed,) = [path for path in volumes.iterdir() if (path / "u" / "workspace" / "file").exists()]
    away = settings.data / "away"
    closed.rename(away)
    for _again in range(2):
        async with build(settings) as host:
            assert (await host.get("s")).state is SessionState.FAILED
            with pytest.raises(SessionFailed, match="volume is missing"):
                await host.recover("s")
            assert "volume is missing" in (await host.get("s")).reason
    away.rename(closed)
    async with build(settings) as host:
        await host.recover("s")
        assert (await run(host, CallRequest("s", ("cat", "file", "new")))).stdout == b"one\ntwo\n"
        await clean_up(host)
    assert list(volumes.iterdir()) == []


@pytest.mark.parametrize("place", ["create: volume made", "create: guest started", "create: recorded"])
async def test_a_repeated_create_makes_what_a_dead_engine_began(settings: Settings, place: str) -> None:
    die_at(settings.data, place)
    async with build(settings) as host:
        info = await host.create(SessionSpec(session_id="s", request_id="once"))
        assert (info.session_id, info.state) == ("s", SessionState.ACTIVE)
        assert (await run(host, CallRequest("s", ("echo", "alive")))).stdout == b"alive\n"
        await clean_up(host)


async def test_a_repeated_create_never_removes_what_was_written(host: SandboxHostService) -> None:
    await host.create(SessionSpec(session_id="s", request_id="once"))
    await write(host, "by the host, without a single call")
    await let_fail(host)
    info = await host.create(SessionSpec(session_id="s", request_id="once"))
    assert (info.session_id, info.state) == ("s", SessionState.ACTIVE)
    assert await read(host) == "by the host, without a single call"


async def test_the_sdk_and_the_command_line_recover(data_dir: Path) -> None:
    sandlot = Program(data_dir)
    async with build_for(data_dir) as host:
        await host.create(SessionSpec(session_id="s"))
        await write(host, "kept")
        await let_fail(host)
    ran = sandlot("recover", "s")
    assert (ran.returncode, b"active again" in ran.stderr + ran.stdout) == (0, True), ran
    ran = sandlot("recover", "s")
    assert ran.returncode == 125
    async with build_for(data_dir) as host:
        await let_fail(host)
    async with Client(data_dir=data_dir) as client:
        sandbox = await AsyncSandbox.connect("s", client=client)
        assert (await sandbox.recover()).state is SessionState.ACTIVE
        assert await sandbox.files.read("file") == "kept"
        await sandbox.kill()


def build_for(data: Path) -> SandboxHostService:
    return build(load({**os.environ, "SANDLOT_DATA_DIR": str(data)}))
