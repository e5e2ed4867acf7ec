"""Which layers are merged next, and how long rows become."""

from pathlib import Path

import pytest

from sandlot.host.storage.merged import MergedLayers
from sandlot.model import limits


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "LAYER_LARGE_ENTRIES", 4)


def make(volumes: Path, name: str, files: int) -> str:
    (volumes / name / "u").mkdir(parents=True)
    for number in range(files):
        (volumes / name / "u" / str(number)).touch()
    return name


def grow(volumes: Path, turns: int, large_every: int) -> tuple[list[str], int]:
    """A row after many turns, and how long it was at most. What is merged here has no files."""
    known, row, longest = MergedLayers(volumes), list[str](), 0
    for number in range(1, turns + 1):
        row.insert(0, make(volumes, f"l-{number}", 9 if number % large_every == 0 else 1))
        known.weigh(row)
        while group := known.due(row, set()):
            merged = known.plan(f"m-{number}-{len(row)}", group)
            assert known.expand(group) == list(merged.turns)
            known.offer(merged)
            row = known.shorten(row)
        longest = max(longest, len(row))
    assert known.expand(row) == [f"l-{number}" for number in range(turns, 0, -1)], "each turn is there, once, in order"
    return row, longest


def test_a_row_counts_like_a_number(tmp_path: Path) -> None:
    row, longest = grow(tmp_path, 600, large_every=10_000)
    assert len(row) == 1 + 1 + 3 + 0, "600 is 1130 to the base of eight"
    assert longest <= 7 * 4


@pytest.mark.parametrize("large_every", [1, 2, 7, 8, 9, 50])
def test_rows_of_small_and_large_layers_do_not_grow_either(tmp_path: Path, large_every: int) -> None:
    _row, longest = grow(tmp_path, 400, large_every)
    assert longest <= limits.LAYERS_LONG


def test_a_large_layer_is_left_alone(tmp_path: Path) -> None:
    known = MergedLayers(tmp_path)
    row = [make(tmp_path, f"l-{number}", 1) for number in range(7)] + [make(tmp_path, "l-large", 9)]
    known.weigh(row)
    assert known.due(row, set()) is None
    row.insert(0, make(tmp_path, "l-new", 1))
    known.weigh(row)
    assert known.due(row, set()) == tuple(row[:-1])
    assert known.due(row, {tuple(row[:-1])}) is None, "what could not be merged is not tried again"


def test_what_a_merged_layer_stands_for_is_found_by_the_next_engine(tmp_path: Path) -> None:
    known = MergedLayers(tmp_path)
    layers = [make(tmp_path, f"l-{number}", 1) for number in range(limits.LAYERS_MERGED_AT)]
    merged = known.plan("m-1", layers)
    make(tmp_path, "m-1", 1)
    known.write(merged)
    later = MergedLayers(tmp_path)
    assert later.find("m-1") == merged
    assert later.shorten(["l-open", *layers, "l-old"]) == ["l-open", "m-1", "l-old"]
    (tmp_path / "m-1" / "merged.json").write_text("{")
    assert MergedLayers(tmp_path).find("m-1") is None
