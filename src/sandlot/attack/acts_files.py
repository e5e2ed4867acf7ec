"""The host's own hands in a session's files, led astray."""

import asyncio
import secrets
from collections.abc import Awaitable, Callable

from sandlot.attack.arena import Arena, pieces
from sandlot.attack.rows import ROOT, USER
from sandlot.attack.verdicts import Escaped, demand
from sandlot.contracts import Host
from sandlot.model import (
    Capability,
    DirectoryMake,
    FileInfo,
    FileKind,
    FileList,
    FileRead,
    FileRemove,
    FileRename,
    FileStat,
    FileWrite,
    InvalidArgument,
    SandlotError,
)

_STEP_S = 30.0  # for one verb on one hostile file
_NEW = b"new content\n"


async def read_all(host: Host, request: FileRead) -> bytes:
    async with host.read_file(request) as stream:
        return b"".join([piece async for piece in stream])


async def list_all(host: Host, request: FileList) -> list[FileInfo]:
    async with host.list_files(request) as batches:
        return [info async for batch in batches for info in batch]


async def _rename_onto(host: Host, session: str, user: str | None, path: str) -> object:
    name = f"made-{secrets.token_hex(4)}"
    await host.write_file(FileWrite(session, name, user), pieces(_NEW))
    return await host.rename_file(FileRename(session, name, user, path))


# Every verb, and both ends of the one that has two; each as it would be called for one path.
VERBS: dict[str, Callable[[Host, str, str | None, str], Awaitable[object]]] = {
    "read": lambda host, session, user, path: read_all(host, FileRead(session, path, user)),
    "list": lambda host, session, user, path: list_all(host, FileList(session, path, user, depth=9)),
    "stat": lambda host, session, user, path: host.stat_file(FileStat(session, path, user)),
    "stat of a link": lambda host, session, user, path: host.stat_file(FileStat(session, path, user, follow=False)),
    "write": lambda host, session, user, path: host.write_file(FileWrite(session, path, user), pieces(_NEW)),
    "make": lambda host, session, user, path: host.make_directory(DirectoryMake(session, path, user)),
    "rename": lambda host, session, user, path: host.rename_file(FileRename(session, path, user, f"{path}-renamed")),
    "rename onto": _rename_onto,
    "remove": lambda host, session, user, path: host.remove_file(FileRemove(session, path, user, recursive=True)),
}


def _users(arena: Arena) -> tuple[str | None, ...]:
    return (USER, ROOT) if Capability.USERS in arena.capabilities else (None,)


async def _every_verb(arena: Arena, session: str, paths: tuple[str, ...]) -> None:
    """Nothing of the directory outside is told by any verb; that it is untouched is looked at behind every case."""
    for user in _users(arena):
        for path in paths:
            for name, verb in VERBS.items():
                try:
                    async with asyncio.timeout(_STEP_S):
                        answer = await verb(arena.host, session, user, path)
                except SandlotError:
                    continue
                except TimeoutError:
                    raise Escaped(f"{name} of {path[:100]!r} does not end") from None
                demand(not arena.bait.sentinel.is_told_by(answer), f"{name} of {path[:100]!r} led out of the session")
    demand(await asyncio.to_thread(arena.bait.sentinel.is_untouched), "something outside of the session was changed")


def _encoded(path: str) -> str:
    return "".join(f"%{ord(letter):02x}" if letter in "./" else letter for letter in path)


async def paths(arena: Arena) -> None:
    outside = str(arena.bait.sentinel.folder)
    climbing = "../" * 40 + outside.lstrip("/") + "/secret"
    tried = (
        *(f"{outside}/secret", outside, climbing, f"/workspace/{climbing}", f"./{climbing}", f"..//..//..{outside}/f"),
        *(
            _encoded(climbing),
            _encoded(_encoded(climbing)),
            climbing.replace("/", "\\"),
            climbing.replace("/", "\u2215"),
        ),
        *(f"/proc/1/root{outside}/secret", f"/proc/self/root{outside}/secret", f"/proc/self/cwd/../..{outside}/f"),
        *(f"/dev/fd/3{outside}/f", f"//{outside}/f", f"/workspace/x/../../..{outside}/f", "a/" * 1000 + climbing),
    )
    async with arena.fresh() as session:
        await _every_verb(arena, session, tried)
    for wrong in (f"{outside}\0/secret", f"/workspace\0/..{outside}", "", "x" * 5000, "/" + "a/" * 4000):
        for make in (FileRead, FileWrite, FileStat, FileList, FileRemove, DirectoryMake):
            try:
                make(arena.session, wrong)
            except InvalidArgument:
                continue
            raise Escaped(f"{make.__name__} took the path {wrong[:60]!r}")


_LINKS = """
import os
os.chdir("/workspace")
outside = "%outside%"
links = {"absolute": outside, "file": outside + "/secret", "climbing": "../" * 40 + outside[1:], "magic":
    "/proc/1/root" + outside, "own": "/proc/self/root" + outside, "cwd": "/proc/self/cwd/../.." + outside,
    "chain": "chained", "chained": "absolute", "above": outside + "/..", "new": outside + "/new", "loop": "loop",
    "fd": "/dev/fd/3" + outside}
for name, target in links.items():
    if not os.path.islink(name): os.symlink(target, name)
os.makedirs("folder/below", exist_ok=True)
if not os.path.islink("folder/below/link"): os.symlink(outside, "folder/below/link")
print(*links)
"""


async def links(arena: Arena) -> None:
    lay = _LINKS.replace("%outside%", str(arena.bait.sentinel.folder))
    async with arena.fresh() as session:
        names = (await arena.py(lay, USER, session)).text.split()
        demand(len(names) == 12, "the links could not be made")
        for name in (*names, "folder/below/link"):
            below = (name, f"{name}/", f"{name}/secret", f"{name}/sub/f", f"{name}/x/f")
            # Some verbs take a link away; the next ones are to find it again.
            await arena.py(lay, USER, session)
            await _every_verb(arena, session, tuple(f"/workspace/{path}" for path in below))


async def rights(arena: Arena) -> None:
    """What the session's user may not do, the host does not do for him."""
    async with arena.fresh() as session:
        await arena.sh(
            "mkdir -m 700 /opt/private; echo x >/opt/private/f; echo y >/etc/closed; chmod 600 /etc/closed",
            ROOT,
            session,
        )
        for path in ("/opt/private/f", "/opt/private", "/etc/closed", "/etc/passwd-new", "/usr/bin/new"):
            for name in ("read", "list", "write", "make", "rename", "remove"):
                try:
                    done = await VERBS[name](arena.host, session, USER, path)
                except SandlotError:
                    continue
                # A directory that is there already is told as such: nothing was made.
                demand(done is False, f"{name} of {path} was done for a user who may not")


_ODD = """
import os, socket
os.makedirs("/workspace/odd", exist_ok=True)
os.chdir("/workspace/odd")
os.mkfifo("fifo")
line = socket.socket(socket.AF_UNIX); line.bind("socket")
with open("sparse", "wb") as file: file.truncate(1 << 40)
open("n" * 255, "w").close()
open(b"\\xff\\xfe not UTF-8 \\x80", "w").close()
open("line\\nbreak \\x1b[31m", "w").close()
os.symlink("/dev/zero", "zero")
os.symlink("/dev/tty", "tty")
os.symlink("/proc/kmsg", "kmsg")
deep = "."
for level in range(900): deep += "/d"
os.makedirs(deep, exist_ok=True)
print(len(os.listdir(".")))
"""


async def odd_files(arena: Arena) -> None:
    host = arena.host
    async with arena.fresh() as session:
        made = (await arena.py(_ODD, USER, session)).text
        demand(made == "10", f"the files could not be made: {made}")
        for name in ("fifo", "socket", "zero", "tty", "kmsg"):
            for verb in ("read", "write"):
                try:
                    async with asyncio.timeout(_STEP_S):
                        await VERBS[verb](host, session, USER, f"odd/{name}")
                except SandlotError:
                    continue
                except TimeoutError:
                    raise Escaped(f"{verb} of {name} does not end") from None
                if verb == "read":
                    raise Escaped(f"{name} was opened and read")
        async with asyncio.timeout(_STEP_S):
            size = (await host.stat_file(FileStat(session, "odd/sparse"))).size_bytes
            piece = await read_all(host, FileRead(session, "odd/sparse", offset=(1 << 40) - 5, length=100))
            found = await list_all(host, FileList(session, "odd", depth=1000))
        demand(size == 1 << 40 and piece == bytes(5), "a large file is not told as it is")
        demand(len(found) > 900, f"a deep tree was listed in part: {len(found)} entries")
        kinds = {info.name: info.kind for info in found}
        demand(kinds.get("fifo") == FileKind.OTHER, "a pipe was taken for a file")
        await host.remove_file(FileRemove(session, "odd", USER, recursive=True))


async def kernel_files(arena: Arena) -> None:
    """/proc and /dev do not exist for the host's hands: what is there does things when it is touched."""
    for path in (
        "/proc/version",
        "/proc/1/environ",
        "/proc/self/environ",
        "/dev/zero",
        "/dev/shm/x",
        "/proc/sys/kernel",
    ):
        for name in ("read", "list", "stat", "write", "make"):
            try:
                async with asyncio.timeout(_STEP_S):
                    await VERBS[name](arena.host, arena.session, ROOT, path)
            except SandlotError:
                continue
            raise Escaped(f"{name} of {path} was done")
