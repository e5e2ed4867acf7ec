"""Who did what is written down before it is done, whoever he is and however he comes; and no death takes it away."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from sandlot import Client, Sandbox
from sandlot.audit.files import ANCHOR_FILE, FOLDER
from sandlot.audit.verifying import records_of, verify
from sandlot.model import Scope
from sandlot.tenants.keys import KeyStore
from tests.e2e.preview_stage import staged
from tests.serving import environment, server

pytestmark = pytest.mark.root


def records(data: Path) -> list[Mapping[str, Any]]:
    assert verify(data / FOLDER, data / ANCHOR_FILE).findings == ()
    return [json.loads(line) for line in records_of(data / FOLDER)]


def sandlot(data: Path, *words: str) -> tuple[int, str]:
    command = [sys.executable, "-m", "sandlot", "--data-dir", str(data), *words]
    ran = subprocess.run(command, capture_output=True, text=True, env=environment(), timeout=120)
    return ran.returncode, ran.stdout + ran.stderr


def test_a_server_writes_down_who_did_what(data_dir: Path) -> None:
    keys = KeyStore(data_dir)
    team, ops = keys.create("ci", "team", Scope.USE), keys.create("ops", "", Scope.OPERATE)
    with server(data_dir) as one:
        url = f"http://127.0.0.1:{one.port}"
        with Client(url=url, api_key=team.secret) as client, Sandbox.create(id="work", client=client) as sandbox:
            sandbox.commands.run("echo hello; PASSWORD=hunter2secret true")
            sandbox.files.write("f", "content that is nobody's business")
            sandbox.turn()
            (child,) = sandbox.fork(1)
            child.kill()
            with Client(url=url, api_key=sandbox.token()) as narrow:
                Sandbox.connect("work", client=narrow).commands.run("true")
            Sandbox("nobody", client=client).kill()
        with Client(url=url, api_key=ops.secret) as client:
            Sandbox.create(id="own", client=client).kill()
        told = records(data_dir)
        check_command_line(data_dir, len(told))

    def asked(verb: str, who: str) -> list[Mapping[str, Any]]:
        return [one for one in told if (one["verb"], one["phase"], one["who"]) == (verb, "asked", who)]

    (call,) = asked("call", team.info.key_id)
    assert call["session"] == "tenant-team.work"
    assert "echo hello" in call["detail"]["argv"]
    assert "hunter2secret" not in json.dumps(told), "secrets are taken out"
    assert "nobody's business" not in json.dumps(told), "content is not told"
    (done,) = [one for one in told if one.get("of") == call["n"]]
    assert (done["phase"], bool(done["detail"]["call_id"])) == ("done", True)
    (turn,) = [one for one in told if (one["verb"], one["phase"]) == ("turn_complete", "done")]
    assert turn["detail"]["number"] == 1
    (forked,) = [one for one in told if (one["verb"], one["phase"]) == ("fork", "done")]
    assert forked["detail"]["made"][0].startswith("tenant-team.")
    (token,) = [one for one in told if one["verb"] == "call" and one["phase"] == "asked" and "~" in one["who"]]
    assert token["who"].startswith(f"{team.info.key_id}~use~")
    failed = [one for one in told if one["phase"] == "failed"]
    assert [(one["verb"], one["error"]) for one in failed] == [("destroy", "session_not_found")]
    assert len(asked("create", ops.info.key_id)) == 1


def check_command_line(data: Path, count: int) -> None:
    code, text = sandlot(data, "audit", "verify")
    assert (code, f"{count} records are what was written" in text) == (0, True)
    code, text = sandlot(data, "--json", "audit", "log", "--session", "tenant-team.work", "--who", "ci")
    assert code == 0
    found = [json.loads(line) for line in text.splitlines()]
    assert {one["verb"] for one in found} >= {"create", "call", "write_file", "turn_complete", "fork", "destroy"}
    assert {"asked", "done"} == {one["phase"] for one in found}
    assert "tenant-team.nobody" not in text
    code, text = sandlot(data, "audit", "log")
    assert "ci  call asked  tenant-team.work" in text
    assert "ci (token)  call asked" in text
    assert "ops  create asked  own" in text


def test_what_needs_no_server_is_written_down_too(data_dir: Path) -> None:
    """The SDK with an engine of its own, the command line, and a program that comes in through the socket."""
    with Client(data_dir=data_dir) as client, Sandbox.create(id="work", client=client):
        assert sandlot(data_dir, "exec", "work", "--", "true")[0] == 0
    told = records(data_dir)
    assert {one["who"] for one in told} == {"local"}
    assert [one["verb"] for one in told if one["phase"] == "asked"] == ["create", "call", "destroy"]


def test_ports_and_terminals_are_written_down_without_what_goes_through(data_dir: Path) -> None:
    """Who opened which, and how many bytes it was in the end: in one pair of records, however much was typed."""
    team = KeyStore(data_dir).create("ci", "team", Scope.USE)
    with staged(data_dir, "--preview-public", key=team.secret) as stage:
        sandbox, words = stage.sandbox, "the password"
        for _ in range(5):
            assert stage.get(f"/{words.split()[1]}").status == 200
        sandbox.preview(3000, public=True)
        for _ in range(2):
            assert stage.get("/?x", X_Sandlot_Preview_Token="").status == 200  # nobody's
        with sandbox.ports.connect(3000) as line:
            line.write(f"GET /{words.split()[1]} HTTP/1.0\r\n\r\n".encode())
            heard = len(b"".join(iter(line.read, b"")))
        pty = sandbox.pty.open(["cat"])
        for letter in words:
            pty.write(letter)
        pty.write("\r\x04")
        pty.wait()
        assert stage.server.stop() == 0
        told = records(data_dir)
        with server(data_dir, listen=stage.api):
            sandbox.kill()
    session, who = "tenant-team.work", team.info.key_id

    def pairs(verb: str, who: str) -> list[tuple[Mapping[str, Any], Mapping[str, Any]]]:
        begun = [one for one in told if (one["verb"], one["phase"], one["who"]) == (verb, "asked", who)]
        assert all(one["session"] == session for one in begun)
        ends = {one["of"]: one for one in told if "of" in one}
        assert all(ends[one["n"]]["who"] == who for one in begun)
        return [(one["detail"], ends[one["n"]].get("detail", {})) for one in begun]

    ((asked, done),) = pairs("connect_port", who)
    assert (asked, done) == ({"port": 3000}, {"sent_bytes": 26, "received_bytes": heard})
    for visitor in (f"{who}~preview", "anybody"):
        visits = pairs("connect_port", visitor)
        assert all(asked == {"port": 3000} for asked, _ in visits)
        # One that only looked whether a slow program is still there heard nothing.
        assert sum(done["received_bytes"] for _, done in visits) > 100, visitor
    ((asked, done),) = pairs("write_terminal", who)
    assert (asked, done) == ({"terminal_id": pty.id}, {"sent_bytes": len(words) + 2})
    assert pairs("attach_terminal", who)[-1][0] == {"terminal_id": pty.id}
    assert "password" not in json.dumps(told)
    assert "ci (preview)  connect_port asked  tenant-team.work  port=3000" in sandlot(data_dir, "audit", "log")[1]


def test_what_becomes_of_keys_is_written_down(data_dir: Path) -> None:
    """By the command line before a server, beside one and behind one: by the server that there is, or by the next."""
    assert sandlot(data_dir, "key", "create", "ops")[0] == 0
    with server(data_dir) as one:
        code, made = sandlot(data_dir, "key", "create", "ci", "--tenant", "team")
        assert code == 0
        with Client(url=f"http://127.0.0.1:{one.port}", api_key=made.strip()) as client:
            Sandbox.create(id="work", client=client).kill()
        assert sandlot(data_dir, "key", "limit", "team", "--sessions", "3")[0] == 0
        one.process.send_signal(signal.SIGKILL)
        one.process.wait(60)
    assert sandlot(data_dir, "key", "revoke", "ci")[0] == 0
    assert not [one for one in records(data_dir) if one["verb"] == "key_revoke"], "it waits for whoever has the log"
    with Client(data_dir=data_dir) as client:
        assert Sandbox.list(client=client) == []
    told = records(data_dir)
    assert [one["verb"] for one in told if one["phase"] != "done" or one["verb"].startswith("key")] == [
        *("key_create", "key_create", "create", "destroy", "key_limit", "key_revoke"),
    ]
    assert "ci" in sandlot(data_dir, "audit", "log")[1]
    assert sandlot(data_dir, "audit", "verify")[0] == 0


def test_no_death_of_the_server_takes_anything_away(data_dir: Path) -> None:
    """What was answered stands in the log, and the next server goes on behind it."""
    answered = 0
    for _ in range(3):
        with server(data_dir) as one, Client(url=f"http://127.0.0.1:{one.port}") as client:
            sandbox = Sandbox.create(client=client)
            for _ in range(20):
                sandbox.commands.run("true")
                answered += 1
            one.process.send_signal(signal.SIGKILL)
            one.process.wait(60)
        told = records(data_dir)
        assert sum(one["verb"] == "call" and one["phase"] == "asked" for one in told) == answered


def test_the_log_goes_with_a_backup(data_dir: Path, tmp_path: Path) -> None:
    """Taken from a server that goes on. The host that is made of it goes on with the chain, and tells no key twice."""
    again, file = tmp_path / "again", str(tmp_path / "host.backup")
    ops = KeyStore(data_dir).create("ops", "", Scope.OPERATE)
    with server(data_dir) as one, Client(url=f"http://127.0.0.1:{one.port}", api_key=ops.secret) as client:
        Sandbox.create(id="work", client=client, detach=True).commands.run("true")
        assert sandlot(data_dir, "backup", file)[0] == 0
        Sandbox.connect("work", client=client).kill()
        told = records(data_dir)
    again.mkdir(mode=0o700)
    (again / "templates").symlink_to((data_dir / "templates").resolve())
    code, text = sandlot(again, "restore", file)
    assert code == 0, text
    kept = records(again)
    assert kept == told[: len(kept)]
    assert (kept[-1]["verb"], kept[-1]["phase"]) == ("backup", "asked")
    with Client(data_dir=again) as client:
        Sandbox.connect("work", client=client).kill()
    found = records(again)
    assert found[: len(kept)] == kept
    assert [one["verb"] for one in found[len(kept) :]] == ["destroy", "destroy"]
    code, text = sandlot(again, "audit", "verify", "--known", f"{kept[-1]['n']}:{kept[-1]['hash']}")
    assert code == 0, text


def test_what_is_written_down_can_be_turned_off(data_dir: Path) -> None:
    with server(data_dir, "--no-audit") as one, Client(url=f"http://127.0.0.1:{one.port}") as client:
        Sandbox.create(client=client).kill()
    assert not (data_dir / FOLDER).exists()
    assert not (data_dir / ANCHOR_FILE).exists()


def test_an_anchor_can_stand_elsewhere(data_dir: Path, tmp_path: Path) -> None:
    anchor = tmp_path / "elsewhere"
    with server(data_dir, "--audit-anchor", str(anchor)) as one, Client(url=f"http://127.0.0.1:{one.port}") as client:
        Sandbox.create(client=client).kill()
    assert not (data_dir / ANCHOR_FILE).exists()
    verdict = verify(data_dir / FOLDER, anchor)
    assert (verdict.records, verdict.findings) == (4, ())
    known = f"{verdict.last.number}:{verdict.last.hash}"
    for path in (data_dir / FOLDER).iterdir():
        os.truncate(path, 200)
    command = [sys.executable, "-m", "sandlot", "--data-dir", str(data_dir), "--json", "audit", "verify"]
    for words, env in (((), {"SANDLOT_AUDIT_ANCHOR": str(anchor)}), (("--known", known), {})):
        ran = subprocess.run([*command, *words], capture_output=True, text=True, env=environment(**env), timeout=60)
        assert (ran.returncode, json.loads(ran.stdout)["is_whole"]) == (1, False)
    assert sandlot(data_dir, "audit", "verify", "--known", "x")[0] == 2
