"""A session that changes its files as fast as it can, under the hands of the host."""

import asyncio
import itertools
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence

from sandlot.attack.acts_files import list_all, read_all
from sandlot.attack.arena import Arena, pieces
from sandlot.attack.bait import Sentinel
from sandlot.attack.rows import ROOT, USER
from sandlot.attack.verdicts import Escaped, Leaked, demand
from sandlot.contracts import Host
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

OPERATIONS = 10_000
AT_ONCE = 12
SWAPPING_S = 100.0
_NEW = b"new content\n"

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


def ways(host: Host, session: str, user: str | None) -> list[Callable[[], Awaitable[object]]]:
    def on(name: str) -> list[Callable[[], Awaitable[object]]]:
        path = f"/workspace/race/{name}"
        return [
            lambda: read_all(host, FileRead(session, f"{path}/f", user)),
            lambda: host.write_file(FileWrite(session, f"{path}/f", user, parents=False), pieces(_NEW)),
            lambda: list_all(host, FileList(session, path, user, depth=4)),
            lambda: host.stat_file(FileStat(session, f"{path}/f", user)),
            lambda: host.rename_file(FileRename(session, f"{path}/f", user, f"{path}/g")),
            lambda: host.remove_file(FileRemove(session, f"{path}/g", user)),
            lambda: host.write_file(FileWrite(session, f"{path}/sub/f", user), pieces(_NEW, _NEW, _NEW)),
            lambda: host.remove_file(FileRemove(session, f"{path}/sub", user, recursive=True)),
            lambda: host.make_directory(DirectoryMake(session, f"{path}/sub/below", user)),
            lambda: host.write_file(FileWrite(session, path, user, parents=False), pieces(_NEW)),
        ]

    return [*on("x"), *on("y/x")]


async def storm(host: Host, session: str, users: Sequence[str | None], sentinel: Sentinel) -> Counter[str]:
    """Many operations at once, thousands in all; how they ended. Raises Escaped."""
    ended: Counter[str] = Counter()
    turns = itertools.cycle([way for user in users for way in ways(host, session, user)])
    left = iter(range(OPERATIONS))

    async def work() -> None:
        for _number in left:
            try:
                answer = await next(turns)()
            except SandlotError as error:
                ended[type(error).__name__] += 1
                continue
            demand(not sentinel.is_told_by(answer), "a race led out of the session")
            ended["done"] += 1

    async with asyncio.TaskGroup() as group:
        for _number in range(AT_ONCE):
            group.create_task(work())
    return ended


async def race(arena: Arena) -> None:
    sentinel = arena.bait.sentinel
    swap = SWAP.replace("%host%", str(sentinel.folder)).replace("%seconds%", str(SWAPPING_S))
    async with arena.fresh() as session:
        swapping = asyncio.create_task(arena.py(swap, USER, session, 2 * SWAPPING_S))
        try:
            await arena.sh("until test -e race/ready; do sleep 0.05; done", USER, session)
            ended = await storm(arena.host, session, (USER, ROOT), sentinel)
        except ExceptionGroup as group:
            raise next((one for one in group.exceptions if isinstance(one, Escaped)), group.exceptions[0]) from None
        finally:
            await arena.sh("touch race/stop", USER, session)
            swaps = (await swapping).text
        litter = (await arena.sh("find / -xdev -name '.sandlot-*' 2>/dev/null", ROOT, session)).text
        if litter:
            raise Leaked(f"writes that were given up left {litter[:200]}")
    # A race that nobody runs proves nothing: it went both ways, often.
    demand(swaps.isdigit() and int(swaps) > 1000, f"the race was not run: {swaps!r} swaps")
    demand(ended.total() == OPERATIONS and ended["done"] > 200, f"the race was one-sided: {dict(ended)}")
    wrong = set(ended) - {"done", "PermissionDenied", "FileNotFound", "FileConflict"}
    demand(not wrong, f"verbs ended in ways that they must not: {sorted(wrong)}")
