"""A machine of the local provisioner is an engine that serves: what a fleet is built on."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from sandlot.control.node import NodeConfig, NodeSandboxControl
from sandlot.model import (
    CreateSandboxRequest,
    FileRead,
    FileWrite,
    GetProcessStatusRequest,
    Instance,
    InstanceConfig,
    InstanceFilter,
    InstanceState,
    LaunchProcessRequest,
    MaxSessionsReached,
    ProcessState,
    SessionState,
)
from sandlot.provision.directory import mounts_below
from sandlot.provision.holding import holders
from sandlot.provision.local import LocalImage, LocalProvisioner, sandlot_image
from sandlot.rpc.client import HostClient
from tests.soak.leaks import group_folders
from tests.waiting import until

pytestmark = pytest.mark.root
WITHIN_S = 90
CONFIG = InstanceConfig("sandlot", user_data=b"sessions_max = 1\n", tags={"fleet": "f"}, request_id="r")


def with_templates(shared: Path) -> LocalImage:
    """The image `sandlot` as it is, on a data directory that has the template already: it costs seconds to make."""
    whole = sandlot_image()
    linked = ("/bin/sh", "-c", 'ln -sfn "$0" "$1/templates"; shift; exec "$@"', str(shared), "{data}")
    return LocalImage((*linked, *whole.run), whole.clean)


async def running(one: LocalProvisioner, instance_id: str) -> Instance:
    async with asyncio.timeout(WITHIN_S):
        while (now := await one.describe(instance_id)).state is InstanceState.PENDING:  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0.02)
    assert now.state is InstanceState.RUNNING, now
    return now


async def pieces(content: bytes) -> AsyncIterator[bytes]:
    yield content


def processes(data: Path) -> list[str]:
    """Of sessions of this engine."""
    return [pid for folder in group_folders(data) for pid in (folder / "cgroup.procs").read_text().split()]


@pytest.mark.timeout(300)
async def test_a_machine_serves_sandboxes_keeps_them_over_a_stop_and_leaves_nothing(
    tmp_path: Path, shared_templates: Path
) -> None:
    images = {"sandlot": with_templates(shared_templates)}
    one = LocalProvisioner(tmp_path, images)
    made = await running(one, (await one.launch(CONFIG)).instance_id)
    data = tmp_path / "instances" / made.instance_id / "data"
    try:
        async with HostClient(f"http://{made.endpoint}") as host:
            control = NodeSandboxControl(host, NodeConfig(address=made.endpoint))
            sandbox = await control.create_sandbox(CreateSandboxRequest(labels={"agent": "7"}))
            assert (sandbox.address, sandbox.capabilities.concurrent_sandboxes) == (made.endpoint, 1)
            with pytest.raises(MaxSessionsReached):
                await control.create_sandbox(CreateSandboxRequest())
            process = await control.launch_process(LaunchProcessRequest(sandbox.sandbox_id, "sleep", ("1000",)))
            told = GetProcessStatusRequest(sandbox.sandbox_id, process.process_id)
            assert (await control.get_process_status(told)).status is ProcessState.RUNNING
            await host.write_file(FileWrite(sandbox.sandbox_id, "kept"), pieces(b"still here"))

        assert (await one.stop(made.instance_id)).state is InstanceState.STOPPED
        assert holders(str(data)) == []
        assert await until(lambda: processes(data) == [], WITHIN_S), "sessions run on in a machine that is stopped"
        again = await running(one, (await one.start(made.instance_id)).instance_id)
        async with HostClient(f"http://{again.endpoint}") as host:
            assert (await host.get(sandbox.sandbox_id)).state is SessionState.FAILED
            assert (await host.recover(sandbox.sandbox_id)).state is SessionState.ACTIVE
            async with host.read_file(FileRead(sandbox.sandbox_id, "kept")) as stream:
                assert b"".join([piece async for piece in stream]) == b"still here"
    finally:
        await LocalProvisioner(tmp_path, images).terminate(made.instance_id)
    assert (holders(str(data)), mounts_below(data), group_folders(data)) == ([], [], [])
    assert list(await one.list(InstanceFilter())) == []
    assert not data.exists()
