"""What is ignored is what git ignores: both are asked, for every path of trees that try the rules."""

import os
import random
import subprocess
from pathlib import Path

import pytest

from sandlot.sdk.below import Parts
from sandlot.sdk.ignoring import GitIgnore

ENVIRONMENT = {"PATH": os.environ["PATH"], "HOME": "/nonexistent", "GIT_CONFIG_NOSYSTEM": "1"}


def git(folder: Path, *words: str, stdin: bytes = b"") -> bytes:
    ran = subprocess.run(["git", *words], cwd=folder, input=stdin, capture_output=True, env=ENVIRONMENT, check=False)
    assert ran.returncode in (0, 1), ran.stderr
    return ran.stdout


def kept_by_us(top: Path) -> set[str]:
    ignoring, kept = GitIgnore(str(top)), set[str]()

    def walk(folder: Path, parts: Parts) -> None:
        fd = os.open(folder, os.O_RDONLY)
        try:
            ignoring.enter(fd, parts)
        finally:
            os.close(fd)
        for entry in folder.iterdir():
            is_directory = entry.is_dir() and not entry.is_symlink()
            inner = (*parts, entry.name)
            if entry.name == ".git" or ignoring.ignores(inner, is_directory=is_directory):
                continue
            if is_directory:
                walk(entry, inner)
            else:
                kept.add("/".join(inner))

    walk(top, ())
    return kept


def kept_by_git(top: Path) -> set[str]:
    listed = git(top, "ls-files", "--others", "--exclude-standard", "-z")
    return {os.fsdecode(name) for name in listed.split(b"\0") if name}


def plant(top: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = top / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


RULES: list[dict[str, str]] = [
    {
        ".gitignore": "*.log\n!keep.log\nbuild/\n/root-only\n",
        "d/keep.log": "",
        "d/a.log": "",
        "build/x": "",
        "a/build": "",
    },
    {".gitignore": "root-only\n", "root-only": "", "d/root-only": "", "d/.gitignore": "!root-only\n"},
    {
        ".gitignore": "/root-only\nd/*\n!d/keep\n",
        "root-only": "",
        "x/root-only": "",
        "d/keep": "",
        "d/drop": "",
        "d/s/k": "",
    },
    {".gitignore": "out/\n!out/keep\n", "out/keep": "", "out/x": ""},
    {
        ".gitignore": "**/deep/**/x\na/**/b\n**/tail\nfront/**\n",
        "deep/1/2/x": "",
        "q/deep/x": "",
        "a/b": "",
        "a/1/2/b": "",
        "z/tail": "",
        "front/1": "",
        "front/2/3": "",
    },
    {
        ".gitignore": "\\#hash\n\\!bang\n# note\n   \nspace\\ \ntrail   \nq?x\n[ab]c\n[!z]d\n",
        "#hash": "",
        "!bang": "",
        "trail": "",
        "qax": "",
        "ac": "",
        "cc": "",
        "yd": "",
        "zd": "",
        "space ": "",
    },
    {".gitignore": "*\n!*/\n!*.py\n", "a.py": "", "b.txt": "", "d/c.py": "", "d/e/f.txt": "", "d/e/g.py": ""},
    {
        ".gitignore": "node_modules\n.env*\n",
        "node_modules/x/y": "",
        "p/node_modules/z": "",
        ".env": "",
        ".env.local": "",
        "envy": "",
    },
    {".gitignore": "/*\n!/src\n/src/*\n!/src/a\n", "src/a/1": "", "src/b/2": "", "top": ""},
    {"d/.gitignore": "/x\ny/\n", "d/x": "", "d/e/x": "", "d/y/1": "", "d/e/y/2": "", "x": "", "y/3": ""},
    {".gitignore": "foo/bar\n", "foo/bar": "", "a/foo/bar": ""},
    {".gitignore": "foo/\n", "foo": "", "a/foo/x": ""},
    {".gitignore": "a\n!a\n*.o\nsub/\n", "sub/.gitignore": "!x\n", "sub/x": "", "a": "", "b.o": ""},
]


@pytest.mark.parametrize("files", RULES)
def test_the_same_as_git(tmp_path: Path, files: dict[str, str]) -> None:
    git(tmp_path, "init", "-q")
    plant(tmp_path, files)
    (tmp_path / ".git" / "info" / "exclude").write_text("q/\n")
    assert kept_by_us(tmp_path) == kept_by_git(tmp_path)


def test_the_same_as_git_for_rules_by_chance(tmp_path: Path) -> None:
    seed = random.Random(11)
    names, words = (
        ["a", "b", "c.log", "d.py"],
        ["a", "b", "*.log", "*.py", "*", "a/b", "**/b", "a/**", "/a", "a/", "/b/", "?"],
    )
    for turn in range(25):
        top = tmp_path / str(turn)
        top.mkdir()
        git(top, "init", "-q")
        for folder in ("", "a/", "b/", "a/b/", "a/a/"):
            plant(top, {f"{folder}{name}": "" for name in names if f"{folder}{name}" not in ("a", "b", "a/a", "a/b")})
            if seed.random() < 0.6:
                rules = [("!" if seed.random() < 0.3 else "") + seed.choice(words) for _ in range(seed.randrange(1, 5))]
                plant(top, {f"{folder}.gitignore": "\n".join(rules) + "\n"})
        assert kept_by_us(top) == kept_by_git(top), [(str(p), p.read_text()) for p in top.rglob(".gitignore")]


def test_what_stands_above_the_directory_counts_too(tmp_path: Path) -> None:
    git(tmp_path, "init", "-q")
    plant(
        tmp_path,
        {".gitignore": "*.log\nd/e/secret\nbuilt/\n", "d/.gitignore": "*.tmp\n", "d/e/.gitignore": "!keep.log\n"},
    )
    plant(tmp_path / "d" / "e", {"x.log": "", "keep.log": "", "y.tmp": "", "secret": "", "fine": "", "f/x.log": ""})
    plant(tmp_path / "built", {"x": "", "y.log": ""})
    assert kept_by_us(tmp_path / "d" / "e") == kept_by_git(tmp_path / "d" / "e") == {".gitignore", "keep.log", "fine"}
    assert kept_by_us(tmp_path / "built") == {"x", "y.log"}, "who names an ignored directory means it"


def test_a_work_tree_has_the_excludes_of_its_repository(tmp_path: Path) -> None:
    main, tree = tmp_path / "main", tmp_path / "tree"
    main.mkdir()
    git(main, "init", "-q")
    git(main, "-c", "user.name=x", "-c", "user.email=x@x", "commit", "-q", "--allow-empty", "-m", "x")
    git(main, "worktree", "add", "-q", str(tree))
    (main / ".git" / "info" / "exclude").write_text("hidden\n")
    plant(tree, {"hidden": "", "seen": ""})
    assert kept_by_us(tree) == kept_by_git(tree) == {"seen"}


def test_without_a_repository_and_with_rules_that_cannot_be_read(tmp_path: Path) -> None:
    plant(tmp_path, {".gitignore": "x\n", "x": "", "y": "", "d/.gitignore/f": ""})
    (tmp_path / "e").mkdir()
    (tmp_path / "e" / ".gitignore").symlink_to("../.gitignore")
    (tmp_path / "e" / "x").touch()
    assert kept_by_us(tmp_path) == {".gitignore", "y", "d/.gitignore/f", "e/.gitignore"}
