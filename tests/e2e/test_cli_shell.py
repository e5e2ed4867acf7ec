"""`sandlot shell`: a terminal in a session, seen from the keyboard."""

import contextlib
import os
import signal
import termios
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.e2e.test_cli import Program, Terminal

pytestmark = pytest.mark.root

Start = Callable[..., Terminal]
PROMPT = b"$ "


@pytest.fixture
def sandlot(data_dir: Path) -> Iterator[Program]:
    program = Program(data_dir)
    yield program
    if program.volumes():
        program("kill", "--all", "--yes")


@pytest.fixture
def start(sandlot: Program) -> Iterator[Start]:
    with contextlib.ExitStack() as stack:

        def begin(*words: str) -> Terminal:
            terminal = Terminal(sandlot.words("shell", *words))
            stack.callback(terminal.close)
            return terminal

        yield begin


def test_a_shell_in_a_new_session_that_goes_when_it_is_left(sandlot: Program, start: Start) -> None:
    terminal = start("--label", "made=by-shell")
    told = terminal.wait_for(b"destroyed when you leave").decode()
    session_id = told.split("session ")[1].split()[0]
    terminal.wait_for(PROMPT)
    terminal.type(b'echo "$0 $(shopt -q login_shell && echo login)"; id -un; pwd; test -t 0 && test -t 2 && echo tty\r')
    terminal.wait_for(b"bash login")
    assert b"user\r\n/workspace\r\ntty\r\n" in terminal.wait_for(PROMPT)
    terminal.type(b"exit 7\r")
    terminal.wait_for(f"session {session_id} is destroyed".encode())
    assert terminal.process.wait(20) == 7
    assert sandlot.volumes() == []
    assert sandlot.ids() == []


def test_a_shell_in_a_session_that_stays(sandlot: Program, start: Start) -> None:
    sandlot("create", "--id", "one", "--env", "FROM=session")
    terminal = start("one", "--user", "root", "--env", "MORE=a b", "--cwd", "/etc")
    terminal.wait_for(b"# ")
    terminal.type(b'echo "$(id -un) $PWD $FROM $MORE"; echo left > /workspace/left; exit 3\r')
    terminal.wait_for(b"root /etc session a b")
    assert terminal.process.wait(20) == 3
    assert sandlot("exec", "one", "--", "cat", "left").stdout == b"left\n"
    assert sandlot.ids() == ["one"]


def test_size_and_resizing(start: Start) -> None:
    terminal = start()
    terminal.wait_for(PROMPT)
    terminal.type(b"stty size\r")
    terminal.wait_for(b"24 80")
    terminal.wait_for(PROMPT)
    terminal.type(b"sh -c \"trap 'echo winch; stty size' WINCH; echo ready; while :; do sleep 0.05; done\"\r")
    terminal.wait_for(b"ready\r\n")
    terminal.resize(40, 120)
    terminal.wait_for(b"winch\r\n40 120")
    terminal.resize(10, 20)
    terminal.wait_for(b"winch\r\n10 20")
    terminal.type(b"\x03")
    terminal.wait_for(PROMPT)
    terminal.type(b"exit 0\r")
    assert terminal.process.wait(20) == 0


def test_every_key_is_the_sessions(start: Start) -> None:
    """Ctrl-C, Ctrl-Z and Ctrl-\\ act inside, not on our program."""
    terminal = start()
    terminal.wait_for(PROMPT)
    for key in (b"\x03", b"\x1a", b"\x1c"):
        terminal.type(b"sleep 60\r")
        terminal.wait_for(b"sleep 60\r\n")
        time.sleep(0.3)
        terminal.type(key)
        terminal.wait_for(PROMPT)
    terminal.type(b"(exit 5)\r")
    terminal.wait_for(PROMPT)
    terminal.type(b"\x04")  # the end of input; a shell with a stopped job wants to hear it twice
    terminal.wait_for(b"stopped jobs")
    terminal.wait_for(PROMPT)
    terminal.type(b"\x04")
    assert terminal.process.wait(20) == 5


def test_a_command_of_ones_own(sandlot: Program, start: Start) -> None:
    terminal = start("--", "sh", "-c", "tty; read line; echo got $line; exit 9")
    terminal.wait_for(b"/dev/pts/")
    terminal.type(b"hello\r")
    terminal.wait_for(b"got hello")
    assert terminal.process.wait(20) == 9
    terminal = start("--", "no-such-program")
    terminal.wait_for(b"could not be run")
    assert terminal.process.wait(20) == 127
    assert sandlot.volumes() == []


def test_the_kind_of_terminal_is_passed_on(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "vt220")
    start("--", "sh", "-c", "echo kind=$TERM").wait_for(b"kind=vt220")
    start("--env", "TERM=dumb", "--", "sh", "-c", "echo kind=$TERM").wait_for(b"kind=dumb")


def test_a_session_without_bash(sandlot: Program, start: Start) -> None:
    sandlot("create", "--id", "one")
    hidden = sandlot("exec", "--user", "root", "one", "--", "sh", "-c", "mv /usr/bin/bash /usr/bin/hidden")
    assert (hidden.returncode, hidden.stderr) == (0, b"")
    terminal = start("one")
    terminal.wait_for(PROMPT)
    terminal.type(b'echo "this is $0"\r')
    terminal.wait_for(b"this is sh\r\n")
    terminal.type(b"exit 4\r")
    assert terminal.process.wait(20) == 4


def test_a_terminal_that_goes_away_leaves_nothing(sandlot: Program, start: Start) -> None:
    terminal = start("--", "sh", "-c", "echo up; sleep 60")
    terminal.wait_for(b"up")
    pid = terminal.process.pid
    os.kill(pid, signal.SIGHUP)  # as the kernel does when a terminal is closed
    assert terminal.process.wait(20) == 129
    assert sandlot.volumes() == []


def test_the_terminal_is_given_back_as_it_was(start: Start) -> None:
    terminal = start("--", "sh", "-c", "echo up; read line; exit 0")
    before = termios.tcgetattr(terminal.keyboard)
    terminal.wait_for(b"up")
    assert termios.tcgetattr(terminal.keyboard) != before
    terminal.type(b"x\r")
    assert terminal.process.wait(20) == 0
    assert termios.tcgetattr(terminal.keyboard) == before


def test_without_a_terminal_it_is_refused(sandlot: Program) -> None:
    for words, step in ((["shell"], "sandlot run -- CMD"), (["shell", "one"], "sandlot exec one -- CMD")):
        refused = sandlot(*words, stdin=b"echo hi\n")
        assert (refused.returncode, refused.stdout) == (2, b"")
        assert b"needs a terminal" in refused.stderr
        assert step in refused.stderr.decode()
    assert sandlot.json("shell")["error"]["code"] == "invalid_argument"
    assert not (sandlot.data / "journal.db").exists()


def test_wrong_requests_on_a_terminal(sandlot: Program, start: Start) -> None:
    for words, code, told in (
        (["gone"], 125, b"there is no session gone"),
        (["one", "--memory", "1G"], 2, b"--memory is for a new session"),
        (["one", "--timeout", "1h"], 2, b"--timeout is for a new session"),
        (["--disk", "1G", "--storage", "layers"], 125, b"limit_disk"),
        (["--cwd", "/gone"], 2, b"is destroyed"),
        (["--"], 2, b"no command behind"),
    ):
        terminal = start(*words)
        terminal.wait_for(told)
        assert terminal.process.wait(20) == code
    assert sandlot.volumes() == []


# ---- terminals that are left ---------------------------------------------------------------------------------------

LEAVE = b"\x1d\x1d"  # Ctrl-] twice


@pytest.fixture
def attach(sandlot: Program) -> Iterator[Start]:
    with contextlib.ExitStack() as stack:

        def begin(*words: str) -> Terminal:
            terminal = Terminal(sandlot.words("attach", *words))
            stack.callback(terminal.close)
            return terminal

        yield begin


def test_a_shell_that_is_left_goes_on_and_is_found_again(sandlot: Program, start: Start, attach: Start) -> None:
    sandlot("create", "--id", "one")
    first = start("one")
    first.wait_for(PROMPT)
    first.type(b'mark=of-the-first; echo re""ady\r')
    first.wait_for(b"ready\r\n")
    first.wait_for(PROMPT)
    first.type(LEAVE)
    told = first.wait_for(b"comes back to it").decode()
    assert first.process.wait(20) == 0
    name = told.split("sandlot attach one ")[1].split("`")[0]
    second = start("one")
    second.wait_for(f"back in terminal {name}".encode())
    second.wait_for(b"ready\r\n")  # what it showed before is shown again
    second.type(b'echo "mark is $mark"\r')
    second.wait_for(b"mark is of-the-first\r\n")
    os.kill(second.process.pid, signal.SIGHUP)  # its terminal has gone, and the shell has not
    assert second.process.wait(20) == 129
    third = attach("one")
    third.wait_for(f"terminal {name}".encode())
    third.wait_for(b"mark is of-the-first\r\n")
    third.resize(40, 120)
    third.type(b'until [ "$(stty size)" = "40 120" ]; do sleep 0.1; done; echo si""zed; exit 6\r')
    third.wait_for(b"sized\r\n")
    assert third.process.wait(20) == 6
    followed = sandlot("attach", "one", name)
    assert (followed.returncode, b"mark is of-the-first\r\n" in followed.stdout) == (6, True)
    assert sandlot.json("attach", "one", name)["exit_code"] == 6


def test_another_terminal_is_opened_when_it_is_asked_for(sandlot: Program, start: Start, attach: Start) -> None:
    sandlot("create", "--id", "one")
    first = start("one", "--", "sh", "-c", "echo first; cat")
    first.wait_for(b"first")
    first.type(LEAVE)
    assert first.process.wait(20) == 0
    new = start("one", "--new")
    new.wait_for(PROMPT)
    new.type(LEAVE)
    told = new.wait_for(b"comes back to it").decode()
    assert new.process.wait(20) == 0
    watching = attach("--watch", "one", told.split("sandlot attach one ")[1].split("`")[0])
    watching.wait_for(PROMPT)
    watching.type(b"exit 3\r")
    watching.wait_for(b"\a")
    watching.type(LEAVE)
    watching.wait_for(b"goes on")
    assert watching.process.wait(20) == 0
    calls = sandlot.json("show", "one")["calls"]
    assert [call["state"] for call in calls] == ["running", "running"]


def test_the_key_that_leaves_reaches_the_program_when_it_is_pressed_once(start: Start) -> None:
    terminal = start("--", "sh", "-c", "stty raw -echo; echo up; dd bs=1 count=3 2>/dev/null | od -An -tx1; sleep 60")
    terminal.wait_for(b"up")
    terminal.type(b"\x1d")
    time.sleep(1)
    terminal.type(b"\x1da")
    terminal.wait_for(b"1d 1d 61")
    terminal.type(LEAVE)
    terminal.wait_for(b"is destroyed")
    assert terminal.process.wait(20) == 0


def test_questions_to_a_terminal_are_not_shown_again(sandlot: Program, start: Start, attach: Start) -> None:
    """Or they would be answered again, to a shell that never asked."""
    sandlot("create", "--id", "one")
    script = r"printf 'begin\033[c\033[6n\033]11;?\007end\n'; cat"
    terminal = start("one", "--", "sh", "-c", script)
    assert terminal.wait_for(b"end\r\n").endswith(b"begin\x1b[c\x1b[6n\x1b]11;?\x07")
    terminal.type(LEAVE)
    assert terminal.process.wait(20) == 0
    again = attach("one")
    assert again.wait_for(b"end\r\n").endswith(b"begin")


def test_a_program_that_does_not_read_keeps_nobody_there(sandlot: Program, start: Start) -> None:
    sandlot("create", "--id", "one")
    terminal = start("one", "--", "sh", "-c", "stty raw -echo; echo up; sleep 600")
    terminal.wait_for(b"up")
    for _ in range(100):
        terminal.type(b"x" * 4000)
    terminal.type(LEAVE)
    terminal.wait_for(b"goes on; `sandlot attach")
    assert terminal.process.wait(20) == 0


def test_attaching_to_what_is_not_there(sandlot: Program, attach: Start) -> None:
    sandlot("create", "--id", "one")
    terminal = attach("one")
    terminal.wait_for(b"no open terminal")
    assert terminal.process.wait(20) == 125
    refused = sandlot("attach", "--watch", "--take", "one")
    assert (refused.returncode, b"leave one of them out" in refused.stderr) == (2, True)
