"""A log is what was written, or it is told that it is not: whoever changes it, and wherever."""

import json
import os
import random
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from sandlot.audit.anchor import Anchor, Ends, read
from sandlot.audit.chain import BEGINNING, Place, hash_of, line_of
from sandlot.audit.files import files_in
from sandlot.audit.log import AuditLog
from sandlot.audit.verifying import Verdict, records_of, verify
from sandlot.model import limits


class Shelf:
    def __init__(self, path: Path) -> None:
        self.folder, self.anchor = path / "audit", path / "audit.anchor"

    def write(self, count: int, word: str = "call") -> None:
        log = AuditLog(self.folder, self.anchor)
        log.open()
        for number in range(count):
            log.record({"who": "k", "verb": word, "session": f"s-{number}"})
        log.close()

    def verify(self, known: Place | None = None) -> Verdict:
        return verify(self.folder, self.anchor, known)

    @property
    def file(self) -> Path:
        return files_in(self.folder)[-1].path


@pytest.fixture
def shelf(tmp_path: Path) -> Shelf:
    return Shelf(tmp_path)


def test_what_was_written_is_whole(shelf: Shelf) -> None:
    assert shelf.verify() == Verdict(0, 0, BEGINNING, ())
    shelf.write(20)
    shelf.write(10)
    verdict = shelf.verify()
    assert (verdict.records, verdict.first, verdict.last.number, verdict.findings) == (30, 1, 30, ())
    assert shelf.verify(verdict.last).is_whole
    shelf.write(5)
    assert shelf.verify(verdict.last).is_whole, "what is known stays known"


def lines_changed(change: Callable[[list[bytes]], object]) -> Callable[[Shelf], None]:
    def do(shelf: Shelf) -> None:
        lines = shelf.file.read_bytes().splitlines(keepends=True)
        change(lines)
        shelf.file.write_bytes(b"".join(lines))

    return do


def swap(lines: list[bytes]) -> None:
    lines[4], lines[5] = lines[5], lines[4]


def rewritten(shelf: Shelf) -> None:
    """All hashes made anew, by someone who knows how."""
    lines = shelf.file.read_bytes().splitlines()
    place, found = BEGINNING, list[bytes]()
    for line in lines:
        fields = {name: value for name, value in json.loads(line).items() if name not in ("n", "hash")}
        made, place = line_of(place, {**fields, "who": "another"})
        found.append(made)
    shelf.file.write_bytes(b"".join(found))


ATTACKS: dict[str, Callable[[Shelf], None]] = {
    "a word is edited": lines_changed(lambda lines: lines.__setitem__(5, lines[5].replace(b"s-5", b"s-6"))),
    "a hash is edited": lines_changed(
        lambda lines: lines.__setitem__(5, lines[5].replace(lines[5][-20:], lines[4][-20:]))
    ),
    "something hides behind a hash": lines_changed(lambda lines: lines.__setitem__(5, lines[5][:-2] + b',"x":1}\n')),
    "the first is gone": lines_changed(lambda lines: lines.pop(0)),
    "one in the middle is gone": lines_changed(lambda lines: lines.pop(5)),
    "several in the middle are gone": lines_changed(lambda lines: lines.__delitem__(slice(5, 9))),
    "two have changed places": lines_changed(swap),
    "one is there twice": lines_changed(lambda lines: lines.insert(5, lines[4])),
    "one is made up": lines_changed(lambda lines: lines.insert(5, b'{"n":6,"hash":"' + b"0" * 64 + b'"}\n')),
    "a line is no record": lines_changed(lambda lines: lines.insert(5, b"nothing\n")),
    "the last is cut off": lines_changed(lambda lines: lines.pop()),
    "the end is cut off": lines_changed(lambda lines: lines.__delitem__(slice(5, None))),
    "all are cut off": lines_changed(lambda lines: lines.clear()),
    "half of the last is cut off": lambda shelf: os.truncate(shelf.file, shelf.file.stat().st_size - 30),
    "the file is gone": lambda shelf: shelf.file.unlink(),
    "the folder is gone": lambda shelf: shutil.rmtree(shelf.folder),
    "all hashes are made anew": rewritten,
    "the anchor is gone": lambda shelf: shelf.anchor.unlink(),
    "the anchor is noise": lambda shelf: (shelf.anchor.write_bytes(os.urandom(600)), None)[1],
}


@pytest.mark.parametrize("attack", ATTACKS.values(), ids=ATTACKS.keys())
def test_whoever_changes_it_is_found_out(shelf: Shelf, attack: Callable[[Shelf], None]) -> None:
    """At once, and after the log was written on: an engine that starts anew hides nothing."""
    shelf.write(20)
    attack(shelf)
    assert shelf.verify().findings
    shelf.write(3)
    assert shelf.verify().findings


def test_who_has_the_anchor_too_is_found_out_by_what_is_kept_elsewhere(shelf: Shelf) -> None:
    shelf.write(20)
    known = shelf.verify().last
    rewritten(shelf)
    last = json.loads(shelf.file.read_bytes().splitlines()[-1])
    anchor = Anchor(shelf.anchor)
    anchor.open()
    for _ in range(2):
        anchor.write(Ends(BEGINNING, Place(20, last["hash"])))
    anchor.close()
    assert shelf.verify().is_whole
    assert not shelf.verify(known).is_whole
    shelf.file.unlink()
    shelf.anchor.unlink()
    assert not shelf.verify(known).is_whole


def test_any_byte_that_is_changed_is_found_out(shelf: Shelf) -> None:
    shelf.write(5)
    content, dice = shelf.file.read_bytes(), random.Random(20)
    for _ in range(300):
        at = dice.randrange(len(content))
        other = bytes([(content[at] + dice.randrange(1, 256)) % 256])
        shelf.file.write_bytes(content[:at] + other + content[at + 1 :])
        assert shelf.verify().findings, at
    shelf.file.write_bytes(content)
    assert shelf.verify().is_whole


def test_a_record_that_was_not_finished_is_taken_away(shelf: Shelf) -> None:
    """Whoever is killed while he writes had begun nothing yet."""
    shelf.write(5)
    with shelf.file.open("ab") as file:
        file.write(b'{"n":6,"at":1,"who":"k"')
    assert shelf.verify().is_whole
    shelf.write(1)
    verdict = shelf.verify()
    assert (verdict.records, verdict.findings) == (6, ())


def test_a_record_that_the_anchor_has_not_heard_of_is_one(shelf: Shelf) -> None:
    """Killed between the two."""
    shelf.write(5)
    anchor = shelf.anchor.read_bytes()
    shelf.write(1)
    shelf.anchor.write_bytes(anchor)
    assert shelf.verify().is_whole
    shelf.write(1)
    assert (shelf.verify().records, shelf.verify().findings) == (7, ())


def test_an_anchor_that_was_half_written_has_another_half(tmp_path: Path) -> None:
    path = tmp_path / "anchor"
    anchor = Anchor(path)
    assert anchor.open() is None
    for number in range(1, 6):
        anchor.write(Ends(BEGINNING, Place(number, "a" * 64)))
    anchor.close()
    whole = path.read_bytes()
    for begin in (0, len(whole) // 2):
        path.write_bytes(whole[:begin] + b"x" * 100 + whole[begin + 100 :])
        found = read(path)
        assert found is not None
        assert found.last.number in (4, 5)


def test_it_is_bounded_and_the_chain_goes_on(shelf: Shelf, monkeypatch: pytest.MonkeyPatch) -> None:
    """The oldest are given up in order, and that is no finding; that the oldest of the others is gone is one."""
    monkeypatch.setattr(limits, "AUDIT_FILE_BYTES", 2000)
    monkeypatch.setattr(limits, "AUDIT_FILES", 4)
    for _ in range(5):
        shelf.write(60)
    files = files_in(shelf.folder)
    assert len(files) == 4
    assert sum(file.path.stat().st_size for file in files) <= 4 * 2000
    verdict = shelf.verify()
    assert (verdict.first, verdict.last.number, verdict.findings) == (files[0].first, 300, ())
    assert verdict.records == 300 - verdict.first + 1
    files[0].path.unlink()
    assert "missing" in shelf.verify().findings[0]


def test_a_full_disk_is_told_when_there_is_room_again(shelf: Shelf, monkeypatch: pytest.MonkeyPatch) -> None:
    log = AuditLog(shelf.folder, shelf.anchor)
    log.open()
    assert log.record({"verb": "a"}) == 1
    write = os.write

    def no_room(fd: int, data: bytes) -> int:
        return write(fd, data[: len(data) // 2])

    monkeypatch.setattr(os, "write", no_room)
    assert [log.record({"verb": "b"}) for _ in range(3)] == [0, 0, 0]
    monkeypatch.setattr(os, "write", write)
    assert log.record({"verb": "c"}) == 3
    log.close()
    told = [json.loads(line) for line in records_of(shelf.folder)]
    assert [one["verb"] for one in told] == ["a", "audit", "c"]
    assert told[1]["detail"] == {"lost": 3}
    assert shelf.verify().is_whole


def test_hostile_text_is_one_line(shelf: Shelf) -> None:
    hostile = 'x","verb":"audit","phase":"anchor missing"}\n{"n":2,"hash":"' + "0" * 64 + '"}\n\u2028\ud800\0'
    log = AuditLog(shelf.folder, shelf.anchor)
    log.open()
    log.record({"who": hostile, "verb": "call", "detail": {hostile: hostile}})
    log.close()
    (line,) = records_of(shelf.folder)
    assert json.loads(line)["who"] == hostile
    assert line.isascii()
    assert shelf.verify().is_whole


def test_a_hundred_thousand_records_take_seconds(shelf: Shelf) -> None:
    log = AuditLog(shelf.folder, shelf.anchor)
    log.open()
    for number in range(100_000):
        log.record({"who": "e9a63550f270", "verb": "call", "phase": "asked", "session": "tenant-a.work", "of": number})
    log.close()
    began = time.process_time()
    verdict = shelf.verify()
    assert (verdict.records, verdict.findings) == (100_000, ())
    assert time.process_time() - began < 10


def test_a_hash_is_what_the_document_says() -> None:
    """docs/operating/audit.md tells others how to verify without us."""
    line, place = line_of(BEGINNING, {"who": "k"})
    assert line == b'{"n":1,"who":"k","hash":"' + place.hash.encode() + b'"}\n'
    assert hash_of("0" * 64, line[:-1]) == place.hash
