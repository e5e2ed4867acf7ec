"""The scout finds what Python finds, in order and within bounds; and no pattern explodes."""

import os
import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

import sandlot
from sandlot.contracts.runtime import Tree
from sandlot.host.desk import Hands, Place
from sandlot.host.file_searches import FileSearches
from sandlot.model import (
    FileConflict,
    FileFind,
    FileKind,
    FileList,
    FileNotFound,
    FileSearch,
    FileUsage,
    InvalidArgument,
    Match,
    SearchTally,
)
from sandlot.patterns.parsing import parse_path, parse_regex
from sandlot.patterns.programs import compile_node

SCOUT = Path(sandlot.__file__).parent / "_bin" / "sandlot-scout"
SLOW = settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture
def searches() -> Iterator[FileSearches]:
    hands = Hands()
    yield FileSearches(hands, SCOUT)
    hands.close()


def place(folder: Path) -> Place:
    return Place(Tree(os.open(folder, os.O_PATH | os.O_DIRECTORY), "/", None), "/", "")


async def found(searches: FileSearches, folder: Path, pattern: str = "**", **options: object) -> list[str]:
    request = FileFind("s", "/", pattern=pattern, **options)  # pyright: ignore[reportArgumentType] - told by each test
    async with searches.find(place(folder), request) as stream:
        return [info.path.removeprefix("/") async for batch in stream for info in batch]


async def matched(
    searches: FileSearches, folder: Path, pattern: str, path: str = "/", **options: object
) -> tuple[list[Match], SearchTally]:
    request = FileSearch("s", path, pattern=pattern, **options)  # pyright: ignore[reportArgumentType] - told by each test
    async with searches.search(place(folder), request) as stream:
        return [match async for batch in stream for match in batch], stream.tally


async def listed(searches: FileSearches, folder: Path, **options: object) -> list[str]:
    request = FileList("s", "/", ordered=True, **options)  # pyright: ignore[reportArgumentType] - told by each test
    async with searches.list(place(folder), request) as batches:
        return [info.path.removeprefix("/") async for batch in batches for info in batch]


# ---- lines -----------------------------------------------------------------------------------------------------------

ATOMS = st.sampled_from(
    ["a", "b", "é", "世", ".", r"\d", r"\w", r"\s", r"\W", "[ab]", "[^a]", "[a-cé]", "[^b-é]", "x", "-", r"\.", r"\bx"]
)


def combined(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    times = st.sampled_from(["*", "+", "?", "{2}", "{1,3}", "{0,2}", "*?"])
    return st.one_of(
        st.tuples(inner, inner).map("".join),
        st.tuples(inner, inner).map(lambda pair: f"(?:{pair[0]}|{pair[1]})"),
        st.tuples(inner, times).map(lambda pair: f"(?:{pair[0]}){pair[1]}"),
        inner.map(lambda part: f"^{part}"),
        inner.map(lambda part: f"{part}$"),
        inner.map(lambda part: rf"(?:{part})\b"),
    )


PATTERNS = st.recursive(ATOMS, combined, max_leaves=6)
LINES = st.lists(st.text("abxé世 .-1_", max_size=8), max_size=12)


@SLOW
@given(PATTERNS, LINES, st.booleans())
@example("^$", ["", "a", ""], False)
@example("a*", ["b"], False)
@example(r"\bx\b", ["ax", "x", "x-x", "éx"], False)
@example("É", ["é", "É"], True)
async def test_lines_are_those_that_re_finds(
    searches: FileSearches, tmp_path: Path, pattern: str, lines: list[str], ignore_case: bool
) -> None:
    (tmp_path / "f").write_text("\n".join(lines) + ("\n" if len(lines) % 2 else ""))
    text = (tmp_path / "f").read_text()
    expected = [
        number
        for number, line in enumerate(text.removesuffix("\n").split("\n") if text else [], 1)
        if re.search(pattern, line, re.IGNORECASE if ignore_case else 0)
    ]
    result, tally = await matched(searches, tmp_path, pattern, ignore_case=ignore_case)
    assert [match.line for match in result] == expected
    assert (tally.found, tally.is_cut) == (len(expected), False)


@SLOW
@given(st.lists(st.sampled_from(["hit", "miss", "", "x"]), max_size=30), st.integers(0, 4))
async def test_context_is_what_stands_around(
    searches: FileSearches, tmp_path: Path, lines: list[str], context: int
) -> None:
    (tmp_path / "f").write_text("".join(f"{line}\n" for line in lines))
    result, _tally = await matched(searches, tmp_path, "hit", literal=True, context=context)
    expected = [
        Match("/f", at + 1, line, tuple(lines[max(0, at - context) : at]), tuple(lines[at + 1 : at + 1 + context]))
        for at, line in enumerate(lines)
        if line == "hit"
    ]
    assert result == expected


async def test_files_larger_than_a_block_and_lines_longer(searches: FileSearches, tmp_path: Path) -> None:
    lines = [f"line {number} {'x' * (number % 200)}" for number in range(60_000)]
    lines[30_000] = "y" * 3_000_000 + "needle"
    lines[59_990] = "the needle"
    (tmp_path / "big").write_text("\n".join(lines))
    result, _tally = await matched(searches, tmp_path, "the needle", context=2)
    assert [(m.line, m.text, m.before, m.after) for m in result] == [
        (59_991, "the needle", tuple(lines[59_988:59_990]), tuple(lines[59_991:59_993]))
    ]
    result, _tally = await matched(searches, tmp_path, "yneedle", literal=True)
    assert [(m.line, m.is_cut, len(m.text) <= 2000) for m in result] == [(30_001, True, True)]
    result, _tally = await matched(searches, tmp_path, "line 5999[0-9]", path="/big")
    assert [(m.path, m.line) for m in result] == [("/big", number + 1) for number in range(59_991, 60_000)]


async def test_what_is_left_out_and_what_is_cut(searches: FileSearches, tmp_path: Path) -> None:
    for name in ("a.py", "b.py", "c.txt", ".hidden", "d/e.py", "d/.git/f.py", "skip/g.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("hit\nhit\nhit\n")
    (tmp_path / "binary.py").write_bytes(b"\0hit\n")
    os.mkfifo(tmp_path / "pipe.py")
    (tmp_path / "link.py").symlink_to("a.py")
    result, tally = await matched(searches, tmp_path, "hit", include=("*.py",), exclude=("skip",), limit_per_file=2)
    assert [(m.path, m.line) for m in result] == [
        (path, line) for path in ("/a.py", "/b.py", "/d/e.py") for line in (1, 2)
    ]
    assert (tally.found, tally.is_cut) == (6, False)
    result, tally = await matched(searches, tmp_path, "hit", hidden=True, limit=5)
    assert [(m.path, m.line) for m in result] == [
        ("/.hidden", 1),
        ("/.hidden", 2),
        ("/.hidden", 3),
        ("/a.py", 1),
        ("/a.py", 2),
    ]
    assert (tally.found, tally.is_cut) == (5, True)
    assert len((await matched(searches, tmp_path, "hit", include=("d/**",)))[0]) == 3
    with pytest.raises(FileConflict):
        await matched(searches, tmp_path, "hit", path="/pipe.py")
    with pytest.raises(FileNotFound):
        await matched(searches, tmp_path, "hit", path="/missing")


async def test_a_pattern_that_explodes_elsewhere(searches: FileSearches, tmp_path: Path) -> None:
    (tmp_path / "f").write_text("a" * 50_000 + "\n")
    began = time.monotonic()
    result, _tally = await matched(searches, tmp_path, r"(a+)+$|(a|aa)*b|(x+x+)+y|(?:a?){100}a{100}c")
    assert len(result) == 1
    assert time.monotonic() - began < 5


@pytest.mark.parametrize(
    "pattern",
    [
        "(",
        ")",
        "a{2",
        "*a",
        "[a",
        "[b-a]",
        r"\q",
        "(?=a)",
        "(?<!a)",
        r"(a)\1",
        "a{3,2}",
        "[[:alpha:]]",
        "(a{900}){900}",
        "(" * 200 + ")" * 200,
        r"\x1",
        "a{9999}",
    ],
)
def test_patterns_that_are_none(pattern: str) -> None:
    with pytest.raises(InvalidArgument):
        compile_node(parse_regex(pattern))


# ---- names -----------------------------------------------------------------------------------------------------------

TREE = (
    "a.py",
    "b/a.py",
    "b/c/d.py",
    "b/c/e.txt",
    "b-c/f.py",
    "B/g.PY",
    "b/[x]",
    "new\nline/h.py",
    "ü/世.py",
    "z/deep/er/i",
)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for name in (*TREE, ".dot/x.py", "b/.env"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / os.fsdecode(b"b/\xff.py")).touch()
    (tmp_path / "loop").symlink_to(".")
    return tmp_path


def walked(folder: Path) -> list[str]:
    """Everything, by name, each directory before what is in it."""
    paths = [path.relative_to(folder) for path in folder.rglob("*")]
    return [str(path) for path in sorted(paths, key=lambda path: [os.fsencode(part) for part in path.parts])]


def visible(path: str) -> bool:
    return not any(part.startswith(".") for part in path.split("/"))


@pytest.mark.parametrize(
    ("pattern", "expression"),
    [
        ("**", r".*"),
        ("*", r"[^/]*"),
        ("*.py", r"[^/]*\.py"),
        ("**/*.py", r"(.*/)?[^/]*\.py"),
        ("b/**", r"b/.*"),
        ("b/*/?.{py,txt}", r"b/[^/]*/[^/]\.(py|txt)"),
        ("**/c/**/*.py", r"(.*/)?c/(.*/)?[^/]*\.py"),
        ("[a-b]/[!c]*", r"[ab]/[^c/][^/]*"),
        ("b/\\[x\\]", r"b/\[x\]"),
        ("/a.py", r"a\.py"),
        ("?/*.py", r"[^/]/[^/]*\.py"),
    ],
)
async def test_names_are_those_that_a_walk_finds(
    searches: FileSearches, tree: Path, pattern: str, expression: str
) -> None:
    fits = re.compile(expression, re.DOTALL)
    expected = [path for path in walked(tree) if visible(path) and fits.fullmatch(path)]
    assert await found(searches, tree, pattern) == expected
    assert expected


async def test_kinds_cases_limits_and_what_is_hidden(searches: FileSearches, tree: Path) -> None:
    assert await found(searches, tree, "**/*.py", ignore_case=True) == [
        path for path in walked(tree) if visible(path) and path.lower().endswith(".py")
    ]
    assert await found(searches, tree, kinds=(FileKind.SYMLINK,)) == ["loop"]
    assert await found(searches, tree, kinds=(FileKind.DIRECTORY,), hidden=True) == [
        path for path in walked(tree) if (tree / path).is_dir() and not (tree / path).is_symlink()
    ]
    assert await found(searches, tree, "**/.env") == ["b/.env"]
    assert await found(searches, tree, limit=3, hidden=True) == walked(tree)[:3]


@SLOW
@given(st.integers(1, 8), st.integers(1, 5))
async def test_pages_are_the_listing(searches: FileSearches, tree: Path, size: int, depth: int) -> None:
    expected = [path for path in walked(tree) if path.count("/") < depth]
    assert await listed(searches, tree, depth=depth) == expected
    pages: list[str] = []
    while page := await listed(
        searches, tree, depth=depth, limit=size, **({"after": "/" + pages[-1]} if pages else {})
    ):
        assert len(page) <= size
        pages += page
    assert pages == expected


async def test_a_page_goes_on_where_something_is_gone(searches: FileSearches, tree: Path) -> None:
    everything = walked(tree)
    rest = everything[everything.index("b/c/e.txt") :]
    assert await listed(searches, tree, depth=9, after="/b/c/dd") == rest
    with pytest.raises(InvalidArgument):
        await listed(searches, tree, after="/")


async def test_usage_is_what_a_walk_counts(searches: FileSearches, tree: Path) -> None:
    (tree / "a.py").write_bytes(bytes(100_000))
    (tree / "b" / "hard").hardlink_to(tree / "a.py")
    told = await searches.usage(place(tree), FileUsage("s", "/"))
    paths = [path for path in tree.rglob("*") if path.name != "hard"]
    files = [path for path in paths if path.is_symlink() or not path.is_dir()]
    assert (told.files, told.directories, told.closed) == (len(files), len(paths) - len(files) + 1, 0)
    assert told.size_bytes == sum(path.lstat().st_size for path in files)
    assert told.allocated_bytes == sum(path.lstat().st_blocks * 512 for path in (*paths, tree))
    assert (await searches.usage(place(tree), FileUsage("s", "/a.py"))).size_bytes == 100_000


@pytest.mark.parametrize("pattern", ["/", "./", "{a", "[a"])
def test_patterns_of_paths_that_are_none(pattern: str) -> None:
    with pytest.raises(InvalidArgument):
        parse_path(pattern)
