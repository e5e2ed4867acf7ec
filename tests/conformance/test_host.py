"""The engine of this machine keeps what every host promises; and each promise that is broken is told."""

import shutil
from typing import cast

import pytest

from sandlot.conformance import HOST_CHECKS, Check, Stage, Verdict, conform_host, is_conforming
from sandlot.contracts import Host
from sandlot.fakes.host import DEVIATIONS, FakeHost
from sandlot.host.service import SandboxHostService
from sandlot.model import AUTO, Capability, SessionFilter
from tests.conformance.broken_hosts import BROKEN

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
    outcomes = [outcome async for outcome in conform_host(host, runtime, kept_on, have)]
    assert [(one.check, one.detail) for one in outcomes if not one.is_good] == []
    assert is_conforming(outcomes)
    assert len(outcomes) == len(HOST_CHECKS)
    assert (await host.list(SessionFilter())).sessions == ()


def test_every_check_says_its_promise_and_has_a_name_of_its_own() -> None:
    assert all(check.promise.endswith(".") for check in HOST_CHECKS)
    assert len({check.name for check in HOST_CHECKS}) == len(HOST_CHECKS)


async def broken(host: Host, runtime: str, kept_on: str, have: frozenset[Capability]) -> list[str]:
    """The broken hosts that the suite does not tell."""
    missed: list[str] = []
    for kind, check in BROKEN.items():
        wrong = cast("Host", kind(host))
        chosen = [one for one in HOST_CHECKS if one.name == check]
        (outcome,) = [one async for one in conform_host(wrong, runtime, kept_on, have, chosen)]
        if outcome.verdict is not Verdict.FAILED:
            missed.append(f"{kind.__name__}: {check} {outcome.verdict} {outcome.detail}")
    return missed


@pytest.mark.root
async def test_a_host_that_breaks_a_promise_is_told(host: SandboxHostService) -> None:
    have = await host.capabilities_of("namespaces", "layers")
    assert await broken(host, "namespaces", "layers", have) == []
    assert (await host.list(SessionFilter())).sessions == ()


async def slow(stage: Stage) -> None:
    """It is kept, too late."""
    await stage.sh("sleep 600")


async def test_a_promise_that_is_kept_too_late_is_told(host: SandboxHostService) -> None:
    check = Check(slow, deadline_s=0.2)
    (outcome,) = [one async for one in conform_host(host, "none", "local-disk", None, (check,))]
    assert (outcome.verdict, outcome.detail) == (Verdict.FAILED, "it took longer than 0.2 s")
    assert (await host.list(SessionFilter())).sessions == ()


async def test_the_fake_conforms() -> None:
    outcomes = [one async for one in conform_host(cast("Host", FakeHost()), deviations=DEVIATIONS)]
    assert [(one.check, one.detail) for one in outcomes if not one.is_good] == []
    deviating = {one.check for one in outcomes if one.verdict is Verdict.DEVIATES}
    assert (is_conforming(outcomes), deviating) == (True, set(DEVIATIONS))


async def test_a_fake_that_breaks_a_promise_is_told() -> None:
    host = cast("Host", FakeHost())
    assert await broken(host, AUTO, AUTO, await host.capabilities()) == []
