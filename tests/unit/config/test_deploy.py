"""What `deploy/` holds is accepted by what it is for."""

import configparser
import shutil
import subprocess
from pathlib import Path

import pytest

from sandlot.config.service import load_service

DEPLOY = Path(__file__).parents[3] / "deploy"


def test_the_file_of_settings_is_accepted() -> None:
    config = load_service({}, {"SANDLOT_CONFIG": str(DEPLOY / "sandlot.toml")})
    assert (str(config.engine.data), config.log_format) == ("/var/lib/sandlot", "json")


def test_the_unit_starts_what_there_is_and_ends_only_the_server() -> None:
    unit = configparser.ConfigParser(strict=False, interpolation=None)
    unit.optionxform = str  # pyright: ignore[reportAttributeAccessIssue] - names keep their capitals
    unit.read(DEPLOY / "sandlot.service")
    service = unit["Service"]
    assert service["ExecStart"].split()[1:] == ["serve", "--config", "/etc/sandlot/sandlot.toml"]
    assert (service["KillMode"], service["Type"]) == ("process", "notify")


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze")
def test_systemd_finds_no_fault(tmp_path: Path) -> None:
    for name in ("sandlot.service", "sandlot.socket"):
        text = (DEPLOY / name).read_text().replace("/usr/local/bin/sandlot", "/bin/true")
        (tmp_path / name).write_text(text)
    words = ["systemd-analyze", "verify", *map(str, tmp_path.iterdir())]
    ran = subprocess.run(words, capture_output=True, text=True, timeout=120)
    assert "sandlot" not in ran.stderr, ran.stderr
