"""Every control keeps the promises of controls."""

import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest

from sandlot.conformance import CONTROL_CHECKS, Outcome, Verdict, conform_control, is_conforming
from sandlot.contracts import Host
from sandlot.control.node import NodeConfig, NodeSandboxControl
from sandlot.fakes.control import FakeSandboxes
from sandlot.fakes.host import FakeHost
from sandlot.host.service import SandboxHostService
from sandlot.model import SandboxCapabilities, SessionFilter
from tests.unit.rpc.serving import over_the_wire

NO_RUNSC = "runsc is not installed: `make setup` as root installs it"
GVISOR = [pytest.mark.root, pytest.mark.skipif(shutil.which("runsc") is None, reason=NO_RUNSC)]

ABLE = FakeSandboxes().capabilities
LEAST = SandboxCapabilities(concurrent_sandboxes=3, sandbox_duration_s_max=100 * 3600.0)

ONE_NETWORK = {
    "two_sandboxes_may_expose_the_same_port": "programs of all sandboxes listen in the machine's own network"
}


def wrong(outcomes: list[Outcome]) -> list[tuple[str, str]]:
    return [(one.check, one.detail) for one in outcomes if not one.is_good]


@pytest.mark.parametrize(
    ("able", "skipped"),
    [
        (replace(ABLE, concurrent_sandboxes=4), 3),
        (replace(ABLE, pause_keeps_processes=False, expose_port=False), 5),
        (LEAST, 20),
    ],
    ids=["all", "some", "least"],
)
async def test_the_fake_conforms(able: SandboxCapabilities, skipped: int) -> None:
    provider = FakeSandboxes(able, memory_bytes=able is not LEAST)
    outcomes = [one async for one in conform_control(provider.control, count=provider.count)]
    assert wrong(outcomes) == []
    assert is_conforming(outcomes)
    assert sum(one.verdict is Verdict.SKIPPED for one in outcomes) == skipped
    assert provider.sandboxes == {}


async def test_nodes_of_a_fake_host_conform() -> None:
    host = FakeHost(sessions_max=4)
    outcomes = [one async for one in conform_control(lambda: NodeSandboxControl(cast("Host", host)))]
    assert wrong(outcomes) == []
    assert is_conforming(outcomes)
    assert (await host.list(SessionFilter())).sessions == ()


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("runtime", "kept_on"),
    [
        pytest.param("namespaces", "layers", marks=pytest.mark.root),
        pytest.param("gvisor", "layers", marks=GVISOR),
        ("none", "local-disk"),
    ],
)
async def test_nodes_conform(host: SandboxHostService, runtime: str, kept_on: str) -> None:
    async def count() -> int:
        return len((await host.list(SessionFilter())).sessions)

    config = NodeConfig(storage=kept_on, runtime=runtime)
    lacks = ONE_NETWORK if runtime == "none" else {}
    outcomes = [
        one async for one in conform_control(lambda: NodeSandboxControl(host, config), CONTROL_CHECKS, lacks, count)
    ]
    assert wrong(outcomes) == []
    assert is_conforming(outcomes)
    assert await count() == 0


@pytest.mark.root
@pytest.mark.timeout(300)
async def test_nodes_conform_over_the_wire(host: SandboxHostService) -> None:
    async with over_the_wire(host) as client:
        outcomes = [one async for one in conform_control(lambda: NodeSandboxControl(cast("Host", client)))]
    assert wrong(outcomes) == []
    assert is_conforming(outcomes)
    assert (await host.list(SessionFilter())).sessions == ()


def test_every_check_says_its_promise_and_has_a_name_of_its_own() -> None:
    assert all(check.promise.endswith(".") for check in CONTROL_CHECKS)
    assert len({check.name for check in CONTROL_CHECKS}) == len(CONTROL_CHECKS)


async def test_the_suite_needs_no_test_framework(tmp_path: Path) -> None:
    script = (
        "import asyncio, sys; sys.modules['pytest'] = None\n"
        "from sandlot.conformance import conform_control\n"
        "from sandlot.fakes.control import FakeSandboxes\n"
        "async def main():\n"
        "    return [one async for one in conform_control(FakeSandboxes().control)]\n"
        "assert all(one.is_good for one in asyncio.run(main()))\n"
    )
    ran = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert (ran.returncode, ran.stderr) == (0, "")
