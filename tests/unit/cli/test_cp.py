"""Which words of a command line are paths in sessions, what goes where, and what is refused."""

import pytest

from sandlot.cli import main
from sandlot.cli.cp import Operand, check, operand, plan
from sandlot.cli.transfer import Entry
from sandlot.model import FileConflict, FileKind, FileNotFound, InvalidArgument, SandlotError

FILE, DIRECTORY, OTHER = FileKind.FILE, FileKind.DIRECTORY, FileKind.OTHER


@pytest.mark.parametrize(
    ("text", "path", "session_id"),
    [
        ("a", "a", None),
        ("a/b:c", "a/b:c", None),
        ("./a:b", "./a:b", None),
        ("/a:b", "/a:b", None),
        ("-", "-", None),
        ("one:a", "a", "one"),
        ("one:", ".", "one"),
        ("one:/etc/a:b", "/etc/a:b", "one"),
        ("one:-", "-", "one"),
    ],
)
def test_words(text: str, path: str, session_id: str | None) -> None:
    found = operand(text)
    assert (found.path, found.session_id) == (path, session_id)
    assert found.is_standard is (text == "-")


@pytest.mark.parametrize(("text", "step"), [(":a", "./:a"), ("a b:c", "./a b:c"), ("..:x", "./..:x"), ("", "`.`")])
def test_words_that_are_neither(text: str, step: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        operand(text)
    assert step in caught.value.next_step


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("a b", "neither a nor b is in a session"),
        ("one:a b c", "neither b nor c is in a session"),
        ("- b", "neither - nor b is in a session"),
        ("- -", "neither - nor - is in a session"),
        ("- a one:", "stdin is one file"),
        ("one:a one:b -", "stdout takes one file"),
        ("one:a one:b", "both sides are the same session"),
        ("two:a one:a one:b", "both sides are the same session"),
    ],
)
def test_what_cannot_be_copied(words: str, told: str) -> None:
    *sources, target = map(operand, words.split())
    with pytest.raises(InvalidArgument, match=told) as caught:
        check(sources, target, as_json=False)
    assert caught.value.next_step


def test_what_can_be_copied() -> None:
    for words in ("a one:", "a b one:", "one:a two:b b", "one:a two:", "- one:x", "one:a -", "one:a two:b three:"):
        *sources, target = map(operand, words.split())
        check(sources, target, as_json=False)
    with pytest.raises(InvalidArgument, match="a file and a document"):
        check([operand("one:a")], operand("-"), as_json=True)
    check([operand("-")], operand("one:a"), as_json=True)


def entry(name: str, kind: FileKind = FILE) -> Entry:
    return Entry(name, kind, 0o644, 0)


@pytest.mark.parametrize(
    ("sources", "path", "there", "expected"),
    [
        ([entry("f")], "d", DIRECTORY, ("d", [("f",)])),
        ([entry("f")], "new", None, (".", [("new",)])),
        ([entry("f")], "/new", None, ("/", [("new",)])),
        ([entry("f")], "x/new", None, ("x", [("new",)])),
        ([entry("f")], "x/old", FILE, ("x", [("old",)])),
        ([entry("d", DIRECTORY)], "there", DIRECTORY, ("there", [("d",)])),
        ([entry("d", DIRECTORY)], "new", None, (".", [("new",)])),
        ([entry("d", DIRECTORY)], "x/new//", None, ("x", [("new",)])),
        ([entry("", DIRECTORY)], "there", DIRECTORY, ("there", [()])),  # `cp d/. there` fills it
        ([entry("", DIRECTORY)], "new", None, (".", [("new",)])),
        ([entry("a"), entry("d", DIRECTORY)], ".", DIRECTORY, (".", [("a",), ("d",)])),
        ([entry("")], "x/stdin", None, ("x", [("stdin",)])),
    ],
)
def test_what_goes_where(
    sources: list[Entry], path: str, there: FileKind | None, expected: tuple[str, list[tuple[str, ...]]]
) -> None:
    assert plan(sources, Operand(path, "one"), there) == expected


@pytest.mark.parametrize(
    ("sources", "path", "there", "error"),
    [
        ([entry("a"), entry("b")], "new", None, InvalidArgument),
        ([entry("a"), entry("b")], "file", FILE, InvalidArgument),
        ([entry("a"), entry("a")], "d", DIRECTORY, InvalidArgument),
        ([entry("")], "d", DIRECTORY, InvalidArgument),  # stdin has no name
        ([entry("d", DIRECTORY)], "file", FILE, FileConflict),
        ([entry("f")], "pipe", OTHER, FileConflict),
        ([entry("f")], "new/", None, FileNotFound),
        ([entry("f")], "file/", FILE, FileNotFound),
        ([entry("d", DIRECTORY)], "gone/.", None, FileNotFound),
        ([entry("d", DIRECTORY)], "gone/..", None, FileNotFound),
    ],
)
def test_what_goes_nowhere(sources: list[Entry], path: str, there: FileKind | None, error: type[SandlotError]) -> None:
    with pytest.raises(error) as caught:
        plan(sources, Operand(path, "one"), there)
    assert caught.value.next_step


def test_wrong_requests_are_refused_before_an_engine_is_opened(capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["cp"], ["cp", "a"], ["cp", "a", "b"], ["cp", "a b:c", "d"], ["cp", "one:a", "-", "--json"]):
        assert main.main(["--data-dir", "/proc/none", *words]) == 2
        shown = capsys.readouterr()
        assert "sandlot: " in shown.err or '"invalid_argument"' in shown.out
