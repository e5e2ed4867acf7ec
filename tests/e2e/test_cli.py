"""The program as people run it: in processes of its own, on a real engine."""

import base64
import contextlib
import fcntl
import json
import os
import pty
import select
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import termios
import time
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.root

ROOT = Path(__file__).parents[2]
NOBODY = 65534
Ran = subprocess.CompletedProcess[bytes]


class Program:
    """`sandlot` on one data directory."""

    def __init__(self, data: Path) -> None:
        self.data = data

    def words(self, *words: str) -> list[str]:
        return [sys.executable, "-m", "sandlot", "--data-dir", str(self.data), *words]

    def __call__(self, *words: str, stdin: bytes = b"") -> Ran:
        return subprocess.run(self.words(*words), input=stdin, capture_output=True, timeout=50, check=False)

    def json(self, *words: str, stdin: bytes = b"") -> Any:
        ran = self("--json", *words, stdin=stdin)
        assert ran.stderr == b"", ran
        return json.loads(ran.stdout)

    def start(self, *words: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            self.words(*words), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )

    def ids(self) -> list[str]:
        return [session["session_id"] for session in self.json("ls")["sessions"]]

    def volumes(self) -> list[Path]:
        """What is left of sessions, as the disk tells."""
        return list((self.data / "volumes").glob("*"))


@pytest.fixture
def sandlot(data_dir: Path) -> Iterator[Program]:
    program = Program(data_dir)
    yield program
    if program.volumes():
        program("kill", "--all", "--yes")


@pytest.fixture
def session(sandlot: Program) -> str:
    return sandlot("create").stdout.decode().strip()


# ---- run ---------------------------------------------------------------------------------------------------------


def test_run_passes_streams_and_exit_code_on_and_leaves_nothing(sandlot: Program) -> None:
    ran = sandlot("run", "--", "sh", "-c", "id -un; pwd; echo oops >&2; exit 7")
    assert (ran.returncode, ran.stdout, ran.stderr) == (7, b"user\n/workspace\n", b"oops\n")
    assert sandlot.volumes() == []


def test_run_is_faithful_to_every_byte_in_both_directions(sandlot: Program) -> None:
    data = bytes(range(256)) * 8192 + b"no newline at the end"
    ran = sandlot("run", "--", "cat", stdin=data)
    assert ran.stdout == data
    assert (ran.returncode, ran.stderr) == (0, b"")


def test_run_with_options(sandlot: Program) -> None:
    options = ("--env", "A=1 2", "--user", "root", "--cwd", "/etc", "--label", "x=y", "--id", "mine")
    ran = sandlot("run", *options, "sh", "-c", 'echo "$A"; id -un; pwd')
    assert (ran.stdout, ran.stderr) == (b"1 2\nroot\n/etc\n", b"")


def test_run_as_a_document(sandlot: Program) -> None:
    found = sandlot.json("run", "--", "sh", "-c", "printf 'a\\377'; echo é >&2; exit 3")
    assert (found["exit_code"], found["stderr"], found["stdout"]) == (3, "é\n", "a\N{REPLACEMENT CHARACTER}")
    assert base64.b64decode(found["stdout_base64"]) == b"a\xff"
    assert "stderr_base64" not in found
    assert 0 < found["duration_s"] < 10
    assert (found["truncated"], found["signal"], found["limit"]) == (False, None, None)


def test_what_is_not_a_success_of_the_command(sandlot: Program) -> None:
    missing = sandlot("run", "--", "no-such-program")
    assert (missing.returncode, missing.stdout) == (127, b"")
    assert b"sandlot: the command could not be run: " in missing.stderr
    late = sandlot("run", "--timeout", "0.3", "--", "sleep", "30")
    assert late.returncode == 124
    assert b"timeout" in late.stderr
    cut = sandlot("run", "--output-max", "10", "--", "seq", "1000")
    assert (cut.returncode, len(cut.stdout)) == (0, 10)
    assert b"--output-max" in cut.stderr


def test_a_reader_who_leaves_ends_the_command(sandlot: Program) -> None:
    with sandlot.start("run", "--", "yes") as running:
        assert running.stdout
        assert running.stdout.read(2) == b"y\n"
        running.stdout.close()
        assert running.wait(20) == 141
        assert running.stderr
        assert running.stderr.read() == b""
    assert sandlot.volumes() == []


def test_closed_standard_streams(sandlot: Program) -> None:
    script = 'exec "$@" <&- >&- 2>&-'
    words = ["sh", "-c", script, "sh", *sandlot.words("run", "--", "sh", "-c", "cat; echo x; exit 4")]
    assert subprocess.run(words, timeout=30, check=False).returncode == 4


# ---- signals -----------------------------------------------------------------------------------------------------


def wait_for_line(running: subprocess.Popen[bytes], line: bytes) -> None:
    assert running.stdout
    assert running.stdout.readline() == line


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_the_command_and_leaves_nothing(sandlot: Program, number: int, code: int) -> None:
    with sandlot.start("run", "--", "sh", "-c", "echo up; exec sleep 60") as running:
        wait_for_line(running, b"up\n")
        began = time.monotonic()
        running.send_signal(number)
        assert running.wait(20) == code
        assert time.monotonic() - began < 5
    assert sandlot.volumes() == []


def test_the_command_hears_the_first_interrupt_and_the_second_kills_it(sandlot: Program) -> None:
    script = "trap 'echo heard' INT; echo up; while :; do sleep 0.05; done"
    with sandlot.start("run", "--", "sh", "-c", script) as running:
        wait_for_line(running, b"up\n")
        running.send_signal(signal.SIGINT)
        wait_for_line(running, b"heard\n")
        running.send_signal(signal.SIGINT)
        assert running.wait(20) == 130
    assert sandlot.volumes() == []


# ---- sessions over several processes -----------------------------------------------------------------------------


def test_a_session_lives_on_between_processes(sandlot: Program) -> None:
    created = sandlot("create", "--id", "one", "--label", "team=a b", "--env", "A=1")
    assert (created.returncode, created.stdout, created.stderr) == (0, b"one\n", b"")
    assert sandlot("exec", "one", "--", "sh", "-c", "echo $A > file; exit 5").returncode == 5
    ran = sandlot("exec", "--cwd", "/", "--env", "A=2", "one", "sh", "-c", "cat /workspace/file; echo $A")
    assert (ran.returncode, ran.stdout) == (0, b"1\n2\n")
    assert sandlot("exec", "one", "--", "tr", "a-z", "A-Z", stdin=b"loud").stdout == b"LOUD"
    listed = sandlot("ls", "--label", "team=a b", "--state", "active").stdout.decode().splitlines()
    assert listed[0].split()[:2] == ["ID", "STATE"]
    assert listed[1].split()[:2] == ["one", "active"]
    assert sandlot.json("ls", "--label", "team=b")["sessions"] == []
    shown = sandlot("show", "one").stdout.decode()
    assert "workspace  /workspace" in shown
    assert "team=a b" in shown
    killed = sandlot("kill", "one")
    assert (killed.returncode, killed.stdout) == (0, b"one\n")
    assert sandlot.volumes() == []


def test_a_detached_command_is_followed_later(sandlot: Program, session: str) -> None:
    call = sandlot("exec", "--detach", session, "--", "sh", "-c", "for i in 1 2 3; do echo $i; sleep 0.3; done; exit 6")
    assert call.returncode == 0
    ran = sandlot("attach", session, call.stdout.decode().strip())
    assert (ran.returncode, ran.stdout) == (6, b"1\n2\n3\n")
    again = sandlot.json("attach", session, call.stdout.decode().strip())
    assert (again["exit_code"], again["stdout"]) == (6, "1\n2\n3\n")


def test_documents(sandlot: Program) -> None:
    session = sandlot.json("create", "--id", "one", "--label", "a=b")
    assert (session["session_id"], session["state"], session["labels"]) == ("one", "active", {"a": "b"})
    sandlot.json("create", "--id", "two")
    page = sandlot.json("ls", "--limit", "1")
    assert [found["session_id"] for found in page["sessions"]] == ["one"]
    rest = sandlot.json("ls", "--after", page["next"])
    assert [found["session_id"] for found in rest["sessions"]] == ["two"]
    assert rest["next"] is None
    ran = sandlot.json("exec", "one", "--", "cat", stdin=b"x")
    assert (ran["session_id"], ran["exit_code"], ran["stdout"]) == ("one", 0, "x")
    detached = sandlot.json("exec", "--detach", "one", "--", "true")
    assert detached["call_id"].startswith("c-")
    calls = sandlot.json("show", "one")["calls"]
    assert [call["argv"] for call in calls] == [["cat"], ["true"]]
    assert calls[0]["result"]["exit_code"] == 0
    assert sandlot.json("kill", "one", "two") == {"killed": ["one", "two"]}


def test_errors(sandlot: Program, session: str) -> None:
    gone = sandlot("exec", "gone", "--", "true")
    assert (gone.returncode, gone.stdout) == (125, b"")
    assert gone.stderr.decode() == "sandlot: there is no session gone\n  → `sandlot ls` lists the sessions\n"
    assert sandlot.json("exec", "gone", "--", "true")["error"]["code"] == "session_not_found"
    assert sandlot("--json", "show", "gone").returncode == 125
    assert sandlot("create", "--id", session).returncode == 125
    assert sandlot("create", "--runtime", "gone").returncode == 2
    assert sandlot("exec", "--cwd", "/gone", session, "--", "true").returncode == 2
    killed = sandlot("kill", "gone", session)
    assert (killed.returncode, killed.stdout.decode()) == (125, f"{session}\n")
    found = sandlot.json("kill", "gone")
    assert (found["killed"], found["error"]["code"]) == ([], "session_not_found")
    assert sandlot("kill", "--all").returncode == 2


@pytest.mark.parametrize(
    ("words", "capability"),
    [
        ("--allow example.org", "network"),
        ("--secret KEY=VALUE", "secrets"),
        ("--disk 1G --storage layers", "limit_disk"),
    ],
)
def test_what_cannot_be_had_is_refused_and_nothing_is_made(sandlot: Program, words: str, capability: str) -> None:
    for verb in (["create"], ["run", "--json"]):
        refused = sandlot(*verb, *words.split(), *(["--", "true"] if verb[0] == "run" else ["--json"]))
        assert refused.returncode == 125
        error = json.loads(refused.stdout)["error"]
        assert (error["code"], error["context"]["capability"]) == ("capability_not_supported", capability)
        assert error["next_step"]
        assert "VALUE" not in refused.stdout.decode()
    assert sandlot.ids() == []
    assert sandlot.volumes() == []


def test_a_second_program_works_through_the_engine_of_the_first(sandlot: Program) -> None:
    waits = "echo up; until [ -e go ]; do sleep 0.1; done"
    with sandlot.start("run", "--", "sh", "-c", waits) as running:
        wait_for_line(running, b"up\n")
        (session,) = sandlot.json("--wait", "0", "ls")["sessions"]
        assert sandlot("exec", session["session_id"], "--", "echo", "through").stdout == b"through\n"
        report = sandlot.json("doctor")
        assert report["ready"] is True  # tried elsewhere: the machine can do it, whoever is at work here
        in_use = report["checks"][-1]
        assert (in_use["name"], in_use["verdict"]) == ("sessions", "note")
        assert f"held by process {running.pid}" in in_use["detail"]
        assert sandlot("exec", session["session_id"], "--", "touch", "go").returncode == 0
        assert running.wait(60) == 0


# ---- terminals ---------------------------------------------------------------------------------------------------


class Terminal:
    """A program on a terminal, seen from the keyboard."""

    def __init__(self, words: list[str], columns: int = 80) -> None:
        self.keyboard, inner = pty.openpty()
        self.resize(24, columns)
        self.process = subprocess.Popen(
            words,
            # Without the size of another terminal, which readline puts there, hidden or not.
            env={name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")},
            stdin=inner,
            stdout=inner,
            stderr=inner,
            start_new_session=True,
            preexec_fn=_take_terminal,
        )
        os.close(inner)
        self._seen = b""

    def resize(self, rows: int, columns: int) -> None:
        fcntl.ioctl(self.keyboard, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def type(self, text: bytes) -> None:
        os.write(self.keyboard, text)

    def wait_for(self, text: bytes) -> bytes:
        """All that came since the last wait, once `text` is in it."""
        while text not in self._seen:
            assert select.select([self.keyboard], [], [], 20)[0], self._seen
            try:
                self._seen += os.read(self.keyboard, 4096)
            except OSError:
                raise AssertionError(f"ended: {self._seen!r}") from None
        found, _, self._seen = self._seen.partition(text)
        return found

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self.keyboard)


def _take_terminal() -> None:
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


@pytest.fixture
def on_terminal() -> Iterator[Callable[[list[str]], Terminal]]:
    with contextlib.ExitStack() as stack:

        def start(words: list[str]) -> Terminal:
            terminal = Terminal(words)
            stack.callback(terminal.close)
            return terminal

        yield start


def test_a_terminal_inside(sandlot: Program, on_terminal: Callable[[list[str]], Terminal]) -> None:
    terminal = on_terminal(sandlot.words("run", "-t", "--", "sh"))
    terminal.wait_for(b"$ ")
    terminal.type(b"tty; stty size\r")
    assert b"/dev/pts/" in terminal.wait_for(b"24 80")
    terminal.resize(30, 100)
    terminal.type(b"sleep 0.2; stty size\r")
    terminal.wait_for(b"30 100")
    terminal.wait_for(b"$ ")
    terminal.type(b"sleep 60\r")
    terminal.wait_for(b"60\r\n")
    time.sleep(0.3)
    terminal.type(b"\x03")
    terminal.wait_for(b"$ ")
    terminal.type(b"exit 9\r")
    assert terminal.process.wait(20) == 9


def test_control_c_without_a_terminal_inside(sandlot: Program, on_terminal: Callable[[list[str]], Terminal]) -> None:
    terminal = on_terminal(sandlot.words("run", "--", "sh", "-c", "echo up; exec sleep 60"))
    terminal.wait_for(b"up")
    terminal.type(b"\x03")
    assert terminal.process.wait(20) == 130


def test_kill_asks_first(sandlot: Program, session: str, on_terminal: Callable[[list[str]], Terminal]) -> None:
    terminal = on_terminal(sandlot.words("kill", "--all"))
    terminal.wait_for(b"[y/N]")
    terminal.type(b"n\r")
    assert terminal.process.wait(20) == 1
    assert sandlot.ids() == [session]
    terminal = on_terminal(sandlot.words("kill", "--all"))
    terminal.wait_for(b"[y/N]")
    terminal.type(b"y\r")
    assert terminal.process.wait(20) == 0
    assert sandlot.volumes() == []


# ---- doctor and demo ---------------------------------------------------------------------------------------------


def test_doctor_as_root(sandlot: Program) -> None:
    ran = sandlot("doctor")
    assert ran.returncode == 0, ran
    assert b"This machine is ready" in ran.stdout
    report = sandlot.json("doctor")
    verdicts = {check["name"]: check["verdict"] for check in report["checks"]}
    assert report["ready"] is True
    assert verdicts["runtime namespaces"] == verdicts["storage layers"] == verdicts["guest program"] == "ok"


@contextlib.contextmanager
def nobody() -> Generator[Callable[..., Ran]]:
    """The program for someone without rights, on the machine's own Python: he may not reach a virtual environment."""
    packages = next((ROOT / ".venv" / "lib").glob("python3*/site-packages"))
    home = tempfile.mkdtemp(dir="/tmp")  # what pytest gives is closed to others, and should stay so
    os.chown(home, NOBODY, NOBODY)
    environment = {
        "HOME": home,
        "PATH": "/usr/bin:/bin",
        "PYTHONPATH": f"{ROOT / 'src'}:{packages}",
        "PYTHONDONTWRITEBYTECODE": "1",
    }

    def run(*words: str) -> Ran:
        return subprocess.run(
            ["/usr/bin/python3", *words],
            env=environment,
            cwd=home,
            user=NOBODY,
            group=NOBODY,
            extra_groups=[],
            capture_output=True,
            timeout=50,
            check=False,
        )

    try:
        if run("-c", "import sandlot.cli.running").returncode:
            pytest.skip("the machine's own Python cannot import what the program needs")
        yield run
    finally:
        shutil.rmtree(home)


@pytest.fixture
def as_nobody() -> Iterator[Callable[..., Ran]]:
    with nobody() as run:
        yield run


def test_doctor_as_nobody(as_nobody: Callable[..., Ran]) -> None:
    ran = as_nobody("-m", "sandlot", "doctor")
    assert (ran.returncode, ran.stderr) == (1, b"")
    assert b"not root" in ran.stdout
    assert b"cannot isolate sessions yet" in ran.stdout
    barred = as_nobody("-m", "sandlot", "doctor", "--data-dir", "/proc/1/cwd/x")
    assert (barred.returncode, barred.stderr) == (1, b"")
    assert b"give another with --data-dir" in barred.stdout


def test_as_nobody_nothing_pretends_to_isolate(as_nobody: Callable[..., Ran]) -> None:
    refused = as_nobody("-m", "sandlot", "run", "--", "id")
    assert (refused.returncode, refused.stdout) == (125, b"")
    assert b"runtime `none`" in refused.stderr
    trusted = as_nobody("-m", "sandlot", "run", "--runtime", "none", "--", "id", "-u")
    assert (trusted.returncode, trusted.stdout) == (0, b"65534\n")
    shown = as_nobody("-m", "sandlot", "demo")
    assert shown.returncode == 0, shown
    assert b"does not isolate" in shown.stdout or b"cannot be isolated here" in shown.stdout


def test_demo(sandlot: Program) -> None:
    ran = sandlot("demo")
    assert ran.returncode == 0, ran
    assert b"All was as expected" in ran.stdout
    assert b"x RAW" in ran.stdout
    assert sandlot.volumes() == []
