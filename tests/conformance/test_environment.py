"""Every environment keeps the promises of environments."""

import shutil
from functools import partial
from pathlib import Path

import pytest

from sandlot.conformance import (
    ENVIRONMENT_CHECKS,
    Outcome,
    Verdict,
    conform_environment,
    conform_environment_tools,
    is_conforming,
)
from sandlot.environments.local import LocalConfig, LocalProvider
from sandlot.environments.native import NativeSandboxConfig, NativeSandboxEnvironment
from sandlot.fakes.environment import FakeProvider
from sandlot.host.service import SandboxHostService
from sandlot.model import SessionFilter

NO_RUNSC = "runsc is not installed: `make setup` as root installs it"
GVISOR = [pytest.mark.root, pytest.mark.skipif(shutil.which("runsc") is None, reason=NO_RUNSC)]


def wrong(outcomes: list[Outcome]) -> list[tuple[str, str]]:
    return [(one.check, one.detail) for one in outcomes if not one.is_good]


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("runtime", "kept_on", "at_once"),
    [
        pytest.param("namespaces", "layers", 50, marks=pytest.mark.root),
        pytest.param("gvisor", "layers", 8, marks=GVISOR),  # each of its processes takes long to begin
        ("none", "local-disk", 50),
    ],
)
async def test_native_environments_conform(host: SandboxHostService, runtime: str, kept_on: str, at_once: int) -> None:
    config = NativeSandboxConfig(kept_on, runtime)
    make = partial(NativeSandboxEnvironment, host, config)
    outcomes = [one async for one in conform_environment(make, at_once=at_once)]
    assert wrong(outcomes) == []
    assert is_conforming(outcomes)
    assert (await host.list(SessionFilter())).sessions == ()


async def test_a_native_environment_has_the_tools_of_its_host(host: SandboxHostService) -> None:
    make = partial(NativeSandboxEnvironment, host, NativeSandboxConfig("local-disk", "none"))
    outcomes = [one async for one in conform_environment_tools(make)]
    assert wrong(outcomes) == []
    assert is_conforming(outcomes)
    assert (await host.list(SessionFilter())).sessions == ()


async def test_a_local_environment_conforms(tmp_path: Path) -> None:
    provider = LocalProvider(tmp_path, LocalConfig(sessions_max=4, session_duration_s_max=3600.0 * 48))
    outcomes = [one async for one in conform_environment(provider.environment)]
    outcomes += [one async for one in conform_environment_tools(provider.environment)]
    assert wrong(outcomes) == []
    assert {one.check for one in outcomes if one.verdict is Verdict.SKIPPED} == {
        "a_pause_that_cannot_be_is_refused",
        "files_go_back_to_a_snapshot",
        "a_wrong_target_changes_nothing",
    }
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("able", [True, False])
async def test_the_fake_conforms(able: bool) -> None:
    provider = FakeProvider(snapshots=able, pause=able, sessions_max=4, duration_s_max=100 * 3600.0)
    outcomes = [one async for one in conform_environment(provider.environment)]
    assert wrong(outcomes) == []
    assert sum(one.verdict is Verdict.SKIPPED for one in outcomes) == (2 if able else 4)
    assert provider.sessions == {}


def test_every_check_says_its_promise_and_has_a_name_of_its_own() -> None:
    assert all(check.promise.endswith(".") for check in ENVIRONMENT_CHECKS)
    assert len({check.name for check in ENVIRONMENT_CHECKS}) == len(ENVIRONMENT_CHECKS)


async def test_the_suite_needs_no_test_framework(tmp_path: Path) -> None:
    """What ships is imported by whoever has no pytest."""
    import subprocess
    import sys

    script = (
        "import asyncio, sys; sys.modules['pytest'] = None\n"
        "from sandlot.conformance import conform_environment\n"
        "from sandlot.fakes.environment import FakeProvider\n"
        "async def main():\n"
        "    return [one async for one in conform_environment(FakeProvider().environment)]\n"
        "assert all(one.is_good for one in asyncio.run(main()))\n"
    )
    ran = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert (ran.returncode, ran.stderr) == (0, "")
