"""Names, sizes, and the few calls that belong in one place only."""

import ast
import io
import re
import shutil
import subprocess
import tokenize
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "sandlot"

EMPTY_NAMES = {"utils", "helpers", "common", "misc", "manager", "base"}
READS_ENVIRONMENT = {"config", "cli", "host/kernels"}  # the last are programs of sessions, and read theirs
AXES = ["host/storage", "host/runtimes"]
FILE_LINES_MAX = 500
FUNCTION_LINES_MAX = 70
# What may be longer, and why: "src/sandlot/x.py" for a file, "src/sandlot/x.py:name" for a function.
EXEMPT: dict[str, str] = {
    "src/sandlot/model/__init__.py": "a list of names, one a line",
    "src/sandlot/sdk/sync.py": "generated, from files that are short",
    "src/sandlot/sdk/sync.py:create": "generated, from a function that is short: every parameter comes twice",
}

GENERATED = SOURCE / "rpc" / "gen"  # by a program of others; what it writes is not ours to shape

PACKAGE_INDEX = re.compile(r"https?://[^\s\"']*(?:pypi|pythonhosted|devpi|/simple\b)", re.IGNORECASE)
HOME = re.compile(r"(?<![\w.$}-])/(?:(?:home|Users)/[a-z][\w-]*|root/\.?\w+)")
# Homes inside a session, and what a session must not see; neither tells anything about the machine of a developer.
SESSION_HOMES = {"/home/user", "/home/agent", "/home/daytona", "/root/.ssh"}

Rule = Callable[[Path, ast.Module], Iterator[tuple[int, str]]]


def empty_names(file: Path, tree: ast.Module) -> Iterator[tuple[int, str]]:
    if {file.stem, file.parent.name} & EMPTY_NAMES:
        yield 1, "name the topic"


def mixins(file: Path, tree: ast.Module) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef) and "mixin" in node.name.lower():
            yield node.lineno, f"{node.name}: wrap, do not mix in"


def environment_reads(file: Path, tree: ast.Module) -> Iterator[tuple[int, str]]:
    names = {"environ", "environb", "getenv", "getenvb"}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module == "os" and names & {alias.name for alias in node.names}:
            yield node.lineno, "from os import"
        elif isinstance(node, ast.Attribute) and ast.unparse(node) in {f"os.{name}" for name in names}:
            yield node.lineno, ast.unparse(node)


def broad_excepts(file: Path, tree: ast.Module) -> Iterator[tuple[int, str]]:
    tokens = tokenize.generate_tokens(io.StringIO(file.read_text()).readline)
    comments = {token.start[0]: token.string for token in tokens if token.type == tokenize.COMMENT}
    for node in ast.walk(tree):
        if not isinstance(node, ast.ExceptHandler):
            continue
        kinds = node.type.elts if isinstance(node.type, ast.Tuple) else [node.type]
        names = {ast.unparse(kind) if kind else "" for kind in kinds}
        # A switched-off lint rule is not a reason; words are.
        reason = re.sub(r"noqa(:\s*[A-Z]+\d+(,\s*[A-Z]+\d+)*)?", "", comments.get(node.lineno, ""))
        if names & {"", "Exception", "BaseException"} and not re.search(r"[a-z]{2}", reason):
            yield node.lineno, "catches everything and does not say why"


def long_files(file: Path, tree: ast.Module) -> Iterator[tuple[int, str]]:
    count = len(file.read_text().splitlines())
    if count > FILE_LINES_MAX and relative(file) not in EXEMPT:
        yield count, f"{count} lines, {FILE_LINES_MAX} allowed"


def long_functions(file: Path, tree: ast.Module) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            count = (node.end_lineno or node.lineno) - node.lineno + 1
            if count > FUNCTION_LINES_MAX and f"{relative(file)}:{node.name}" not in EXEMPT:
                yield node.lineno, f"{node.name} has {count} lines, {FUNCTION_LINES_MAX} allowed"


def private_text(text: str) -> Iterator[tuple[int, str]]:
    for number, line in enumerate(text.splitlines(), start=1):
        yield from ((number, match.group()) for match in PACKAGE_INDEX.finditer(line))
        homes = (match.group() for match in HOME.finditer(line))
        yield from ((number, home) for home in homes if home not in SESSION_HOMES)


def relative(file: Path) -> str:
    return str(file.relative_to(ROOT)) if file.is_relative_to(ROOT) else file.name


def offenders(rule: Rule, *folders: Path) -> list[str]:
    files = sorted(file for folder in folders for file in folder.rglob("*.py") if GENERATED not in file.parents)
    assert files, f"no module below {folders}: a check that reads nothing proves nothing"
    return [
        f"{relative(file)}:{line}: {what}" for file in files for line, what in rule(file, ast.parse(file.read_text()))
    ]


def report(rule: str, found: list[str]) -> None:
    assert not found, "\n  ".join([rule, *found])


def test_module_names_say_something() -> None:
    report("these names say nothing:", offenders(empty_names, SOURCE))


def test_no_mixins() -> None:
    report("behaviour is added by wrapping:", offenders(mixins, SOURCE))


def test_environment_is_read_in_config_only() -> None:
    allowed = tuple(f"src/sandlot/{name}/" for name in READS_ENVIRONMENT)
    found = [found for found in offenders(environment_reads, SOURCE) if not found.startswith(allowed)]
    report("os.environ is read below config/ and cli/ only:", found)


def test_broad_except_gives_its_reason() -> None:
    report("a broad except has a comment on its line:", offenders(broad_excepts, SOURCE))


def test_files_are_short() -> None:
    report("one noun per file:", offenders(long_files, SOURCE, ROOT / "tests"))


def test_functions_are_short() -> None:
    report("one step per function:", offenders(long_functions, SOURCE, ROOT / "tests"))


def test_exemptions_are_needed() -> None:
    gone = [name for name in EXEMPT if not (ROOT / name.partition(":")[0]).exists()]
    report("exempt, but not there:", gone)


@pytest.mark.parametrize("axis", AXES)
def test_axis_folder_tells_how_to_add_a_choice(axis: str) -> None:
    if not (SOURCE / axis).is_dir():
        pytest.skip(f"{axis} does not exist yet")
    init = SOURCE / axis / "__init__.py"
    assert init.exists(), f"{axis} has no __init__.py"
    assert ast.get_docstring(ast.parse(init.read_text())), f"{relative(init)}: say how a choice is added here"


def test_text_names_no_index_and_no_home() -> None:
    if not (ROOT / ".git").exists() or not shutil.which("git"):
        pytest.skip("not a git checkout, so there is no list of the project's files")
    # Files not yet committed count too, or the rule would speak only after the fact. Another user may own the checkout.
    listing = ["git", "-c", "safe.directory=*", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(listing, cwd=ROOT, check=True, capture_output=True, text=True).stdout.split("\0")
    found: list[str] = []
    for name in sorted(set(names) - {"", "LICENSE"}):
        file = ROOT / name
        if file.is_file() and b"\0" not in file.read_bytes():
            text = file.read_text(errors="replace")
            found += [f"{name}:{line}: {what}" for line, what in private_text(text)]
    report("addresses of package indexes and paths of one machine do not belong here:", found)


def test_the_rules_see_violations(tmp_path: Path) -> None:
    def lines(rule: Rule, text: str, name: str = "topic.py") -> list[int]:
        file = tmp_path / name
        file.write_text(text)
        return [line for line, _ in rule(file, ast.parse(text))]

    attempt = "try:\n    pass\nexcept {}\n    pass\n"
    assert lines(empty_names, "", "utils.py") == [1]
    assert lines(mixins, "class LogMixin: ...\nclass Log: ...\n") == [1]
    assert lines(environment_reads, "import os\nfrom os import getenv\nos.environ['A']\nos.getpid()\n") == [2, 3]
    assert lines(broad_excepts, attempt.format("Exception:")) == [3]
    assert lines(broad_excepts, attempt.format("(OSError, BaseException):  # noqa: BLE001")) == [3]
    assert lines(broad_excepts, attempt.format(":")) == [3]
    assert lines(broad_excepts, attempt.format("Exception:  # noqa: BLE001 - a task group's root")) == []
    assert lines(broad_excepts, attempt.format("OSError:")) == []
    assert lines(long_files, "\n" * (FILE_LINES_MAX + 1)) == [FILE_LINES_MAX + 1]
    assert lines(long_functions, "def f():\n" + "    pass\n" * FUNCTION_LINES_MAX) == [1]
    assert lines(long_functions, "def f():\n" + "    pass\n" * (FUNCTION_LINES_MAX - 1)) == []


@pytest.mark.parametrize(
    ("text", "is_private"),
    [
        ("https://" + "pypi.org/simple", True),
        ("http://" + "mirror.example/simple/", True),
        ("https://" + "example.org/docs", False),
        ("/home/" + "alice/src", True),
        ("/Users/" + "alice", True),
        ("/root/" + ".cache", True),
        ("/home/user/project", False),
        ("template/home/" + "alice", False),
        ("the home /root of a session", False),
    ],
)
def test_private_text(text: str, is_private: bool) -> None:
    assert bool(list(private_text(text))) is is_private
