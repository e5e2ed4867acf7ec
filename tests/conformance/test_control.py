"""Every control keeps the promises of controls."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from sandlot.conformance import CONTROL_CHECKS, Outcome, Verdict, conform_control, is_conforming
from sandlot.fakes.control import FakeSandboxes
from sandlot.model import SandboxCapabilities

ABLE = FakeSandboxes().capabilities
LEAST = SandboxCapabilities(concurrent_sandboxes=3, sandbox_duration_s_max=100 * 3600.0)


def wrong(outcomes: list[Outcome]) -> list[tuple[str, str]]:
    return [(one.check, one.detail) for one in outcomes if not one.is_good]


@pytest.mark.parametrize(
    ("able", "skipped"),
    [
        (replace(ABLE, concurrent_sandboxes=4), 3),
        (replace(ABLE, pause_keeps_processes=False, expose_port=False), 5),
        (LEAST, 20),
    ],
    ids=["all", "some", "least"],
)
async def test_the_fake_conforms(able: SandboxCapabilities, skipped: int) -> None:
    provider = FakeSandboxes(able, memory_bytes=able is not LEAST)
    outcomes = [one async for one in conform_control(provider.control, count=provider.count)]
    assert wrong(outcomes) == []
    assert is_conforming(outcomes)
    assert sum(one.verdict is Verdict.SKIPPED for one in outcomes) == skipped
    assert provider.sandboxes == {}


def test_every_check_says_its_promise_and_has_a_name_of_its_own() -> None:
    assert all(check.promise.endswith(".") for check in CONTROL_CHECKS)
    assert len({check.name for check in CONTROL_CHECKS}) == len(CONTROL_CHECKS)


async def test_the_suite_needs_no_test_framework(tmp_path: Path) -> None:
    script = (
        "import asyncio, sys; sys.modules['pytest'] = None\n"
        "from sandlot.conformance import conform_control\n"
        "from sandlot.fakes.control import FakeSandboxes\n"
        "async def main():\n"
        "    return [one async for one in conform_control(FakeSandboxes().control)]\n"
        "assert all(one.is_good for one in asyncio.run(main()))\n"
    )
    ran = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert (ran.returncode, ran.stderr) == (0, "")
