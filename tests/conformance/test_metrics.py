"""Figures of the engine and of the fake are as promised; and each promise that is broken is told."""

from dataclasses import replace
from typing import cast

import pytest

from sandlot.conformance import METRICS_CHECKS, Verdict, conform_metrics, is_conforming
from sandlot.contracts import Host
from sandlot.fakes.deviations import METRICS
from sandlot.fakes.host import FakeHost
from sandlot.host.service import SandboxHostService
from sandlot.model import SessionFilter
from tests.conformance.broken_metrics import BROKEN
from tests.conformance.test_host import GVISOR

_SOON_S = 3.0  # a broken promise may hang until then


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("runtime", "kept_on"),
    [
        pytest.param("namespaces", "layers", marks=pytest.mark.root),
        pytest.param("gvisor", "layers", marks=GVISOR),
        ("none", "local-disk"),
    ],
)
async def test_metrics_of_an_engine_conform(host: SandboxHostService, runtime: str, kept_on: str) -> None:
    have = await host.capabilities_of(runtime, kept_on)
    outcomes = [one async for one in conform_metrics(host, runtime, kept_on, have)]
    assert [(one.check, one.detail) for one in outcomes if not one.is_good] == []
    assert is_conforming(outcomes)
    assert len(outcomes) == len(METRICS_CHECKS)
    assert (await host.list(SessionFilter())).sessions == ()


async def test_metrics_of_the_fake_conform() -> None:
    checks = [replace(one, deadline_s=_SOON_S) if one.name in METRICS else one for one in METRICS_CHECKS]
    outcomes = [one async for one in conform_metrics(cast("Host", FakeHost()), checks=checks, deviations=METRICS)]
    assert [(one.check, one.detail) for one in outcomes if not one.is_good] == []
    deviating = {one.check for one in outcomes if one.verdict is Verdict.DEVIATES}
    assert (is_conforming(outcomes), deviating) == (True, set(METRICS))


def test_every_check_says_its_promise_and_has_a_name_of_its_own() -> None:
    assert all(check.promise.endswith(".") for check in METRICS_CHECKS)
    assert len({check.name for check in METRICS_CHECKS}) == len(METRICS_CHECKS)


@pytest.mark.root
@pytest.mark.timeout(180)
async def test_metrics_that_break_a_promise_are_told(host: SandboxHostService) -> None:
    have = await host.capabilities_of("namespaces", "layers")
    missed: list[str] = []
    for kind, check in BROKEN.items():
        wrong = cast("Host", kind(host))
        chosen = [replace(one, deadline_s=_SOON_S) for one in METRICS_CHECKS if one.name == check]
        (outcome,) = [one async for one in conform_metrics(wrong, "namespaces", "layers", have, chosen)]
        if outcome.verdict is not Verdict.FAILED:
            missed.append(f"{kind.__name__}: {check} {outcome.verdict} {outcome.detail}")
    assert missed == []
