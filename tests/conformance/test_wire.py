"""A host that is reached over the wire keeps every promise that it keeps itself."""

import shutil
from functools import partial
from pathlib import Path
from typing import cast

import pytest

from sandlot.conformance import (
    HOST_CHECKS,
    Verdict,
    conform_control,
    conform_environment,
    conform_files,
    conform_host,
    conform_processes,
    conform_terminals,
    conform_tools,
    is_conforming,
)
from sandlot.contracts import Host
from sandlot.control.node import NodeSandboxControl
from sandlot.environments.native import NativeSandboxConfig, NativeSandboxEnvironment
from sandlot.fakes.deviations import TERMINALS
from sandlot.fakes.host import DEVIATIONS, FakeHost
from sandlot.host.service import SandboxHostService
from sandlot.model import SessionFilter
from tests.conformance.test_host import broken
from tests.unit.rpc.serving import over_the_wire

NO_RUNSC = "runsc is not installed: `make setup` as root installs it"
GVISOR = [pytest.mark.root, pytest.mark.skipif(shutil.which("runsc") is None, reason=NO_RUNSC)]
ENGINES = [
    pytest.param("namespaces", "layers", marks=pytest.mark.root),
    ("none", "local-disk"),
]


@pytest.mark.parametrize("is_local", [False, True], ids=["tcp", "unix"])
async def test_the_fake_conforms_over_the_wire(tmp_path: Path, is_local: bool) -> None:
    async with over_the_wire(FakeHost(), tmp_path / "s" if is_local else None) as host:
        outcomes = [one async for one in conform_host(cast("Host", host), deviations=DEVIATIONS)]
    assert [(one.check, one.detail) for one in outcomes if not one.is_good] == []
    deviating = {one.check for one in outcomes if one.verdict is Verdict.DEVIATES}
    assert (is_conforming(outcomes), deviating) == (True, set(DEVIATIONS))


async def test_a_promise_that_is_broken_behind_the_wire_is_told() -> None:
    async with over_the_wire(FakeHost()) as host:
        have = await host.capabilities()
        assert await broken(cast("Host", host), "auto", "auto", have) == []


@pytest.mark.timeout(300)
@pytest.mark.parametrize(("runtime", "kept_on"), ENGINES)
async def test_an_engine_conforms_over_the_wire(host: SandboxHostService, runtime: str, kept_on: str) -> None:
    have = await host.capabilities_of(runtime, kept_on)
    async with over_the_wire(host) as client:
        outcomes = [one async for one in conform_host(cast("Host", client), runtime, kept_on, have)]
    assert [(one.check, one.detail) for one in outcomes if not one.is_good] == []
    assert is_conforming(outcomes)
    assert len(outcomes) == len(HOST_CHECKS)
    assert (await host.list(SessionFilter())).sessions == ()


@pytest.mark.timeout(300)
@pytest.mark.parametrize(("runtime", "kept_on"), ENGINES)
async def test_files_and_tools_conform_over_the_wire(host: SandboxHostService, runtime: str, kept_on: str) -> None:
    have = await host.capabilities_of(runtime, kept_on)
    async with over_the_wire(host) as client:
        files = [one async for one in conform_files(cast("Host", client), runtime, kept_on)]
        tools = [one async for one in conform_tools(cast("Host", client), runtime, kept_on, have)]
    assert [(one.check, one.detail) for one in (*files, *tools) if not one.is_good] == []
    assert is_conforming(files)
    assert is_conforming(tools)


# By the name of the check that is not kept over the wire, and why.
ON_ITS_WAY = {"who_reads_slowly_misses_and_harms_nobody": "what is on its way to a slow reader is not missed"}


async def test_terminals_of_the_fake_conform_over_the_wire() -> None:
    async with over_the_wire(FakeHost()) as client:
        deviations = {**TERMINALS, **ON_ITS_WAY}
        outcomes = [one async for one in conform_terminals(cast("Host", client), deviations=deviations)]
    assert [(one.check, one.detail) for one in outcomes if not one.is_good] == []


@pytest.mark.timeout(300)
@pytest.mark.parametrize(("runtime", "kept_on"), ENGINES)
async def test_terminals_and_processes_conform_over_the_wire(
    host: SandboxHostService, runtime: str, kept_on: str
) -> None:
    have = await host.capabilities_of(runtime, kept_on)
    async with over_the_wire(host) as client:
        there = cast("Host", client)
        terminals = [one async for one in conform_terminals(there, runtime, kept_on, have, deviations=ON_ITS_WAY)]
        processes = [one async for one in conform_processes(there, runtime, kept_on, have)]
    assert [(one.check, one.detail) for one in (*terminals, *processes) if not one.is_good] == []
    assert is_conforming(terminals)
    assert is_conforming(processes)


@pytest.mark.timeout(300)
@pytest.mark.root
async def test_control_of_a_node_conforms_over_the_wire(host: SandboxHostService) -> None:
    async with over_the_wire(host) as client:
        outcomes = [one async for one in conform_control(lambda: NodeSandboxControl(cast("Host", client)))]
    assert [(one.check, one.detail) for one in outcomes if not one.is_good] == []


@pytest.mark.timeout(300)
@pytest.mark.root
async def test_a_native_environment_conforms_over_the_wire(host: SandboxHostService) -> None:
    async with over_the_wire(host) as client:
        make = partial(NativeSandboxEnvironment, cast("Host", client), NativeSandboxConfig("layers", "namespaces"))
        outcomes = [one async for one in conform_environment(make)]
    assert [(one.check, one.detail) for one in outcomes if not one.is_good] == []
    assert is_conforming(outcomes)
