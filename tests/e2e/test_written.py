"""What the host wrote into a session is there when every process that knew of it was killed."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from sandlot.config.settings import Settings, load
from sandlot.model import FileAppend, FileRead, FileWrite, SessionSpec, SessionState
from sandlot.wiring.embedded import build
from tests.conftest import clean_up

pytestmark = pytest.mark.root

SESSION = "written"
FILES = 20
WORDS = b"all of it\n"
REPOSITORY = Path(__file__).parents[2]


async def write_and_say_so(data: str) -> None:
    """The program of the process that is killed. A line stands for what was acknowledged."""

    async def content() -> AsyncIterator[bytes]:
        yield WORDS

    async with build(load({**os.environ, "SANDLOT_DATA_DIR": data})) as host:
        await host.create(SessionSpec(session_id=SESSION))
        print("keeper", host.keeper_pid, flush=True)
        for number in range(FILES):
            await host.write_file(FileWrite(SESSION, f"file-{number}"), content())
            await host.append_file(FileAppend(SESSION, f"file-{number}"), content())
            print("wrote", number, flush=True)
        await asyncio.sleep(600)


def acknowledged(data: Path) -> Iterator[int]:
    """The numbers of files; when they end, engine and keeper are dead, in the middle of the next file."""
    program = "import asyncio, sys; from tests.e2e.test_written import *; asyncio.run(write_and_say_so(sys.argv[1]))"
    engine = subprocess.Popen([sys.executable, "-c", program, data], stdout=subprocess.PIPE, cwd=REPOSITORY)
    try:
        assert engine.stdout
        keeper = int(engine.stdout.readline().split()[1])
        for line in engine.stdout:
            number = int(line.split()[1])
            yield number
            if number == FILES // 2:
                os.kill(keeper, signal.SIGKILL)
                engine.kill()
    finally:
        engine.kill()
        engine.communicate(timeout=30)


async def test_a_file_outlives_all_who_wrote_it(settings: Settings) -> None:
    written = list(acknowledged(settings.data))

    async with build(settings) as host:
        assert len(written) > FILES // 2
        if (await host.get(SESSION)).state is SessionState.FAILED:
            await host.recover(SESSION)
        for number in written:
            async with host.read_file(FileRead(SESSION, f"file-{number}")) as pieces:
                assert b"".join([piece async for piece in pieces]) == WORDS + WORDS
        await clean_up(host)
