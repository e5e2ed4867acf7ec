"""`sandlot support`: what helps is in the file, what is secret is not, and nothing is changed by it."""

import json
import os
import signal
import sqlite3
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest

from sandlot import Client, Sandbox
from sandlot.model import Scope
from sandlot.tenants.keys import KeyStore
from tests.serving import environment, server

pytestmark = pytest.mark.root

ALWAYS = {"manifest.json", "versions.json", "settings.json", "doctor.json"}
OF_A_JOURNAL = {"journal.json", "sessions.json", "events.json"}
OF_A_SERVER = {"health.json", "metrics.txt"}


def support(data: Path, file: Path, *words: str, **env: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "sandlot", "--json", "--data-dir", str(data), "support", str(file), *words]
    ran = subprocess.run(command, capture_output=True, text=True, env=environment(**env), timeout=120)
    assert ran.returncode == 0, ran.stderr
    return json.loads(ran.stdout)


def read(file: Path) -> dict[str, str]:
    assert file.stat().st_mode & 0o777 == 0o600
    with tarfile.open(file) as archive:
        members = {member.name.removeprefix("sandlot-support/"): archive.extractfile(member) for member in archive}
        return {name: content.read().decode() for name, content in members.items() if content is not None}


@pytest.mark.timeout(180)
def test_what_helps_is_in_it_and_what_is_secret_is_not(data_dir: Path, tmp_path: Path) -> None:
    key = KeyStore(data_dir).create("ops", "", Scope.OPERATE)
    settings = tmp_path / "sandlot.toml"
    settings.write_text('webhooks = "http://127.0.0.1:9/planted-path"\nsessions_max = 77\n')
    planted = ["planted-env", "planted-argv", "planted-label", "planted-file", "planted-output", "planted-path"]
    with server(data_dir, "--config", str(settings)) as one:
        url = f"http://127.0.0.1:{one.port}"
        with Client(url=url, api_key=key.secret) as client:
            box = Sandbox.create(id="web", envs={"MINE": "planted-env"}, labels={"a": "planted-label"}, client=client)
            box.commands.run("echo planted-output planted-argv")
            box.files.write("f", "planted-file")
            token = box.token()
            Sandbox.create(id="gone", client=client).kill()
        told = support(data_dir, tmp_path / "a.tar.gz", "--config", str(settings), SANDLOT_API_KEY=key.secret)
        parts = read(tmp_path / "a.tar.gz")
    assert told["lacking"] == {}
    assert parts.keys() == told["parts"].keys() == ALWAYS | OF_A_JOURNAL | OF_A_SERVER
    assert [(one["session_id"], one["state"]) for one in json.loads(parts["sessions.json"])] == [("web", "active")]
    assert {"created", "destroyed"} <= {one["kind"] for one in json.loads(parts["events.json"])}
    assert json.loads(parts["health.json"])["session_count"] == 1
    assert json.loads(parts["doctor.json"])["checks"]
    assert json.loads(parts["journal.json"])["integrity"] == "ok"
    assert json.loads(parts["journal.json"])["rows"]["calls"] == 1
    assert "sandlot_sessions 1.0" in parts["metrics.txt"]
    found = json.loads(parts["settings.json"])
    assert (found["SANDLOT_SESSIONS_MAX"], found["SANDLOT_WEBHOOKS"]) == ("77", "http://127.0.0.1:9")

    # Words of a failure may repeat anything.
    with sqlite3.connect(data_dir / "journal.db") as db:
        said = f"tried planted-env with planted-argv, password=planted-form, {key.secret} and {token}"
        db.execute("UPDATE sessions SET reason = ?", (said,))
    db.close()
    support(data_dir, tmp_path / "b.tar.gz", SANDLOT_API_KEY=key.secret)
    later = read(tmp_path / "b.tar.gz")
    assert "tried [hidden] with [hidden]" in later["sessions.json"], "it was read"
    whole = "".join([*parts.values(), *later.values()])
    secret = (data_dir / "webhook.secret").read_bytes()
    for text in (*planted, "planted-form", key.secret, token, secret.hex(), key.secret[-20:]):
        assert text not in whole, text


@pytest.mark.timeout(180)
def test_it_works_without_an_engine_and_changes_nothing(data_dir: Path, tmp_path: Path) -> None:
    there = sorted(data_dir.iterdir())
    told = support(data_dir, tmp_path / "none.tar.gz")
    assert read(tmp_path / "none.tar.gz").keys() == ALWAYS
    assert told["lacking"].keys() == OF_A_SERVER | {"journal.json"}
    assert sorted(data_dir.iterdir()) == there

    with server(data_dir) as one:
        with Client(url=f"http://127.0.0.1:{one.port}") as client:
            Sandbox.create(id="web", client=client)
        one.process.send_signal(signal.SIGKILL)
        one.process.wait()
        before = (data_dir / "journal.db").read_bytes()
        told = support(data_dir, tmp_path / "dead.tar.gz")
    assert told["lacking"].keys() == OF_A_SERVER
    assert read(tmp_path / "dead.tar.gz").keys() == ALWAYS | OF_A_JOURNAL
    assert "web" in read(tmp_path / "dead.tar.gz")["sessions.json"]
    assert (data_dir / "journal.db").read_bytes() == before

    with (data_dir / "journal.db").open("r+b") as file:  # as after a disk that failed
        file.write(os.urandom(512))
    (data_dir / "journal.db-wal").unlink(missing_ok=True)
    told = support(data_dir, tmp_path / "broken.tar.gz")
    assert "cannot be read" in told["lacking"]["journal.json"]
    assert read(tmp_path / "broken.tar.gz").keys() == ALWAYS
