"""The engine of this machine keeps what every host promises of ports."""

import shutil
from pathlib import Path
from typing import cast

import pytest

from sandlot.conformance import PORT_CHECKS, conform_ports, is_conforming
from sandlot.contracts import Host
from sandlot.host.service import SandboxHostService
from sandlot.model import SessionFilter
from tests.unit.rpc.serving import over_the_wire

NO_RUNSC = "runsc is not installed: `make setup` as root installs it"
GVISOR = [pytest.mark.root, pytest.mark.skipif(shutil.which("runsc") is None, reason=NO_RUNSC)]
ENGINES = [
    pytest.param("namespaces", "layers", marks=pytest.mark.root),
    pytest.param("gvisor", "layers", marks=GVISOR),
    ("none", "local-disk"),
]


@pytest.mark.timeout(300)
@pytest.mark.parametrize(("runtime", "kept_on"), ENGINES)
async def test_an_engine_conforms(host: SandboxHostService, runtime: str, kept_on: str) -> None:
    have = await host.capabilities_of(runtime, kept_on)
    outcomes = [outcome async for outcome in conform_ports(host, runtime, kept_on, have)]
    assert [(one.check, one.detail) for one in outcomes if not one.is_good] == []
    assert is_conforming(outcomes)
    assert len(outcomes) == len(PORT_CHECKS)
    assert (await host.list(SessionFilter())).sessions == ()


@pytest.mark.root
@pytest.mark.timeout(300)
@pytest.mark.parametrize("is_local", [False, True], ids=["tcp", "unix"])
async def test_an_engine_conforms_over_the_wire(host: SandboxHostService, tmp_path: Path, is_local: bool) -> None:
    have = await host.capabilities_of("namespaces", "layers")
    async with over_the_wire(host, tmp_path / "s" if is_local else None) as client:
        outcomes = [one async for one in conform_ports(cast("Host", client), "namespaces", "layers", have)]
    assert [(one.check, one.detail) for one in outcomes if not one.is_good] == []
    assert is_conforming(outcomes)


def test_every_check_says_its_promise_and_has_a_name_of_its_own() -> None:
    assert all(check.promise.endswith(".") for check in PORT_CHECKS)
    assert len({check.name for check in PORT_CHECKS}) == len(PORT_CHECKS)
