"""Hostile things in a session's files, through every verb of files and every tool: none leads out, none hangs, none
takes memory, and none fails in a way that has no name."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from sandlot.contracts.files import Files
from sandlot.host.service import SandboxHostService
from sandlot.model import CallRequest, SandlotError, SessionSpec
from tests.conftest import run
from tests.security.outside import Outside, kept_outside
from tests.security.verbs import Verb, ends, file_verbs, tool_verbs

pytestmark = [pytest.mark.root, pytest.mark.timeout(600)]
MEMORY_BYTES = 300 << 20
ROUNDS = 6

ODD = (r"a\nb", "-rf", " ", r"\033[2J", "*", r"\377\376")  # as printf writes them
DEEP = "import os\nfor n in range(20): os.mkdir('x' if n == 0 else 'd' * 250); os.chdir('x' if n == 0 else 'd' * 250)"
REPOSITORY = """
git init -q x
cd x
printf '#!/bin/sh\\ncat %out%/f\\n' > run
chmod +x run
for key in core.fsmonitor core.pager diff.external filter.f.clean; do git config $key "$PWD/run"; done
echo '* filter=f' > .gitattributes
cp run .git/hooks/pre-commit
"""
# A script that makes a thing called `x`; %out% is a directory of the machine that nobody may reach.
THINGS = {
    "a link to a file": "ln -s %out%/f x",
    "a link to a directory": "ln -s %out% x",
    "a link up and out": "ln -s ../../../../../../../../../..%out%/f x",
    "a link through pid 1": "ln -s /proc/1/root%out%/f x",
    "a link to a descriptor": "ln -s /proc/self/fd/0 x",
    "a directory of links": "mkdir x; ln -s %out%/f x/f; ln -s %out% x/d; ln -s . x/here",
    "a circle": "ln -s x x",
    "a pipe": "mkfifo x",
    "a socket": "python3 -c 'import socket; socket.socket(socket.AF_UNIX).bind(\"x\")'",
    "a device": "ln -s /dev/zero x",
    "a directory of pipes": "mkdir x; mkfifo x/a x/b; ln -s b x/c",
    "a hole": "truncate -s 500M x",
    "a directory with a hole": "mkdir x; truncate -s 500M x/a; echo secret > x/b",
    "odd names": f'mkdir x; cd x; for n in {" ".join(map(repr, ODD))}; do echo secret > "$(printf -- "$n")"; done',
    "a tree deeper than a path": f'python3 -c "{DEEP}"',
    "a repository that is hostile": REPOSITORY,
}
# What a program of the session does is its own affair; with these it is seen that it stays there.
WITH_PROGRAMS = ("a link to a directory", "a pipe", "odd names", "a repository that is hostile")


@pytest.fixture
def outside() -> Iterator[Outside]:
    with kept_outside() as outside:
        yield outside


@pytest.fixture
async def verbs(host: SandboxHostService) -> list[Verb]:
    await host.create(SessionSpec(session_id="s"))
    return [*tool_verbs(await host.tools()), *file_verbs()]


async def sh(host: SandboxHostService, script: str) -> str:
    ran = await run(host, CallRequest("s", ("sh", "-ec", script)))
    assert ran.exit_code == 0, ran
    return ran.stdout.decode()


def most_memory() -> int:
    """Of this process, which is the engine's, since it was last asked."""
    text = Path("/proc/self/status").read_text()
    Path("/proc/self/clear_refs").write_text("5")
    found = re.search(r"VmHWM:\s+(\d+) kB", text)
    assert found
    return int(found[1]) << 10


async def attempt(host: SandboxHostService, verb: Verb, path: str, other: str) -> object:
    """What it answers; the error when it is one of ours. Any other is a failure of the test."""
    try:
        return await ends(verb.run(host, "s", path, other))
    except SandlotError as error:
        return error


def test_every_verb_is_found(host: SandboxHostService) -> None:
    del host
    named = {verb.name.partition("(")[0] for verb in file_verbs()}
    assert named == {name for name in vars(Files) if not name.startswith("_")}
    assert len(named) > 15


async def test_every_verb_does_something_where_nothing_is_hostile(host: SandboxHostService, verbs: list[Verb]) -> None:
    begin = "echo old > {0}/x; mkdir {1}/x; echo secret > {1}/x/f; git init -q {2}/x; echo n > {2}/x/n; ln -s n {2}/x/l"
    tools = "cd /workspace; git init -q; git -c user.name=n -c user.email=e commit -q --allow-empty -m one"
    await sh(host, tools)
    for number, verb in enumerate(verbs):
        folders = [f"/workspace/{number}-{kind}" for kind in ("file", "directory", "repository", "nothing")]
        await sh(host, f"mkdir {' '.join(folders)}; {begin.format(*folders)}; echo x > {folders[0]}/other")
        answers = [await attempt(host, verb, f"{folder}/x", f"{folder}/other") for folder in folders]
        assert any(not isinstance(answer, Exception) for answer in answers), (verb.name, answers)


def test_a_verb_that_leads_out_would_be_seen(outside: Outside) -> None:
    before = outside.look()
    assert outside.is_told_by([(outside.folder / "f").read_bytes()])
    assert not outside.is_told_by(SandlotError(str(outside.folder)))
    (outside.folder / "f").chmod(0o600)
    assert outside.look() != before


@pytest.mark.parametrize("thing", THINGS)
async def test_no_hostile_thing_gets_anywhere(
    host: SandboxHostService, verbs: list[Verb], outside: Outside, thing: str
) -> None:
    script = THINGS[thing].replace("%out%", str(outside.folder))
    chosen = verbs if thing in WITH_PROGRAMS else [verb for verb in verbs if not verb.is_program]
    copies = f"i=0; while [ $i -lt {len(chosen)} ]; do cp -a thing $i 2>/dev/null || again $i; i=$((i+1)); done"
    again = f"again() {{ mkdir -p $1; rm -rf $1/x; (cd $1; {script}\n) }}"  # what is too deep for a program
    await sh(host, f"{again}\ncd /workspace; mkdir thing; (cd thing; {script}\n); {copies}")
    before = outside.look()
    most_memory()
    start = most_memory()
    for number, verb in enumerate(chosen):
        answer = await attempt(host, verb, f"/workspace/{number}/x", f"/workspace/{number}/other")
        assert not outside.is_told_by(answer), (verb.name, answer)
        assert not isinstance(answer, TimeoutError), verb.name
        assert outside.look() == before, verb.name
    assert most_memory() - start < MEMORY_BYTES
    assert await sh(host, "echo still here") == "still here\n"


SWAPS = """
import ctypes, os
libc = ctypes.CDLL(None)
print("ready", flush=True)
while not os.path.exists("stop"):
    libc.syscall(316, -100, b"x", -100, b"y", 2)
"""
# What a verb has moved or closed is made anew. While one is missing nothing is swapped.
AGAIN = """
cd /workspace; rm -rf other-* x; rm -rf x y
mkdir -p x/d; echo secret > x/f; chown -R user x; ln -sT {folder} y
"""


async def test_what_is_swapped_meanwhile_leads_nowhere(
    host: SandboxHostService, verbs: list[Verb], outside: Outside
) -> None:
    """A directory and a link out change places, as fast as they can, below and at the end of the path."""
    await sh(host, f"cd /workspace; mkdir x; echo secret > x/f; mkdir x/d; ln -s {outside.folder} y")
    before = outside.look()
    async with host.call(CallRequest("s", ("python3", "-c", SWAPS), cwd="/workspace")) as swapping:
        async for _event in swapping:
            break
        for verb in verbs:
            for number in range(ROUNDS):
                path = ("x/f", "x", "x/d")[number % 3]
                answer = await attempt(host, verb, f"/workspace/{path}", f"/workspace/other-{number}")
                assert not outside.is_told_by(answer), (verb.name, answer)
            assert outside.look() == before, verb.name
            await run(host, CallRequest("s", ("sh", "-c", AGAIN.format(folder=outside.folder)), user="root"))
        await sh(host, "touch /workspace/stop")
        await swapping.result()


async def test_a_directory_with_very_many_entries_takes_no_memory(
    host: SandboxHostService, verbs: list[Verb], pytestconfig: pytest.Config
) -> None:
    count = 100_000 if pytestconfig.getoption("--all-storages") else 2_000
    make = f"import os\\nos.mkdir('x')\\nfor n in range({count}): open(f'x/{{n}}', 'w').close()"
    again = f'cd /workspace; [ ! -e other ] || mv -T other/ x; [ -e x ] || printf "{make}" | python3 -'
    await sh(host, again)
    most_memory()
    start = most_memory()
    for verb in verbs:
        answer = await attempt(host, verb, "/workspace/x", "/workspace/other")
        assert not isinstance(answer, TimeoutError), verb.name
        if verb.name.startswith(("rename", "copy", "make_link", "remove")):
            await sh(host, f"cd /workspace; if [ -e x ]; then rm -rf other; fi; {again}")
    assert most_memory() - start < MEMORY_BYTES
