"""`sandlot files` on a real session: what each of its words does and tells."""

import base64
import io
import json
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from sandlot.cli import files
from sandlot.cli.context import Context
from sandlot.cli.interruption import Interruption
from sandlot.cli.parser import parse
from sandlot.contracts import Host
from sandlot.host.service import SandboxHostService
from sandlot.model import FileNotFound, InvalidArgument, SessionSpec

Run = Callable[..., Awaitable[tuple[int, str]]]


class Here(Context):
    """With an engine that runs already, so that not every word has to start one."""

    there: SandboxHostService

    @asynccontextmanager
    async def host(self) -> AsyncGenerator[Host]:
        yield self.there


@pytest.fixture
async def run(
    host: SandboxHostService, tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch
) -> Run:
    await host.create(SessionSpec(session_id="one", runtime="none", storage="local-disk"))

    async def run_one(what: str, *words: str, stdin: bytes = b"") -> tuple[int, str]:
        (tmp_path / "stdin").write_bytes(stdin)
        with (tmp_path / "stdin").open() as given:
            monkeypatch.setattr(sys, "stdin", given)
            # Those of the machine: what it captures is no file.
            again = open(1, "wb", closefd=False)  # noqa: SIM115 - it is read to the end of the test
            monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(again, write_through=True))
            context = Here.of(parse(["files", what, "one", *words]), Interruption())
            assert isinstance(context, Here)
            Here.there = host
            code = await files.run(context)
        return code, capfdbinary.readouterr().out.decode()

    return run_one


async def done(run: Run, *words: str, stdin: bytes = b"") -> str:
    code, text = await run(*words, stdin=stdin)
    assert code == 0, text
    return text


async def told(run: Run, *words: str, stdin: bytes = b"") -> Any:
    return json.loads(await done(run, *words, "--json", stdin=stdin))


async def test_files_are_written_changed_and_told_of(run: Run) -> None:
    assert (await told(run, "write", "d/a.txt", "--mode", "640", stdin=b"one\ntwo\n"))["mode"] == 0o640
    await done(run, "append", "d/a.txt", stdin=b"three\n")
    assert await done(run, "replace", "d/a.txt", "two", "2") == "replaced 1\n"
    assert await done(run, "cat", "d/a.txt") == "one\n2\nthree\n"
    assert await done(run, "cat", "d/a.txt", "--lines", "2:1") == "     2  2\n"
    assert base64.b64decode((await told(run, "cat", "d/a.txt"))["base64"]) == b"one\n2\nthree\n"
    await done(run, "ln", "a.txt", "d/way")
    assert (await told(run, "cp", "d", "e", "-r"))["files"] == 1
    await done(run, "mv", "e", "f")
    await done(run, "chmod", "600", "f/a.txt")
    assert (await told(run, "stat", "f/a.txt"))["mode"] == 0o600
    assert (await told(run, "xattr", "f/a.txt", "note=x"))["base64"] == {"user.note": base64.b64encode(b"x").decode()}
    assert await done(run, "xattr", "f/a.txt") == "user.note=x\n"
    assert (await told(run, "mkdir", "g/h"))["made"]
    await done(run, "rm", "d", "g", "-r")
    listed = (await told(run, "ls", ".", "--depth", "9"))["files"]
    assert [info["path"].rpartition("/")[2] for info in listed] == ["f", "a.txt", "way"]
    assert (await done(run, "ls", "f")).split()[0] == "-rw-------"


async def test_files_are_found_and_what_is_wrong_is_told(run: Run) -> None:
    await done(run, "write", "src/a.py", stdin=b"import os\nTODO: this\nend\n")
    assert (await done(run, "find", "**/*.py")).endswith("/src/a.py\n")
    lines = (await done(run, "grep", "todo", "-i", "-C", "1")).splitlines()
    assert [line.partition("/src/a.py")[2] for line in lines] == ["-1- import os", ":2: TODO: this", "-3- end"]
    assert (await told(run, "grep", "TODO", "src/a.py", "--literal"))["tally"]["found"] == 1
    assert (await told(run, "du", "src"))["files"] == 1
    assert await run("grep", "nowhere") == (1, "")
    for words in (
        ("grep", "("),
        ("mv", "a"),
        ("chmod", "9", "src"),
        ("find", "*", "--kind", "door"),
        ("cat", "src/a.py", "--lines", "x"),
        ("xattr", "src/a.py", "name"),
    ):
        with pytest.raises(InvalidArgument):
            await run(*words)
    with pytest.raises(FileNotFound):
        await run("cat", "missing")
