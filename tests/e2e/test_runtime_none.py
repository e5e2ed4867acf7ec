"""The runtime `none`: trusted code on the machine itself, with the same calls. Needs no root."""

import asyncio
import os
import signal
from pathlib import Path

import pytest

from sandlot.host.service import SandboxHostService
from sandlot.model import (
    CallRequest,
    Capability,
    CapabilityNotSupported,
    InvalidArgument,
    SessionSpec,
    TerminalSize,
)
from tests.conftest import collect, is_root, run


@pytest.fixture
async def session(host: SandboxHostService) -> str:
    return (await host.create(SessionSpec(runtime="none"))).session_id


async def test_commands_run_in_the_workspace_with_a_clean_environment(
    host: SandboxHostService, session: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECRET_OF_THE_HOST", "x")
    info = await host.get(session)
    ran = await run(host, CallRequest(session, ("sh", "-c", "pwd; env; echo data > file")))
    assert ran.stdout.decode().splitlines()[0] == info.workspace
    names = {line.split("=")[0] for line in ran.stdout.decode().splitlines()[1:]}
    assert names <= {"PATH", "LANG", "HOME", "PWD", "SHLVL", "_", "OLDPWD"}
    assert (info.runtime, info.storage) == ("none", "layers")
    with open(f"{info.workspace}/file") as file:  # noqa: PTH123
        assert file.read() == "data\n"


async def test_it_says_that_it_does_not_isolate_and_is_never_chosen(host: SandboxHostService) -> None:
    _storages, runtimes = await host.probes()
    (none,) = [probe for probe in runtimes if probe.name == "none"]
    assert "does not isolate" in none.reason
    if not is_root():
        with pytest.raises(CapabilityNotSupported, match="root"):
            await host.create(SessionSpec())
    else:
        assert (await host.create(SessionSpec())).runtime == "namespaces"
        assert Capability.ISOLATION in await host.capabilities()


async def test_streams_stdin_terminals_and_signals_work(host: SandboxHostService, session: str) -> None:
    async with host.call(CallRequest(session, ("cat",), stdin=True)) as events:
        await events.write_stdin(b"through")
        await events.close_stdin()
        assert (await collect(events)).stdout == b"through"
    ran = await run(host, CallRequest(session, ("stty", "size"), terminal=TerminalSize(11, 22)))
    assert ran.stdout.strip() == b"11 22"
    async with host.call(CallRequest(session, ("sleep", "100"))) as events:
        await events.signal(signal.SIGUSR1)
        assert (await events.result()).signal == signal.SIGUSR1
    with pytest.raises(CapabilityNotSupported):
        await run(host, CallRequest(session, ("true",), user="root"))
    with pytest.raises(InvalidArgument):
        await run(host, CallRequest(session, ("true",), cwd="/no/such/directory"))


async def test_destroy_ends_everything_it_started(host: SandboxHostService, session: str) -> None:
    script = "sleep 1000 & setsid sleep 1000 & (setsid sh -c 'sleep 1000 & echo $!' &) ; echo $!; sleep 0.2"
    ran = await run(host, CallRequest(session, ("sh", "-c", script)))
    pids = [int(line) for line in ran.stdout.split()]
    assert len(pids) == 2
    await host.destroy(session)
    await asyncio.sleep(0.1)
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


@pytest.mark.root
async def test_it_sees_the_machine_beside_sessions_that_do_not(host: SandboxHostService) -> None:
    """The keeper lets go of mounts that confined guests do not need; plain ones run on the machine as it is."""
    await host.create(SessionSpec())
    session_id = (await host.create(SessionSpec(runtime="none"))).session_id
    script = "echo x > /dev/null && test -d /dev/pts && test -d /sys/kernel && awk '{ print $5 }' /proc/self/mountinfo"
    before = mount_points()
    ran = await run(host, CallRequest(session_id, ("sh", "-c", script)))
    assert ran.exit_code == 0, ran
    after = mount_points()  # other programs of the machine may mount meanwhile
    assert {"/", "/proc"} <= before & after <= set(ran.stdout.decode().split()) <= before | after


def mount_points() -> set[str]:
    return {line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()}
