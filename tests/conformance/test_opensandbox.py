"""Environments and controls on an OpenSandbox server keep the promises of all others. The server is our own gateway."""

from collections.abc import AsyncGenerator
from functools import partial

import pytest
import pytest_asyncio

from sandlot.conformance import Outcome, conform_control, conform_environment, conform_environment_tools, is_conforming
from sandlot.environments.derived import DerivedProvider
from sandlot.host.service import SandboxHostService
from sandlot.model import SessionFilter
from sandlot.opensandbox import AsyncOpenSandboxClient, OpenSandboxControl, OpenSandboxVendor
from tests.opensandbox_stage import KEY, serve

pytestmark = [pytest.mark.root, pytest.mark.timeout(300)]


@pytest_asyncio.fixture
async def client(host: SandboxHostService) -> AsyncGenerator[AsyncOpenSandboxClient]:
    async with serve(host) as address, AsyncOpenSandboxClient(f"http://{address}/v1", KEY) as client:
        yield client


def wrong(outcomes: list[Outcome]) -> list[tuple[str, str]]:
    return [(one.check, one.detail) for one in outcomes if not one.is_good]


async def left(host: SandboxHostService) -> int:
    return len((await host.list(SessionFilter())).sessions)


async def test_an_environment_conforms(host: SandboxHostService, client: AsyncOpenSandboxClient) -> None:
    vendor = OpenSandboxVendor(client)
    make = DerivedProvider(vendor, vendor, pause=vendor).environment
    outcomes = [one async for one in conform_environment(make, at_once=12)]
    assert wrong(outcomes) == []
    assert is_conforming(outcomes)
    assert await left(host) == 0


async def test_its_tools_conform(host: SandboxHostService, client: AsyncOpenSandboxClient) -> None:
    vendor = OpenSandboxVendor(client)
    outcomes = [one async for one in conform_environment_tools(DerivedProvider(vendor, vendor).environment)]
    assert wrong(outcomes) == []
    assert is_conforming(outcomes)
    assert await left(host) == 0


async def test_a_control_conforms(host: SandboxHostService, client: AsyncOpenSandboxClient) -> None:
    outcomes = [one async for one in conform_control(partial(OpenSandboxControl, client), count=partial(left, host))]
    assert wrong(outcomes) == []
    assert is_conforming(outcomes)
    assert await left(host) == 0
