"""What `sandlot conform` knows by name. Each is given a host, which some of them stand on."""

import asyncio
import sys
import tempfile
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

from sandlot.conformance import Target
from sandlot.contracts import Host
from sandlot.control.node import NodeSandboxControl
from sandlot.environments.local import LocalProvider
from sandlot.environments.native import NativeSandboxEnvironment
from sandlot.fakes.control import FakeSandboxes
from sandlot.fakes.environment import FakeProvider
from sandlot.fakes.host import DEVIATIONS, FakeHost
from sandlot.fakes.provisioner import IMAGE, FakeCloud
from sandlot.model import InstanceConfig
from sandlot.provision.local import LocalImage, LocalProvisioner

_SERVES = LocalImage((sys.executable, "-m", "http.server", "-b", "{host}", "-d", "{data}", "{port}"))


@asynccontextmanager
async def native(host: Host) -> AsyncGenerator[Target]:
    yield Target(partial(NativeSandboxEnvironment, host))


@asynccontextmanager
async def node(host: Host) -> AsyncGenerator[Target]:
    yield Target(partial(NodeSandboxControl, host))


@asynccontextmanager
async def local() -> AsyncGenerator[Target]:
    async with _passing() as top:
        yield Target(LocalProvider(top).environment)


@asynccontextmanager
async def local_provisioner() -> AsyncGenerator[Target]:
    async with _passing() as top:
        images = {"web": _SERVES}
        yield Target(lambda: LocalProvisioner(top, images, instances_max=5), config=InstanceConfig("web"))


@asynccontextmanager
async def _passing() -> AsyncGenerator[Path]:
    top = await asyncio.to_thread(tempfile.TemporaryDirectory[str], prefix="sandlot-conform-")
    try:
        yield Path(top.name)
    finally:
        await asyncio.to_thread(top.cleanup)


@asynccontextmanager
async def fake_environment() -> AsyncGenerator[Target]:
    yield Target(FakeProvider(sessions_max=4).environment)


@asynccontextmanager
async def fake_host() -> AsyncGenerator[Target]:
    host = FakeHost()
    yield Target(lambda: host, DEVIATIONS)


@asynccontextmanager
async def fake_control() -> AsyncGenerator[Target]:
    yield Target(FakeSandboxes().control)


@asynccontextmanager
async def fake_provisioner() -> AsyncGenerator[Target]:
    yield Target(FakeCloud().provisioner, config=InstanceConfig(IMAGE))
