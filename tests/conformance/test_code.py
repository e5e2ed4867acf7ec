"""Code in contexts of the engine and of the fake is as promised; and each promise that is broken is told."""

from dataclasses import replace
from typing import cast

import pytest

from sandlot.conformance import CODE_CHECKS, Verdict, conform_code, is_conforming
from sandlot.contracts import Host
from sandlot.fakes.deviations import CODE
from sandlot.fakes.host import FakeHost
from sandlot.host.service import SandboxHostService
from sandlot.model import SessionFilter
from tests.conformance.broken_code import BROKEN
from tests.conformance.test_host import GVISOR
from tests.unit.rpc.serving import over_the_wire

_SOON_S = 2.0  # a broken promise may hang until then


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("runtime", "kept_on"),
    [
        pytest.param("namespaces", "layers", marks=pytest.mark.root),
        pytest.param("gvisor", "layers", marks=GVISOR),
        ("none", "local-disk"),
    ],
)
async def test_code_of_an_engine_conforms(host: SandboxHostService, runtime: str, kept_on: str) -> None:
    have = await host.capabilities_of(runtime, kept_on)
    outcomes = [one async for one in conform_code(host, runtime, kept_on, have)]
    assert [(one.check, one.detail) for one in outcomes if not one.is_good] == []
    assert is_conforming(outcomes)
    assert len(outcomes) == len(CODE_CHECKS)
    assert (await host.list(SessionFilter())).sessions == ()


async def test_code_of_the_fake_conforms() -> None:
    outcomes = [one async for one in conform_code(cast("Host", FakeHost()), deviations=CODE)]
    assert [(one.check, one.detail) for one in outcomes if not one.is_good] == []
    deviating = {one.check for one in outcomes if one.verdict is Verdict.DEVIATES}
    assert (is_conforming(outcomes), deviating) == (True, set(CODE))


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("runtime", "kept_on"),
    [pytest.param("namespaces", "layers", marks=pytest.mark.root), ("none", "local-disk")],
)
async def test_code_of_an_engine_conforms_over_the_wire(host: SandboxHostService, runtime: str, kept_on: str) -> None:
    have = await host.capabilities_of(runtime, kept_on)
    async with over_the_wire(host) as client:
        outcomes = [one async for one in conform_code(cast("Host", client), runtime, kept_on, have)]
    assert [(one.check, one.detail) for one in outcomes if not one.is_good] == []
    assert is_conforming(outcomes)


async def test_code_of_the_fake_conforms_over_the_wire() -> None:
    async with over_the_wire(FakeHost()) as client:
        outcomes = [one async for one in conform_code(cast("Host", client), deviations=CODE)]
    assert [(one.check, one.detail) for one in outcomes if not one.is_good] == []


def test_every_check_says_its_promise_and_has_a_name_of_its_own() -> None:
    assert all(check.promise.endswith(".") for check in CODE_CHECKS)
    assert len({check.name for check in CODE_CHECKS}) == len(CODE_CHECKS)


@pytest.mark.timeout(180)
async def test_code_that_breaks_a_promise_is_told() -> None:
    host, missed = cast("Host", FakeHost()), list[str]()
    have = await host.capabilities()
    for kind, check in BROKEN.items():
        wrong = cast("Host", kind(host))
        chosen = [replace(one, deadline_s=_SOON_S) for one in CODE_CHECKS if one.name == check]
        (outcome,) = [one async for one in conform_code(wrong, "auto", "auto", have, chosen)]
        if outcome.verdict is not Verdict.FAILED:
            missed.append(f"{kind.__name__}: {check} {outcome.verdict} {outcome.detail}")
    assert missed == []
