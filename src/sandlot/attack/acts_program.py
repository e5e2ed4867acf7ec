"""The program `sandlot` itself, in processes of its own: what it copies out, and what is left when it is killed."""

import asyncio
import json
import random
import shutil
import signal
import stat
import sys
import tempfile
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

from sandlot.attack.arena import Arena
from sandlot.attack.verdicts import Escaped, Leaked, demand

_PROGRAM_S = 60.0
_KILLS = 6


class Program:
    """On a data directory of its own: the engine of the arena holds the other one."""

    def __init__(self, data: Path) -> None:
        self.data = data

    async def start(self, *words: str) -> asyncio.subprocess.Process:
        command = (sys.executable, "-m", "sandlot", "--data-dir", str(self.data), "--wait", "30", *words)
        pipe = asyncio.subprocess.PIPE
        return await asyncio.create_subprocess_exec(
            *command, stdin=asyncio.subprocess.DEVNULL, stdout=pipe, stderr=pipe
        )

    async def run(self, *words: str) -> tuple[int, str]:
        process = await self.start(*words)
        async with asyncio.timeout(_PROGRAM_S):
            said, _errors = await process.communicate()
        return process.returncode or 0, said.decode(errors="replace").strip()


@asynccontextmanager
async def _program(arena: Arena) -> AsyncGenerator[Program]:
    data = Path(await asyncio.to_thread(tempfile.mkdtemp, prefix=".sandlot-attack-", dir=arena.data.parent))
    templates = arena.data / "templates"
    program = Program(data)
    try:
        await asyncio.to_thread((data / "templates").symlink_to, await asyncio.to_thread(templates.resolve))
        yield program
    finally:
        await program.run("kill", "--all", "--yes")
        await asyncio.to_thread(shutil.rmtree, data, ignore_errors=True)


_TREE = """
import os, socket
os.makedirs("/workspace/tree/sub"); os.chdir("/workspace/tree")
outside = "%outside%"
os.symlink(outside, "link"); os.symlink(outside + "/secret", "file"); os.symlink("../" * 20 + outside[1:], "climb")
os.mkfifo("fifo"); socket.socket(socket.AF_UNIX).bind("socket")
open("setuid", "w").close(); os.chmod("setuid", 0o6755)
open(b"line\\n\\xff", "w").close()
open("sub/f", "w").write("mine")
"""
_THROUGH = "cd /workspace/tree && rm link && mkdir -p link/sub && echo evil >link/f && echo evil >link/sub/f"


async def copy_out(arena: Arena) -> None:
    """Twice to the same place: what was a link the first time is a directory the second time."""
    sentinel = arena.bait.sentinel
    async with _program(arena) as program:
        _code, session = await program.run("create")
        tree = _TREE.replace("%outside%", str(sentinel.folder))
        code, _said = await program.run("exec", session, "--", "python3", "-c", tree)
        demand(code == 0, "the hostile tree could not be made")
        target = program.data / "copied"
        await program.run("cp", f"{session}:/workspace/tree", str(target))
        await program.run("exec", session, "--", "sh", "-c", _THROUGH)
        await program.run("cp", f"{session}:/workspace/tree", str(target))
        demand(await asyncio.to_thread(target.is_dir), "nothing was copied, so nothing is known")
        if wrong := await asyncio.to_thread(_wrong_copies, target, sentinel.secret):
            raise Escaped(f"copied out: {', '.join(wrong)}")


def _wrong_copies(target: Path, secret: bytes) -> list[str]:
    wrong: list[str] = []
    for path in target.rglob("*"):
        mode = path.lstat().st_mode
        if stat.S_ISREG(mode):
            if mode & (stat.S_ISUID | stat.S_ISGID):
                wrong.append(f"{path.name} with a setuid bit")
            if secret in path.read_bytes():
                wrong.append(f"{path.name} with a secret of the machine")
        elif not stat.S_ISDIR(mode) and not stat.S_ISLNK(mode):
            wrong.append(f"{path.name}, which is no file")
    return wrong


async def crashes(arena: Arena) -> None:
    """The soak test kills at every named place, again and again; a few kills show that it holds on this machine too."""
    async with _program(arena) as program:
        code, kept = await program.run("create", "--label", "kept=yes")
        demand(code == 0, "no session could be made")
        await program.run("exec", kept, "--", "sh", "-c", "echo kept >kept")
        await program.run("snapshot", kept, "first")
        verbs = (("create",), ("run", "--", "true"), ("turn", kept), ("rollback", kept, "first"), ("fork", kept))
        chance = random.Random()
        for number in range(_KILLS):
            process = await program.start(*verbs[number % len(verbs)])
            try:
                async with asyncio.timeout(chance.uniform(0.1, 0.9)):
                    await process.wait()
            except TimeoutError:
                process.send_signal(signal.SIGKILL)
            await process.communicate()
        code, said = await program.run("ls", "--json")
        demand(code == 0, f"after the kills nothing starts: {said[:200]}")
        states = {one["session_id"]: one["state"] for one in json.loads(said)["sessions"]}
        demand(states.get(kept) == "active", f"a session that was acknowledged is {states.get(kept, 'gone')}")
        demand(set(states.values()) == {"active"}, f"sessions are left half done: {sorted(set(states.values()))}")
        code, said = await program.run("exec", kept, "--", "cat", "kept")
        demand(said == "kept", "a file that was acknowledged is gone")
        await program.run("kill", "--all", "--yes")
        if left := [path.name for path in await asyncio.to_thread(list, program.data.glob("volumes/*"))]:
            raise Leaked(f"volumes of sessions that are gone: {', '.join(left[:5])}")
