"""Changes of keys are in the audit log: each once, in their order, whoever dies in between."""

import json
import random
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from sandlot.audit.files import ANCHOR_FILE, FOLDER
from sandlot.audit.log import AuditLog
from sandlot.audit.verifying import records_of, verify
from sandlot.model import KEYS_FILE, Scope, TenantLimits, limits
from sandlot.tenants import changes
from sandlot.tenants.keys import KeyStore
from sandlot.tenants.ledger import KeyLedger


class Engine:
    """Of whoever has a data directory, all that is about its log."""

    def __init__(self, data: Path) -> None:
        self.log = AuditLog(data / FOLDER, data / ANCHOR_FILE)
        self.log.open()
        self.ledger = KeyLedger(data, self.log)
        self.ledger.tell()

    def close(self) -> None:
        self.ledger.tell()
        self.log.close()


def told(data: Path) -> list[Mapping[str, Any]]:
    assert verify(data / FOLDER, data / ANCHOR_FILE).findings == ()
    return [json.loads(line) for line in records_of(data / FOLDER)]


def verbs(data: Path) -> list[tuple[str, str]]:
    return [(record["verb"], record["phase"]) for record in told(data)]


def test_what_was_changed_is_told_once_and_without_secrets(tmp_path: Path) -> None:
    """Before an engine, beside one, and by the next one."""
    keys = KeyStore(tmp_path)
    before = keys.create("ops", "", Scope.OPERATE)
    engine = Engine(tmp_path)
    made = keys.create("ci", "team", Scope.USE, 3600)
    keys.set_limits("team", TenantLimits(sessions=3))
    engine.ledger.tell()
    engine.ledger.tell()
    keys.revoke("ci")
    keys.revoke("ci")
    engine.close()
    Engine(tmp_path).close()
    found = [record for record in told(tmp_path) if record["verb"].startswith("key")]
    assert [record["verb"] for record in found] == ["key_create", "key_create", "key_limit", "key_revoke"]
    assert [record["detail"]["change"] for record in found] == [1, 2, 3, 4]
    detail = found[1]["detail"]
    assert (detail["key"], detail["name"], detail["tenant"], detail["scope"]) == (made.info.key_id, "ci", "team", "use")
    assert detail["expires"] > time.time()
    assert (found[2]["detail"]["tenant"], found[2]["detail"]["sessions"]) == ("team", 3)
    assert found[3]["detail"]["key"] == made.info.key_id
    text = json.dumps(found) + json.dumps(changes.read(tmp_path / KEYS_FILE))
    for secret in (before.secret, made.secret, *(row["hash"] for row in document(tmp_path)["keys"])):
        assert secret not in text


def document(data: Path) -> Any:
    return json.loads((data / KEYS_FILE).read_bytes())


def test_it_is_told_before_a_key_is_good_for_anything(tmp_path: Path) -> None:
    """A server looks at the file when somebody shows a key."""
    engine = Engine(tmp_path)
    server = KeyStore(tmp_path, engine.ledger.tell)
    made = KeyStore(tmp_path).create("ci", "team", Scope.USE)
    assert server.check(made.secret) == made.info
    assert ("key_create", "done") in verbs(tmp_path)
    engine.close()


def test_what_was_done_to_the_file_otherwise_is_told(tmp_path: Path) -> None:
    """A key that is good again, an older file in the place of a newer one, a limit, and no file; also when a change
    that is noted comes behind it."""
    keys = KeyStore(tmp_path)
    first = keys.create("ci", "team", Scope.USE)
    older = (tmp_path / KEYS_FILE).read_bytes()
    engine = Engine(tmp_path)
    keys.revoke("ci")
    engine.ledger.tell()
    edited = document(tmp_path)
    edited["keys"][0]["revoked"] = None
    (tmp_path / KEYS_FILE).write_text(json.dumps(edited))
    assert keys.check(first.secret) is not None
    engine.ledger.tell()
    assert told(tmp_path)[-1]["phase"] == "changed by other means"
    assert told(tmp_path)[-1]["detail"]["good"] == [first.info.key_id]
    (tmp_path / KEYS_FILE).write_bytes(older)  # which is what it says by now
    engine.ledger.tell()
    keys.create("another", "team", Scope.USE)
    engine.ledger.tell()
    edited = document(tmp_path)
    edited["limits"]["team"] = {"sessions": 1000}
    (tmp_path / KEYS_FILE).write_text(json.dumps(edited))
    keys.create("third", "team", Scope.USE)
    engine.ledger.tell()
    (tmp_path / KEYS_FILE).unlink()
    engine.close()
    Engine(tmp_path).close()
    assert [record["verb"] for record in told(tmp_path)] == [
        *("key_create", "key_revoke", "keys", "key_create", "keys", "key_create", "keys"),
    ]
    assert [record["detail"]["change"] for record in told(tmp_path)] == [1, 2, 2, 3, 3, 4, 4]


def test_what_nobody_told_for_long_is_bounded_and_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "KEY_CHANGES_MAX", 5)
    keys = KeyStore(tmp_path)
    for number in range(1, 13):
        keys.set_limits("team", TenantLimits(sessions=number))
    assert len(document(tmp_path)["changes"]) == 5
    Engine(tmp_path).close()
    assert verbs(tmp_path) == [("keys", "changes missing"), *[("key_limit", "done")] * 5]
    missing = told(tmp_path)[0]["detail"]
    assert (missing["from"], missing["change"]) == (1, 7)
    keys.set_limits("team", TenantLimits())
    assert len(document(tmp_path)["changes"]) == 2, "what was told is not kept"


def test_a_full_disk_delays_and_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keys, engine = KeyStore(tmp_path), Engine(tmp_path)

    def full(_fields: object) -> int:
        return 0

    keys.create("ci", "team", Scope.USE)
    with monkeypatch.context() as patch:
        patch.setattr(engine.log, "record", full)
        engine.ledger.tell()
        assert told(tmp_path) == []
    engine.close()
    assert verbs(tmp_path) == [("key_create", "done")]


def test_a_death_behind_the_record_tells_nothing_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At the worst moment: it is in the log, and nobody noted so."""

    class Death(BaseException):
        pass

    def die(*_given: object) -> None:
        raise Death

    keys, engine = KeyStore(tmp_path), Engine(tmp_path)
    keys.create("ci", "team", Scope.USE)
    with monkeypatch.context() as patch:
        patch.setattr(changes, "write_told", die)
        with pytest.raises(Death):
            engine.ledger.tell()
    engine.log.close()
    following = Engine(tmp_path)
    following.log.record({"who": "local", "verb": "call", "phase": "asked"})
    following.close()
    Engine(tmp_path).close()
    assert verbs(tmp_path) == [("key_create", "done"), ("call", "asked")]


WRITER = """
import sys
from pathlib import Path
from sandlot.model import TenantLimits
from sandlot.tenants.keys import KeyStore
print("ready", flush=True)
keys, number = KeyStore(Path(sys.argv[1])), 0
while number < 10_000:
    number += 1
    keys.set_limits("team", TenantLimits(sessions=number))
"""
TELLER = """
import sys
from pathlib import Path
from tests.unit.tenants.test_ledger import Engine
engine = Engine(Path(sys.argv[1]))
print("ready", flush=True)
while True:
    engine.ledger.tell()
    engine.log.record({"who": "local", "verb": "call", "phase": "asked"})
"""


def test_whoever_is_killed_takes_no_change_away_and_tells_none_twice(tmp_path: Path) -> None:
    """One program changes keys, another one tells of it; both are killed at any moment, again and again."""
    dice = random.Random(62)
    for _ in range(4):
        running = [
            subprocess.Popen([sys.executable, "-c", text, str(tmp_path)], stdout=subprocess.PIPE)
            for text in (WRITER, TELLER)
        ]
        try:
            for one in running:
                assert one.stdout is not None
                assert one.stdout.readline() == b"ready\n"
            time.sleep(dice.uniform(0.02, 0.2))  # any moment will do
        finally:
            for one in running:
                one.send_signal(signal.SIGKILL)
                one.communicate()
    Engine(tmp_path).close()
    last = changes.read(tmp_path / KEYS_FILE)[-1]["n"]
    found = [record["detail"]["change"] for record in told(tmp_path) if record["verb"] == "key_limit"]
    assert found == list(range(1, last + 1))
    assert {record["verb"] for record in told(tmp_path)} == {"call", "key_limit"}
