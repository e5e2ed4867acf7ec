"""How `make compat` chooses releases, and what it writes."""

from pathlib import Path

import pytest

from tools import compat


@pytest.mark.parametrize(
    ("released", "chosen"),
    [
        (["1.1.1", "1.1.0", "0.1.16", "0.1.15"], ["1.1.1", "1.1.0", "0.1.16"]),
        (["2.0.1", "2.0.0", "1.2.3", "1.1.9", "1.0.0"], ["2.0.1", "1.2.3", "1.1.9"]),
        (["1.0.0"], ["1.0.0"]),
    ],
)
def test_the_newest_of_each_series_is_chosen(released: list[str], chosen: list[str]) -> None:
    assert compat.chosen(released) == chosen


def test_the_table_is_written_between_its_marks(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"before\n{compat.BEGIN}\nold\n{compat.END}\nafter\n")
    for version in ("1", "2"):
        compat.write(page, [("a", version, "passes", "3 tests")])
    assert page.read_text().splitlines() == [
        "before",
        compat.BEGIN,
        "| client | release | on our gateway | tried by |",
        "|---|---|---|---|",
        "| `a` | 2 | passes | 3 tests |",
        compat.END,
        "after",
    ]


def test_what_failed_is_named(tmp_path: Path) -> None:
    report = tmp_path / "report.xml"
    cases = '<testcase name="a"/><testcase name="b"><failure/></testcase><testcase name="c"><skipped/></testcase>'
    report.write_text(f"<testsuites><testsuite>{cases}</testsuite></testsuites>")
    assert compat.counted(report) == ("fails", "1 tests; 1 try what it does not have; fails: b")
    report.write_text("<testsuites/>")
    assert compat.counted(report)[0] == "fails", "nothing that was tried is nothing that passes"
