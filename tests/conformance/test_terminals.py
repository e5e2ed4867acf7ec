"""Terminals of the engine and of the fake are as promised; and each promise that is broken is told."""

from dataclasses import replace
from typing import cast

import pytest

from sandlot.conformance import TERMINAL_CHECKS, Verdict, conform_terminals, is_conforming
from sandlot.contracts import Host
from sandlot.fakes.deviations import TERMINALS
from sandlot.fakes.host import FakeHost
from sandlot.host.service import SandboxHostService
from sandlot.model import Capability, SessionFilter
from tests.conformance.broken_terminals import BROKEN
from tests.conformance.test_host import GVISOR

_SOON_S = 1.0  # a broken promise may hang until then


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("runtime", "kept_on"),
    [
        pytest.param("namespaces", "layers", marks=pytest.mark.root),
        pytest.param("gvisor", "layers", marks=GVISOR),
        ("none", "local-disk"),
    ],
)
async def test_terminals_of_an_engine_conform(host: SandboxHostService, runtime: str, kept_on: str) -> None:
    have = await host.capabilities_of(runtime, kept_on)
    outcomes = [one async for one in conform_terminals(host, runtime, kept_on, have)]
    assert [(one.check, one.detail) for one in outcomes if not one.is_good] == []
    assert is_conforming(outcomes)
    assert len(outcomes) == len(TERMINAL_CHECKS)
    assert (await host.list(SessionFilter())).sessions == ()


async def test_terminals_of_the_fake_conform() -> None:
    outcomes = [one async for one in conform_terminals(cast("Host", FakeHost()), deviations=TERMINALS)]
    assert [(one.check, one.detail) for one in outcomes if not one.is_good] == []
    deviating = {one.check for one in outcomes if one.verdict is Verdict.DEVIATES}
    assert (is_conforming(outcomes), deviating) == (True, set(TERMINALS))


def test_every_check_says_its_promise_and_has_a_name_of_its_own() -> None:
    assert all(check.promise.endswith(".") for check in TERMINAL_CHECKS)
    assert len({check.name for check in TERMINAL_CHECKS}) == len(TERMINAL_CHECKS)


async def broken(host: Host, runtime: str, kept_on: str, have: frozenset[Capability], *without: str) -> list[str]:
    """The broken terminals that the suite does not tell."""
    missed: list[str] = []
    for kind, check in BROKEN.items():
        if check in without:
            continue
        wrong = cast("Host", kind(host))
        chosen = [replace(one, deadline_s=_SOON_S) for one in TERMINAL_CHECKS if one.name == check]
        (outcome,) = [one async for one in conform_terminals(wrong, runtime, kept_on, have, chosen, {})]
        if outcome.verdict is not Verdict.FAILED:
            missed.append(f"{kind.__name__}: {check} {outcome.verdict} {outcome.detail}")
    return missed


@pytest.mark.timeout(180)
async def test_terminals_that_break_a_promise_are_told(host: SandboxHostService) -> None:
    have = await host.capabilities_of("none", "local-disk")
    assert await broken(host, "none", "local-disk", have) == []
    assert (await host.list(SessionFilter())).sessions == ()


@pytest.mark.timeout(180)
async def test_terminals_of_a_fake_that_break_a_promise_are_told() -> None:
    host = cast("Host", FakeHost())
    assert await broken(host, "auto", "auto", await host.capabilities(), *TERMINALS) == []
