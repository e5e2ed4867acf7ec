"""The runtimes of this machine keep the promises of every runtime; and a promise that is broken is told."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from sandlot.conformance import (
    RUNTIME_CHECKS,
    RUNTIME_DEVIATIONS,
    Broken,
    Check,
    Outcome,
    Stage,
    Verdict,
    conform,
    is_conforming,
)
from sandlot.host.service import SandboxHostService
from sandlot.model import SessionFilter

NO_RUNSC = "runsc is not installed: `make setup` as root installs it"
GVISOR = [pytest.mark.root, pytest.mark.skipif(shutil.which("runsc") is None, reason=NO_RUNSC)]


async def told(
    host: SandboxHostService, runtime: str, checks: tuple[Check[Stage], ...], deviations: Mapping[str, str]
) -> list[Outcome]:
    return [outcome async for outcome in conform(host, runtime, checks, deviations)]


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "runtime", [pytest.param("namespaces", marks=pytest.mark.root), pytest.param("gvisor", marks=GVISOR), "none"]
)
async def test_a_runtime_conforms(host: SandboxHostService, runtime: str) -> None:
    outcomes = await told(host, runtime, RUNTIME_CHECKS, RUNTIME_DEVIATIONS.get(runtime, {}))
    assert [outcome for outcome in outcomes if not outcome.is_good] == []
    assert is_conforming(outcomes)
    assert (await host.list(SessionFilter())).sessions == ()


async def keeps(stage: Stage) -> None:
    """It is kept."""
    assert (await stage.run("true")).result.exit_code == 0


async def breaks(stage: Stage) -> None:
    """It is broken."""
    await stage.another()
    raise Broken("so it is")


async def falls(stage: Stage) -> None:
    """Nobody foresaw this."""
    raise ZeroDivisionError


async def test_what_is_broken_is_told_and_nothing_is_left_of_it(host: SandboxHostService) -> None:
    checks = (Check(breaks), Check(falls), Check(keeps))
    outcomes = await told(host, "none", checks, {})
    assert [outcome.verdict for outcome in outcomes] == [Verdict.FAILED, Verdict.FAILED, Verdict.PASSED]
    assert (outcomes[0].detail, outcomes[0].promise) == ("so it is", "It is broken.")
    assert not is_conforming(outcomes)
    assert (await host.list(SessionFilter())).sessions == ()


async def test_a_deviation_that_is_none_any_more_fails(host: SandboxHostService) -> None:
    outcomes = await told(host, "none", (Check(keeps), Check(breaks)), {"keeps": "once", "breaks": "known"})
    assert [outcome.verdict for outcome in outcomes] == [Verdict.PASSES_NOW, Verdict.DEVIATES]
    assert not is_conforming(outcomes)
    (unknown,) = await told(host, "none", (), {"missing": "renamed"})
    assert unknown.verdict is Verdict.FAILED


def test_nothing_is_no_success() -> None:
    assert not is_conforming([])


def test_every_check_says_its_promise_and_has_a_name_of_its_own() -> None:
    assert all(check.promise.endswith(".") for check in RUNTIME_CHECKS)
    assert len({check.name for check in RUNTIME_CHECKS}) == len(RUNTIME_CHECKS)


def test_a_runtime_that_is_none_is_refused(data_dir: Path) -> None:
    words = [sys.executable, "-m", "sandlot", "conform", "--runtime", "cardboard", "--json"]
    env = {**os.environ, "SANDLOT_DATA_DIR": str(data_dir)}
    ran = subprocess.run(words, env=env, capture_output=True, text=True, check=False)
    assert ran.returncode == 2, ran
    assert "namespaces, gvisor, none" in json.loads(ran.stdout)["error"]["next_step"], ran.stdout
