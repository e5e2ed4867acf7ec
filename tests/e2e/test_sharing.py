"""One engine per data directory, and any number of programs: whoever holds it serves the others, and one of those takes
over when it ends, however it ends."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import pytest

from sandlot import Client, InvalidArgument, Sandbox
from sandlot.host.lock import DOOR
from tests.serving import server
from tests.unit.sdk.stage import directory, environment, program, run_program
from tests.waiting import until

PATIENCE_S = 100.0
HOLD = """
with make(id="theirs", detach=True) as sandbox:
    say("ready")
    sys.stdin.readline()
"""
# Counts in the session; what came is told at the end, and that it was counted once.
COUNT = "echo begun >> begun; for i in 1 2 3 4 5 6 7 8 9; do echo $i; sleep 0.2; done"


@pytest.fixture
def data(tmp_path: Path, shared_templates: Path) -> Generator[Path]:
    with directory(tmp_path / "data", shared_templates) as made:
        yield made
        with Client(data_dir=made) as client:
            for info in Sandbox.list(client=client):
                Sandbox(info.session_id, client=client).kill()


class Started:
    def __init__(self, process: "subprocess.Popen[str]") -> None:
        assert process.stdin
        assert process.stdout
        self.process = process
        self.stdin: IO[str] = process.stdin
        self.stdout: IO[str] = process.stdout

    def line(self) -> str:
        return self.stdout.readline().strip()

    def go_on(self) -> None:
        self.stdin.write("\n")
        self.stdin.flush()

    def end(self) -> tuple[int, str, str]:
        out, errors = self.process.communicate(timeout=PATIENCE_S)
        return self.process.returncode, out, errors


@contextmanager
def started(data: Path, text: str, name: str = "first.py") -> Generator[Started]:
    process = subprocess.Popen(
        program(data, text, name),
        env=environment(data),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with process:
        try:
            yield Started(process)
        finally:
            process.kill()


@contextmanager
def holding(data: Path) -> Generator[Started]:
    """A program that has the engine."""
    with started(data, HOLD) as holder:
        assert holder.line() == "ready"
        yield holder


def test_the_door_is_for_its_owner_alone_and_gone_with_the_engine(data: Path) -> None:
    with Client(data_dir=data) as client:
        Sandbox.list(client=client)
        assert (data / DOOR).is_socket()
        assert (data / DOOR).stat().st_mode & 0o777 == 0o600
    assert not (data / DOOR).exists()


def test_a_path_may_be_longer_than_a_socket_can_have(tmp_path: Path, shared_templates: Path) -> None:
    with directory(tmp_path / ("long" * 40) / "data", shared_templates) as long, started(long, HOLD) as holder:
        assert holder.line() == "ready"
        with Client(data_dir=long) as client:
            assert [info.session_id for info in Sandbox.list(client=client)] == ["theirs"]
            Sandbox("theirs", client=client).kill()
        holder.go_on()
        assert holder.end()[0] == 0


@pytest.mark.parametrize("ends", ["killed", "in order"])
def test_whoever_is_there_takes_over_and_finds_what_it_began(data: Path, ends: str) -> None:
    text = f"""
s = make(id="ours", detach=True)
command = s.commands.run({COUNT!r}, background=True)
pieces = command.output()
say(next(pieces).text)
rest = "".join(piece.text for piece in pieces)
say(*rest.split())
say(command.wait().exit_code, s.files.read("begun").count("begun"))
began = time.monotonic()
say(Sandbox.connect("theirs").commands.run("echo theirs").stdout)
"""
    with holding(data) as holder, started(data, text, "second.py") as second:
        assert second.line() == "1"
        if ends == "killed":
            holder.process.kill()
        else:
            holder.go_on()
        assert second.end() == (0, "2 3 4 5 6 7 8 9\n0 1\ntheirs\n", "")
        code, _, errors = holder.end()
        assert (code, errors) == ((-signal.SIGKILL if ends == "killed" else 0), "")


def test_it_is_taken_over_also_when_nobody_asks_for_anything(data: Path) -> None:
    text = """
Sandbox.list()
say("there")
door = os.environ["SANDLOT_DATA_DIR"] + "/engine.lock"
def holder():
    with open(door) as lock:
        return '"pid": %d,' % os.getpid() in lock.read()
began = time.monotonic()
sys.stdin.readline()
while not holder() and time.monotonic() < began + 60:
    time.sleep(0.01)
say(holder())
"""
    with holding(data) as holder, started(data, text, "second.py") as second:
        assert second.line() == "there"
        holder.process.kill()
        second.go_on()
        assert second.end() == (0, "True\n", "")


def test_ten_programs_that_begin_at_once_all_work(data: Path) -> None:
    text = """
with make() as s:
    say(s.commands.run("echo $((6 * 7))").stdout)
"""
    words = program(data, text)
    running = [
        subprocess.Popen(words, env=environment(data), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for _ in range(10)
    ]
    ended = [(*process.communicate(timeout=PATIENCE_S), process.returncode) for process in running]
    assert [(out, code) for out, _, code in ended] == [("42\n", 0)] * 10
    assert not any("Traceback" in errors for _, errors, _ in ended)


@pytest.mark.parametrize("way", ["pass", "sys.exit(3)", "os._exit(3)", "threading.Thread(target=work).start()"])
def test_a_program_ends_quietly_with_an_engine_that_is_elsewhere(data: Path, way: str) -> None:
    text = f"""
def work():
    for _ in range(3):
        s.commands.run("true")

s = Sandbox.connect("theirs")
command = s.commands.run("sleep 60", background=True)
output = command.output()
{way}
"""
    with started(data, HOLD) as holder:
        assert holder.line() == "ready"
        ran = run_program(data, text)
        assert ran.returncode == (3 if "3)" in way and "exit" in way else 0)
        assert (ran.stdout, ran.stderr) == ("", "")


def test_tools_of_ones_own_need_the_engine(data: Path) -> None:
    text = """
class Own:
    spec = None

try:
    Sandbox.list(client=Client(tools=[Own()]))
except InvalidState as error:
    say(error.message)
"""
    with started(data, HOLD) as holder:
        assert holder.line() == "ready"
        assert "does not run tools of this one" in run_program(data, text).stdout


@pytest.mark.root
def test_a_user_who_reaches_the_door_is_not_let_in(data: Path) -> None:
    """The mode keeps others out; where it is changed, the kernel says who asks."""
    ask = """
import os, socket, sys
os.setresuid(65534, 65534, 65534)
s = socket.socket(socket.AF_UNIX)
s.settimeout(60)
s.connect("/proc/self/fd/%s/engine.sock" % sys.argv[1])
try:
    s.sendall(b"GET / HTTP/1.1\\r\\nhost: x\\r\\n\\r\\n")
    print(s.recv(100))
except OSError:
    print(b"")
"""
    with Client(data_dir=data) as client:
        Sandbox.list(client=client)
        (data / DOOR).chmod(0o666)
        folder = os.open(data, os.O_RDONLY | os.O_DIRECTORY)
        data.chmod(0o755)
        try:
            words = [sys.executable, "-c", ask, str(folder)]
            ran = subprocess.run(words, pass_fds=(folder,), capture_output=True, text=True, timeout=PATIENCE_S)
        finally:
            os.close(folder)
            data.chmod(0o700)
        assert ran.stdout == "b''\n", ran


async def test_a_server_uses_the_engine_that_there_is_and_then_has_its_own(data: Path) -> None:
    with started(data, HOLD) as holder:
        assert holder.line() == "ready"
        with server(data) as one, Client(url=f"http://127.0.0.1:{one.port}") as client:
            assert Sandbox.connect("theirs", client=client).commands.run("echo a").stdout == "a\n"
            holder.process.kill()
            assert await until(lambda: "the engine of the data directory is here now" in one.log)
            assert Sandbox.connect("theirs", client=client).commands.run("echo b").stdout == "b\n"
            Sandbox("theirs", client=client).kill()
            assert one.stop() == 0


def test_programs_and_the_command_line_use_a_server(data: Path, tmp_path: Path) -> None:
    with server(data) as one:
        url = f"http://127.0.0.1:{one.port}"
        elsewhere = tmp_path / "elsewhere"
        remote = {**environment(elsewhere), "SANDLOT_URL": url, "SANDLOT_API_KEY": "none is wanted"}
        del remote["SANDLOT_DATA_DIR"]
        text = "with make(id='far') as s:\n    say(s.commands.run('echo far').stdout)\n    sys.stdin.readline()\n"
        with subprocess.Popen(
            program(data, text), env=remote, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as far:
            assert far.stdin
            assert far.stdout
            assert far.stdout.readline() == "far\n"

            def sandlot(*words: str) -> str:
                command = [sys.executable, "-m", "sandlot", *words]
                ran = subprocess.run(
                    command, env=environment(elsewhere), capture_output=True, text=True, timeout=PATIENCE_S
                )
                assert ran.returncode == 0, ran.stderr
                return ran.stdout

            assert "far" in sandlot("ls", "--url", url)
            assert sandlot("--url", url, "exec", "far", "--", "sh", "-c", "cat /proc/self/comm") == "cat\n"
            (tmp_path / "file").write_text("content")
            sandlot("--url", url, "cp", str(tmp_path / "file"), "far:copy")
            assert sandlot("--url", url, "files", "cat", "far", "copy") == "content"
            assert '"created"' in sandlot("--url", url, "--json", "events")
            far.stdin.close()
            assert far.wait(PATIENCE_S) == 0
        assert not elsewhere.exists()


def test_a_place_that_is_given_twice_is_refused(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "sandlot", "ls", "--url", "http://127.0.0.1:1", "--data-dir", str(tmp_path)]
    assert subprocess.run(command, capture_output=True, timeout=PATIENCE_S).returncode == 2
    with pytest.raises(InvalidArgument, match="another place"):
        Client(url="http://127.0.0.1:1", data_dir=tmp_path)
    with pytest.raises(InvalidArgument, match="no address"), Client(url="nonsense") as client:
        Sandbox.list(client=client)


def test_who_is_silent_in_the_directory_is_not_sent_off(data: Path) -> None:
    """Whoever watches for the end of the engine says nothing at all."""
    with Client(data_dir=data) as client:
        Sandbox.list(client=client)
        with socket.socket(socket.AF_UNIX) as watching:
            watching.connect(str(data / DOOR))
            watching.settimeout(0.5)
            time.sleep(0.1)
            with pytest.raises(TimeoutError):
                watching.recv(1)
