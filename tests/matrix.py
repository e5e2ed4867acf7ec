"""`python -m tests.matrix [--storage NAME]... [--suite NAME]... [--short]`: every suite on every storage that is ready
here, one after another, and at the end a table of what came of it."""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests import storages
from tests.scratch import close_scratch, open_scratch

ROOT = Path(__file__).parents[1]
LOGS = ROOT / "build" / "storages"
SUITE_S = 4 * 3600
TURNS = ("turns", "races", "races_ends", "comparing", "repeats")


@dataclass(frozen=True)
class Cell:
    """What came of one suite on one storage."""

    is_good: bool
    text: str
    seconds: float = 0.0


@dataclass(frozen=True)
class Attempt:
    storage: str
    short: bool
    log: Path

    def run(self, words: Sequence[str]) -> subprocess.CompletedProcess[str]:
        """Its output goes to a file that is told when something is wrong."""
        env = {**os.environ, **storages.ENVIRONMENT}
        with self.log.open("w") as file:
            return subprocess.run(
                [sys.executable, *words],
                cwd=ROOT,
                env=env,
                stdout=file,
                stderr=subprocess.STDOUT,
                text=True,
                check=False,
                timeout=SUITE_S,
            )

    def tests(self, *files: str) -> Cell:
        report = self.log.with_suffix(".xml")
        report.unlink(missing_ok=True)
        scope = ["--storage", self.storage, *([] if self.short else ["--all-storages"])]
        paths = [f"tests/{file}.py" for file in files]
        ran = self.run(["-m", "pytest", "-q", "-p", "no:cacheprovider", f"--junitxml={report}", *scope, *paths])
        if not report.is_file():
            return Cell(False, f"no report, exit code {ran.returncode}")
        return of_report(ran.returncode, report)


def of_report(code: int, report: Path) -> Cell:
    counts: Counter[str] = Counter()
    reasons: Counter[str] = Counter()
    for case in ET.parse(report).iter("testcase"):
        kinds = {child.tag: child for child in case}
        kind = next((name for name in ("failure", "error", "skipped") if name in kinds), "passed")
        counts["failed" if kind in ("failure", "error") else kind] += 1
        if kind == "skipped":
            reasons[kinds[kind].get("message", "")] += 1
    parts = [f"{counts[kind]} {kind}" for kind in ("passed", "failed", "skipped") if counts[kind]]
    told = f" ({reasons.most_common(1)[0][0]})" if reasons else ""
    is_good = code == 0 and not counts["failed"] and bool(counts["passed"] or counts["skipped"])
    return Cell(is_good, ", ".join(parts) + told)


def conform(attempt: Attempt) -> Cell:
    with tempfile.TemporaryDirectory(prefix="sandlot-conform-") as data:
        ran = attempt.run(["-m", "sandlot", "--data-dir", data, "conform", "--storage", attempt.storage, "--json"])
    text = attempt.log.read_text()
    try:
        told = json.loads(text[text.index("{") :])
        counts = Counter(one["verdict"] for outcomes in told["storages"].values() for one in outcomes)
    except (ValueError, KeyError):
        return Cell(False, f"no answer, exit code {ran.returncode}")
    return Cell(ran.returncode == 0, ", ".join(f"{count} {verdict}" for verdict, count in counts.items()))


def whole(attempt: Attempt) -> Cell:
    """Every suite that ships, with each runtime."""
    with tempfile.TemporaryDirectory(prefix="sandlot-conform-") as data:
        words = ["-m", "sandlot", "--data-dir", data, "conform", "--matrix", "--storage", attempt.storage]
        ran = attempt.run([*words, *(["--runtime", "none"] if attempt.short else [])])
    lines = attempt.log.read_text().splitlines()
    rows = [re.split(r"\s{2,}", line.strip()) for line in lines if line.startswith(("STORAGE ", f"{attempt.storage} "))]
    if len(rows) < 2:
        return Cell(False, f"no answer, exit code {ran.returncode}")
    told = "; ".join(f"{runtime}: {cell}" for runtime, cell in zip(rows[0][1:], rows[1][1:], strict=False))
    return Cell(ran.returncode == 0, told)


def turns(attempt: Attempt) -> Cell:
    return attempt.tests(*(f"e2e/test_{name}" for name in TURNS))


def databases(attempt: Attempt) -> Cell:
    return attempt.tests("e2e/test_databases")


def disk(attempt: Attempt) -> Cell:
    return attempt.tests("e2e/test_disk_limits")


def diffs(attempt: Attempt) -> Cell:
    return attempt.tests("e2e/test_same_everywhere")


def _program(attempt: Attempt, *words: str) -> Cell:
    ran = attempt.run(["-m", *words, "--storage", attempt.storage])
    lines = [line for line in attempt.log.read_text().replace("\r", "\n").splitlines() if re.match(r"\w.*\d+ s;", line)]
    return Cell(ran.returncode == 0, lines[-1] if lines else f"exit code {ran.returncode}")


def soak(attempt: Attempt) -> Cell:
    return _program(attempt, "tests.soak.run", *(["--kills", "10"] if attempt.short else []))


def model(attempt: Attempt) -> Cell:
    return _program(attempt, "tests.model.run", *(["--steps", "60"] if attempt.short else []))


SUITES: dict[str, Callable[[Attempt], Cell]] = {
    run.__name__: run for run in (conform, whole, turns, databases, disk, diffs, model, soak)
}


def fill(names: Sequence[str], suites: Sequence[str], *, short: bool) -> dict[tuple[str, str], Cell]:
    found: dict[tuple[str, str], Cell] = {}
    for name in names:
        ready = storages.probe(name)
        for suite in suites:
            if not ready.ready:
                found[name, suite] = Cell(True, f"skipped: {ready.reason}")
                continue
            began = time.monotonic()
            print(f"{name}: {suite} ...", flush=True)
            attempt = Attempt(name, short, LOGS / f"{name}-{suite}.log")
            try:
                cell = SUITES[suite](attempt)
            except subprocess.TimeoutExpired:
                cell = Cell(False, f"it took longer than {SUITE_S} s")
            found[name, suite] = Cell(cell.is_good, cell.text, time.monotonic() - began)
    return found


def table(found: dict[tuple[str, str], Cell]) -> str:
    lines = [f"{'storage':<12}{'suite':<11}{'':<8}{'seconds':>8}  what came of it"]
    for (name, suite), cell in found.items():
        verdict = "good" if cell.is_good else "BAD"
        where = "" if cell.is_good else f"  (build/storages/{name}-{suite}.log)"
        lines.append(f"{name:<12}{suite:<11}{verdict:<8}{cell.seconds:>8.0f}  {cell.text}{where}")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(prog="matrix", description=__doc__)
    parser.add_argument("--storage", action="append", choices=storages.NAMES)
    parser.add_argument("--suite", action="append", choices=tuple(SUITES))
    parser.add_argument("--short", action="store_true", help="as much as `make test` does of each")
    arguments = parser.parse_args()
    LOGS.mkdir(parents=True, exist_ok=True)
    scratch = open_scratch()
    tempfile.tempdir = str(scratch) if scratch else None  # so that what is left of a run that was killed is found
    try:
        found = fill(arguments.storage or storages.NAMES, arguments.suite or tuple(SUITES), short=arguments.short)
    finally:
        if scratch:
            close_scratch(scratch)
    text = table(found)
    (LOGS / "table.txt").write_text(text + "\n")
    print(f"\n{text}")
    return 0 if all(cell.is_good for cell in found.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
