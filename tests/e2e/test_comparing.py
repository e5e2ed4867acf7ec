"""A comparison finds what a walk over both trees finds, whatever was done between them."""

import json
import random

import pytest

from sandlot.host.service import SandboxHostService
from sandlot.model import CallRequest, Change, ChangeKind, DiffRequest, RollbackRequest, SessionSpec, TurnRequest
from tests.conftest import run

pytestmark = [pytest.mark.root, pytest.mark.usefixtures("storage")]

# Runs inside: random edits of the workspace, many of them renames, removals and replacements of what older layers hold.
EDITS = """
import os, random, shutil, sys
rng = random.Random(sys.argv[1])
os.chdir("/workspace")
NAMES = ["a", "b", "c", "d e", "x\\n", "\\udcff"]
def places(kind):
    found = [""] if kind == "dir" else []
    for folder, dirs, files in os.walk("."):
        found += [os.path.join(folder, name) for name in (dirs if kind == "dir" else dirs + files)]
    return sorted(found)
def new():
    return os.path.join(rng.choice(places("dir")), rng.choice(NAMES))
def some():
    found = places("any")
    return rng.choice(found) if found else None
def clear(path):
    if os.path.isdir(path) and not os.path.islink(path): shutil.rmtree(path)
    elif os.path.lexists(path): os.remove(path)
for _ in range(int(sys.argv[2])):
    op, one = rng.randrange(12), some()
    try:
        if op <= 2:
            path = new(); clear(path)
            with open(path, "w") as file: file.write(rng.choice(["", "one\\n", "two\\n" * 50]))
        elif op == 3: path = new(); clear(path); os.makedirs(path)
        elif op == 4: path = new(); clear(path); os.symlink(rng.choice(["a", "/etc", "../b"]), path)
        elif op == 5 and one: clear(one)
        elif op == 6 and one: os.rename(one, new())
        elif op == 7 and one and os.path.isdir(one) and not os.path.islink(one): os.rename(one, new())
        elif op == 8 and one and not os.path.islink(one): os.chmod(one, rng.choice([0o644, 0o755, 0o600, 0o700]))
        elif op == 9 and one and os.path.isfile(one) and not os.path.islink(one):
            with open(one, "a") as file: file.write("more\\n")
        elif op == 10 and one and os.path.isfile(one):
            path = new(); clear(path); os.link(one, path, follow_symlinks=False)
        elif op == 11: path = new(); clear(path); os.mkfifo(path)
    except OSError:
        pass
"""
WALK = """
import hashlib, json, os, stat
told = {}
for folder, dirs, files in os.walk("/workspace"):
    for name in dirs + files:
        path = os.path.join(folder, name)
        found = os.lstat(path)
        content = ""
        if stat.S_ISREG(found.st_mode): content = hashlib.md5(open(path, "rb").read()).hexdigest()
        if stat.S_ISLNK(found.st_mode): content = os.readlink(path)
        told[path] = [found.st_mode, found.st_uid, found.st_gid, content]
print(json.dumps(told))
"""


async def python(host: SandboxHostService, session_id: str, script: str, *args: str) -> str:
    ran = await run(host, CallRequest(session_id, ("python3", "-c", script, *args), user="root"))
    assert ran.exit_code == 0, ran
    return ran.stdout.decode()


def expected(old: dict[str, list[object]], new: dict[str, list[object]]) -> dict[str, ChangeKind]:
    found = dict.fromkeys(new.keys() - old.keys(), ChangeKind.ADDED)
    found |= dict.fromkeys(old.keys() - new.keys(), ChangeKind.REMOVED)
    return found | {path: ChangeKind.CHANGED for path in old.keys() & new.keys() if old[path] != new[path]}


async def changes(host: SandboxHostService, request: DiffRequest) -> list[Change]:
    async with host.diff(request) as batches:
        return [change async for batch in batches for change in batch]


@pytest.mark.parametrize("seed", range(12))
async def test_it_is_what_a_walk_finds(host: SandboxHostService, seed: int) -> None:
    """Between neighbours, far points, backwards, across a rollback, and to the open layer."""
    session_id = (await host.create(SessionSpec())).session_id
    rng = random.Random(seed)
    walks: dict[str, dict[str, list[object]]] = {}
    for number in range(1, 6):
        await python(host, session_id, EDITS, f"{seed}-{number}", str(rng.choice([3, 15, 40])))
        walks[str(number)] = json.loads(await python(host, session_id, WALK))
        await host.turn_complete(TurnRequest(session_id))
        if number == 3:
            await host.rollback(RollbackRequest(session_id, str(rng.choice([1, 2])), keep=True))
    for old in walks:
        for new in walks:
            found = await changes(host, DiffRequest(session_id, old, new, below="/workspace"))
            got = {change.path: change.kind for change in found}
            assert got == expected(walks[old], walks[new]), (old, new)
            assert [change.path.split("/") for change in found] == sorted(path.split("/") for path in got), "order"
    await python(host, session_id, EDITS, f"{seed}-open", "20")
    walks["now"] = json.loads(await python(host, session_id, WALK))
    got = {change.path: change.kind for change in await changes(host, DiffRequest(session_id, "2", below="/workspace"))}
    assert got == expected(walks["2"], walks["now"])


async def test_the_walk_sees_differences() -> None:
    """The expectation itself can fail."""
    assert expected({"a": [1]}, {"a": [2], "b": [1]}) == {"a": ChangeKind.CHANGED, "b": ChangeKind.ADDED}
    assert expected({"a": [1]}, {}) == {"a": ChangeKind.REMOVED}
