"""How a program ends that uses the SDK: in time, without a word, and with the data directory free for the next one."""

import signal
import subprocess
import time
from collections.abc import Generator
from pathlib import Path

import pytest

from sandlot import CallState, Client, Sandbox, SessionState
from tests.unit.sdk.stage import directory, environment, program, run_program

SOON_S = 8.0


@pytest.fixture
def data(tmp_path: Path, shared_templates: Path) -> Generator[Path]:
    with directory(tmp_path / "data", shared_templates) as made:
        yield made
        with Client(data_dir=made) as client:
            for info in Sandbox.list(client=client):
                Sandbox(info.session_id, client=client).kill()


# Each text, and what it says. What is left is the sandbox `left` if there is one.
ENDS: dict[str, tuple[str, str]] = {
    "a sandbox is open": ("sandbox = make(id='left')", ""),
    "a sandbox is detached": ("with make(id='left', detach=True): pass", ""),
    "a command runs in the background": (
        "command = make(id='left').commands.run(['sleep', '60'], background=True, id='asleep')",
        "",
    ),
    "output is being read": (
        "output = make(id='left').commands.run('echo a; sleep 60', background=True).output(); say(next(output).text)",
        "a\n",
    ),
    "a file is being read": (
        "s = make(id='left'); s.files.write('a', b'x' * 3000000); pieces = s.files.read('a', format='stream')\n"
        "say(len(next(pieces)))",
        "1048576\n",
    ),
    "a loop has left an async stream": (
        "async def main():\n"
        "    sandbox = await AsyncSandbox.create(runtime='none', id='left')\n"
        "    await sandbox.files.write('a', b'x' * 3000000)\n"
        "    stream = await sandbox.files.read('a', format='stream')\n"
        "    say(len(await anext(stream)))\n"
        "    return stream\n"
        "kept = asyncio.run(main())",
        "1048576\n",
    ),
    "a client is open": ("client = Client(); say(Sandbox.list(client=client))", "[]\n"),
    "an exit handler kills": ("s = make(id='gone'); atexit.register(lambda: say(s.kill()))", "True\n"),
    "a thread goes on": (
        "def work():\n"
        "    with make() as s:\n"
        "        threading.main_thread().join()\n"
        "        say(s.commands.run('echo b').stdout)\n"
        "say(Sandbox.list())\n"
        "threading.Thread(target=work).start()\n"
        "time.sleep(0.3)",
        "[]\nb\n",
    ),
    "a pool goes on": (
        "from concurrent.futures import ThreadPoolExecutor\n"
        "def work():\n"
        "    with make() as s:\n"
        "        time.sleep(0.5)\n"
        "        say(s.commands.run('echo a').stdout)\n"
        "say(Sandbox.list())\n"
        "job = ThreadPoolExecutor().submit(work)\n"
        "time.sleep(0.2)",
        "[]\na\n",
    ),
    "daemons work": (
        "s = make(id='left')\n"
        "def wait():\n"
        "    while True: s.commands.run(['sleep', '60'])\n"
        "def hurry():\n"
        "    while True: s.commands.run(['true'])\n"
        "for work in (wait, wait, hurry, hurry, hurry): threading.Thread(target=work, daemon=True).start()\n"
        "time.sleep(0.3)",
        "",
    ),
    "a loop runs in a daemon": (
        "async def work():\n"
        "    while True: await AsyncSandbox('left').commands.run(['sleep', '60'])\n"
        "s = make(id='left')\n"
        "threading.Thread(target=lambda: asyncio.run(work()), daemon=True).start()\n"
        "time.sleep(0.3)",
        "",
    ),
    "it exits inside the block": (
        "with make(id='gone') as s:\n    say(s.commands.run('echo a').stdout)\n    sys.exit(0)",
        "a\n",
    ),
    "it only imports": ("", ""),
}


@pytest.mark.parametrize("name", ENDS)
def test_a_program_ends(name: str, data: Path) -> None:
    text, said = ENDS[name]
    began = time.monotonic()
    ran = run_program(data, text)
    took = time.monotonic() - began
    assert (ran.returncode, ran.stderr, ran.stdout) == (0, "", said)
    assert took < SOON_S
    with Client(data_dir=data) as client:
        left = {info.session_id: info.state for info in Sandbox.list(client=client)}
        assert left == ({"left": SessionState.ACTIVE} if "left" in text else {})
        if left:
            found = Sandbox.connect("left", client=client)
            assert found.commands.run("echo alive").stdout == "alive\n"
            running = [record.argv for record in found.commands.list() if record.state is CallState.RUNNING]
            assert len(running) == ("background=True" in text), "those of a daemon end with the program"


def test_a_sandbox_in_a_finalizer_neither_hangs_nor_breaks(data: Path) -> None:
    text = """
class Holder:
    def __init__(self): self.sandbox = make(id='held')
    def __del__(self):
        try: self.sandbox.kill()
        except InvalidState as error: sys.stdout.write(f"{error}\\n")
early, late = Holder, Holder()
"""
    ran = run_program(data, text)
    assert (ran.returncode, ran.stderr, ran.stdout) == (0, "", "the program is ending\n")


def test_the_first_use_after_the_main_thread_says_what_to_do(data: Path) -> None:
    text = """
def work():
    threading.main_thread().join()
    try: make()
    except Unavailable as error: say(error.next_step)
threading.Thread(target=work).start()
"""
    ran = run_program(data, text)
    assert (ran.returncode, ran.stderr, ran.stdout) == (0, "", "let the main thread wait for the others\n")


def test_an_error_in_the_block_is_the_error_of_the_program(data: Path) -> None:
    ran = run_program(data, "with make(id='gone') as s:\n    raise KeyError('mine')")
    assert (ran.returncode, ran.stdout) == (1, "")
    assert ran.stderr.splitlines()[-1] == "KeyError: 'mine'"
    assert "During handling" not in ran.stderr
    with Client(data_dir=data) as client:
        assert Sandbox.list(client=client) == []


def test_many_programs_one_after_another_find_the_same_sandbox(data: Path) -> None:
    run_program(data, "make(id='left', detach=True)")
    for number in range(3):
        ran = run_program(data, f"say(Sandbox.connect('left').commands.run('echo {number} >> log; cat log').stdout)")
        assert ran.stdout.split() == [str(each) for each in range(number + 1)]


# The mark is an argument of a process; it dies a moment after its parent.
GONE = """
def gone(mark):
    look = f"grep -qsaz '^[{mark[0]}]{mark[1:]}$' /proc/[0-9]*/cmdline"
    for _ in range(500):
        if not Sandbox('gone').commands.run(look).ok: return True
        time.sleep(0.01)
"""
INTERRUPTED: dict[str, str] = {
    "sync": """
try:
    with make(id='gone') as s:
        try:
            s.commands.run("sleep 6101 & echo ready; wait", on_stdout=say)
        except KeyboardInterrupt:
            say("usable", s.commands.run("echo yes").stdout.strip())
            say("gone", gone("6101"))
            raise
finally:
    say("left", Sandbox.list())
""",
    "async": """
async def main():
    async with await AsyncSandbox.create(runtime="none", id='gone') as s:
        try:
            await s.commands.run("sleep 6102 & echo ready; wait", on_stdout=say)
        except asyncio.CancelledError:
            say("usable", (await s.commands.run("echo yes")).stdout.strip())
            say("gone", gone("6102"))
            raise
try:
    asyncio.run(main())
finally:
    say("left", Sandbox.list())
""",
    "in a callback": """
def wait(text):
    say(text)
    time.sleep(60)
try:
    with make(id='gone') as s:
        try:
            s.commands.run("sleep 6103 & echo ready; wait", on_stdout=wait)
        finally:
            say("usable", s.commands.run("echo yes").stdout.strip())
            say("gone", gone("6103"))
finally:
    say("left", Sandbox.list())
""",
}


@pytest.mark.parametrize("name", INTERRUPTED)
def test_ctrl_c(name: str, data: Path) -> None:
    child = subprocess.Popen(
        program(data, GONE + INTERRUPTED[name]),
        env=environment(data),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with child:
        assert child.stdout
        assert child.stdout.readline() == "ready\n"
        time.sleep(0.1)
        began = time.monotonic()
        child.send_signal(signal.SIGINT)
        said, complaint = child.communicate(timeout=20)
    assert time.monotonic() - began < SOON_S
    assert said.split("\n") == ["usable yes", "gone True", "left []", ""]
    assert child.returncode == -signal.SIGINT
    assert complaint.splitlines()[-1] == "KeyboardInterrupt"
