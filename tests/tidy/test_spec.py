"""Every promise of SPEC.md has a number of its own, and a proof that exists or the word *pending*."""

import ast
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Set
from dataclasses import dataclass, field
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SPEC = ROOT / "SPEC.md"
TESTS = ROOT / "tests"
BENCH = TESTS / "performance"

PENDING = "*pending*"
COUNTED = 289
QUOTED = re.compile(r"`([^`]+)`")
NODE = re.compile(r"tests/[\w/]+\.py(::\w+)+", re.ASCII)
MEASURED = re.compile(r"bench: (?P<section>.+) / (?P<name>.+) [<>]= (?P<figure>[0-9.]+)(?: \w+)?", re.ASCII)


@dataclass(frozen=True)
class Promise:
    line: int
    number: int
    text: str
    proof: str

    @property
    def is_pending(self) -> bool:
        return self.proof == PENDING

    @property
    def proofs(self) -> list[str]:
        return QUOTED.findall(self.proof)


@dataclass(frozen=True)
class Known:
    """What a proof may name. `words` are the texts of the benchmark, with * for what is put in when it runs."""

    tests: Set[str] = frozenset()
    words: Set[str] = frozenset()
    figures: Set[float] = field(default_factory=frozenset[float])


def read_promises(text: str) -> tuple[list[Promise], list[str]]:
    """The rows, and what is wrong with the form of others."""
    promises: list[Promise] = []
    wrong: list[str] = []
    for line, content in enumerate(text.splitlines(), start=1):
        if not re.match(r"\|\s*S-", content):
            continue
        cells = [cell.strip() for cell in content.strip().strip("|").split("|")]
        if len(cells) != 3 or not re.fullmatch(r"S-\d{3}", cells[0]) or not cells[1]:
            wrong.append(f"line {line}: not of the form | S-000 | promise | proof |")
        else:
            promises.append(Promise(line, int(cells[0][2:]), cells[1], cells[2]))
    return promises, wrong


def wrong_numbers(promises: list[Promise]) -> Iterator[str]:
    """A number means the same for ever. Up to COUNTED each is there; beyond, every part has a range of its own, so that
    two that grow at once do not take the same number."""
    counts = Counter(promise.number for promise in promises)
    last = min(max(counts, default=0), COUNTED)
    yield from (f"S-{number:03d} stands there {count} times" for number, count in counts.items() if count > 1)
    yield from (f"S-{number:03d} is missing" for number in range(1, last + 1) if number not in counts)


def wrong_proofs(promises: list[Promise], known: Known) -> Iterator[str]:
    for promise in promises:
        where = f"line {promise.line}, S-{promise.number:03d}"
        if promise.is_pending:
            continue
        if not promise.proofs or QUOTED.sub("", promise.proof).replace(",", "").strip():
            yield f"{where}: the proof is neither {PENDING} nor a list of names in backticks"
        yield from (f"{where}: {what}" for proof in promise.proofs for what in wrong_proof(proof, known))


def wrong_proof(proof: str, known: Known) -> Iterator[str]:
    if NODE.fullmatch(proof):
        if proof not in known.tests:
            yield f"there is no test {proof}"
    elif match := MEASURED.fullmatch(proof):
        for word in (match["section"], match["name"]):
            if word not in known.words:
                yield f"the benchmark has no {word!r}"
        if float(match["figure"]) not in known.figures:
            yield f"the benchmark has no figure {match['figure']}"
    else:
        yield f"neither a test nor a row of the benchmark: {proof}"


def known_tests(folder: Path) -> Iterator[str]:
    for file in sorted(folder.rglob("test_*.py")):
        name = f"tests/{file.relative_to(folder)}"
        for node in ast.parse(file.read_text()).body:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                yield f"{name}::{node.name}"
            elif isinstance(node, ast.ClassDef):
                inner = (part.name for part in node.body if isinstance(part, ast.FunctionDef | ast.AsyncFunctionDef))
                yield from (f"{name}::{node.name}::{method}" for method in inner)
            elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                # A state machine of Hypothesis: `TestThing = Machine.TestCase`.
                yield f"{name}::{node.targets[0].id}::runTest"


def known_words(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value
        elif isinstance(node, ast.JoinedStr):
            yield "".join(str(part.value) if isinstance(part, ast.Constant) else "*" for part in node.values)


def known_figures(tree: ast.Module) -> Iterator[float]:
    for node in tree.body:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant):
            value = node.value.value
            if isinstance(value, int | float):
                yield float(value)


def look() -> Known:
    trees = [ast.parse(file.read_text()) for file in sorted(BENCH.glob("*.py"))]
    assert trees, "a check that reads nothing proves nothing"
    return Known(
        tests=frozenset(known_tests(TESTS)),
        words=frozenset(word for tree in trees for word in known_words(tree)),
        figures=frozenset(figure for tree in trees for figure in known_figures(tree)),
    )


def report(rule: str, found: Iterable[str]) -> None:
    offenders = list(found)
    assert not offenders, "\n  ".join([rule, *offenders])


@pytest.fixture(scope="module")
def promises() -> list[Promise]:
    found, wrong = read_promises(SPEC.read_text())
    report("SPEC.md has rows that cannot be read:", wrong)
    assert len(found) > 100, "a check that reads nothing proves nothing"
    return found


def test_numbers_are_all_there_and_none_twice(promises: list[Promise]) -> None:
    report("SPEC.md gives every promise a number of its own:", wrong_numbers(promises))


def test_every_promise_has_its_proof(promises: list[Promise], told: dict[str, str]) -> None:
    pending = sum(promise.is_pending for promise in promises)
    told["spec"] = f"{len(promises)} promises, {pending} pending"
    report("SPEC.md names proofs that exist:", wrong_proofs(promises, look()))


def test_no_promise_is_made_twice(promises: list[Promise]) -> None:
    counts = Counter(promise.text for promise in promises)
    report("SPEC.md makes a promise once:", (text for text, count in counts.items() if count > 1))


@pytest.mark.parametrize(
    "row",
    [
        "| S-1 | a promise | *pending* |",
        "| S-001 | a promise |",
        "| S-001 |  | *pending* |",
        "| S-001 | a promise | *pending* | more |",
    ],
)
def test_the_reader_sees_a_broken_row(row: str) -> None:
    assert [len(part) for part in read_promises(f"| id | promise | proof |\n{row}")] == [0, 1]


def test_the_check_sees_gaps_and_repeats() -> None:
    def numbered(*numbers: int) -> list[str]:
        return list(wrong_numbers([Promise(1, number, "a", PENDING) for number in numbers]))

    assert numbered(2, 1, 3) == []
    assert numbered(1, 3) == ["S-002 is missing"]
    assert numbered(1, 2, 2) == ["S-002 stands there 2 times"]
    assert numbered(*range(1, COUNTED + 1), 300, 450) == []
    assert numbered(*range(1, COUNTED), 300, 300) == ["S-300 stands there 2 times", "S-289 is missing"]


@pytest.mark.parametrize(
    ("proof", "said"),
    [
        (PENDING, ""),
        ("`tests/a/test_b.py::test_c`", ""),
        ("`tests/a/test_b.py::TestD::test_e`, `bench: * livings / memory, each <= 1 MB`", ""),
        ("`bench: * livings / memory, each >= 2.5`", ""),
        ("", "neither *pending* nor"),
        ("pending", "neither *pending* nor"),
        ("see `tests/a/test_b.py::test_c`", "neither *pending* nor"),
        ("`tests/a/test_b.py`", "neither a test nor a row"),
        ("`tests/a/test_b.py::test_gone`", "there is no test"),
        ("`tests/a/test_b.py::test_c[one]`", "neither a test nor a row"),
        ("`bench: * livings / memory, each`", "neither a test nor a row"),
        ("`bench: 100 livings / memory, each <= 1`", "has no '100 livings'"),
        ("`bench: * livings / memory <= 1`", "has no 'memory'"),
        ("`bench: * livings / memory, each <= 7`", "has no figure 7"),
    ],
)
def test_the_check_sees_a_broken_proof(proof: str, said: str) -> None:
    known = Known(
        tests=frozenset({"tests/a/test_b.py::test_c", "tests/a/test_b.py::TestD::test_e"}),
        words=frozenset({"* livings", "memory, each"}),
        figures=frozenset({1.0, 2.5}),
    )
    found = list(wrong_proofs([Promise(1, 1, "a promise", proof)], known))
    assert (said in found[0]) if said else found == []


def test_what_can_be_known_is_read_from_the_code(tmp_path: Path) -> None:
    (tmp_path / "unit").mkdir()
    text = "async def test_a(): ...\nclass TestB:\n    def test_c(self): ...\nTestD = Machine.TestCase\n"
    (tmp_path / "unit" / "test_x.py").write_text(text)
    names = ["test_a", "TestB::test_c", "TestD::runTest"]
    assert list(known_tests(tmp_path)) == [f"tests/unit/test_x.py::{name}" for name in names]
    tree = ast.parse("TARGET = 1.5\nCOUNT: int = 3\nsection = f'{COUNT} living sessions'\n")
    assert "* living sessions" in set(known_words(tree))
    assert list(known_figures(tree)) == [1.5]
