"""A limit of disk space, where a storage has it: at most 1 MiB more than was allowed, however it is written."""

import asyncio

import pytest

from sandlot.host.service import SandboxHostService
from sandlot.model import CallRequest, Capability, Resources, RollbackRequest, SessionSpec, TurnRequest
from tests.conftest import Ran, run
from tests.e2e.standstill import PATIENCE_S

pytestmark = [pytest.mark.root, pytest.mark.timeout(1800)]

MIB = 1 << 20
FULL = 3
SMALL = """
import os, sys
limit, count = int(sys.argv[1]), int(sys.argv[2])
written = 0
os.makedirs(sys.argv[3], exist_ok=True)
try:
    for number in range(count):
        size = 1000 + number * 997 % 7000
        folder = f"{sys.argv[3]}/{number // 500}"
        if number % 500 == 0: os.mkdir(folder)
        with open(f"{folder}/{number}", "wb", buffering=0) as file:
            file.write(os.urandom(size))
            written += size
        if number % 200 == 0: os.system("sync -f .")
    os.system("sync -f .")
except OSError as error:
    print(written, number, error.errno)
    sys.exit(3)
print(written, number, 0)
"""


async def python(host: SandboxHostService, script: str, *args: str) -> Ran:
    return await run(host, CallRequest("s", ("python3", "-c", script, *args)))


async def sh(host: SandboxHostService, script: str) -> str:
    ran = await run(host, CallRequest("s", ("sh", "-ec", script)))
    assert ran.exit_code == 0, ran
    return ran.stdout.decode()


@pytest.fixture
async def limited(host: SandboxHostService, storage: str) -> SandboxHostService:
    if Capability.LIMIT_DISK not in await host.capabilities_of("auto", storage):
        pytest.skip(f"{storage} has no limit of disk space, and says so")
    return host


async def stored(host: SandboxHostService) -> int:
    """Bytes in files, as the session sees them."""
    script = "sync -f .; find . -type f -printf '%s\\n' | awk '{sum += $1} END {print sum + 0}'"
    return int(await sh(host, script))


@pytest.mark.every_storage
async def test_one_big_file_stops_at_the_limit(limited: SandboxHostService) -> None:
    limit = 64 * MIB
    await limited.create(SessionSpec(session_id="s", resources=Resources(disk_bytes=limit)))
    for way in ("head -c 200M /dev/urandom > a", "dd if=/dev/urandom of=b bs=4k count=50000 conv=fsync"):
        ran = await run(limited, CallRequest("s", ("sh", "-c", way)))
        assert ran.exit_code != 0, f"{way}: nothing was refused"
        assert limit * 0.6 <= await stored(limited) <= limit + MIB, way
    assert await sh(limited, "rm -f a b; sync -f .; echo room > a; cat a") == "room\n"


@pytest.mark.every_storage
async def test_many_small_files_stop_at_the_limit(limited: SandboxHostService, pytestconfig: pytest.Config) -> None:
    count, limit = (100_000, 256 * MIB) if pytestconfig.getoption("--all-storages") else (6000, 16 * MIB)
    await limited.create(SessionSpec(session_id="s", resources=Resources(disk_bytes=limit)))
    ran = await python(limited, SMALL, str(limit), str(count), "small")
    assert ran.exit_code == FULL, f"all of them were taken: {ran}"
    assert limit * 0.3 <= await stored(limited) <= limit + MIB, ran
    await sh(limited, "rm -r small; sync -f .; echo room > a")


@pytest.mark.every_storage(slow=True)
async def test_a_session_at_its_limit_goes_back(limited: SandboxHostService) -> None:
    limit = 64 * MIB
    await limited.create(SessionSpec(session_id="s", resources=Resources(disk_bytes=limit)))
    await sh(limited, "echo begun > a")
    first = (await limited.turn_complete(TurnRequest("s"))).snapshot
    assert first
    for _ in range(3):
        ran = await run(limited, CallRequest("s", ("sh", "-c", "head -c 200M /dev/urandom > big; sync -f .")))
        assert await stored(limited) <= limit + MIB, ran
        await limited.rollback(RollbackRequest("s", first))
        assert await sh(limited, "ls; cat a") == "a\nbegun\n"
        async with asyncio.timeout(PATIENCE_S):  # what was given up counts a moment longer where history counts
            while (await run(limited, CallRequest("s", ("sh", "-c", "echo more > b")))).exit_code:  # noqa: ASYNC110
                await asyncio.sleep(0.1)
        assert await sh(limited, "echo more > b; cat b; rm b") == "more\n", "it cannot be written"
    ran = await python(limited, SMALL, str(limit), "30000", "small")
    assert ran.exit_code == FULL, ran
    assert await stored(limited) <= limit + MIB, ran
