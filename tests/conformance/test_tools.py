"""The runtimes and storages of this machine keep the promises of tools; and a tool that breaks one is told."""

import shutil
from collections.abc import Mapping
from typing import Any

import pytest

from sandlot.conformance import TOOL_CHECKS, Verdict, conform_tools, is_conforming
from sandlot.host.service import SandboxHostService
from sandlot.model import SessionFilter
from sandlot.tools.contained import git

NO_RUNSC = "runsc is not installed: `make setup` as root installs it"
GVISOR = [pytest.mark.root, pytest.mark.skipif(shutil.which("runsc") is None, reason=NO_RUNSC)]


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("runtime", "kept_on"),
    [
        pytest.param("namespaces", "layers", marks=pytest.mark.root),
        pytest.param("namespaces", "local-disk", marks=pytest.mark.root),
        pytest.param("gvisor", "layers", marks=GVISOR),
        ("none", "local-disk"),
    ],
)
async def test_tools_conform(host: SandboxHostService, runtime: str, kept_on: str) -> None:
    have = await host.capabilities_of(runtime, kept_on)
    outcomes = [outcome async for outcome in conform_tools(host, runtime, kept_on, have)]
    assert [outcome for outcome in outcomes if not outcome.is_good] == []
    assert is_conforming(outcomes)
    assert (await host.list(SessionFilter())).sessions == ()


async def test_a_tool_that_lets_options_through_is_told(
    host: SandboxHostService, monkeypatch: pytest.MonkeyPatch
) -> None:
    def any_word(arguments: Mapping[str, Any], parameter: str, default: str = "") -> tuple[str, ...]:
        return (arguments.get(parameter, default),)

    monkeypatch.setattr(git, "_name", any_word)
    checks = [check for check in TOOL_CHECKS if "smuggled" in check.name]
    outcomes = [outcome async for outcome in conform_tools(host, "none", "local-disk", None, checks)]
    assert [outcome.verdict for outcome in outcomes] == [Verdict.FAILED]


def test_every_check_says_its_promise_and_has_a_name_of_its_own() -> None:
    assert all(check.promise.endswith(".") for check in TOOL_CHECKS)
    assert len({check.name for check in TOOL_CHECKS}) == len(TOOL_CHECKS)
