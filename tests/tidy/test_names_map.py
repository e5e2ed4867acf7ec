"""Every path that `docs/names.md` and `docs/glossary.md` name is there, and what they call to come is not."""

import importlib
import inspect
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]
NAMES = ROOT / "docs" / "names.md"
GLOSSARY = ROOT / "docs" / "glossary.md"

# The numbers of each original interface. The first one of S0 is not used.
NUMBERS = {
    "S0": range(2, 136),
    "S1": range(1, 43),
    "S2": range(1, 87),
    "S3": range(1, 25),
    "S4": range(1, 28),
}
HERE, TO_COME = "here", "to come"

OURS = re.compile(r"`sandlot(\.\w+)+`(, `sandlot(\.\w+)+`)*", re.ASCII)
QUOTED = re.compile(r"`([^`]+)`")
PLANNED = re.compile(r"to come: (sandlot(?:\.\w+)+)", re.ASCII)


class NotThere(Exception):
    """Names the first step of a path that cannot be taken."""


@dataclass(frozen=True)
class Row:
    """One name of an original interface."""

    line: int
    number: str
    ours: tuple[str, ...]
    state: str


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip().strip("|").split("|")]


def read_rows(text: str) -> tuple[list[Row], list[str]]:
    """The rows with an id, and what is wrong with the form of others."""
    rows: list[Row] = []
    wrong: list[str] = []
    for line, content in enumerate(text.splitlines(), start=1):
        if not re.match(r"\| *S\d", content):
            continue
        found = cells(content)
        if len(found) != 5:
            wrong.append(f"line {line}: {len(found)} columns instead of 5")
        elif not OURS.fullmatch(found[2]):
            wrong.append(f"line {line}: `ours` is not a list of paths in backticks: {found[2]!r}")
        elif found[3] not in (HERE, TO_COME):
            wrong.append(f"line {line}: the state is {found[3]!r}, not {HERE!r} or {TO_COME!r}")
        else:
            rows.append(Row(line, found[0], tuple(QUOTED.findall(found[2])), found[3]))
    return rows, wrong


def resolve(path: str) -> None:
    """Walk from the package to the last name. Raises NotThere; a module that is there but broken raises its own."""
    first, *names = path.split(".")
    value: object = importlib.import_module(first)
    walked = first
    for position, name in enumerate(names):
        if hasattr(value, name):
            value = getattr(value, name)
        elif isinstance(value, ModuleType) and hasattr(value, "__path__"):
            value = submodule(f"{walked}.{name}")
        elif isinstance(value, type) and name in declared(value) and position == len(names) - 1:
            return  # a field without a default is no attribute of its class
        else:
            raise NotThere(f"{walked} has no {name}")
        walked = f"{walked}.{name}"
        if isinstance(value, ModuleType) and value.__file__ is None:
            raise NotThere(f"{walked} is a folder without a module")  # left over, with nothing but caches in it


def submodule(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name != name:
            raise
        raise NotThere(f"there is no {name}") from None


def declared(kind: type) -> set[str]:
    """What a class or a parent of it annotates: fields of dataclasses, attributes that a protocol asks for."""
    return {name for parent in kind.__mro__ for name in inspect.get_annotations(parent)}


def missing(paths: tuple[str, ...]) -> list[str]:
    found: list[str] = []
    for path in paths:
        try:
            resolve(path)
        except NotThere as error:
            found.append(str(error))
    return found


def wrong_states(rows: list[Row]) -> Iterator[str]:
    for row in rows:
        gone = missing(row.ours)
        if row.state == HERE:
            yield from (f"line {row.line}, {row.number}: {what}" for what in gone)
        elif not gone:
            yield f"line {row.line}, {row.number}: all of it is there now; change its state to {HERE!r}"


def wrong_numbers(rows: list[Row]) -> Iterator[str]:
    expected = {f"{section}-{number:03d}" for section, numbers in NUMBERS.items() for number in numbers}
    counts = Counter(row.number for row in rows)
    yield from (f"{number} is missing" for number in sorted(expected - counts.keys()))
    yield from (f"{number} is not a name of the originals" for number in sorted(counts.keys() - expected))
    yield from (f"{number} stands there {count} times" for number, count in sorted(counts.items()) if count > 1)


def wrong_paths(text: str) -> Iterator[str]:
    """Paths in backticks, to a file or to a Python name, that lead nowhere; and planned ones that are there now.

    A path that begins with a slash is one inside a session."""
    for line, content in enumerate(text.splitlines(), start=1):
        for quoted in QUOTED.findall(content):
            if quoted.startswith("sandlot."):
                yield from (f"line {line}: {what}" for what in missing((quoted,)))
            elif "/" in quoted and not quoted.startswith("/") and not (ROOT / quoted).exists():
                yield f"line {line}: there is no file {quoted}"
        for planned in PLANNED.findall(content):
            if not missing((planned,)):
                yield f"line {line}: {planned} is there now; put it into backticks"


def report(rule: str, found: list[str]) -> None:
    assert not found, "\n  ".join([rule, *found])


@pytest.fixture(scope="module")
def rows() -> list[Row]:
    found, wrong = read_rows(NAMES.read_text())
    report("docs/names.md has rows that cannot be read:", wrong)
    return found


def test_every_original_name_has_one_row(rows: list[Row]) -> None:
    report("docs/names.md has each original name once:", list(wrong_numbers(rows)))


def test_states_are_true(rows: list[Row], told: dict[str, str]) -> None:
    states = Counter(row.state for row in rows)
    told["names"] = f"{states[HERE]} {HERE}, {states[TO_COME]} {TO_COME}"
    report("docs/names.md says what is here and what is to come:", list(wrong_states(rows)))


def test_text_around_the_rows_leads_somewhere() -> None:
    around = "\n".join("" if re.match(r"\| *S\d", line) else line for line in NAMES.read_text().splitlines())
    report("docs/names.md names what is there:", list(wrong_paths(around)))


def test_glossary_leads_somewhere() -> None:
    report("docs/glossary.md names what is there:", list(wrong_paths(GLOSSARY.read_text())))


def test_every_word_of_the_glossary_has_a_place() -> None:
    table = [cells(line) for line in GLOSSARY.read_text().splitlines() if line.startswith("| **")]
    assert len(table) > 20, "a check that reads nothing proves nothing"
    homeless = [row[0] for row in table if len(row) != 4 or not (QUOTED.search(row[3]) or PLANNED.search(row[3]))]
    report("a word says where it lives, in backticks or as `to come: path`:", homeless)


def test_the_reader_sees_broken_rows() -> None:
    row = "| S4-001 | `A` | {} | {} |  |"
    assert read_rows(row.format("`sandlot.model`", HERE)) == ([Row(1, "S4-001", ("sandlot.model",), HERE)], [])
    for ours, state in [("", HERE), ("sandlot.model", HERE), ("`model`", HERE), ("`sandlot.model`", "soon")]:
        assert [len(part) for part in read_rows(row.format(ours, state))] == [0, 1]
    assert [len(part) for part in read_rows("| S4-001 | `A` | `sandlot.model` | here |")] == [0, 1]
    assert [len(part) for part in read_rows("| `SessionState` | S0 | ours |")] == [0, 0]


def test_the_check_sees_wrong_states() -> None:
    def wrong(state: str, *ours: str) -> list[str]:
        return list(wrong_states([Row(7, "S0-002", ours, state)]))

    there, fake = "sandlot.model.SessionSpec", "sandlot.model.SessionSpec.colour"
    assert wrong(HERE, there, fake) == ["line 7, S0-002: sandlot.model.SessionSpec has no colour"]
    assert wrong(HERE, "sandlot.nowhere.at_all") == ["line 7, S0-002: there is no sandlot.nowhere"]
    assert wrong(TO_COME, there) == [f"line 7, S0-002: all of it is there now; change its state to {HERE!r}"]
    assert wrong(HERE, there) == wrong(TO_COME, there, fake) == []


@pytest.mark.parametrize(
    ("path", "is_there"),
    [
        ("sandlot.model.limits.SESSIONS_MAX", True),
        ("sandlot.model.SessionSpec.labels", True),  # a field with a factory
        ("sandlot.model.SessionState.PAUSED", True),
        ("sandlot.contracts.Storage.name", True),  # an attribute that a protocol only declares
        ("sandlot.contracts.Host.create", True),
        ("sandlot.contracts.Storage.name.size", False),  # a field is an end
        ("sandlot.host.service.Nothing", False),
    ],
)
def test_resolve(path: str, is_there: bool) -> None:
    assert (missing((path,)) == []) is is_there


def test_the_check_sees_wrong_numbers() -> None:
    def numbered(*numbers: str) -> list[str]:
        return list(wrong_numbers([Row(1, number, ("sandlot",), HERE) for number in numbers]))

    all_numbers = [f"{section}-{number:03d}" for section, numbers in NUMBERS.items() for number in numbers]
    assert numbered(*all_numbers) == []
    assert numbered(*all_numbers[1:]) == ["S0-002 is missing"]
    assert numbered(*all_numbers, "S0-001") == ["S0-001 is not a name of the originals"]
    assert numbered(*all_numbers, "S3-024") == ["S3-024 stands there 2 times"]


def test_the_check_sees_wrong_paths() -> None:
    lines = ["`auto` `/no` `docs/names.md` `sandlot.model`", "`docs/no.md`", "`sandlot.no`", "to come: sandlot.model"]
    assert list(wrong_paths("\n".join(lines))) == [
        "line 2: there is no file docs/no.md",
        "line 3: there is no sandlot.no",
        "line 4: sandlot.model is there now; put it into backticks",
    ]
    assert list(wrong_paths("to come: sandlot.no.")) == []
