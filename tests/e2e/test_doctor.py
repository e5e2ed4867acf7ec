"""`sandlot doctor` where it matters: as root, as nobody, in a container without rights, and on odd machines."""

import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import NO_ROOT
from tests.e2e.test_cli import ROOT, Program, Ran, Terminal, nobody

pytestmark = pytest.mark.root

SECTIONS = ["rights", "kernel", "limits", "data directory", "template", "engine"]
# A container without rights, as far as a machine without Docker can make one.
CONTAINER = ["unshare", "--user", "--map-root-user", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
NO_RIGHTS = ["setpriv", "--bounding-set=-all", "--inh-caps=-all"]
NO_SYS = ["sh", "-c", 'mount -t tmpfs none /sys && exec "$@"', "sh"]


@pytest.fixture
def sandlot(tmp_path: Path) -> Program:
    """On a data directory that nobody has made."""
    return Program(tmp_path / "data")


@pytest.fixture
def contained(tmp_path: Path) -> Callable[..., Ran]:
    missing = [tool for tool in ("unshare", "setpriv") if not shutil.which(tool)]
    if missing:
        pytest.skip(f"{missing[0]} is not installed here")

    def run(*words: str, sys_mounted: bool = False, powers: bool = False) -> Ran:
        """`powers`: root of a user namespace may do much there, and still nothing to the machine."""
        environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1", "HOME": str(tmp_path)}
        return subprocess.run(
            [*CONTAINER, *([] if sys_mounted else NO_SYS), *([] if powers else NO_RIGHTS), *words],
            env=environment,
            cwd=ROOT,
            capture_output=True,
            timeout=50,
            check=False,
        )

    if run("true").returncode:
        pytest.skip("this kernel makes no user namespaces for us")
    return run


def report_of(ran: Ran, code: int) -> dict[str, Any]:
    """The document, after a look at what every one of them has."""
    assert (ran.returncode, ran.stderr) == (code, b""), ran
    report = json.loads(ran.stdout)
    assert report["ready"] is (code == 0)
    assert list(dict.fromkeys(check["section"] for check in report["checks"])) == SECTIONS
    for check in report["checks"]:
        assert set(check) == {"section", "name", "verdict", "detail", "next_step"}
        assert check["detail"]
        if check["verdict"] == "missing":
            assert check["next_step"], check
    return report


def verdicts(report: dict[str, Any]) -> dict[str, str]:
    return {check["name"]: check["verdict"] for check in report["checks"]}


def groups() -> set[str]:
    """Those that stay. What another doctor of this machine makes is gone at the next look."""
    found: set[str] | None = None
    for _look in range(3):
        there = {folder for folder, _names, _files in os.walk("/sys/fs/cgroup") if "sandlot-doctor" in folder}
        if not (found := there if found is None else found & there):
            break
        time.sleep(0.2)
    return found or set()


# ---- as root -----------------------------------------------------------------------------------------------------


def test_as_root_all_is_there_and_nothing_is_left(sandlot: Program, tmp_path: Path) -> None:
    report = report_of(sandlot("doctor", "--json"), 0)
    assert "ready" in report["summary"]
    assert set(verdicts(report).values()) <= {"ok", "note"}
    for name in (
        "user",
        "capabilities",
        "seccomp",
        "kernel",
        "architecture",
        "overlayfs",
        "user namespaces",
        "openat2",
        "pidfd",
        "cgroups",
        "session limits",
        "data directory",
        "free space",
        "filesystem",
        "guest program",
        "storage layers",
        "runtime namespaces",
        "runtime none",
    ):
        assert name in verdicts(report)
    assert list(tmp_path.iterdir()) == []
    assert groups() == set()
    assert not keepers_below(tmp_path)


def keepers_below(folder: Path) -> list[str]:
    """Processes that hold something below it open."""
    found: list[str] = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            names = [str(fd.readlink()) for fd in (process / "fd").iterdir()]
        except OSError:
            continue
        found += [process.name for name in names if name.startswith(str(folder))]
    return found


def test_a_directory_that_is_there_is_left_as_it_was(sandlot: Program) -> None:
    sandlot.data.mkdir()
    (sandlot.data / "something").write_text("else")
    report_of(sandlot("doctor", "--json"), 0)
    assert [entry.name for entry in sandlot.data.iterdir()] == ["something"]


def test_for_people(sandlot: Program) -> None:
    lines = sandlot("doctor").stdout.decode().splitlines()
    assert [line for line in lines if line and not line.startswith(" ")] == [
        *SECTIONS,
        "This machine is ready: sessions are isolated.",
    ]
    terminal = Terminal(sandlot.words("doctor"), columns=60)
    shown = terminal.wait_for(b"sessions are isolated.").decode()
    assert terminal.process.wait(20) == 0
    terminal.close()
    plain = re.sub(r"\x1b\[[0-9;]*m", "", shown)
    assert [section for section in SECTIONS if f"\n{section}\r" in f"\n{plain}"] == SECTIONS
    assert [line for line in plain.splitlines() if len(line) > 60] == []
    assert "runtime namespaces" in plain


def test_a_capability_that_no_probe_finds_missing(sandlot: Program) -> None:
    ran = subprocess.run(
        ["setpriv", "--bounding-set=-fowner", *sandlot.words("doctor", "--json")],
        capture_output=True,
        timeout=50,
        check=False,
    )
    report = report_of(ran, 1)
    (check,) = [check for check in report["checks"] if check["name"] == "capabilities"]
    assert (check["verdict"], check["detail"]) == ("missing", "without CAP_FOWNER")
    assert "--cap-add=FOWNER" in check["next_step"]


# ---- as nobody ---------------------------------------------------------------------------------------------------


def test_as_nobody() -> None:
    with nobody() as run:
        home = Path(run("-c", "import os; print(os.getcwd(), end='')").stdout.decode())
        report = report_of(run("-m", "sandlot", "doctor", "--json"), 1)
        assert list(home.iterdir()) == []
    found = verdicts(report)
    assert found["user"] == found["capabilities"] == found["runtime namespaces"] == "missing"
    assert found["storage layers"] == found["runtime none"] == found["guest program"] == "ok"
    assert "--runtime none" in report["summary"]
    if found["cgroups"] == "ok":
        (check,) = [check for check in report["checks"] if check["name"] == "child groups"]
        assert (check["verdict"], "root" in check["next_step"]) == ("note", True)


# ---- in a container without rights -------------------------------------------------------------------------------


@pytest.mark.parametrize("sys_mounted", [False, True], ids=["without /sys", "with /sys"])
def test_in_a_container_without_rights(
    contained: Callable[..., Ran], sandlot: Program, tmp_path: Path, sys_mounted: bool
) -> None:
    report = report_of(contained(*sandlot.words("doctor", "--json"), sys_mounted=sys_mounted), 1)
    found = verdicts(report)
    assert found["user"] == found["capabilities"] == found["runtime namespaces"] == "missing"
    assert found["storage layers"] == found["runtime none"] == found["guest program"] == "ok"
    details = {check["name"]: check["detail"] for check in report["checks"]}
    assert "user namespace" in details["user"]
    if not sys_mounted:
        assert found["cgroups"] == "note"
        assert "none is mounted" in details["cgroups"]
    assert "cannot isolate sessions yet" in report["summary"]
    assert list(tmp_path.iterdir()) == []
    for_people = contained(*sandlot.words("doctor"), sys_mounted=sys_mounted)
    assert (for_people.returncode, for_people.stderr) == (1, b"")
    assert for_people.stdout.decode().count("→") >= 3


def test_with_powers_in_a_user_namespace_alone(contained: Callable[..., Ran], sandlot: Program) -> None:
    found = verdicts(report_of(contained(*sandlot.words("doctor", "--json"), powers=True), 1))
    assert (found["capabilities"], found["user"], found["runtime namespaces"]) == ("ok", "missing", "missing")


def test_trusted_code_runs_in_a_container_without_rights(contained: Callable[..., Ran], sandlot: Program) -> None:
    ran = contained(*sandlot.words("run", "--runtime", "none", "--", "echo", "hi"))
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, b"hi\n", b"")
    refused = contained(*sandlot.words("run", "--", "echo", "hi"))
    assert (refused.returncode, refused.stdout) == (125, b"")
    assert b"sandlot doctor" in refused.stderr
    assert sandlot.volumes() == []


@pytest.mark.parametrize("powers", [False, True])
def test_tests_that_need_root_are_skipped_there_and_counted(contained: Callable[..., Ran], powers: bool) -> None:
    words = [sys.executable, "-m", "pytest", "-q", "-rs", "-p", "no:cacheprovider"]
    ran = contained(*words, "tests/unit/model", "tests/e2e/test_session.py", powers=powers)
    told = ran.stdout.decode()
    assert ran.returncode == 0, told
    (summary,) = re.findall(r"(\d+) passed, (\d+) skipped", told)
    assert int(summary[0]) > 10
    marked = (ROOT / "tests" / "e2e" / "test_session.py").read_text().count("def test_")
    assert int(summary[1]) == marked
    assert re.findall(rf"SKIPPED \[{marked}\] .*: {re.escape(NO_ROOT)}\n", told)


# ---- odd machines ------------------------------------------------------------------------------------------------

ODD = {
    "no /proc": ["unshare", "--mount", "sh", "-c", 'umount -l /proc && exec "$@"', "sh"],
    "a disk that cannot be written": [
        "unshare",
        "--mount",
        "sh",
        "-c",
        'mount --bind / / && mount -o remount,ro,bind / / && cd / && exec "$@"',
        "sh",
    ],
    "few open files": ["sh", "-c", 'ulimit -n 20 && exec "$@"', "sh"],
    "no guest program": ["env", "SANDLOT_KEEPER=/nonexistent"],
    "a guest program that is none": ["env", "SANDLOT_KEEPER=/bin/true"],
    "a guest program that does not run": ["env", "SANDLOT_KEEPER=/etc/passwd"],
    "no user namespaces": [
        "unshare",
        "--mount",
        "sh",
        "-c",
        'mount -t tmpfs none /proc/sys/user && exec "$@"',
        "sh",
    ],
}


@pytest.mark.parametrize("odd", ODD)
def test_odd_machines_are_told_of_and_nothing_is_left(sandlot: Program, tmp_path: Path, odd: str) -> None:
    ready = 0 if odd == "no user namespaces" else 1  # it only cannot be told; guests start all the same
    for options in (["--json"], []):
        words = [*ODD[odd], *sandlot.words("doctor", *options)]
        ran = subprocess.run(words, capture_output=True, timeout=50, check=False)
        assert b"Traceback" not in ran.stderr
        assert (ran.returncode, ran.stderr) == (ready, b"")
        if options:
            report = report_of(ran, ready)
            assert {"missing", "note"} & set(verdicts(report).values())
    assert list(tmp_path.iterdir()) == []


def a_file(data: Path) -> Path:
    data.write_text("no directory")
    return data


def below_a_file(data: Path) -> Path:
    return a_file(data) / "further" / "down"


def a_broken_journal(data: Path) -> Path:
    data.mkdir()
    (data / "journal.db").write_bytes(b"no database at all" * 100)
    return data


@pytest.mark.parametrize(
    ("make", "name"),
    [(a_file, "data directory"), (below_a_file, "data directory"), (a_broken_journal, "sessions")],
)
def test_data_directories_that_are_none(make: Callable[[Path], Path], name: str, tmp_path: Path) -> None:
    report = report_of(Program(make(tmp_path / "data"))("doctor", "--json"), 1)
    assert verdicts(report)[name] == "missing"
    (check,) = [check for check in report["checks"] if check["name"] == name]
    assert "--data-dir" in check["next_step"]


def test_sessions_are_counted_and_left_alone(data_dir: Path) -> None:
    sandlot = Program(data_dir)
    sandlot("create", "--id", "one")
    sandlot("create", "--id", "two")
    try:
        report = report_of(sandlot("doctor", "--json"), 0)
        (check,) = [check for check in report["checks"] if check["name"] == "sessions"]
        assert (check["verdict"], check["detail"]) == ("ok", "2")
        assert sandlot("exec", "one", "--", "echo", "alive").stdout == b"alive\n"
    finally:
        sandlot("kill", "--all", "--yes")
