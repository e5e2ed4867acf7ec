"""What is loaded by name."""

import sys
from pathlib import Path

import pytest

from sandlot import registry
from sandlot.model import CapabilityNotSupported, InvalidArgument, Unavailable
from sandlot.registry import ROWS, Row, load


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.axis}-{row.name}")
def test_every_row_leads_somewhere(row: Row) -> None:
    assert callable(load(row.axis, row.name))


def test_no_row_stands_there_twice() -> None:
    names = [(row.axis, row.name) for row in ROWS]
    assert len(names) == len(set(names))


def test_an_unknown_name_is_told_the_known_ones() -> None:
    with pytest.raises(InvalidArgument, match=r"there is no host 'remote'.*use one of: engine, embedded, client, fake"):
        load("host", "remote")
    with pytest.raises(InvalidArgument):
        load("planet", "embedded")


def rows(monkeypatch: pytest.MonkeyPatch, *added: Row) -> None:
    monkeypatch.setattr(registry, "ROWS", added)


@pytest.mark.parametrize("path", ["sandlot_not_there:build", "sandlot.registry:not_there"])
def test_what_is_not_there_says_what_to_do(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rows(monkeypatch, Row("host", "broken", path, "install it"))
    with pytest.raises(Unavailable, match=r"host 'broken' cannot be loaded: .*not_there.*\(install it\)"):
        load("host", "broken")


def test_another_machine_is_refused_before_anything_is_imported(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "sandlot_elsewhere.py").write_text("raise AssertionError('imported')")
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    rows(monkeypatch, Row("host", "other", "sandlot_elsewhere:build", "use a server", "plan9"))
    with pytest.raises(CapabilityNotSupported, match=rf"does not run on {sys.platform} \(use a server\)"):
        load("host", "other")


def test_an_error_inside_a_module_is_not_hidden(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "sandlot_defect.py").write_text("1 / 0")
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    rows(monkeypatch, Row("host", "defect", "sandlot_defect:build", "report it"))
    with pytest.raises(ZeroDivisionError):
        load("host", "defect")
