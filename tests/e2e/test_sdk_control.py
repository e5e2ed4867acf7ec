"""`Control`: what an orchestrator gets from the SDK with one call."""

from pathlib import Path
from typing import cast

import pytest

from sandlot import (
    AsyncControl,
    AsyncSandbox,
    Client,
    Control,
    CreateSandboxRequest,
    GetProcessStatusRequest,
    InvalidArgument,
    LaunchProcessRequest,
    ProcessState,
    Resources,
    Sandbox,
    SandboxCapabilities,
    SessionNotFound,
    SessionPaused,
)
from sandlot.contracts import Host, SandboxControl
from sandlot.fakes.host import FakeHost

pytestmark = pytest.mark.root
MIB = 1 << 20


async def test_it_is_a_control(data_dir: Path) -> None:
    """Whatever takes a control takes this one."""
    async with Client(data_dir=data_dir) as client:
        control: SandboxControl = AsyncControl(client=client)
        made = await control.create_sandbox(CreateSandboxRequest(labels={"agent": "7"}, request_id="r"))
        assert made == await AsyncControl(client=client).create_sandbox(CreateSandboxRequest(request_id="r"))
        assert made.capabilities == await control.capabilities()
        sandbox = await AsyncSandbox.connect(made.sandbox_id, client=client)
        launched = await control.launch_process(
            LaunchProcessRequest(made.sandbox_id, "sh", ("-c", "echo $KEY > told; sleep 1000"), envs={"KEY": "k"})
        )
        told = GetProcessStatusRequest(made.sandbox_id, launched.process_id)
        assert (await control.get_process_status(told)).status is ProcessState.RUNNING
        assert (await sandbox.commands.run("until [ -s told ]; do sleep 0.02; done; cat told")).stdout == "k\n"
        await control.pause_sandbox(made.sandbox_id)
        with pytest.raises(SessionPaused):
            await control.launch_process(LaunchProcessRequest(made.sandbox_id, "true"))
        await control.destroy_sandbox(made.sandbox_id)
        with pytest.raises(SessionNotFound):
            await control.get_process_status(told)


def test_limits_that_are_asked_for_hold_inside(data_dir: Path) -> None:
    with Client(data_dir=data_dir) as client:
        control = Control(client=client)
        wanted = Resources(memory_bytes=64 * MIB, pids=64)
        made = control.create_sandbox(CreateSandboxRequest(resources=wanted, labels={"agent": "7"}))
        info = Sandbox.connect(made.sandbox_id, client=client).info()
        assert (info.resources.memory_bytes, info.resources.pids) == (64 * MIB, 64)
        assert info.labels == {"agent": "7"}
        control.destroy_sandbox(made.sandbox_id)


def test_it_takes_any_host() -> None:
    client = Client(host=cast("Host", FakeHost(sessions_max=3)), on_portal=True)
    with client:
        control = Control(client=client)
        told = control.capabilities()
        assert isinstance(told, SandboxCapabilities)
        assert told.concurrent_sandboxes == 3
        with pytest.raises(InvalidArgument):
            control.destroy_sandbox("../x")
