"""The engine of this machine keeps what every host promises of managed processes."""

import shutil
from typing import cast

import pytest

from sandlot.conformance import PROCESS_CHECKS, Verdict, conform_processes, is_conforming
from sandlot.contracts import Host
from sandlot.fakes.host import FakeHost
from sandlot.fakes.processes import DEVIATIONS
from sandlot.host.service import SandboxHostService
from sandlot.model import SessionFilter

NO_RUNSC = "runsc is not installed: `make setup` as root installs it"
GVISOR = [pytest.mark.root, pytest.mark.skipif(shutil.which("runsc") is None, reason=NO_RUNSC)]


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("runtime", "kept_on"),
    [
        pytest.param("namespaces", "layers", marks=pytest.mark.root),
        pytest.param("gvisor", "layers", marks=GVISOR),
        ("none", "local-disk"),
    ],
)
async def test_an_engine_conforms(host: SandboxHostService, runtime: str, kept_on: str) -> None:
    have = await host.capabilities_of(runtime, kept_on)
    outcomes = [outcome async for outcome in conform_processes(host, runtime, kept_on, have)]
    assert [(one.check, one.detail) for one in outcomes if not one.is_good] == []
    assert is_conforming(outcomes)
    assert len(outcomes) == len(PROCESS_CHECKS)
    assert (await host.list(SessionFilter())).sessions == ()


def test_every_check_says_its_promise_and_has_a_name_of_its_own() -> None:
    assert all(check.promise.endswith(".") for check in PROCESS_CHECKS)
    assert len({check.name for check in PROCESS_CHECKS}) == len(PROCESS_CHECKS)


async def test_the_fake_conforms() -> None:
    outcomes = [one async for one in conform_processes(cast("Host", FakeHost()), deviations=DEVIATIONS)]
    assert [(one.check, one.detail) for one in outcomes if not one.is_good] == []
    deviating = {one.check for one in outcomes if one.verdict is Verdict.DEVIATES}
    assert (is_conforming(outcomes), deviating) == (True, set(DEVIATIONS))
