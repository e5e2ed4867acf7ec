"""Which releases of OpenSandbox's own clients run on our gateway: tried, and written into COMPATIBILITY.md.

The newest release of each minor series of the SDK, up to three and filled up with the releases before, goes through the
tests of the gateway; the clients beside it are tried as their newest release. Environments are thrown away.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).parents[1]
PLACE = ROOT / "build" / "compat"
PAGE = ROOT / "COMPATIBILITY.md"
BEGIN, END = "<!-- compat: begin, written by `make compat` -->", "<!-- compat: end -->"
TESTS = [f"tests/e2e/test_opensandbox{part}.py" for part in ("", "_sync", "_rest", "_ports")]
CLIENTS = ("opensandbox-code-interpreter", "opensandbox-cli", "opensandbox-mcp")
COUNT = 3
_VERSION = re.compile(r"\d+(?:\.\d+)+")
_WITHIN_S = 1200


def main() -> int:
    PLACE.mkdir(parents=True, exist_ok=True)
    rows = [_sdk(version) for version in chosen(released("opensandbox"))]
    rows += _clients()
    for row in rows:
        print("  ".join(row))
    write(PAGE, rows)
    return sum(row[2] != "passes" for row in rows)


def released(package: str) -> list[str]:
    """Newest first."""
    asked = [sys.executable, "-m", "pip", "index", "versions", package, "--disable-pip-version-check"]
    told = subprocess.run(asked, capture_output=True, text=True, timeout=120, check=True).stdout
    (line,) = (line for line in told.splitlines() if line.startswith("Available versions:"))
    return [text for text in map(str.strip, line.partition(":")[2].split(",")) if _VERSION.fullmatch(text)]


def chosen(versions: Sequence[str], count: int = COUNT) -> list[str]:
    """The newest of each minor series, and if these are too few the newest of the rest; newest first."""
    first: dict[str, str] = {}
    for version in versions:
        first.setdefault(".".join(version.split(".")[:2]), version)
    found = list(first.values())[:count]
    found += [version for version in versions if version not in found][: count - len(found)]
    return sorted(found, key=versions.index)


def _sdk(version: str) -> tuple[str, str, str, str]:
    place = PLACE / f"sdk-{version}"
    report = PLACE / f"sdk-{version}.xml"
    shutil.rmtree(place, ignore_errors=True)
    report.unlink(missing_ok=True)
    # What it depends on is what is locked; it comes before the one that is locked.
    _pip(sys.executable, "--target", str(place), "--no-deps", f"opensandbox=={version}")
    envs = {**os.environ, "PYTHONPATH": str(place)}
    asked = [sys.executable, "-m", "pytest", "-q", *TESTS, f"--junitxml={report}", "-p", "no:cacheprovider"]
    ran = subprocess.run(asked, cwd=ROOT, env=envs, timeout=_WITHIN_S, check=False, stdout=sys.stderr)
    shutil.rmtree(place, ignore_errors=True)
    if not report.exists():
        return ("opensandbox", version, "fails", f"the tests could not be run ({ran.returncode})")
    return ("opensandbox", version, *counted(report))


def counted(report: Path) -> tuple[str, str]:
    cases = list(ElementTree.parse(report).getroot().iter("testcase"))
    failed = [case for case in cases if case.find("failure") is not None or case.find("error") is not None]
    skipped = [case for case in cases if case.find("skipped") is not None]
    told = f"{len(cases) - len(failed) - len(skipped)} tests"
    if skipped:
        told += f"; {len(skipped)} try what it does not have"
    if failed or not cases:
        told += "; fails: " + ", ".join(sorted(case.get("name", "") for case in failed))
    return ("fails" if failed or not cases else "passes", told)


def _clients() -> Iterator[tuple[str, str, str, str]]:
    place = PLACE / "clients"
    shutil.rmtree(place, ignore_errors=True)
    subprocess.run([sys.executable, "-m", "venv", str(place)], timeout=120, check=True)
    python = str(place / "bin" / "python")
    versions = {package: released(package)[0] for package in CLIENTS}
    _pip(python, *(f"{package}=={version}" for package, version in versions.items()))
    with _server() as address:
        asked = [python, str(ROOT / "tests" / "vendors" / "opensandbox_clients.py"), address, "no-key-is-needed"]
        envs = {**os.environ, "COMPAT_HOME": str(place)}
        told = subprocess.run(asked, env=envs, stdout=subprocess.PIPE, text=True, timeout=_WITHIN_S, check=False).stdout
    shutil.rmtree(place, ignore_errors=True)
    results = dict(line.split("\t", 1) for line in told.splitlines() if "\t" in line)
    for package, version in versions.items():
        verdict = "passes" if results.get(package) == "passed" else "fails"
        yield (package, version, verdict, "`tests/vendors/opensandbox_clients.py`")


@contextmanager
def _server() -> Generator[str]:
    data = PLACE / "data"
    asked = [sys.executable, "-m", "sandlot", "--json", "--data-dir", str(data), "serve", "--listen", "127.0.0.1:0"]
    with subprocess.Popen([*asked, "--log-level", "warning"], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield json.loads(process.stdout.readline())["listen"][0].removeprefix("http://")
        finally:
            process.terminate()
            process.wait(60)
    shutil.rmtree(data, ignore_errors=True)


def _pip(python: str, *words: str) -> None:
    asked = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-input", *words]
    subprocess.run(asked, timeout=600, check=True)


def write(page: Path, rows: Sequence[tuple[str, str, str, str]]) -> None:
    text = page.read_text()
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    table = ["| client | release | on our gateway | tried by |", "|---|---|---|---|"]
    table += [f"| `{name}` | {version} | {verdict} | {told} |" for name, version, verdict, told in rows]
    page.write_text("\n".join([before + BEGIN, *table, END + after]))


if __name__ == "__main__":
    sys.exit(main())
