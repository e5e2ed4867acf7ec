"""The fixtures that Sandlot gives to tests of others."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

PASSING = """
import pytest
from sandlot import Sandbox

@pytest.mark.sandbox(runtime="none", storage="local-disk", labels={"of": "marker"})
def test_real(sandbox):
    assert sandbox.commands.run("echo here").stdout == "here\\n"
    assert dict(sandbox.info().labels) == {"of": "marker"}

def test_several(sandbox_factory):
    one, two = (sandbox_factory(runtime="none", storage="local-disk") for _ in range(2))
    one.files.write("a", "1")
    assert not two.files.exists("a")

def test_nothing_is_left():
    assert Sandbox.list() == []
"""
FAKE = """
from sandlot import CapabilityNotSupported
import pytest

async def shout(running):
    await running.out((await running.read_all()).decode().upper())
    return 0

def test_fake(fake_sandbox, fake_host):
    fake_host.programs["shout"] = shout
    fake_sandbox.files.write("a", "text")
    assert fake_sandbox.commands.run("cat a | shout > b; cat b").stdout == "TEXT"
    fake_sandbox.turn()
    fake_sandbox.files.write("a", "other")
    fake_sandbox.rollback(1)
    assert fake_sandbox.files.read("a") == "text"
    assert fake_sandbox.commands.run("no-such").exit_code == 127
    with pytest.raises(CapabilityNotSupported):
        fake_sandbox.commands.run("true", user="root")

@pytest.mark.sandbox(runtime="gvisor", labels={"of": "marker"})
def test_labels(fake_sandbox):
    assert dict(fake_sandbox.info().labels) == {"of": "marker"}
"""


def ran(tmp_path: Path, data: Path, text: str) -> subprocess.CompletedProcess[str]:
    (tmp_path / "test_sample.py").write_text(text)
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:asyncio", "test_sample.py"],
        cwd=tmp_path,
        env={**os.environ, "SANDLOT_DATA_DIR": str(data)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.mark.parametrize("text", [PASSING, FAKE], ids=["real", "fake"])
def test_the_fixtures_give_sandboxes_and_take_them_back(tmp_path: Path, data_dir: Path, text: str) -> None:
    done = ran(tmp_path, data_dir, text)
    assert done.returncode == 0, done.stdout + done.stderr
    count = text.count("\ndef test_")
    assert f"{count} passed" in done.stdout, done.stdout


def test_what_cannot_be_made_is_told_and_not_skipped(tmp_path: Path, data_dir: Path) -> None:
    text = "import pytest\n@pytest.mark.sandbox(storage='cardboard')\ndef test_x(sandbox): ...\n"
    done = ran(tmp_path, data_dir, text)
    assert done.returncode == 1, done.stdout
    assert "cardboard" in done.stdout, done.stdout
