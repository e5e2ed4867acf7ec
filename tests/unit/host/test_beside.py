"""What goes with a backup beside the journal is of one moment, and comes back to where it belongs."""

from contextlib import ExitStack
from pathlib import Path

import pytest

from sandlot.audit.files import ANCHOR_FILE, FOLDER
from sandlot.audit.log import AuditLog
from sandlot.audit.verifying import verify
from sandlot.host import beside
from sandlot.host.archives.entries import Entry, Kind
from sandlot.model import InvalidArgument, Scope, limits
from sandlot.tenants.keys import KeyStore
from sandlot.tenants.ledger import KeyLedger
from sandlot.webhooks.offsets import Offset


def log_of(data: Path) -> AuditLog:
    log = AuditLog(data / FOLDER, data / ANCHOR_FILE)
    log.open()
    return log


def write(log: AuditLog, count: int) -> None:
    for _ in range(count):
        log.record({"who": "k", "verb": "call", "session": "x" * 100})


def moved(data: Path, again: Path, anchor: Path, meanwhile: AuditLog) -> bytes | None:
    """From one data directory to another, while the log is written on. Gives the keys."""
    again.mkdir()
    with ExitStack() as stack:
        found, keys = beside.look(data, data / ANCHOR_FILE, stack)
        write(meanwhile, 50)
        for entry in found.entries():
            assert beside.takes(entry)
            beside.take(entry, again / "taken")
    beside.put(again / "taken", again, anchor)
    return keys


def test_a_log_that_is_written_meanwhile_is_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Over several files, the oldest of which are given up while it is read; and it goes on where it was."""
    monkeypatch.setattr(limits, "AUDIT_FILE_BYTES", 2000)
    monkeypatch.setattr(limits, "AUDIT_FILES", 4)
    data, again = tmp_path / "data", tmp_path / "again"
    log = log_of(data)
    write(log, 30)
    last = verify(data / FOLDER, data / ANCHOR_FILE).last
    moved(data, again, again / ANCHOR_FILE, log)
    log.close()
    verdict = verify(again / FOLDER, again / ANCHOR_FILE, last)
    assert (verdict.findings, verdict.last) == ((), last)
    following = log_of(again)
    write(following, 1)
    following.close()
    verdict = verify(again / FOLDER, again / ANCHOR_FILE)
    assert (verdict.findings, verdict.last.number) == ((), last.number + 1)
    assert all(path.stat().st_mode & 0o777 == 0o600 for path in (again / FOLDER).iterdir())


def test_keys_are_not_told_again(tmp_path: Path) -> None:
    data, again = tmp_path / "data", tmp_path / "again"
    log = log_of(data)
    KeyStore(data).create("ci", "team", Scope.USE)
    KeyLedger(data, log).tell()
    keys = moved(data, again, again / ANCHOR_FILE, log)
    log.close()
    assert keys is not None
    (again / "keys.json").write_bytes(keys)
    following = log_of(again)
    KeyLedger(again, following).tell()
    following.close()
    assert verify(again / FOLDER, again / ANCHOR_FILE).records == 1


def test_how_far_webhooks_were_told_comes_back(tmp_path: Path) -> None:
    data, again = tmp_path / "data", tmp_path / "again"
    offset = Offset(data / "webhooks", "https://a.test/")
    assert offset.hold()
    offset.write(41)
    log = log_of(data)
    moved(data, again, again / ANCHOR_FILE, log)
    log.close()
    assert Offset(again / "webhooks", "https://a.test/").read() == 41
    assert len(list((again / "webhooks").iterdir())) == 1, "and nobody holds it"
    offset.release()


def test_what_does_not_fit_is_told_and_not_cut(tmp_path: Path) -> None:
    (tmp_path / ANCHOR_FILE).write_bytes(bytes(limits.BACKUP_BESIDE_BYTES_MAX + 1))
    with ExitStack() as stack, pytest.raises(OSError, match="larger than"):
        beside.look(tmp_path, tmp_path / ANCHOR_FILE, stack)
    (tmp_path / ANCHOR_FILE).unlink()
    (tmp_path / FOLDER).mkdir()
    for number in range(limits.BACKUP_BESIDE_MAX + 1):
        (tmp_path / FOLDER / f"{number:012}.jsonl").touch()
    with ExitStack() as stack, pytest.raises(OSError, match="more than"):
        beside.look(tmp_path, tmp_path / ANCHOR_FILE, stack)


def test_an_anchor_that_is_kept_apart_knows_better(tmp_path: Path) -> None:
    """What was written behind the backup is told as missing."""
    data, again, apart = tmp_path / "data", tmp_path / "again", tmp_path / "apart"
    log = log_of(data)
    write(log, 3)
    moved(data, again, again / ANCHOR_FILE, log)
    (again / ANCHOR_FILE).unlink()
    apart.write_bytes((data / ANCHOR_FILE).read_bytes())
    moved(data, tmp_path / "other", apart, log)
    log.close()
    assert apart.read_bytes() != (data / ANCHOR_FILE).read_bytes(), "it is left as it is"
    assert verify(again / FOLDER, apart).findings == ("records 4 to 53 are missing at the end",)


def test_what_has_another_name_or_is_too_large_is_not_taken(tmp_path: Path) -> None:
    def entry(path: str, content: bytes = b"", kind: Kind = Kind.FILE) -> Entry:
        return Entry(path, kind, 0o600, size=len(content), extents=((0, len(content)),), content=iter((content,)))

    for path in ("/audit-1.jsonl", "/audit-../x.jsonl", "/webhook-x", "/keys.secret", "/audit.anchor/x", "/x"):
        assert not beside.takes(entry(path))
    assert not beside.takes(entry("/audit.anchor", kind=Kind.SYMLINK))
    with pytest.raises(InvalidArgument):
        beside.take(entry("/audit.anchor", bytes(limits.BACKUP_BESIDE_BYTES_MAX + 1)), tmp_path / "taken")
