"""What the storage `layers` does not do, shown. A test here that fails is good news: strike its lack from the list."""

import re
from pathlib import Path

import pytest

from sandlot.host.service import SandboxHostService
from sandlot.host.storage.layers import LayersStorage
from sandlot.model import CallRequest, SessionSpec, TurnRequest
from tests.conftest import run

pytestmark = pytest.mark.root

ROOT = Path(__file__).parents[2]
MIB = 1 << 20


async def sh(host: SandboxHostService, script: str) -> str:
    ran = await run(host, CallRequest("s", ("sh", "-ec", script)))
    assert ran.exit_code == 0, ran
    return ran.stdout.decode()


@pytest.fixture
async def world(host: SandboxHostService) -> SandboxHostService:
    await host.create(SessionSpec(session_id="s"))
    return host


async def close_turn(host: SandboxHostService) -> None:
    await host.turn_complete(TurnRequest("s"))


async def test_hard_links(world: SandboxHostService) -> None:
    await sh(world, "echo old > a; ln a b")
    assert await sh(world, "echo first > a; cat b") == "first\n", "within a turn they hold"
    await close_turn(world)
    assert await sh(world, "echo new > a; cat b") == "first\n"


async def test_inode_numbers(world: SandboxHostService) -> None:
    await sh(world, "echo old > a")
    await close_turn(world)
    before = await sh(world, "echo more >> a; stat -c %i a")
    await close_turn(world)
    assert await sh(world, "stat -c %i a") != before


LOOK = """python3 -c "
import mmap
with open('a', 'rb') as file, open('a', 'r+b') as other:
    seen = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
    other.write(b'%s')
    other.flush()
    print(seen[:3].decode())
"
"""


async def test_mapped_readers(world: SandboxHostService) -> None:
    await sh(world, "echo old > a")
    assert await sh(world, LOOK % "one") == "one\n", "within a turn it is seen"
    await close_turn(world)
    assert await sh(world, LOOK % "two") == "one\n"
    assert await sh(world, "cat a") == "two\n"


async def test_first_write(world: SandboxHostService) -> None:
    await sh(world, "head -c 8M /dev/urandom > a")
    await close_turn(world)
    await sh(world, "printf x >> a")
    await close_turn(world)
    last = (await world.list_snapshots("s"))[-1]
    assert last.space_bytes is not None
    assert last.space_bytes >= 8 * MIB


def used(data: Path) -> int:
    files = [path.lstat() for path in (data / "volumes").rglob("*")]
    return sum(found.st_blocks * 512 for found in files)


async def test_living_processes(world: SandboxHostService, data_dir: Path) -> None:
    await sh(world, "head -c 8M /dev/urandom > a")
    before = used(data_dir)
    await close_turn(world)
    assert used(data_dir) - before < MIB, "nothing is copied while nothing lives"
    async with world.call(CallRequest("s", ("sleep", "1000"), detach=True)) as stream:
        async for _started in stream:
            break
    await sh(world, "head -c 8M /dev/urandom > b")
    before = used(data_dir)
    await close_turn(world)
    assert used(data_dir) - before >= 8 * MIB


def test_the_list_the_page_and_the_tests_are_the_same() -> None:
    page = (ROOT / "docs/operating/storage.md").read_text()
    rows = dict(re.findall(r"^\| `([a-z-]+)` \| ([^|:,]+)", page, re.MULTILINE))
    shown = {name.removeprefix("test_").replace("_", "-") for name in globals() if name.startswith("test_")}
    assert rows.keys() == LayersStorage.lacks.keys() == shown - {"the-list-the-page-and-the-tests-are-the-same"}
    for name, text in LayersStorage.lacks.items():
        assert text.startswith(rows[name].strip()), name
