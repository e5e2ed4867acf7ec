"""Short parts of `make soak`, `make serversoak`, `make processes` and `make leaks`."""

import subprocess
import sys
from pathlib import Path

import pytest

from sandlot.model import limits
from tests.soak.processes import Size
from tests.soak.processes import soak as soak_processes
from tests.soak.run import ROOT, soak
from tests.soak.server import draw
from tests.soak.server import soak as soak_server

pytestmark = pytest.mark.root


KILLS = {"layers": 20, "btrfs": 6, "zfs": 2, "local-disk": 4}  # the long run is `make soak STORAGE=…`


@pytest.mark.every_storage
@pytest.mark.timeout(300)
async def test_a_world_survives_kills(data_dir: Path, storage: str) -> None:
    assert await soak(kills=KILLS[storage], seed=7, data=data_dir, storage=storage) == 0


@pytest.mark.timeout(300)
def test_sessions_leave_nothing_behind(shared_templates: Path) -> None:
    words = ["--rounds", "100", "--templates", str(shared_templates)]
    ran = subprocess.run(
        [sys.executable, "-m", "tests.soak.leaks", *words], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "100 rounds" in ran.stdout


@pytest.mark.timeout(240)
async def test_what_a_server_told_is_true_however_often_it_is_killed(data_dir: Path) -> None:
    result = await soak_server(data_dir, seconds=8, kill_every_s=3.5, seed=3, each=1)
    assert result["wrong"] == []
    assert result["kills"] >= 2
    assert result["done"] > 10
    assert draw(result).count("<polyline") == 2


@pytest.mark.timeout(240)
async def test_processes_are_followed_found_again_and_killed_at_once(
    data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "TERMINATE_GRACE_S", 2.0)
    story = await soak_processes(data_dir, Size(sessions=4, each=10, bursts=1, flood_bytes=64 << 20, held_s=1))
    assert story.wrong == []
    assert len(story.told) == 7
