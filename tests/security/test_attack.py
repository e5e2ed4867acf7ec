"""`sandlot attack` as an operator runs it: once, whole, on the isolating runtime; then each case is a test."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sandlot.attack.cases import CASES
from sandlot.attack.verdicts import Verdict
from tests.unit.sdk.stage import environment

WHOLE_S = 580
# There is nothing to attack yet; the reasons stand beside the cases.
NOT_YET = {case.name for case in CASES if case.not_yet}


def sandlot(data: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "sandlot", *words],
        env=environment(data),
        capture_output=True,
        text=True,
        timeout=WHOLE_S,
    )


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory, shared_templates: Path) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("attack") / "data"
    folder.mkdir(mode=0o700)
    (folder / "templates").symlink_to(shared_templates)
    yield folder
    (folder / "templates").unlink()


@pytest.fixture(scope="module")
def report(data: Path) -> dict[str, Any]:
    ran = sandlot(data, "attack", "--json")
    assert ran.returncode in (0, 1), ran.stderr[-3000:]
    return {**json.loads(ran.stdout), "exit code": ran.returncode}


def finding(report: dict[str, Any], case: str) -> dict[str, Any]:
    (found,) = (one for one in report["findings"] if one["case"] == case)
    return found


def test_cases_and_rows_have_names_of_their_own() -> None:
    names = [case.name for case in CASES]
    assert len(names) == len(set(names))
    for case in CASES:
        rows = [(row.name, user) for row in case.rows for user in row.users]
        assert len(rows) == len(set(rows)), case.name
        # A case that tries nothing would hold always.
        assert bool(case.rows or case.act) != bool(case.not_yet), case.name


@pytest.mark.root
@pytest.mark.timeout(600)
@pytest.mark.parametrize("case", [case.name for case in CASES])
def test_case(report: dict[str, Any], case: str) -> None:
    found = finding(report, case)
    # A machine may lack a controller, and says so; isolation itself is never lacking here.
    lacking = "does not have: limit_" in found["detail"]
    assert found["verdict"] == (Verdict.NOT_APPLICABLE if case in NOT_YET or lacking else Verdict.HELD), found
    assert found["runtime"] == "namespaces"


@pytest.mark.root
@pytest.mark.timeout(600)
def test_what_the_attacks_look_for_is_there(report: dict[str, Any]) -> None:
    assert finding(report, "targets")["verdict"] == Verdict.HELD


@pytest.mark.root
@pytest.mark.timeout(600)
def test_the_whole_run_tells_how_it_ended(report: dict[str, Any], data: Path) -> None:
    assert report["held"] is (report["exit code"] == 0)
    assert " not applicable" in report["summary"]
    assert len(report["findings"]) == len(CASES) + 1
    assert not list(data.parent.glob(".sandlot-attack-*")), "its data directory is gone"
    assert [path.name for path in data.iterdir()] == ["templates"], "the real one is as it was"


@pytest.mark.root
def test_without_isolation_nothing_is_attacked(data: Path) -> None:
    ran = sandlot(data, "attack", "--runtime", "none", "--json")
    told = json.loads(ran.stdout)
    assert ran.returncode == 0, told
    verdicts = {one["case"]: one["verdict"] for one in told["findings"]}
    tried = {name for name, verdict in verdicts.items() if verdict == Verdict.HELD}
    assert tried == {"01-paths", "09-ids", "47-injection", "48-at-once", "targets"}
    assert set(verdicts.values()) == {Verdict.HELD, Verdict.NOT_APPLICABLE}


def test_list_and_wrong_names(data: Path) -> None:
    listed = json.loads(sandlot(data, "attack", "--list", "--json").stdout)["cases"]
    assert [one["case"] for one in listed] == [case.name for case in CASES]
    assert "11-mounts" in sandlot(data, "attack", "--list", "--case", "11-*").stdout
    wrong = sandlot(data, "attack", "--case", "nothing-*")
    assert wrong.returncode == 2
    assert "--list" in wrong.stderr
