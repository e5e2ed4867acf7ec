"""The picture of the benchmark: it tells every number, what is missing, and nothing that a page must not hold."""

import itertools
import json
import re
from collections.abc import Iterable
from dataclasses import asdict, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from tests.performance.picture import BARS, NOTHING, PANELS, RAW, TILES, Axis, Shown, draw, draw_file, read_rows
from tests.performance.report import Row, number

ROOT = Path(__file__).parents[3]
PICTURES = ROOT / "docs" / "pictures"
NAMESPACE = "{http://www.w3.org/2000/svg}"
ALL = [*itertools.chain.from_iterable(PANELS.values()), *TILES]
MACHINE = {"kernel": "6.1.0-13-amd64", "processor": "A Processor", "cores": 3, "memory_mib": 4096, "python": "3.11.2"}


def row_for(shown: Shown, value: float | None) -> Row:
    return Row(shown.section.replace("*", "1000"), shown.name, value, unit="raw")


def every_row() -> dict[tuple[str, str], Row]:
    """A row with a value of its own for each that the table names; two places may show the same one."""
    values = (3.17 * number for number in itertools.count(1))
    return {(shown.section, shown.name): row_for(shown, next(values)) for shown in ALL}


def report(rows: Iterable[Row], **others: Any) -> dict[str, Any]:
    content: dict[str, Any] = {
        "started": "2026-01-31T10:00:00+00:00",
        "quick": False,
        "machine": MACHINE,
        "failures": [],
    }
    return content | {"rows": [asdict(row) | {"verdict": row.verdict} for row in rows]} | others


def texts(svg: str) -> list[str]:
    return ["".join(text.itertext()) for text in ElementTree.fromstring(svg).iter(f"{NAMESPACE}text")]


def bars(svg: str) -> list[float]:
    """How long each bar is."""
    found = ElementTree.fromstring(svg).iter(f"{NAMESPACE}rect")
    return [float(rect.attrib["width"]) for rect in found if rect.attrib["x"] == str(BARS)]


def test_every_measured_row_shows_its_value() -> None:
    rows = every_row()
    told = texts(draw(report(rows.values())))
    for shown in ALL:
        value = rows[shown.section, shown.name].value
        assert value is not None
        beginnings = [text for text in told if re.match(rf"{re.escape(number(value))}\b", text)]
        assert len(beginnings) == sum((one.section, one.name) == (shown.section, shown.name) for one in ALL), shown
        assert shown.label in told
    assert len(bars(draw(report(rows.values())))) == len(ALL) - len(TILES)


def test_it_says_the_unit_the_machine_and_the_day() -> None:
    told = texts(draw(report(every_row().values())))
    assert RAW in told
    assert "A Processor, 3 cores, 4 GiB, Linux 6.1.0, Python 3.11.2, 2026-01-31" in told


def test_longer_takes_longer_bars() -> None:
    shown = next(iter(PANELS.values()))
    chosen = [row_for(shown[0], 1.2), row_for(shown[3], 12.0), row_for(shown[4], 700.0)]
    lengths = bars(draw(report(chosen)))
    assert lengths == sorted(lengths)
    assert len(set(lengths)) == 3


@pytest.mark.parametrize("values", [[0.0001], [0.2, 3.0], [1.0], [10.0], [123456.0], []])
def test_the_axis_holds_every_value(values: list[float]) -> None:
    axis = Axis.around(values)
    assert all(axis.x(axis.low) <= axis.x(value) <= axis.x(axis.high) for value in values)
    assert 1.0 in axis.ticks()


def test_a_target_is_marked_and_a_miss_is_said() -> None:
    shown = next(iter(PANELS.values()))[0]
    plain, reached, missed = (
        draw(report([replace(row_for(shown, 1.3), target=target)])) for target in (None, 1.4, 1.2)
    )
    marks = [svg.count("<path") for svg in (plain, reached, missed)]
    assert marks == [marks[0], marks[0] + 1, marks[0] + 1]
    assert [any("missed" in text for text in texts(svg)) for svg in (plain, reached, missed)] == [False, False, True]


def test_a_missed_target_of_a_tile_is_said() -> None:
    row = Row("1000 living sessions", "memory each", 1.5, "MB", target=1.0)
    assert "target ≤ 1 MB, missed" in texts(draw(report([row])))
    assert "target ≤ 1 MB" in texts(draw(report([replace(row, value=0.5)])))
    assert "target ≥ 1 MB" in texts(draw(report([replace(row, at_least=True)])))


@pytest.mark.parametrize("missing", ALL, ids=lambda shown: f"{shown.label} {shown.about}")
def test_a_row_without_a_value_is_named_and_not_drawn(missing: Shown) -> None:
    rows = every_row()
    whole = draw(report(rows.values()))
    assert not any(text.startswith("Not measured") for text in texts(whole))
    rows[missing.section, missing.name] = replace(row_for(missing, None), note="not measured: it is not installed")
    svg = draw(report(rows.values()))
    line = " ".join(text for text in texts(svg) if missing.label in text and "easured" in text)
    assert line.startswith("Not measured: ")
    assert line.endswith("(it is not installed)")
    assert missing not in TILES or len(bars(svg)) == len(bars(whole))
    assert missing in TILES or len(bars(svg)) < len(bars(whole))


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_value_that_is_no_number_counts_as_not_measured(value: float) -> None:
    svg = draw(report([row_for(ALL[0], value)]))
    assert bars(svg) == []
    assert any(text.startswith("Not measured: Sandlot") for text in texts(svg))


def test_hostile_text_is_only_text() -> None:
    hostile = "<script>\"'&amp;]]>\x00\x1b[31m\ud800 --></text>"
    living = next(shown for shown in ALL if shown.section.startswith("*"))
    rows = [
        replace(row_for(living, 2.0), section=f"{hostile} living sessions", unit=hostile),
        replace(row_for(ALL[0], None), note=hostile),
        *(replace(row_for(tile, 1.0), unit=hostile, target=2.0) for tile in TILES[2:]),
    ]
    svg = draw(report(rows, machine=MACHINE | {"processor": hostile}, failures=[hostile]))
    assert svg.encode()
    assert "<script" not in svg
    assert {element.tag.removeprefix(NAMESPACE) for element in ElementTree.fromstring(svg).iter()} == {
        "svg", "title", "rect", "text", "tspan", "path",
    }  # fmt: skip
    assert sum("<script>\"'&amp;]]>\N{REPLACEMENT CHARACTER}" in text for text in texts(svg)) >= 5


@pytest.mark.parametrize("content", [{}, {"rows": []}, report([]), report([Row("a section of others", "a row", 1.0)])])
def test_a_report_without_rows_says_so(content: dict[str, Any]) -> None:
    svg = draw(content)
    assert NOTHING in texts(svg)
    assert bars(svg) == []


def test_what_was_drawn_is_not_called_nothing() -> None:
    for shown in ALL:
        assert NOTHING not in texts(draw(report([row_for(shown, 1.5)])))


def test_rough_and_broken_runs_are_told_apart() -> None:
    rows = list(every_row().values())
    whole, quick, broken = (
        " ".join(texts(draw(report(rows, **others))))
        for others in ({}, {"quick": True}, {"failures": ["density: OSError: /some/where"]})
    )
    assert ("rough" in whole, "rough" in quick) == (False, True)
    assert ("Broke off: density" in whole, "Broke off: density" in broken) == (False, True)
    assert "/some/where" not in broken


@pytest.mark.parametrize("content", [{}, report(every_row().values())], ids=["nothing", "everything"])
def test_it_needs_nothing_from_elsewhere(content: dict[str, Any]) -> None:
    svg = draw(content)
    assert svg.count("http") == 1
    assert 'xmlns="http://www.w3.org/2000/svg"' in svg
    assert not re.search(r"url\(|href|<style|<script|@import", svg)


def test_it_is_drawn_beside_its_numbers(tmp_path: Path) -> None:
    source, target = tmp_path / "results.json", tmp_path / "results.svg"
    source.write_text(json.dumps(report(every_row().values())))
    draw_file(source, target)
    assert target.read_text() == draw(report(every_row().values()))


# ---- the pictures of the front page --------------------------------------------------------------------------------


def test_the_picture_of_the_front_page_is_drawn_from_the_numbers_beside_it() -> None:
    numbers = json.loads((PICTURES / "bench.json").read_text())
    again = "python -m tests.performance.picture docs/pictures/bench.json docs/pictures/bench.svg"
    assert (PICTURES / "bench.svg").read_text() == draw(numbers), f"draw it again: {again}"


def test_every_row_of_the_table_is_one_that_the_benchmark_has() -> None:
    """A row that was renamed would leave the picture without a word."""
    numbers = json.loads((PICTURES / "bench.json").read_text())
    rows = read_rows(numbers)
    gone = [
        shown
        for shown in ALL
        if not any(row.name == shown.name and fnmatchcase(row.section, shown.section) for row in rows)
    ]
    assert not gone


@pytest.mark.parametrize("name", ["bench.json", "bench.svg", "demo.svg"])
def test_the_front_page_tells_nothing_of_the_machine_it_was_made_on(name: str) -> None:
    text = (PICTURES / name).read_text()
    assert str(ROOT) not in text
    assert len(re.findall("http", text)) == (0 if name.endswith(".json") else 1)
