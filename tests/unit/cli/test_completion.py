"""Scripts that complete a command line, tried in the shells that are here."""

import json
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from sandlot.cli import completion, main
from sandlot.cli.verbs import VERBS

IDS = ["s-first", "s-second", "other"]
# Stands for the program: it knows the sessions of one data directory, and writes down how it was asked.
PROGRAM = """#!/bin/sh
echo "$@" >> "$ASKED"
case "$*" in
  *"--data-dir /elsewhere"*) echo '{"sessions": [{"session_id": "far-away", "state": "active"}], "next": null}' ;;
  *) echo '{"sessions": [{"session_id": "s-first"}, {"session_id": "s-second"}, {"session_id": "other"}]}' ;;
esac
"""
ASK = """
source "$SCRIPT"
COMP_WORDS=("$@")
COMP_CWORD=$(($# - 1))
COMP_LINE=$LINE
COMP_POINT=${#COMP_LINE}
compopt() { :; }
_sandlot
printf '%s\\n' "${COMPREPLY[@]}"
"""


def script(shell: str, capsys: pytest.CaptureFixture[str]) -> str:
    assert main.main(["completion", shell]) == 0
    return capsys.readouterr().out


@pytest.fixture
def complete(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., list[str]]:
    """What bash offers for the last of some words."""
    (tmp_path / "script").write_text(script("bash", capsys))
    (tmp_path / "sandlot").write_text(PROGRAM)
    (tmp_path / "sandlot").chmod(0o755)
    (tmp_path / "some file").write_text("")

    def ask(*words: str, line: str = "") -> list[str]:
        environment = {
            "PATH": f"{tmp_path}:{os.environ['PATH']}",
            "SCRIPT": str(tmp_path / "script"),
            "ASKED": str(tmp_path / "asked"),
            "LINE": line or " ".join(words),
            "HOME": "/nowhere",
        }
        ran = subprocess.run(
            ["bash", "--norc", "-c", ASK, "bash", *words],
            env=environment,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=True,
        )
        assert ran.stderr == ""
        return ran.stdout.split("\n")[:-1] if ran.stdout != "\n" else []

    return ask


def test_verbs_and_options(complete: Callable[..., list[str]]) -> None:
    assert complete("sandlot", "") == list(VERBS)
    assert complete("sandlot", "exe") == ["exec"]
    assert complete("sandlot", "--json", "--data-dir", "/x", "do") == ["doctor"]
    assert set(complete("sandlot", "-")) >= {"--help", "--version", "--json", "--data-dir"}
    assert complete("sandlot", "exec", "--det") == ["--detach"]
    assert complete("sandlot", "run", "--det") == []
    assert set(complete("sandlot", "create", "--s")) == {"--secret", "--snapshot", "--storage", "--swap"}
    assert complete("sandlot", "nonsense", "") == []


def test_session_ids(complete: Callable[..., list[str]], tmp_path: Path) -> None:
    assert complete("sandlot", "exec", "") == IDS
    assert complete("sandlot", "show", "s-") == ["s-first", "s-second"]
    assert complete("sandlot", "shell", "--user", "root", "o") == ["other"]
    assert complete("sandlot", "exec", "--env", "A", "=", "B", "o") == ["other"]
    asked = (tmp_path / "asked").read_text().splitlines()
    assert set(asked) == {"ls --json --limit 50 --wait 0"}
    assert complete("sandlot", "kill", "other", "s-f") == ["s-first"]
    assert complete("sandlot", "--data-dir", "/elsewhere", "kill", "") == ["far-away"]
    assert complete("sandlot", "kill", "--data-dir", "=", "/elsewhere", "") == ["far-away"]


def test_where_no_session_id_belongs(complete: Callable[..., list[str]], tmp_path: Path) -> None:
    for words in (["create", ""], ["ls", ""], ["show", "one", ""], ["exec", "one", ""], ["exec", "--cwd", ""]):
        assert complete("sandlot", *words) == []
    assert complete("sandlot", "run", "--", "ec") == []
    assert complete("sandlot", "exec", "one", "--", "--det") == []
    assert not (tmp_path / "asked").exists()


def test_other_words(complete: Callable[..., list[str]], tmp_path: Path) -> None:
    assert complete("sandlot", "completion", "") == ["bash", "zsh", "fish"]
    (tmp_path / "folder").mkdir()
    assert complete("sandlot", "--data-dir", "fo") == ["folder"]


def test_paths_of_a_copy(complete: Callable[..., list[str]]) -> None:
    found = complete("sandlot", "cp", "s")
    assert (found[:2], sorted(found[2:])) == (["s-first:", "s-second:"], ["sandlot", "script", "some file"])
    assert complete("sandlot", "cp", "some file", "third", "oth") == ["other:"]
    assert complete("sandlot", "cp", "some") == []  # bash itself completes files where nothing else fits
    assert complete("sandlot", "cp", "other", ":", "s", line="sandlot cp other:s") == []


def test_nothing_is_stale() -> None:
    """Every option of every verb is in every script, because all of them come from the parser."""
    verbs = completion.read_verbs()
    assert [verb.name for verb in verbs[1:]] == list(VERBS)
    by_name = {verb.name: verb for verb in verbs}
    assert {"--id", "--secret", "--allow", "--port", "--snapshot"} <= {
        name for option in by_name["create"].options for name in option.names
    }
    assert by_name["exec"].words[0] == by_name["shell"].words[0] == by_name["attach"].words[0] == "id"
    valued = {name for verb in verbs for option in verb.options if option.takes_value for name in option.names}
    flags = {name for verb in verbs for option in verb.options if not option.takes_value for name in option.names}
    assert not valued & flags, "an option with a value for one verb and without for another cannot be completed"


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_every_option_is_in_every_script(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    text = script(shell, capsys)
    for verb in completion.read_verbs():
        for option in verb.options:
            for name in option.names:
                assert (name if shell != "fish" else name.strip("-")) in text
    assert "@" not in text.replace('"$@"', "").replace("[@]", "")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_shell_can_read_its_script(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    program = shutil.which(shell)
    if program is None:
        pytest.skip(f"{shell} is not installed here")
    option = "--no-execute" if shell == "fish" else "-n"
    text = script(shell, capsys)
    ran = subprocess.run([program, option], input=text, capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stderr) == (0, "")


def test_as_a_document(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["completion", "bash", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["shell"] == "bash"
    assert found["script"] + "\n" == script("bash", capsys)
