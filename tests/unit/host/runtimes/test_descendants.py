"""What has no control group is stopped by signals, whatever it is doing at that moment."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

import pytest

from sandlot.host.runtimes.descendants import Descendants

PATIENCE_S = 30

# Its child opens a pipe before it executes anything, and waits there for someone who writes.
VFORKS = """
import os, sys
pipe, done = sys.argv[1:]
child = os.posix_spawn("/bin/true", ["true"], {}, file_actions=[(os.POSIX_SPAWN_OPEN, 5, pipe, os.O_RDONLY, 0)])
os.waitpid(child, 0)
open(done, "w").close()
"""


class Stage:
    def __init__(self, guest: int, place: Path) -> None:
        self.guest = guest
        self.descendants = Descendants(guest, place / "stopped")
        self.pipe, self.done = place / "pipe", place / "done"

    def below(self, pid: int) -> list[int]:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]

    def state(self, pid: int) -> str:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]

    async def vforking(self) -> tuple[int, int]:
        """Who waits in vfork, and the child that it waits for."""
        async with asyncio.timeout(PATIENCE_S):
            while True:
                with suppress(OSError, IndexError):
                    parent = self.below(self.guest)[0]
                    child = self.below(parent)[0]
                    if self.state(parent) == "D" and self.state(child) == "S":
                        return parent, child
                await asyncio.sleep(0.01)

    async def until_done(self) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while not self.done.exists():  # noqa: ASYNC110 - a file tells nobody
                await asyncio.sleep(0.01)


@pytest.fixture
async def stage(tmp_path: Path) -> AsyncIterator[Stage]:
    os.mkfifo(tmp_path / "pipe")
    shell = 'python=$0; "$python" -c "$@" & wait; sleep 600'
    guest = await asyncio.create_subprocess_exec(
        "sh", "-c", shell, sys.executable, VFORKS, tmp_path / "pipe", tmp_path / "done", start_new_session=True
    )
    try:
        yield Stage(guest.pid, tmp_path)
    finally:
        os.killpg(guest.pid, signal.SIGKILL)
        await guest.wait()


async def test_one_who_waits_in_vfork_stands_still(stage: Stage) -> None:
    parent, child = await stage.vforking()

    await stage.descendants.pause()

    assert (stage.state(parent), stage.state(child)) == ("D", "T")
    with stage.pipe.open("rb+", buffering=0):  # what it waited for has come, and nobody moves
        await asyncio.sleep(0.1)
        assert (stage.state(parent), stage.state(child)) == ("D", "T")
        assert not stage.done.exists()
        await stage.descendants.resume()
        await stage.until_done()


async def test_one_who_waits_in_vfork_can_be_ended(stage: Stage) -> None:
    parent, child = await stage.vforking()

    await stage.descendants.clear()

    assert not [pid for pid in (parent, child) if Path(f"/proc/{pid}/exe").exists()]
