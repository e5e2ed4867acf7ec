"""One table of scenarios, run through both faces, with equal results."""

import asyncio
import inspect
import io
from collections.abc import AsyncGenerator, Callable, Generator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import pytest

from sandlot import (
    AsyncSandbox,
    CallRecord,
    Client,
    CommandOutput,
    CommandResult,
    FileInfo,
    Sandbox,
    SandlotError,
    SessionInfo,
)
from tests.unit.sdk.stage import RUNTIMES, directory, opened


class Driven:
    """An async handle with the manners of a sync one."""

    def __init__(self, inner: object, runner: asyncio.Runner) -> None:
        self._inner = inner
        self._runner = runner

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._inner, name)
        if not inspect.ismethod(value):
            return self._now(value)

        def call(*args: object, **kwargs: object) -> object:
            return self._now(value(*args, **kwargs))

        return call

    def __repr__(self) -> str:
        return repr(self._inner).removeprefix("Async")

    def _now(self, value: Any) -> Any:
        if inspect.iscoroutine(value):
            return self._now(self._runner.run(value))
        if inspect.isasyncgen(value):
            return self._iterate(cast("AsyncGenerator[object]", value))
        return Driven(value, self._runner) if type(value).__name__.startswith("Async") else value

    def _iterate(self, source: "AsyncGenerator[object]") -> Generator[object]:
        async def step() -> tuple[object, ...]:
            try:
                return (await anext(source),)
            except StopAsyncIteration:
                return ()

        try:
            while item := self._runner.run(step()):
                yield item[0]
        finally:
            self._runner.run(source.aclose())


@dataclass(frozen=True)
class Pair:
    """The same sandbox twice: it has the same history."""

    sync: Sandbox
    driven: Driven

    def outcomes(self, scenario: Callable[[Any], object]) -> tuple[object, object]:
        return outcome(scenario, self.sync), outcome(scenario, self.driven)


def outcome(scenario: Callable[[Any], object], sandbox: Any) -> object:
    workspace = sandbox.info().workspace
    try:
        told = plain(scenario(sandbox))
    except SandlotError as error:
        told = (type(error).__name__, error.message, error.next_step, sorted(error.context))
    except (ArithmeticError, ValueError) as error:
        told = repr(error)
    return repr(told).replace(workspace, "W").replace(sandbox.id, "ID")


def plain(value: object) -> object:
    """Without what no two runs have in common: ids, times."""
    if isinstance(value, CommandResult):
        flags = (value.exit_code, value.ok, value.timed_out, value.truncated, value.reason, value.call.signal)
        return (*flags, value.stdout, value.stderr, value.stdout_bytes, value.stderr_bytes)
    if isinstance(value, FileInfo):
        return (value.path, value.name, value.kind, value.size_bytes, oct(value.mode), value.target)
    if isinstance(value, CallRecord):
        return (value.argv, value.state)
    if isinstance(value, SessionInfo):
        return (value.session_id, value.state, dict(value.labels), value.runtime, value.template)
    if isinstance(value, CommandOutput):
        return (value.stream, value.data, value.text)
    if isinstance(value, Sequence | Generator) and not isinstance(value, str | bytes):
        return [plain(each) for each in cast("Sequence[object]", value)]
    return value


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory, shared_templates: Path) -> Generator[Client]:
    with directory(tmp_path_factory.mktemp("sdk") / "data", shared_templates) as data, opened(data) as made:
        yield made


@pytest.fixture(scope="module", params=RUNTIMES)
def pair(client: Client, request: pytest.FixtureRequest) -> Generator[Pair]:
    wishes: dict[str, Any] = {"runtime": request.param, "labels": {"a": "b"}, "envs": {"GREETING": "hi"}}
    with asyncio.Runner() as runner:
        made = Sandbox.create(client=client, **wishes)
        other = runner.run(AsyncSandbox.create(client=client, **wishes))
        yield Pair(made, Driven(other, runner))


def heard(sandbox: Any) -> object:
    out: list[str] = []
    err: list[str] = []
    steps = ("echo out", "echo err >&2", "printf '\\303'", "printf '\\251\\377'")
    result = sandbox.commands.run("; sleep 0.02; ".join(steps), on_stdout=out.append, on_stderr=err.append)
    return ["".join(out), "".join(err), result]


def raised(sandbox: Any) -> object:
    def divide(text: str) -> float:
        return 1 / text.count("b")

    return sandbox.commands.run("echo a; sleep 60", on_stdout=divide)


def in_background(sandbox: Any) -> object:
    command = sandbox.commands.run("read a; read b; echo $a-$b; exit 3", background=True, stdin=True, id="talk")
    command.send_stdin("one\n")
    sandbox.commands.send_stdin("talk", b"two\n")
    command.close_stdin()
    again = sandbox.commands.connect("talk")
    return [command.wait(), again.wait(), again.output(), command.kill(), repr(again), again.sandbox_id, again.id]


def killed(sandbox: Any) -> object:
    command = sandbox.commands.run(["sleep", "60"], background=True)
    return [command.kill(), command.kill(), command.wait(), sandbox.commands.kill(command.id)]


def signalled(sandbox: Any) -> object:
    command = sandbox.commands.run("trap 'echo heard; exit 5' USR1; echo ready; while :; do :; done", background=True)
    for _piece in command.output():
        break
    command.send_signal(10)
    return command.wait()


def pieces_of_a_file(sandbox: Any) -> object:
    sandbox.files.write("large", b"0123456789" * 250_000)
    stream = sandbox.files.read("large", format="stream")
    first = len(next(stream))
    stream.close()
    sizes = [len(piece) for piece in sandbox.files.read("large", format="stream", offset=5, length=2_000_000)]
    return [first, sizes, sandbox.files.read("large", offset=9, length=3)]


def a_tree(sandbox: Any) -> object:
    files = sandbox.files
    done: list[object] = [files.make_dir("t/b"), files.make_dir("t/b"), files.write("t/b/x", "1", mode=0o600)]
    sandbox.commands.run("ln -s nowhere t/dangling; ln -s b/x t/link; mkfifo t/pipe", check=True)
    done += [files.list("t"), files.list("t", depth=2), files.stat("t/link", follow=False), files.stat("t/link")]
    done += [files.exists(name) for name in ("t", "t/link", "t/dangling", "t/b/x/below", "none")]
    done += [
        files.rename("t/b/x", "t/y"),
        files.exists("t/b/x"),
        files.remove("t/y"),
        files.remove("t", recursive=True),
    ]
    return done


SCENARIOS: dict[str, Callable[[Any], object]] = {
    "text": lambda s: s.commands.run("echo $GREETING; echo err >&2; exit 3"),
    "list": lambda s: s.commands.run(["printf", "%s|", "a b", "$HOME", ""]),
    "cwd": lambda s: [s.files.make_dir("d/e"), s.commands.run("pwd", cwd="d/e"), s.commands.run("pwd", cwd="none")],
    "envs": lambda s: s.commands.run("echo $GREETING $MORE", envs={"GREETING": "ho", "MORE": "x"}),
    "no such user": lambda s: s.commands.run("id", user="nobody-here"),
    "timeout": lambda s: s.commands.run("sleep 60", timeout=0.2),
    "no timeout": lambda s: [s.commands.run("echo a", timeout=0), s.commands.run("echo a", timeout=None)],
    "negative timeout": lambda s: s.commands.run("echo a", timeout=-1),
    "stdin": lambda s: [s.commands.run("cat", stdin="ü"), s.commands.run(["cat"], stdin=b"\xff\0")],
    "no stdin": lambda s: s.commands.run("cat"),
    "not found": lambda s: s.commands.run(["/no/such/program"]),
    "not found in a shell": lambda s: s.commands.run("no-such-program"),
    "signal": lambda s: s.commands.run("kill -9 $$"),
    "check": lambda s: s.commands.run("echo why >&2; exit 3", check=True),
    "checked": lambda s: s.commands.run("true", check=True),
    "truncated": lambda s: s.commands.run("echo 0123456789", output_max=4),
    "nothing kept": lambda s: s.commands.run("echo 0123456789", output_max=0),
    "binary": lambda s: s.commands.run("printf '\\377\\000\\200'"),
    "id": lambda s: [s.commands.run("echo x >> once; cat once", id="once") for _ in range(3)],
    "wrong id": lambda s: s.commands.run("echo", id="no id"),
    "heard": heard,
    "raised": raised,
    "background": in_background,
    "killed": killed,
    "signalled": signalled,
    "waited for and checked": lambda s: s.commands.run("exit 4", background=True).wait(check=True),
    "background of what is not there": lambda s: s.commands.run(["/no/such"], background=True).wait(),
    "no such command": lambda s: s.commands.connect("never"),
    "no such command to kill": lambda s: s.commands.kill("never"),
    "no stdin to send": lambda s: s.commands.run("sleep 60", background=True, id="deaf").send_stdin("x"),
    "a wrong signal": lambda s: s.commands.connect("deaf").send_signal(1000),
    "no longer deaf": lambda s: s.commands.kill("deaf"),
    "background with listeners": lambda s: s.commands.run("echo", background=True, on_stdout=print),
    "background with check": lambda s: s.commands.run("echo", background=True, check=True),
    "stdin without background": lambda s: s.commands.run("cat", stdin=True),
    "stdin of nothing": lambda s: s.commands.run("cat", stdin=None),
    "nothing to run": lambda s: s.commands.run([]),
    "a command of bytes": lambda s: s.commands.run(b"ls"),
    "a command of numbers": lambda s: s.commands.run(["sleep", 1]),
    "commands": lambda s: s.commands.list()[:5],
    "text of a file": lambda s: [s.files.write("a", "Grüße"), s.files.read("a"), s.files.read("a", format="bytes")],
    "a file of text": lambda s: [s.files.write("a", io.StringIO("ü")), s.files.read("a")],
    "a file of bytes": lambda s: [s.files.write("b", io.BytesIO(b"\xff")), s.files.read("b")],
    "pieces": lambda s: [s.files.write("a", (bytes([n]) for n in range(65, 70))), s.files.read("a")],
    "wrong pieces": lambda s: [s.files.write("a", "old"), s.files.write("a", [b"new", 5])],
    "pieces that fail": lambda s: s.files.write("a", (bytes([5 // n]) for n in (1, 0))),
    "still old": lambda s: s.files.read("a"),
    "wrong format": lambda s: s.files.read("a", format="json"),
    "no such file": lambda s: s.files.read("none"),
    "no such stream": lambda s: s.files.read("none", format="stream"),
    "a directory is no file": lambda s: s.files.read("."),
    "wrong range": lambda s: s.files.read("a", offset=-1),
    "behind the end": lambda s: [s.files.read("a", offset=100), s.files.read("a", length=0)],
    "large": pieces_of_a_file,
    "tree": a_tree,
    "removing what is not empty": lambda s: [s.files.write("full/x", ""), s.files.remove("full")],
    "not over another": lambda s: [s.files.write("x", ""), s.files.rename("x", "a", overwrite=False)],
    "no parents": lambda s: s.files.write("p/q/r", "", parents=False),
    "info": lambda s: s.info(),
    "repr": lambda s: [repr(s), repr(s.commands.run("true", background=True, id="named"))],
}


@pytest.mark.parametrize("name", SCENARIOS)
def test_both_faces_give_the_same(name: str, pair: Pair) -> None:
    ours, theirs = pair.outcomes(SCENARIOS[name])
    assert ours == theirs


def test_the_table_is_long_and_the_comparison_sees_differences(pair: Pair) -> None:
    assert len(SCENARIOS) > 50
    counter = iter(range(10))
    ours, theirs = pair.outcomes(lambda s: s.commands.run(f"echo {next(counter)}"))
    assert ours != theirs
