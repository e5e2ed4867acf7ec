"""Wheels, built from a copy of the source: one that runs sandboxes, and one from where there is no compiler."""

import os
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.unit.sdk.stage import environment

ROOT = Path(__file__).parents[2]
SOURCE = (
    *("src", "guest/src", "guest/attack", "guest/preload", "guest/scout", "guest/Makefile"),
    *("setup.py", "pyproject.toml", "README.md", "LICENSE", "Makefile"),
)
GUEST = "sandlot/_bin/sandlot-keeper"
ATTEMPT = "sandlot/_bin/sandlot-attempt"
BUILD_S = 60
# What a user does first, whichever runtime his machine has.
FIRST_USE = """
import sandlot
assert sandlot.__file__.startswith(__import__("sys").prefix), sandlot.__file__
try:
    with sandlot.Sandbox.create(runtime="none") as sandbox:
        print(sandbox.commands.run("echo hello").stdout.strip())
except sandlot.SandlotError as error:
    print(f"{type(error).__name__}: {error.message} | {error.next_step}")
"""

pytestmark = pytest.mark.skipif(
    not (ROOT / "guest" / "src").is_dir(), reason="needs a checkout: wheels are built from it"
)


def copy_source(to: Path) -> Path:
    for name in SOURCE:
        kept = shutil.ignore_patterns("_bin", "__pycache__", "*.egg-info")
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, to / name, ignore=kept)
        else:
            (to / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, to / name)
    return to


def build(source: Path, *command: str, env: Mapping[str, str]) -> tuple[Path, str]:
    ran = subprocess.run(command, cwd=source, env=env, capture_output=True, text=True, timeout=BUILD_S)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    (wheel,) = (source / "dist").glob("*.whl")
    return wheel, ran.stdout + ran.stderr


def install(wheel: Path, venv: Path) -> Path:
    """Into a fresh environment that has the two libraries and nothing else of ours. Gives its Python."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", venv], check=True, timeout=BUILD_S)
    python = venv / "bin" / "python"
    options = ["--quiet", "--disable-pip-version-check", "install", "--no-index", "--no-deps"]
    subprocess.run([sys.executable, "-m", "pip", "--python", python, *options, wheel], check=True, timeout=BUILD_S)
    site = next((venv / "lib").glob("python*")) / "site-packages"
    # A folder that is named there is searched, but not its own .pth files: the checkout itself stays unseen.
    (site / "libraries.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return python


def first_use(python: Path, data: Path) -> subprocess.CompletedProcess[str]:
    plain = {name: value for name, value in environment(data).items() if name != "SANDLOT_KEEPER"}
    return subprocess.run(
        [python, "-W", "default", "-c", FIRST_USE],
        cwd=data.parent,
        env=plain,
        capture_output=True,
        text=True,
        timeout=BUILD_S,
    )


@pytest.mark.skipif(not (shutil.which("cc") or shutil.which("gcc")), reason="needs a C compiler")
@pytest.mark.skipif(not shutil.which("make"), reason="needs make")
def test_make_wheel_puts_the_guest_inside(tmp_path: Path) -> None:
    source = copy_source(tmp_path / "source")
    # `setup` would install this copy into the environment of the checkout.
    venv = f"VENV={Path(sys.executable).parents[1]}"
    wheel, _said = build(source, "make", "-o", "setup", venv, "wheel", env=os.environ)
    assert wheel.name.startswith("sandlot-")
    assert "-py3-none-linux_" in wheel.name, "for one kind of machine, and any Python"
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        assert {GUEST, ATTEMPT, "sandlot/py.typed", "sandlot/sdk/sync.py"} <= names
        assert archive.getinfo(GUEST).external_attr >> 16 & 0o111, "it can be run"
        assert not [name for name in names if name.startswith(("tests", "tools"))]
    ran = first_use(install(wheel, tmp_path / "venv"), tmp_path / "data")
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "hello\n", "")


def test_a_wheel_without_the_guest_says_so(tmp_path: Path) -> None:
    source = copy_source(tmp_path / "source")
    empty = tmp_path / "empty"
    empty.mkdir()
    command = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "--no-deps",
        "--no-build-isolation",
        "--wheel-dir",
        "dist",
        "-v",
        ".",
    ]
    wheel, said = build(source, *command, env={**os.environ, "PATH": str(empty)})
    assert "no C compiler" in said
    assert wheel.name.endswith("-py3-none-any.whl"), "for any machine"
    with zipfile.ZipFile(wheel) as archive:
        assert GUEST not in archive.namelist()
    ran = first_use(install(wheel, tmp_path / "venv"), tmp_path / "data")
    assert (ran.returncode, ran.stderr) == (0, "")
    kind, _, rest = ran.stdout.strip().partition(": ")
    message, _, next_step = rest.partition(" | ")
    assert kind == "CapabilityNotSupported"
    assert "guest program is missing" in message
    assert "make guest" in next_step
