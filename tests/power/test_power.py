"""A short part of `make powercut`, and what it stands on: a disk made again from the order in which it was written."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.power.cuts import BLOCK, Cut, Disk, all_cuts, divide
from tests.power.judge import differences
from tests.power.recorder import Entry, Kind
from tests.power.run import ROOT, lacks

SESSION: dict[str, Any] = {"origin": None, "head": None, "parents": {}, "turns": [], "values": {}}


@pytest.mark.root
@pytest.mark.timeout(600)
def test_what_was_acknowledged_survives_a_power_cut(shared_templates: Path) -> None:
    if missing := lacks():
        pytest.skip(f"this machine lacks {missing}")
    words = ["--cuts", "16", "--rounds", "1", "--seed", "1", "--templates", str(shared_templates)]
    ran = subprocess.run(
        [sys.executable, "-m", "tests.power.run", *words], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "16 cuts" in ran.stdout


def write(block: int, letter: bytes) -> Entry:
    return Entry(Kind.WRITE, block * BLOCK, letter * BLOCK)


def mark(**line: object) -> Entry:
    return Entry(Kind.MARK, 0, json.dumps(line).encode())


FLUSH = Entry(Kind.FLUSH, 0, b"")


def test_a_cut_has_what_was_flushed_and_a_part_of_the_rest(tmp_path: Path) -> None:
    base, image = tmp_path / "base", tmp_path / "image"
    base.write_bytes(b"b" * BLOCK + bytes(3 * BLOCK))
    epochs = divide([write(1, b"1"), FLUSH, write(1, b"2"), write(2, b"2"), FLUSH, write(0, b"3")])

    def letters(cut: Cut) -> bytes:
        Disk(base, epochs).write_out(cut, image)
        return image.read_bytes()[::BLOCK]

    assert letters(Cut(0, None)) == b"b\0\0\0"
    assert letters(Cut(1, None)) == b"b1\0\0"
    assert letters(Cut(2, None)) == b"b22\0"
    parts = {letters(Cut(1, seed)) for seed in range(60)}
    assert parts == {b"b1\0\0", b"b2\0\0", b"b12\0", b"b22\0"}
    assert all_cuts(epochs, 1) == [Cut(0, None), Cut(1, None), Cut(1, 0), Cut(2, None)]


def test_what_was_known_at_the_end_of_an_epoch() -> None:
    epochs = divide(
        [
            *(mark(begin="create", session="s"), FLUSH, mark(done="create", seen={"s": SESSION}), FLUSH),
            *(mark(begin="destroy", session="s"), FLUSH, mark(done="destroy", seen={})),
        ]
    )
    first, second, third, last = (epoch.known for epoch in epochs)
    assert (first.before, first.after) == ({}, {"s": SESSION})
    assert (second.before, second.after) == ({"s": SESSION}, None)
    assert (third.before, third.after) == ({"s": SESSION}, {})
    assert (last.before, last.after) == ({}, None)


def test_what_differs_is_told() -> None:
    made = divide([mark(begin="create", session="s"), mark(done="create", seen={"s": SESSION})])[0].known
    assert differences(made, {"s": SESSION}) == []
    assert len(differences(made, {})) == 1
    assert len(differences(made, {"s": {**SESSION, "head": "turn-0001"}})) == 1
    assert len(differences(made, {"s": SESSION, "t": SESSION})) == 2
