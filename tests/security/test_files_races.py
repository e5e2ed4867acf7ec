"""A session that changes its files as fast as it can, under the hands of the host."""

import asyncio
import itertools
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress

import pytest

from sandlot.host.service import SandboxHostService
from sandlot.model import (
    DirectoryMake,
    FileList,
    FileRead,
    FileRemove,
    FileRename,
    FileStat,
    FileWrite,
    SandlotError,
)
from tests.security.door import NEW, Door, Sentinel, list_all, litter, outside, pieces, read_all
from tests.security.stage import Stage

pytestmark = [pytest.mark.root, pytest.mark.timeout(120)]

OPERATIONS = 10_000
AT_ONCE = 12
PATIENCE_S = 25.0

# Exchanges what `x` is, and what is above it, between a directory and a link that leads out. It ends by itself.
SWAP = """
import ctypes, os, shutil, time
libc = ctypes.CDLL(None)
os.makedirs("/workspace/race", exist_ok=True)
os.chdir("/workspace/race")
LINKS = {"evil": "%host%", "magic": "/proc/1/root%host%", "above": "%host%/.."}
FILES = ("file", "x/f", "x/g", "x/sub/f", "x/sub/below/f", "y/x/f", "y/x/g", "y/x/sub/f")
def restore():
    # What the host wrote may have taken the place of anything.
    for name, target in LINKS.items():
        if not os.path.islink(name):
            if os.path.isdir(name): shutil.rmtree(name)
            elif os.path.exists(name): os.unlink(name)
            os.symlink(target, name)
    for name in ("x", "y", "y/x", "x/sub", "x/sub/below"):
        if os.path.islink(name) or os.path.isfile(name): os.unlink(name)
    for name in FILES:
        os.makedirs(os.path.dirname(name) or ".", exist_ok=True)
        with open(name, "w") as handle: handle.write("inside")
PAIRS = ((b"x", b"evil"), (b"x", b"magic"), (b"y", b"above"), (b"x/sub/below", b"evil"), (b"x", b"file"))
def swap(one, other): libc.renameat2(-100, one, -100, other, 2)
end = time.monotonic() + %seconds%
count = 0
while time.monotonic() < end and not os.path.exists("stop"):
    try: restore()
    except OSError: continue
    for turn in range(100):
        for one, other in PAIRS:
            swap(one, other)
            for _ in range(turn % 40): pass
            swap(one, other)
            count += 2
    open("ready", "w").close()
print(count)
"""


@pytest.fixture
def door(stage: Stage) -> Iterator[Door]:
    session = stage.create()
    yield Door(stage, session)
    stage.wait(stage.host.destroy(session))


@pytest.fixture
def sentinel() -> Iterator[Sentinel]:
    # By the name that is looked for in what is above it: an escape by either of the links would find it.
    with outside("x") as sentinel:
        yield sentinel


def attack(host: SandboxHostService, session: str, user: str | None) -> list[Callable[[], Awaitable[object]]]:
    def on(name: str) -> list[Callable[[], Awaitable[object]]]:
        path = f"/workspace/race/{name}"
        return [
            lambda: read_all(host, FileRead(session, f"{path}/f", user)),
            lambda: host.write_file(FileWrite(session, f"{path}/f", user, parents=False), pieces(NEW)),
            lambda: list_all(host, FileList(session, path, user, depth=4)),
            lambda: host.stat_file(FileStat(session, f"{path}/f", user)),
            lambda: host.rename_file(FileRename(session, f"{path}/f", user, f"{path}/g")),
            lambda: host.remove_file(FileRemove(session, f"{path}/g", user)),
            lambda: host.write_file(FileWrite(session, f"{path}/sub/f", user), pieces(NEW, NEW, NEW)),
            lambda: host.remove_file(FileRemove(session, f"{path}/sub", user, recursive=True)),
            lambda: host.make_directory(DirectoryMake(session, f"{path}/sub/below", user)),
            lambda: host.write_file(FileWrite(session, path, user, parents=False), pieces(NEW)),
        ]

    return [*on("x"), *on("y/x")]


async def storm(host: SandboxHostService, session: str, user: str | None, sentinel: Sentinel) -> Counter[str]:
    """Many operations at once, thousands in all; how they ended."""
    ended: Counter[str] = Counter()
    ways = itertools.cycle(attack(host, session, user))
    left = iter(range(OPERATIONS))

    async def work() -> None:
        for _number in left:
            try:
                answer = await next(ways)()
            except SandlotError as error:
                ended[type(error).__name__] += 1
                continue
            assert not sentinel.is_told_by(answer)
            ended["done"] += 1

    async with asyncio.timeout(PATIENCE_S), asyncio.TaskGroup() as group:
        for _number in range(AT_ONCE):
            group.create_task(work())
    return ended


@pytest.mark.parametrize("user", ["user", "root"])
def test_no_race_leads_out(door: Door, sentinel: Sentinel, user: str) -> None:
    swap = SWAP.replace("%host%", str(sentinel.folder)).replace("%seconds%", str(PATIENCE_S))
    swapping = door.stage.begin_script(door.session, swap, "user")
    door.shell("while ! test -e race/ready; do sleep 0.01; done")
    ended = door.stage.wait(storm(door.host, door.session, user, sentinel))
    sentinel.check()
    door.shell("touch race/stop")
    swaps = int(swapping.result().stdout)
    # A race that nobody runs proves nothing: it went both ways, often.
    assert swaps > 1000
    assert ended.total() == OPERATIONS
    assert ended["done"] > 200, ended
    assert ended["PermissionDenied"] > 10, ended
    assert ended["FileNotFound"] + ended["FileConflict"] > 200, ended
    assert set(ended) <= {"done", "PermissionDenied", "FileNotFound", "FileConflict"}, ended
    assert litter(door) == ""


# A directory that is private to root takes the place of one that root makes, as soon as that is there.
CUCKOO = """
import ctypes, os, time
libc = ctypes.CDLL(None)
os.chdir("/workspace/nest")
end = time.monotonic() + 20
count = 0
while time.monotonic() < end and not os.path.exists("stop"):
    for _ in range(1000):
        if libc.renameat2(-100, b"private", -100, b"made", 2) == 0:
            for _ in range(20): os.path.exists(".")
            libc.renameat2(-100, b"private", -100, b"made", 2)
            count += 1
            os.rename("made", f"gone-{count}")
print(count)
"""


def test_a_directory_that_takes_the_place_of_a_new_one_keeps_its_mode(door: Door) -> None:
    door.shell("mkdir -m 777 nest; mkdir -m 700 nest/private; touch nest/private/mark; chown user nest", "root")
    swapping = door.stage.begin_script(door.session, CUCKOO, "user")
    root = door.as_user("root")
    end = time.monotonic() + 2
    while time.monotonic() < end:
        with suppress(SandlotError):
            root.make("/workspace/nest/made", 0o755)
    door.shell("touch nest/stop")
    assert int(swapping.result().stdout) > 50
    found = door.shell("find /workspace/nest -name mark -printf '%h'", "root")
    assert root.stat(found).mode == 0o700


def test_names_that_come_and_go_do_not_break_a_listing(door: Door) -> None:
    script = """
import os, time
os.makedirs("/workspace/busy/kept/kept", exist_ok=True)
end = time.monotonic() + 20
while time.monotonic() < end and not os.path.exists("/workspace/stop"):
    for number in range(100):
        os.makedirs(f"/workspace/busy/d{number}/e", exist_ok=True)
        os.symlink("x", f"/workspace/busy/l{number}")
    for number in range(100):
        os.rmdir(f"/workspace/busy/d{number}/e"); os.rmdir(f"/workspace/busy/d{number}")
        os.unlink(f"/workspace/busy/l{number}")
"""
    busy = door.stage.begin_script(door.session, script, "user")
    door.shell("while ! test -d busy/kept/kept; do sleep 0.01; done")
    seen: Counter[int] = Counter()
    for _round in range(300):
        found = [info.path for info in door.list("busy", depth=3)]
        assert {"/workspace/busy/kept", "/workspace/busy/kept/kept"} <= set(found)
        assert len(found) == len(set(found))
        seen[len(found)] += 1
    door.shell("touch stop")
    assert busy.result().exit_code == 0
    assert len(seen) > 5
