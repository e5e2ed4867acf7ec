"""`sandlot conform TARGET`, on what is known by name and on what a user brings."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from sandlot.conformance import CONTROL_CHECKS, PROVISIONER_CHECKS

MINE = """
from contextlib import asynccontextmanager

from sandlot.fakes.environment import FakeEnvironment, FakeProvider

provider = FakeProvider(sessions_max=4)


class Forgets(FakeEnvironment):
    async def pause(self):
        await super().pause()
        await super().resume()


def good():
    return provider.environment()


def broken():
    return Forgets(provider)


@asynccontextmanager
async def around():
    yield provider.environment


async def later():
    return provider.environment


def nothing():
    return 7
"""
BROKEN = {"a_paused_session_takes_no_tools", "the_state_follows_others"}


def conform(where: Path, *words: str) -> tuple[int, str]:
    """Exit code and what was said; the engine is not needed, and none is made."""
    (where / "mine.py").write_text(MINE)
    argv = [sys.executable, "-m", "sandlot", "--data-dir", str(where / "data"), *words]
    ran = subprocess.run(argv, cwd=where, capture_output=True, text=True, timeout=200)
    assert not (where / "data").exists()
    return ran.returncode, ran.stdout + ran.stderr


def told(where: Path, *words: str) -> tuple[int, dict[str, Any]]:
    code, said = conform(where, "--json", *words)
    return code, json.loads(said)


def test_what_is_known_by_name(tmp_path: Path) -> None:
    code, document = told(tmp_path, "conform", "fake-environment")
    assert (code, document["conforming"], document["kind"]) == (0, True, "environment")
    assert all(outcome["promise"] for outcome in document["outcomes"])
    for name, check in (("fake-control", CONTROL_CHECKS[0]), ("fake-provisioner", PROVISIONER_CHECKS[0])):
        code, said = conform(tmp_path, "conform", name, "--only", check.name)
        assert code == 0, said


@pytest.mark.parametrize("factory", ["good", "around", "later", "provider.environment"])
def test_what_a_user_brings_in_any_form(tmp_path: Path, factory: str) -> None:
    only = ("--only", "a_session_is_made_with_the_id_that_was_asked_for", "--only", "the_state_follows_others")
    code, document = told(tmp_path, "conform", f"mine:{factory}", *only)
    assert (code, [outcome["verdict"] for outcome in document["outcomes"]]) == (0, ["passed", "passed"])


def test_what_breaks_a_promise_is_told_and_a_deviation_has_a_name_and_a_reason(tmp_path: Path) -> None:
    code, document = told(tmp_path, "conform", "mine:broken")
    failed = {outcome["check"] for outcome in document["outcomes"] if outcome["verdict"] == "failed"}
    assert (code, failed) == (1, BROKEN)
    named = [word for check in sorted(BROKEN) for word in ("--deviation", f"{check}=it only nods")]
    code, document = told(tmp_path, "conform", "mine:broken", *named)
    assert code == 0
    assert document["deviations"] == [{"check": check, "reason": "it only nods"} for check in sorted(BROKEN)]
    code, said = conform(tmp_path, "conform", "mine:good", *named)
    assert code == 1
    assert said.count("passes now") >= len(BROKEN)


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (("conform", "nowhere"), "use one of: native"),
        (("conform", "no_such_module:x"), "cannot be loaded"),
        (("conform", "mine:missing"), "cannot be loaded"),
        (("conform", "mine:nothing"), "the verbs of nothing"),
        (("conform", "mine:good", "--only", "no_such_check"), "is called 'no_such_check'"),
        (("conform", "mine:good", "--deviation", "a_second_create_is_refused"), "has no reason"),
        (("conform", "--only", "a_second_create_is_refused"), "are of a target"),
    ],
)
def test_a_wrong_request_is_refused_with_the_next_step(tmp_path: Path, words: tuple[str, ...], hint: str) -> None:
    code, said = conform(tmp_path, *words)
    assert code not in (0, 1), said
    assert hint in said


def test_the_checks_can_be_listed(tmp_path: Path) -> None:
    code, document = told(tmp_path, "conform", "--list")
    assert code == 0
    assert {check["kind"] for check in document["checks"]} >= {"host", "environment", "control"}
    assert all(check["promise"].endswith(".") for check in document["checks"])
