"""What a session begins with: a directory as git sees it, or a repository; and trees in and out of it by the SDK."""

import asyncio
import os
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from sandlot import AsyncSandbox, Client, FileConflict, InvalidArgument
from tests.e2e.test_cli import Program
from tests.waiting import until

pytestmark = pytest.mark.root
ENVIRONMENT = {"PATH": os.environ["PATH"], "HOME": "/nonexistent", "GIT_CONFIG_NOSYSTEM": "1"}


@pytest.fixture
def sandlot(data_dir: Path) -> Iterator[Program]:
    program = Program(data_dir)
    yield program
    program("kill", "--all", "--yes")


def git(folder: Path, *words: str) -> str:
    who = ("-c", "user.name=x", "-c", "user.email=x@x")
    ran = subprocess.run(["git", *who, *words], cwd=folder, capture_output=True, env=ENVIRONMENT, check=True)
    return ran.stdout.decode().strip()


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A repository with two commits, two branches, a tag, and something that is ignored."""
    top = tmp_path / "project"
    (top / "src").mkdir(parents=True)
    git(top, "init", "-q", "-b", "main")
    (top / ".gitignore").write_text("*.log\nbuilt/\n")
    (top / "src" / "a.py").write_text("one\n")
    git(top, "add", "-A")
    git(top, "commit", "-q", "-m", "first")
    git(top, "tag", "v1")
    git(top, "branch", "side")
    (top / "src" / "a.py").write_text("two\n")
    git(top, "commit", "-q", "-a", "-m", "second")
    (top / "noise.log").write_text("noise")
    (top / "built").mkdir()
    (top / "built" / "x").write_text("x")
    return top


def test_a_session_begins_with_a_directory_as_git_sees_it(sandlot: Program, project: Path) -> None:
    ran = sandlot("run", "--upload", str(project), "--", "sh", "-c", "ls -A; cat src/a.py; git status --short; id -un")
    assert ran.stdout == b".git\n.gitignore\nsrc\ntwo\nuser\n", ran
    ran = sandlot("run", "--upload", str(project), "--no-ignore", "--", "ls", "noise.log", "built")
    assert ran.returncode == 0, ran
    ran = sandlot("create", "--id", "one", "--upload", str(project / "missing"))
    assert ran.returncode != 0
    assert b"no such directory" in ran.stderr
    assert sandlot("create", "--id", "one", "--upload", str(project), "--request-id", "r").returncode == 2
    assert sandlot.json("ls")["sessions"] == []


def test_a_session_that_cannot_be_filled_is_not_there(sandlot: Program, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    git(tmp_path / "empty", "init", "-q")
    ran = sandlot("create", "--git", str(tmp_path / "empty"))
    assert ran.returncode == 2
    assert b"cannot be packed" in ran.stderr
    assert sandlot.json("ls")["sessions"] == []


def test_a_session_begins_with_a_repository(sandlot: Program, project: Path) -> None:
    script = "cat src/a.py; git log --format=%s; git branch --format='%(refname:short)'; git remote; ls -A /tmp"
    ran = sandlot("run", "--git", str(project), "--", "sh", "-c", script)
    assert ran.stdout == b"two\nsecond\nfirst\nmain\nside\n", ran
    ran = sandlot("run", "--git", f"{project}#v1", "--", "cat", "src/a.py")
    assert ran.stdout == b"one\n", ran
    first = git(project, "rev-parse", "v1")
    assert sandlot("run", "--git", f"{project}#{first}", "--", "cat", "src/a.py").stdout == b"one\n"
    ran = sandlot("run", "--git", f"{project}#nowhere", "--", "true")
    assert ran.returncode == 2
    assert b"git could not make the workspace" in ran.stderr
    assert sandlot("run", "--git", f"{project}#--help", "--", "true").returncode == 2
    for url in ("https://example.org/x.git", "git@example.org:x/y", "ext::sh -c id"):
        ran = sandlot("run", "--git", url, "--", "true")
        assert ran.returncode == 125
        assert b"reached by a network" in ran.stderr
    assert sandlot.json("ls")["sessions"] == []


def test_a_hostile_repository_runs_nothing_here(sandlot: Program, project: Path, tmp_path: Path) -> None:
    mark = tmp_path / "ran"
    evil = tmp_path / "evil"
    evil.write_text(f"#!/bin/sh\ntouch {mark}\n")
    evil.chmod(0o755)
    for hook in ("post-checkout", "pre-commit", "reference-transaction", "post-index-change"):
        (project / ".git" / "hooks" / hook).write_text(f"#!/bin/sh\ntouch {mark}\n")
        (project / ".git" / "hooks" / hook).chmod(0o755)
    settings = {
        "core.fsmonitor": str(evil),
        "core.sshCommand": str(evil),
        "core.pager": str(evil),
        "core.editor": str(evil),
        "uploadpack.packObjectsHook": str(evil),
        "gpg.program": str(evil),
        "core.alternateRefsCommand": str(evil),
        "credential.helper": f"!{evil}",
        "alias.bundle": f"!{evil}",
        "filter.x.clean": str(evil),
        "filter.x.smudge": str(evil),
    }
    for key, value in settings.items():
        git(project, "config", key, value)
    (project / ".git" / "info" / "attributes").write_text("* filter=x\n")
    mark.unlink(missing_ok=True)
    ran = sandlot("run", "--git", str(project), "--", "cat", "src/a.py")
    assert (ran.returncode, ran.stdout) == (0, b"two\n"), ran
    assert not mark.exists()


async def test_trees_by_the_sdk(data_dir: Path, tmp_path: Path, project: Path) -> None:
    async with Client(data_dir=data_dir) as client:
        async with await AsyncSandbox.create(upload=project, client=client) as sandbox:
            assert await sandbox.files.exists("src/a.py")
            assert not await sandbox.files.exists("noise.log")
            came = await sandbox.files.upload(project, "all/of it")
            assert (came.files > 5, await sandbox.files.exists("all/of it/noise.log")) == (True, True)
            got = await sandbox.files.download("all", tmp_path / "new" / "got", include=["*.py", "of it/built/*"])
            found = sorted(str(p.relative_to(tmp_path / "new")) for p in (tmp_path / "new").rglob("*") if p.is_file())
            assert found == ["got/of it/built/x", "got/of it/src/a.py"]
            assert got.files == 2
            await sandbox.files.write("f", "a file")
            with pytest.raises(FileConflict):
                await sandbox.files.download("f", tmp_path / "no")
            with pytest.raises(FileConflict):
                await sandbox.files.upload(project, "f")
        async with await AsyncSandbox.create(git=f"{project}#side", client=client) as sandbox:
            assert await sandbox.files.read("src/a.py") == "one\n"
        with pytest.raises(InvalidArgument, match="give one"):
            await AsyncSandbox.create(git=str(project), upload=project, client=client)


async def test_an_upload_that_is_broken_off_leaves_no_half_file(data_dir: Path, tmp_path: Path) -> None:
    (tmp_path / "big").mkdir()
    with (tmp_path / "big" / "f").open("wb") as file:
        file.truncate(64 << 30)
    async with (
        Client(data_dir=data_dir) as client,
        await AsyncSandbox.create(client=client) as sandbox,
    ):
        await sandbox.files.write("t/f", "as it was")
        task = asyncio.ensure_future(sandbox.files.upload(tmp_path / "big", "t"))
        assert await until(lambda: place_in(tmp_path / "big" / "f") >= 32 << 20), "some of it is over there by now"
        assert not task.done()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        left = ""
        with suppress(TimeoutError):
            async with asyncio.timeout(60):
                while left != "f\nas it was":  # what was begun is put away by a thread that nobody waits for
                    left = (await sandbox.commands.run("ls -A t; cat t/f")).stdout
        assert left == "f\nas it was"


def place_in(path: Path) -> int:
    """How far this process has read in a file that it has open."""
    for fd in Path("/proc/self/fd").iterdir():
        with suppress(OSError):
            if fd.readlink() == path:
                return int(Path(f"/proc/self/fdinfo/{fd.name}").read_text().split()[1])
    return 0
