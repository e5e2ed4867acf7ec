"""Forks and other processes: told clearly, and nothing of the parent is disturbed."""

from collections.abc import Generator
from pathlib import Path

import pytest

from sandlot import Client, Sandbox
from tests.unit.sdk.stage import directory, run_program

FORK = """
import warnings
warnings.filterwarnings("ignore", ".*fork", DeprecationWarning)

def fork(work):
    child = os.fork()
    if child == 0:
        work()
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

"""


@pytest.fixture
def data(tmp_path: Path, shared_templates: Path) -> Generator[Path]:
    with directory(tmp_path / "data", shared_templates) as made:
        yield made
        with Client(data_dir=made) as client:
            assert Sandbox.list(client=client) == [], "the program left a sandbox behind"


def said(data: Path, text: str) -> list[str]:
    ran = run_program(data, text)
    assert (ran.returncode, ran.stderr) == (0, ""), ran.stdout
    return ran.stdout.splitlines()


def test_a_handle_that_was_inherited_is_refused_clearly(data: Path) -> None:
    text = """
def use():
    for work in (lambda: s.commands.run("true"), lambda: s.files.read("a"), lambda: next(output), s.kill, client.close):
        try:
            say("done", work())
        except InvalidState as error:
            say(str(os.getppid()) in error.message, "of which this one is a fork" in error.message, error.next_step)

client = Client()
with Sandbox.create(runtime="none", client=client) as s:
    output = s.commands.run("echo a; sleep 60", background=True).output()
    say(next(output).text)
    say(fork(use))
    say(s.commands.run("echo fine").stdout)
"""
    told = "True True use it there; a data directory is open in one process at a time"
    assert said(data, FORK + text) == ["a", *[told] * 5, "0", "fine"]


@pytest.mark.parametrize("way", ["sys.exit(7)", "raise KeyError", "os._exit(7)", "return"])
def test_however_a_child_ends_its_parent_goes_on(way: str, data: Path) -> None:
    """Also when it leaves the block in which it was forked: the sandbox is its parent's."""
    text = f"""
def main():
    with Client() as client, make(id="kept", client=client) as s:
        command = s.commands.run(["sleep", "60"], background=True)
        child = os.fork()
        if child == 0:
            sys.excepthook = lambda *_: None
            {way}
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        say("child", code)
        say(s.commands.run("echo fine").stdout, command.kill(), s.info().state)
    say("parent")

main()
"""
    codes = {"sys.exit(7)": 7, "raise KeyError": 1, "os._exit(7)": 7, "return": 0}
    lines = [f"child {codes[way]}", "fine True active", "parent"]
    assert said(data, FORK + text) == lines


def test_a_child_may_have_an_engine_of_its_own(data: Path, tmp_path: Path, shared_templates: Path) -> None:
    text = """
def use():
    client = Client(data_dir=sys.argv[0].replace("program.py", "other"))
    with Sandbox.create(runtime="none", client=client) as mine:
        say(mine.commands.run("echo child").stdout)
    client.close()

with make() as s:
    say(fork(use))
    say(s.commands.run("echo parent").stdout)
"""
    with directory(tmp_path / "other", shared_templates):
        assert said(data, FORK + text) == ["child", "0", "parent"]


def test_a_child_that_connects_works_through_its_parent(data: Path) -> None:
    text = """
def use():
    say(Sandbox.connect("kept").commands.run("echo child").stdout)

with make(id="kept") as s:
    say(fork(use))
    say(s.commands.run("echo fine").stdout)
"""
    assert said(data, FORK + text) == ["child", "0", "fine"]


def test_a_child_takes_over_when_its_parent_has_closed(data: Path) -> None:
    text = """
with Client() as client:
    s = Sandbox.create(id="passed", runtime="none", client=client)
    s.files.write("a", "from the parent")

def use():
    with Client() as mine:
        found = Sandbox.connect("passed", client=mine)
        say(found.files.read("a"), found.kill())

say(fork(use))
with Client() as client:
    say(Sandbox.list(client=client))
"""
    assert said(data, FORK + text) == ["from the parent True", "0", "[]"]


@pytest.mark.parametrize("way", ["fork", "spawn"])
def test_processes_of_multiprocessing(way: str, data: Path) -> None:
    text = f"""
import multiprocessing

def square(number):
    return number * number

def fail(result):
    raise CommandFailed(result)

if __name__ == "__main__":
    processes = multiprocessing.get_context("{way}")
    with make() as s, processes.Pool(2) as pool:
        say(pool.map(square, range(4)))
        try:
            pool.apply_async(fail, [s.commands.run("exit 3")]).get(20)
        except CommandFailed as error:
            say(error.result.exit_code)
        child = processes.Process(target=square, args=(1,))
        child.start()
        child.join(20)
        say(child.exitcode, s.commands.run("echo fine").stdout)
"""
    assert said(data, FORK + text) == ["[0, 1, 4, 9]", "3", "0 fine"]
