"""Short parts of `make soak` and `make leaks`."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.soak.run import ROOT, soak

pytestmark = pytest.mark.root


@pytest.mark.timeout(180)
async def test_a_world_survives_kills(data_dir: Path) -> None:
    assert await soak(kills=20, seed=7, data=data_dir) == 0


@pytest.mark.timeout(300)
def test_sessions_leave_nothing_behind(shared_templates: Path) -> None:
    words = ["--rounds", "100", "--templates", str(shared_templates)]
    ran = subprocess.run(
        [sys.executable, "-m", "tests.soak.leaks", *words], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "100 rounds" in ran.stdout
