"""One list of edits has one outcome, whatever storage the session is on: the same tree, the same comparisons, the same
errors."""

import asyncio
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from sandlot.config.settings import load
from sandlot.host.service import SandboxHostService
from sandlot.model import CallRequest, Change, DiffRequest, SessionSpec, TurnRequest
from sandlot.wiring.embedded import build
from tests import storages
from tests.conftest import clean_up, run

pytestmark = [pytest.mark.root, pytest.mark.timeout(900)]

Edit = tuple[str, ...]

# No hard links: a storage may say that it lacks them.
EDITS = """
import json, os, shutil, sys
os.chdir("/workspace")
def clear(path):
    if os.path.isdir(path) and not os.path.islink(path): shutil.rmtree(path)
    elif os.path.lexists(path): os.remove(path)
def write(path, text):
    with open(path, "w") as file: file.write(text)
def append(path, text):
    with open(path, "a") as file: file.write(text)
def cut(path, size): os.truncate(path, int(size))
def replace(path, text): clear(path); write(path, text)
def mkdir(path, mode): os.makedirs(path); os.chmod(path, int(mode, 8))
def again(path): clear(path); os.mkdir(path)
def symlink(path, to): os.symlink(to, path)
def fifo(path): os.mkfifo(path)
def remove(path): clear(path)
def rename(path, to): os.rename(path, to)
def chmod(path, mode): os.chmod(path, int(mode, 8), follow_symlinks=not os.path.islink(path))
def chown(path, owner): os.chown(path, int(owner), int(owner), follow_symlinks=False)
told = []
for verb, *words in json.loads(sys.argv[1]):
    try: globals()[verb](*words); told.append("")
    except (OSError, NotImplementedError) as error: told.append(f"{verb} {type(error)} {getattr(error, 'errno', 0)}")
print(json.dumps(told))
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
print(json.dumps(told, sort_keys=True))
"""
WIPE = """
import os, shutil
for entry in list(os.scandir("/workspace")):
    shutil.rmtree(entry.path) if entry.is_dir(follow_symlinks=False) else os.remove(entry.path)
"""

NAME = st.sampled_from(["a", "b", "c d", "x\n", "\udcff", "é"])
PATH = st.lists(NAME, min_size=1, max_size=3).map("/".join)
TEXT = st.sampled_from(["", "one\n", "two\n" * 50, "z" * 5000])
MODE = st.sampled_from(["644", "755", "600", "4755"])
EDIT: st.SearchStrategy[Edit] = st.one_of(
    st.tuples(st.sampled_from(["write", "append", "replace"]), PATH, TEXT),
    st.tuples(st.just("cut"), PATH, st.sampled_from(["0", "2", "9000"])),
    st.tuples(st.just("mkdir"), PATH, st.sampled_from(["755", "700", "1777"])),
    st.tuples(st.just("symlink"), PATH, st.sampled_from(["a", "/etc", "../b"])),
    st.tuples(st.just("rename"), PATH, PATH),
    st.tuples(st.just("chmod"), PATH, MODE),
    st.tuples(st.just("chown"), PATH, st.sampled_from(["0", "1000", "60000"])),
    st.tuples(st.sampled_from(["remove", "again", "fifo"]), PATH),
)
LISTS = st.tuples(*(st.lists(EDIT, min_size=1, max_size=25),) * 3)


async def python(host: SandboxHostService, session_id: str, script: str, *args: str) -> str:
    ran = await run(host, CallRequest(session_id, ("python3", "-c", script, *args), user="root"))
    assert ran.exit_code == 0, ran
    return ran.stdout.decode()


async def changes(host: SandboxHostService, session_id: str, old: str, new: str = ".") -> list[Change]:
    request = DiffRequest(session_id, old, new, below="/workspace", patch=True)
    async with host.diff(request) as batches:
        return [change async for batch in batches for change in batch]


async def outcome(host: SandboxHostService, session_id: str, lists: Sequence[Sequence[Edit]]) -> list[Any]:
    """All that can be told of it: errors, trees, and comparisons forwards, backwards and to what is open."""
    await python(host, session_id, WIPE)
    told: list[Any] = []
    shots: list[str] = []
    for edits in lists:
        told.append(json.loads(await python(host, session_id, EDITS, json.dumps(edits))))
        told.append(await python(host, session_id, WALK))
        if len(shots) < 2:
            closed = await host.turn_complete(TurnRequest(session_id))
            assert closed.snapshot
            shots.append(closed.snapshot)
    for pair in ((shots[0], shots[1]), (shots[1], shots[0]), (shots[0],), (shots[1],)):
        told.append(await changes(host, session_id, *pair))
    return told


async def compare(host: SandboxHostService, sessions: dict[str, str], lists: Sequence[Sequence[Edit]]) -> None:
    names = list(sessions)
    outcomes = await asyncio.gather(*(outcome(host, sessions[name], lists) for name in names))
    for name, found in zip(names[1:], outcomes[1:], strict=True):
        assert found == outcomes[0], f"{name} differs from {names[0]}"


def test_every_storage_tells_the_same(data_dir: Path, pytestconfig: pytest.Config) -> None:
    ready = [name for name in storages.NAMES if storages.probe(name).ready]
    if len(ready) < 2:
        pytest.skip("one storage is ready here; there is nothing to compare")
    environment = {**os.environ, **storages.ENVIRONMENT, "SANDLOT_DATA_DIR": str(data_dir)}
    with asyncio.Runner() as runner:

        async def begin() -> tuple[SandboxHostService, dict[str, str]]:
            host = await build(load(environment)).__aenter__()
            return host, {name: (await host.create(SessionSpec(storage=name))).session_id for name in ready}

        host, sessions = runner.run(begin())

        @settings(
            max_examples=80 if pytestconfig.getoption("--all-storages") else 8,
            deadline=None,
            database=None,
            derandomize=True,
            phases=(Phase.explicit, Phase.generate),  # a shorter list is sought for minutes, and is no clearer
            suppress_health_check=(HealthCheck.too_slow, HealthCheck.data_too_large),
        )
        @given(lists=LISTS)
        def same(lists: tuple[list[Edit], ...]) -> None:
            runner.run(compare(host, sessions, lists))

        async def end() -> None:
            await clean_up(host)
            await host.close()

        try:
            same()
        finally:
            runner.run(end())
    assert storages.left_of_machine(data_dir) == set()


async def test_a_difference_would_be_seen(host: SandboxHostService) -> None:
    """Two sessions with lists that differ in one mode are not the same."""
    one, other = [(await host.create(SessionSpec())).session_id for _ in range(2)]
    lists: list[list[Edit]] = [[("write", "a", "x")], [("chmod", "a", "600")], [("remove", "a")]]
    first = await outcome(host, one, lists)
    assert first == await outcome(host, other, lists)
    assert first != await outcome(host, other, [lists[0], [("chmod", "a", "755")], lists[2]])
    assert [change.path for change in first[6]] == ["/workspace/a"]
