"""`sandbox.commands`: what it promises beyond what both faces have in common."""

import asyncio
import hashlib
import signal
import threading
import time
from collections.abc import Generator
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import pytest

from sandlot import AsyncSandbox, CallState, Client, CommandFailed, InvalidArgument, InvalidState, Sandbox, Unavailable
from sandlot.contracts import CallStream, Host
from sandlot.host.service import SandboxHostService
from sandlot.model import CallRequest, SessionSpec, limits
from tests.unit.sdk.stage import RUNTIMES, directory, opened

SOON_S = 5.0


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory, shared_templates: Path) -> Generator[Client]:
    with directory(tmp_path_factory.mktemp("sdk") / "data", shared_templates) as data, opened(data) as made:
        yield made


@pytest.fixture(scope="module", params=RUNTIMES)
def sandbox(client: Client, request: pytest.FixtureRequest) -> Sandbox:
    return Sandbox.create(runtime=request.param, client=client)


@pytest.fixture
def rooted(client: Client) -> Generator[Sandbox]:
    with Sandbox.create(client=client) as made:
        yield made


def running(sandbox: Sandbox, mark: str) -> bool:
    """Whether a process of the sandbox has this word among its arguments. The brackets hide grep from itself."""
    found = sandbox.commands.run(f"grep -qsaz -- '^[{mark[0]}]{mark[1:]}$' /proc/[0-9]*/cmdline")
    return found.ok


def runs(sandbox: Sandbox, mark: str, *, soon: bool = True) -> bool:
    """Soon: a process has its arguments a moment after it was started, and loses them a moment after it was killed."""
    deadline = time.monotonic() + SOON_S
    while running(sandbox, mark) is not soon and time.monotonic() < deadline:
        time.sleep(0.01)
    return running(sandbox, mark)


def gone(sandbox: Sandbox, mark: str) -> bool:
    return not runs(sandbox, mark, soon=False)


def state(sandbox: Sandbox, id: str) -> CallState | None:
    return {record.call_id: record.state for record in sandbox.commands.list()}.get(id)


# ---- input and output ------------------------------------------------------------------------------------------------


def test_ten_megabytes_go_in_and_out(sandbox: Sandbox) -> None:
    data = bytes(range(256)) * 40_000
    result = sandbox.commands.run("tee copy", stdin=data)
    assert hashlib.sha256(result.stdout_bytes).digest() == hashlib.sha256(data).digest()
    assert sandbox.files.stat("copy").size_bytes == len(data)
    text = "Grüße, 世界 " * 700_000
    assert sandbox.commands.run(["wc", "-c"], stdin=text).stdout.split() == [str(len(text.encode()))]


def test_what_is_printed_before_the_input_is_read_is_heard_at_once(sandbox: Sandbox) -> None:
    """A megabyte does not fit into any pipe: whoever sends it first, and listens later, hears nothing until then."""
    heard: list[str] = []

    def hear(text: str) -> None:
        heard.append(text)
        sandbox.files.write("go", "")

    waiting = "echo early; until [ -e go ]; do sleep 0.01; done; cat >/dev/null"
    result = sandbox.commands.run(waiting, stdin=b"x" * 1_000_000, on_stdout=hear, timeout=SOON_S)
    assert (heard, result.timed_out) == (["early\n"], False)
    sandbox.files.remove("go")


def test_a_command_may_end_without_reading(sandbox: Sandbox) -> None:
    assert sandbox.commands.run("exit 3", stdin=b"x" * 10_000_000).exit_code == 3


def test_characters_are_never_cut(sandbox: Sandbox) -> None:
    """Every byte in a piece of its own."""
    text = "aß世𝄞"
    octal = " ".join(f"'\\{byte:03o}'" for byte in text.encode())
    pieces: list[str] = []
    result = sandbox.commands.run(f"for b in {octal}; do printf $b; sleep 0.01; done", on_stdout=pieces.append)
    assert "".join(pieces) == text == result.stdout
    assert len(pieces) > 1
    # What never becomes a character is shown at the end.
    pieces.clear()
    assert sandbox.commands.run("printf '\\303'", on_stdout=pieces.append).stdout_bytes == b"\xc3"
    assert pieces == ["�"]


def test_binary_output_is_exact(sandbox: Sandbox) -> None:
    result = sandbox.commands.run("head -c 3000000 /dev/urandom | tee random; head -c 70000 random >&2")
    random = sandbox.files.read("random", format="bytes")
    assert (result.stdout_bytes == random, result.stderr_bytes == random[:70000]) == (True, True)
    assert (len(random), result.truncated) == (3_000_000, False)


def test_output_is_kept_up_to_a_limit_and_counted_beyond(sandbox: Sandbox) -> None:
    result = sandbox.commands.run("head -c 100000 /dev/zero; echo end >&2", output_max=1000)
    assert (len(result.stdout_bytes), result.truncated) == (1000, True)
    assert (result.call.stdout_bytes, result.call.stderr_bytes) == (100_000, 4)


def test_both_streams_are_heard_apart(sandbox: Sandbox) -> None:
    out: list[str] = []
    err: list[str] = []
    sandbox.commands.run("echo a; echo b >&2; echo c; echo d >&2", on_stdout=out.append, on_stderr=err.append)
    assert ("".join(out), "".join(err)) == ("a\nc\n", "b\nd\n")


# ---- functions of the user -------------------------------------------------------------------------------------------


def test_a_listener_may_use_the_sandbox_in_the_thread_of_the_caller(sandbox: Sandbox) -> None:
    threads: set[int] = set()

    def keep(text: str) -> None:
        threads.add(threading.get_ident())
        sandbox.files.write("heard", sandbox.commands.run(["printf", "%s", text]).stdout.upper())

    sandbox.commands.run("echo loud", on_stdout=keep)
    assert sandbox.files.read("heard") == "LOUD\n"
    assert threads == {threading.get_ident()}


@pytest.mark.parametrize(
    ("kind", "mark"), [(ValueError, "7001"), (StopIteration, "7002"), (KeyboardInterrupt, "7003"), (SystemExit, "7004")]
)
def test_what_a_listener_raises_ends_the_command_and_comes_out(
    sandbox: Sandbox, kind: type[BaseException], mark: str
) -> None:
    mine = kind("mine")

    def fail(_text: str) -> None:
        raise mine

    began = time.monotonic()
    with pytest.raises(kind) as caught:
        sandbox.commands.run(f"sleep {mark} & echo a; wait", on_stdout=fail)
    assert caught.value is mine
    assert gone(sandbox, mark)
    assert time.monotonic() - began < SOON_S
    assert sandbox.commands.run("echo fine").stdout == "fine\n"


async def test_listeners_are_called_on_the_loop_one_after_another(client: Client, sandbox: Sandbox) -> None:
    loop = asyncio.get_running_loop()
    heard: list[str] = []
    at_once = 0

    async def hear(text: str) -> None:
        nonlocal at_once
        at_once += 1
        assert (at_once, asyncio.get_running_loop()) == (1, loop)
        await asyncio.sleep(0.01)
        heard.append(text)
        at_once -= 1

    face = AsyncSandbox(sandbox.id, client=client)
    result = await face.commands.run("for i in 1 2 3 4 5; do echo $i; sleep 0.002; done", on_stdout=hear)
    assert "".join(heard) == result.stdout == "1\n2\n3\n4\n5\n"


async def test_an_error_of_an_async_listener_ends_the_command(client: Client, sandbox: Sandbox) -> None:
    mine = KeyError("mine")

    async def fail(_text: str) -> None:
        raise mine

    face = AsyncSandbox(sandbox.id, client=client)
    with pytest.raises(KeyError) as caught:
        await face.commands.run("sleep 6001 & echo a; wait", on_stdout=fail)
    assert caught.value is mine
    assert gone(sandbox, "6001")


# ---- ending ----------------------------------------------------------------------------------------------------------


def test_a_timeout_ends_all_that_was_started(sandbox: Sandbox) -> None:
    began = time.monotonic()
    result = sandbox.commands.run("sleep 6002 & setsid sleep 6003 & wait", timeout=0.5)
    assert (result.exit_code, result.timed_out, result.ok) == (124, True, False)
    assert 0.4 < result.duration_s < SOON_S
    assert time.monotonic() - began < SOON_S
    assert gone(sandbox, "6002")
    assert gone(sandbox, "6003")
    with pytest.raises(CommandFailed, match="timeout"):
        result.check()


async def test_cancelling_ends_the_command(client: Client, sandbox: Sandbox) -> None:
    face = AsyncSandbox(sandbox.id, client=client)
    began = time.monotonic()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.3):
            await face.commands.run("sleep 6004 & wait")
    assert gone(sandbox, "6004")
    assert time.monotonic() - began < SOON_S


async def test_cancelling_a_wait_leaves_the_command_alone(client: Client, sandbox: Sandbox) -> None:
    face = AsyncSandbox(sandbox.id, client=client)
    command = await face.commands.run(["sleep", "6005"], background=True)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.1):
            await command.wait()
    assert runs(sandbox, "6005")
    assert await command.kill()
    assert gone(sandbox, "6005")


async def test_a_start_that_is_cancelled_leaves_nothing_that_nobody_knows(client: Client, sandbox: Sandbox) -> None:
    face = AsyncSandbox(sandbox.id, client=client)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.3):
            await face.commands.run(["sleep", "6006"], background=True, stdin=b"x" * 10_000_000)
    assert gone(sandbox, "6006")


# ---- in the background -----------------------------------------------------------------------------------------------


def test_a_background_command_can_be_talked_to_and_found_again(sandbox: Sandbox) -> None:
    command = sandbox.commands.run(
        'while read line; do echo "<$line>"; done; echo end >&2', background=True, stdin=True
    )
    seen: list[bytes] = []
    output = command.output()
    for word in (b"one", b"two"):
        command.send_stdin(word + b"\n")
        seen.append(next(output).data)
    time.sleep(0.1)  # a command is listed a moment after it has begun
    assert state(sandbox, command.id) is CallState.RUNNING
    again = sandbox.commands.connect(command.id)
    again.close_stdin()
    assert again.wait().stdout == "<one>\n<two>\n"
    assert [*seen, *(piece.data for piece in output)] == [b"<one>\n", b"<two>\n", b"end\n"]
    assert command.wait(check=True).stderr == "end\n"
    assert state(sandbox, command.id) is CallState.ENDED


def test_waiting_hears_all_from_the_beginning(sandbox: Sandbox) -> None:
    command = sandbox.commands.run("echo a; sleep 0.2; echo b", background=True)
    time.sleep(0.1)
    heard: list[str] = []
    assert command.wait(on_stdout=heard.append).stdout == "".join(heard) == "a\nb\n"


def test_why_a_background_command_could_not_be_run_is_told_by_its_wait(sandbox: Sandbox) -> None:
    command = sandbox.commands.run("echo", background=True, cwd="/no/such/directory")
    try:
        told = command.wait().reason  # when it has been recorded meanwhile
    except InvalidArgument as error:
        told = error.message
    assert "No such file or directory" in told
    missing = sandbox.commands.run(["/no/such/program"], background=True).wait()
    assert (missing.exit_code, missing.reason) == (127, "exec: /no/such/program: No such file or directory")


def test_killing_waits_for_the_end_and_tells_who_did_it(sandbox: Sandbox) -> None:
    command = sandbox.commands.run(["sleep", "6007"], background=True)
    assert runs(sandbox, "6007")
    assert command.kill()
    assert gone(sandbox, "6007")
    assert not command.kill()
    assert command.wait().call.signal == signal.SIGKILL


def test_leaving_the_output_early_leaves_the_command_alone(sandbox: Sandbox) -> None:
    command = sandbox.commands.run("echo a; sleep 6008", background=True)
    for piece in command.output():
        assert piece.text == "a\n"
        break
    assert runs(sandbox, "6008")
    assert command.kill()


def test_a_command_ends_with_its_sandbox(client: Client, sandbox: Sandbox) -> None:
    with Sandbox.create(runtime=sandbox.info().runtime, client=client) as other:
        command = other.commands.run(["sleep", "60"], background=True)
        threading.Timer(0.1, other.kill).start()
        with pytest.raises(Unavailable, match="was lost"):
            command.wait()


def test_an_id_runs_once_whoever_asks(client: Client, sandbox: Sandbox) -> None:
    """Also when they ask at the same moment, and when the command has long ended."""
    other = Sandbox.connect(sandbox.id, client=client)
    found: list[tuple[str, str]] = []

    def ask(face: Sandbox) -> None:
        result = face.commands.run("echo x >> asked; sleep 0.2; cat asked", id="asked")
        found.append((result.id, result.stdout))

    threads = [threading.Thread(target=ask, args=(face,)) for face in (sandbox, other) * 4]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(SOON_S)
    ask(other)
    assert found == [("asked", "x\n")] * 9
    assert sandbox.commands.run("true", id="asked", background=True).wait().stdout == "x\n"


def test_the_input_of_a_command_that_has_run_is_not_sent_again(sandbox: Sandbox) -> None:
    command = sandbox.commands.run("cat", id="fed", background=True, stdin=True)
    waiting = threading.Timer(0.1, command.close_stdin)
    command.send_stdin("first")
    waiting.start()
    assert sandbox.commands.run("cat", id="fed", stdin="second").stdout == "first"


async def test_a_hundred_at_once(client: Client, sandbox: Sandbox) -> None:
    face = AsyncSandbox(sandbox.id, client=client)
    results = await asyncio.gather(*(face.commands.run(f"sleep 0.1; echo {number}") for number in range(100)))
    assert [result.stdout for result in results] == [f"{number}\n" for number in range(100)]


# ---- the shell -------------------------------------------------------------------------------------------------------


def test_a_path_of_ones_own_does_not_hide_the_shell(sandbox: Sandbox) -> None:
    assert sandbox.commands.run("echo $PATH", envs={"PATH": "/nowhere"}).stdout == "/nowhere\n"
    assert sandbox.commands.run("[[ a == a ]] && echo bash").stdout == "bash\n"


@pytest.mark.root
def test_without_bash_text_is_run_by_sh_and_nothing_twice(client: Client, rooted: Sandbox) -> None:
    rooted.commands.run("mv /usr/bin/bash /usr/bin/hidden", user="root", check=True)

    def fresh() -> Sandbox:
        return Sandbox.connect(rooted.id, client=client)

    text = "echo $0 >> ran; echo $0"
    assert fresh().commands.run(text).stdout == "/bin/sh\n"
    assert fresh().commands.run(text, id="named").stdout == "/bin/sh\n"
    assert fresh().commands.run(text, id="named").stdout == "/bin/sh\n"
    assert fresh().commands.run(text, background=True).wait().stdout == "/bin/sh\n"
    assert fresh().commands.run(text, background=True, id="named-too").wait().stdout == "/bin/sh\n"
    assert fresh().commands.run(f"cat; {text}", stdin=b"x" * 500_000).stdout[-8:] == "/bin/sh\n"
    assert rooted.files.read("ran") == "/bin/sh\n" * 5


@pytest.mark.root
async def test_without_bash_all_who_ask_at_once_get_sh(client: Client, rooted: Sandbox) -> None:
    rooted.commands.run("mv /usr/bin/bash /usr/bin/hidden", user="root", check=True)
    face = AsyncSandbox(rooted.id, client=client)
    results = await asyncio.gather(
        *(face.commands.run("echo $0 >> ran", id=f"c{number}" if number % 2 else None) for number in range(20))
    )
    assert [result.exit_code for result in results] == [0] * 20
    assert rooted.files.read("ran") == "/bin/sh\n" * 20


@pytest.mark.root
def test_the_user_of_a_command(client: Client, rooted: Sandbox) -> None:
    assert rooted.commands.run("id -un").stdout == "user\n"
    assert rooted.commands.run("id -un", user="root").stdout == "root\n"
    with Sandbox.create(user="root", client=client) as other:
        assert other.commands.run("id -un").stdout == "root\n"
        assert other.commands.run("id -un", user="user").stdout == "user\n"


# ---- before anything happens -----------------------------------------------------------------------------------------

WRONG: list[dict[str, Any]] = [
    {"cmd": "a", "background": True, "on_stdout": print},
    {"cmd": "a", "background": True, "on_stderr": print},
    {"cmd": "a", "background": True, "check": True},
    {"cmd": "a", "stdin": True},
    {"cmd": "a", "stdin": None},
    {"cmd": "a", "stdin": 5},
    {"cmd": "a", "stdin": "\ud800"},
    {"cmd": []},
    {"cmd": [""]},
    {"cmd": b"a"},
    {"cmd": None},
    {"cmd": ["a", Path("b")]},
    {"cmd": ["a\0b"]},
    {"cmd": "a", "timeout": -1},
    {"cmd": "a", "timeout": float("nan")},
    {"cmd": "a", "timeout": float("inf")},
    {"cmd": "a", "output_max": -1},
    {"cmd": "a", "id": "not an id"},
    {"cmd": "a", "user": ""},
    {"cmd": "a", "envs": {"A=B": "c"}},
]


@pytest.mark.parametrize("wrong", WRONG, ids=str)
def test_wrong_arguments_are_refused_before_anything_happens(wrong: dict[str, Any], tmp_path: Path) -> None:
    with Client(data_dir=tmp_path / "never") as client, pytest.raises(InvalidArgument):
        Sandbox("some-id", client=client).commands.run(**wrong)
    assert not (tmp_path / "never").exists(), "an engine was started"


@dataclass
class Recorder:
    """A host that keeps what it is asked to run, and has another one do it."""

    host: SandboxHostService
    requests: list[CallRequest] = field(default_factory=list[CallRequest])

    def __getattr__(self, name: str) -> Any:
        return getattr(self.host, name)

    def call(self, request: CallRequest) -> AbstractAsyncContextManager[CallStream]:
        self.requests.append(request)
        return self.host.call(request)


@pytest.fixture
async def recorded(host: SandboxHostService) -> tuple[AsyncSandbox, list[CallRequest]]:
    recorder = Recorder(host)
    session = await host.create(SessionSpec(runtime="none"))
    return AsyncSandbox(session.session_id, client=Client(host=cast("Host", recorder))), recorder.requests


async def test_what_the_host_is_asked_for(recorded: tuple[AsyncSandbox, list[CallRequest]]) -> None:
    sandbox, requests = recorded
    await sandbox.commands.run("true")
    await sandbox.commands.run(("true",), timeout=0, cwd="/", envs={"A": "b"}, output_max=7)
    await sandbox.commands.run(["true"], timeout=None, stdin="")
    await sandbox.commands.run(["true"], timeout=1.5, background=True, stdin=True, id="mine")
    plain, second, third, last = requests
    assert plain == CallRequest(sandbox.id, ("/bin/bash", "-c", "true"), timeout_s=limits.CALL_TIMEOUT_S)
    assert second == CallRequest(sandbox.id, ("true",), "/", {"A": "b"}, timeout_s=None, output_bytes_max=7)
    assert third == CallRequest(sandbox.id, ("true",), timeout_s=None, stdin=True)
    assert last == CallRequest(sandbox.id, ("true",), timeout_s=1.5, stdin=True, detach=True, call_id="mine")


async def test_a_host_of_ones_own_is_used_on_its_loop(recorded: tuple[AsyncSandbox, list[CallRequest]]) -> None:
    sandbox, _requests = recorded
    loop = asyncio.get_running_loop()
    loops: list[object] = []
    result = await sandbox.commands.run("echo a", on_stdout=lambda _text: loops.append(asyncio.get_running_loop()))
    assert (result.stdout, loops) == ("a\n", [loop])
    command = await sandbox.commands.run("echo b; exit 3", background=True)
    assert [piece.text async for piece in command.output()] == ["b\n"]
    with pytest.raises(CommandFailed):
        await command.wait(check=True)
    with pytest.raises(InvalidState, match=r"host of one's own.*use AsyncSandbox"):
        Sandbox(sandbox.id, client=sandbox.client).commands.run("true")
