"""What the documents point at is there: files, names in files, links, headings."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = ("src", "tests", "guest", "docs", "tools", "requirements")

FENCE = re.compile(r"^(```|~~~).*?^\1\s*$", re.MULTILINE | re.DOTALL)
QUOTED = re.compile(r"`([^`\n]+)`")
POINTER = re.compile(rf"(?P<path>(?:{'|'.join(FOLDERS)})/[^\s:]*)(?:::\S+|:(?P<name>\S+))?")
LINK = re.compile(r"\[[^\]]*\]\(([^()\s]+)\)|(?:src|href)=\"([^\"]+)\"")
ELSEWHERE = re.compile(r"[a-z][a-z0-9+.-]*:", re.IGNORECASE)
HEADING = re.compile(r"^#{1,6}\s+(.+?)\s*#*$", re.MULTILINE)
TITLE = re.compile(r"^# ", re.MULTILINE)


def documents() -> list[Path]:
    """Those of the project, not those of what was installed or built beside it."""
    below = (file for folder in FOLDERS for file in (ROOT / folder).rglob("*.md"))
    found = sorted([*ROOT.glob("*.md"), *(file for file in below if "build" not in file.relative_to(ROOT).parts)])
    assert len(found) > 10, "a check that reads nothing proves nothing"
    return found


def without_fences(text: str) -> str:
    """Line numbers stay."""
    return FENCE.sub(lambda match: "\n" * match.group().count("\n"), text)


def line_of(text: str, position: int) -> int:
    return text.count("\n", 0, position) + 1


def wrong_pointers(text: str, root: Path = ROOT) -> Iterator[str]:
    """`path`, `path:name` and `path::test`, in backticks. * stands for any name, and <name> for one that is to come."""
    text = without_fences(text)
    for match in QUOTED.finditer(text):
        pointer = POINTER.fullmatch(match.group(1))
        if pointer:
            what = wrong_pointer(pointer["path"], pointer["name"], root)
            if what:
                yield f"{line_of(text, match.start())}: {what}"


def wrong_pointer(path: str, name: str | None, root: Path) -> str | None:
    if "*" in path:
        return None if any(root.glob(path)) else f"nothing is called {path}"
    there = root / (path.partition("<")[0].rpartition("/")[0] if "<" in path else path)
    if not there.exists():
        return f"there is no {path}"
    if name and not (name in python_names(there) if there.suffix == ".py" else has_c_name(there, name)):
        return f"{path} has no {name}"
    return None


def python_names(file: Path) -> set[str]:
    """Functions and classes, and `Class.method`."""
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    top = [node for node in ast.parse(file.read_text()).body if isinstance(node, kinds)]
    methods = {
        f"{node.name}.{part.name}"
        for node in top
        if isinstance(node, ast.ClassDef)
        for part in node.body
        if isinstance(part, kinds)
    }
    return {node.name for node in top} | methods


def has_c_name(file: Path, name: str) -> bool:
    """A function that is defined there: its name and arguments at the left edge, behind its type."""
    return bool(re.search(rf"^\w[^;=\n]*\b{re.escape(name)}\(", file.read_text(), re.MULTILINE))


def wrong_links(file: Path) -> Iterator[str]:
    text = without_fences(file.read_text())
    plain = QUOTED.sub(lambda match: " " * len(match.group()), text)
    for match in LINK.finditer(plain):
        target = match.group(1) or match.group(2)
        if ELSEWHERE.match(target):
            continue
        path, _, heading = target.partition("#")
        there = file.parent / path if path else file
        where = f"{line_of(text, match.start())}: "
        if not there.exists():
            yield f"{where}{target} leads nowhere"
        elif heading and there.suffix == ".md" and heading not in anchors(there.read_text()):
            yield f"{where}{target}: no such heading"


def anchors(text: str) -> set[str]:
    """As a page of a repository host names its headings."""
    words = (re.sub(r"[^\w\- ]", "", heading.lower()) for heading in HEADING.findall(without_fences(text)))
    return {word.replace(" ", "-") for word in words}


def report(rule: str, found: list[str]) -> None:
    assert not found, "\n  ".join([rule, *found])


def name_of(file: Path) -> str:
    return str(file.relative_to(ROOT))


DOCUMENTS = documents()


@pytest.mark.parametrize("file", DOCUMENTS, ids=name_of)
def test_a_document_points_at_what_is_there(file: Path) -> None:
    found = [f"{name_of(file)}:{what}" for what in wrong_pointers(file.read_text())]
    report("what stands in backticks is there:", found)


@pytest.mark.parametrize("file", DOCUMENTS, ids=name_of)
def test_links_lead_somewhere(file: Path) -> None:
    report("relative links lead to a file and a heading:", [f"{name_of(file)}:{what}" for what in wrong_links(file)])


@pytest.mark.parametrize("file", DOCUMENTS, ids=name_of)
def test_a_document_has_one_title(file: Path) -> None:
    titles = len(TITLE.findall(without_fences(file.read_text())))
    assert titles == 1, f"{name_of(file)} has {titles} titles"


def test_the_check_sees_wrong_pointers(tmp_path: Path) -> None:
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "a.py").write_text("class A:\n    def b(self): ...\n\n\ndef c(): ...\n")
    (tmp_path / "src" / "d.c").write_text("static int e(void) {\n    f();\n}\n\nint g(int x) { return e(); }\n")

    def wrong(quoted: str) -> list[str]:
        return list(wrong_pointers(f"# Title\n\n`{quoted}`\n", tmp_path))

    for right in (
        "src/a.py",
        "src/*.py",
        "src/<name>.py",
        "src/a.py::test_anything",
        "src/a.py:A",
        "src/a.py:A.b",
        "src/a.py:c",
        "src/d.c:e",
        "src/d.c:g",
        "/src/inside/a/session",
        "src",
        "a sentence about src/gone.py",
    ):
        assert wrong(right) == [], right
    assert wrong("src/gone.py") == ["3: there is no src/gone.py"]
    assert wrong("src/gone.py::test_x") == ["3: there is no src/gone.py"]
    assert wrong("src/gone/<name>.py") == ["3: there is no src/gone/<name>.py"]
    assert wrong("src/*.h") == ["3: nothing is called src/*.h"]
    assert wrong("src/a.py:b") == ["3: src/a.py has no b"]
    assert wrong("src/a.py:12") == ["3: src/a.py has no 12"]
    assert wrong("src/d.c:f") == ["3: src/d.c has no f"]
    assert list(wrong_pointers("```\n`src/gone.py`\n```\n", tmp_path)) == []


def test_the_check_sees_wrong_links(tmp_path: Path) -> None:
    (tmp_path / "there.md").write_text("# A title\n\n## What `it` does, now\n")
    file = tmp_path / "page.md"
    file.write_text(
        "# Page\n\n[a](there.md) [b](there.md#what-it-does-now) [c](#page) [d](https://example.org/x) `[e](gone)`\n"
        '![f](gone.svg)\n[g](there.md#gone)\n<img src="gone.png">\n\n```\n[h](gone)\n```\n'
    )
    assert list(wrong_links(file)) == [
        "4: gone.svg leads nowhere",
        "5: there.md#gone: no such heading",
        "6: gone.png leads nowhere",
    ]
