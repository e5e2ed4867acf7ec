"""Every example of the documents runs, and prints what the documents say."""

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    page
    for page in (*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"))
    if not page.is_relative_to(ROOT / "docs" / "reference")
)
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
# Verbs of make that are only looked up: they are this run itself, or take minutes.
LOOKED_UP = {
    "test",
    "check",
    "bench",
    "fuzz",
    "sanitize",
    "setup",
    "wheel",
    "clean",
    "gen",
    "pictures",
    "guest",
    "soak",
    "processes",
}
SHELL_S = 90


@dataclass(frozen=True)
class Example:
    page: Path
    line: int
    language: str
    text: str
    expected: str | None  # the block of plain text right behind it

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def examples(*languages: str) -> list[Example]:
    return [found for page in PAGES for found in read(page, page.read_text()) if found.language in languages]


def read(page: Path, text: str) -> Iterator[Example]:
    blocks = list(BLOCK.finditer(text))
    for at, block in enumerate(blocks):
        behind = blocks[at + 1] if at + 1 < len(blocks) else None
        follows = behind is not None and behind[1] == "text" and not text[block.end() : behind.start()].strip()
        expected = behind[2] if behind is not None and follows else None
        yield Example(page, text.count("\n", 0, block.start()) + 1, block[1], block[2], expected)


def matches(expected: str, printed: str) -> bool:
    """`…` stands for anything."""
    pattern = ".*".join(map(re.escape, expected.strip().split("…")))
    return re.fullmatch(pattern, printed.strip(), re.DOTALL) is not None


@pytest.fixture
def environment(data_dir: Path, tmp_path: Path) -> dict[str, str]:
    return {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "HOME": str(tmp_path),
        "SANDLOT_DATA_DIR": str(data_dir),
    }


@pytest.mark.root
@pytest.mark.timeout(120)
@pytest.mark.parametrize("example", examples("python"), ids=str)
def test_python_runs(example: Example, environment: dict[str, str], tmp_path: Path) -> None:
    script = tmp_path / "example.py"
    script.write_text(example.text)
    ran = subprocess.run(
        [sys.executable, script], env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=SHELL_S
    )
    assert ran.returncode == 0, ran.stderr
    if example.expected is not None:
        assert matches(example.expected, ran.stdout), ran.stdout


@pytest.mark.root
@pytest.mark.timeout(180)
@pytest.mark.parametrize("example", examples("console"), ids=str)
def test_console_runs(example: Example, environment: dict[str, str], tmp_path: Path) -> None:
    """All commands of a block in one shell, each with its own exit code and output."""
    steps = re.split(r"^\$ ", example.text, flags=re.MULTILINE)[1:]
    assert steps, "a console block without a command"
    for step in steps:
        command, _, _expected = step.partition("\n")
        if (name := looked_up(command)) is not None:
            subprocess.run(["make", "-n", name], cwd=ROOT, check=True, capture_output=True, env=environment)
    script = tmp_path / "example.sh"
    run = [step for step in steps if looked_up(step.partition("\n")[0]) is None]
    if not run:
        return
    mark = "=====step====="
    lines = [f"{step.partition(chr(10))[0]}\necho {mark}$?" for step in run]
    script.write_text("\n".join([f'make() {{ command make -C {shlex.quote(str(ROOT))} "$@"; }}', *lines]))
    ran = subprocess.run(
        ["bash", script], env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=SHELL_S
    )
    outputs = re.split(rf"{mark}(\d+)\n", ran.stdout)
    for step, output, code in zip(run, outputs[::2], outputs[1::2], strict=False):
        command, _, expected = step.partition("\n")
        assert code == "0", f"{command}: exit code {code}: {output}{ran.stderr}"
        assert not expected.strip() or matches(expected, output), f"{command} printed {output!r}"
    assert len(outputs) // 2 == len(run), ran.stderr


def looked_up(command: str) -> str | None:
    words = shlex.split(command, comments=True)
    if words and words[0] == "sudo":
        words = words[1:]
    return words[1] if len(words) > 1 and words[0] == "make" and words[1] in LOOKED_UP else None


def test_the_readme_has_examples() -> None:
    """A reader that finds none would let everything pass."""
    assert len([found for found in examples("python", "console") if found.page.name == "README.md"]) >= 4


def test_a_wrong_example_is_seen() -> None:
    (found,) = [e for e in read(ROOT / "x.md", "a\n\n```python\nprint(1)\n```\n\n```text\n2\n```\n") if e.expected]
    assert (found.line, found.text, found.expected) == (3, "print(1)\n", "2\n")
    assert not matches("2\n", "1\n")
    assert matches("a … c\n", "a b c\n")
    assert not matches("a … c\n", "a b d\n")
