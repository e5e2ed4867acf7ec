"""Trees that are too large, too wide or too deep: the host works through them in bounded steps and bounded memory."""

import asyncio
import resource
import secrets
import time
from collections.abc import Awaitable
from pathlib import Path
from typing import TypeVar

import pytest

from sandlot.host.service import SandboxHostService
from sandlot.model import FileKind, FileList, FileNotFound, FileRemove, LimitReached
from tests.security.door import Door
from tests.security.stage import Stage

pytestmark = [pytest.mark.root, pytest.mark.timeout(120)]

MIB = 1 << 20
ENTRIES = 100_000
LEVELS = 2_000
FOLDERS = 20_000
_T = TypeVar("_T")


@pytest.fixture(scope="module")
def door(stage: Stage) -> Door:
    return Door(stage, stage.create())


@pytest.fixture
def place(door: Door) -> str:
    path = f"/workspace/{secrets.token_hex(6)}"
    door.shell(f"mkdir {path}")
    return path


def script(door: Door, text: str) -> None:
    ran = door.stage.begin_script(door.session, text, "user").result()
    assert ran.exit_code == 0, ran


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


async def list_in_batches(host: SandboxHostService, request: FileList) -> tuple[int, int, int]:
    """How many entries, the largest batch, and how much memory it took at most."""
    before = resident_bytes()
    count = largest = peak = 0
    async with host.list_files(request) as batches:
        async for batch in batches:
            count += len(batch)
            largest = max(largest, len(batch))
            peak = max(peak, resident_bytes() - before)
    return count, largest, peak


async def slowest_turn(work: Awaitable[_T]) -> tuple[_T, float]:
    """How long the loop of the engine was away at most, meanwhile."""
    slowest = 0.0
    task = asyncio.ensure_future(work)
    while not task.done():
        began = time.monotonic()
        await asyncio.sleep(0.001)
        slowest = max(slowest, time.monotonic() - began)
    return await task, slowest


def test_a_directory_of_a_hundred_thousand(door: Door, place: str) -> None:
    script(door, f"import os\nfor n in range({ENTRIES}): os.close(os.open(f'{place}/{{n:x}}', os.O_CREAT))")
    for depth in (1, 3):
        work = list_in_batches(door.host, FileList(door.session, place, depth=depth))
        (count, largest, peak), away_s = door.stage.wait(slowest_turn(work))
        assert (count, largest) == (ENTRIES, 1000)
        assert peak < 32 * MIB
        assert away_s < 0.5
    before = resident_bytes()
    removing = slowest_turn(door.host.remove_file(FileRemove(door.session, place, recursive=True)))
    _none, away_s = door.stage.wait(removing)
    assert resident_bytes() - before < 32 * MIB
    assert away_s < 0.5
    with pytest.raises(FileNotFound):
        door.stat(place)


def test_twenty_thousand_directories_in_one(door: Door, place: str) -> None:
    script(door, f"import os\nfor n in range({FOLDERS}): os.mkdir(f'{place}/{{n}}')")
    began = time.monotonic()
    assert len(door.list(place, depth=5)) == FOLDERS
    assert time.monotonic() - began < 10
    began = time.monotonic()
    door.remove(place, recursive=True)
    assert time.monotonic() - began < 25
    with pytest.raises(FileNotFound):
        door.stat(place)


def test_two_thousand_levels(door: Door, place: str) -> None:
    script(
        door,
        f"import os\nos.chdir('{place}')\nfor n in range({LEVELS}):\n"
        "    os.mkdir('d'); open('f', 'w').close(); os.chdir('d')",
    )
    found = door.list(place, depth=1024)
    assert len(found) == 2 * 1024
    assert max(info.path.count("/") for info in found) == place.count("/") + 1024
    middle = place + "/d" * 1000
    assert len(door.list(middle, depth=1024)) == 2 * 1000
    assert door.stat(middle).kind is FileKind.DIRECTORY
    door.remove(place, recursive=True)
    with pytest.raises(FileNotFound):
        door.stat(place)


def test_deeper_than_any_path_can_say(door: Door, place: str) -> None:
    script(
        door,
        f"import os\nos.chdir('{place}')\nname = 'n' * 200\nfor n in range(300):\n"
        "    os.mkdir(name); os.mkdir('x'); os.chdir(name)",
    )
    door.remove(place, recursive=True)
    with pytest.raises(FileNotFound):
        door.stat(place)


def test_a_tree_with_directories_at_every_level(door: Door, place: str) -> None:
    """Wide and deep at once: what is still to be done stays small, and nothing is forgotten."""
    script(
        door,
        f"import os\nos.chdir('{place}')\nfor n in range(120):\n"
        "    for m in range(20): os.makedirs(f'e{m}/sub'); open(f'e{m}/f', 'w').close()\n"
        "    os.mkdir('d'); os.chdir('d')",
    )
    assert len(door.list(place, depth=200)) == 120 * (20 * 3 + 1)
    door.remove(place, recursive=True)
    with pytest.raises(FileNotFound):
        door.stat(place)


def test_a_listing_that_would_take_too_much_memory_is_refused(
    door: Door, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    script(door, f"import os\nfor n in range(3000): os.mkdir(f'{place}/{{n:0200}}')")
    monkeypatch.setattr("sandlot.host.inside._PENDING_BYTES_MAX", 500_000)
    assert len(door.list(place)) == 3000
    with pytest.raises(LimitReached):
        door.list(place, depth=2)
    door.remove(place, recursive=True)


def test_files_of_the_template_are_removed_as_well(door: Door) -> None:
    """Where directories of the template and of the session lie over each other, their numbers must stay the same."""
    root = door.as_user("root")
    before = {info.path for info in root.list("/usr/share", depth=2)}
    door.shell("mkdir -p /usr/share/doc/new/deep; touch /usr/share/doc/new/deep/file", "root")
    count = int(door.shell("find /usr/share/doc -mindepth 1 | wc -l", "root"))
    assert count > 50
    assert len(root.list("/usr/share/doc", depth=20)) == count
    root.remove("/usr/share/doc", recursive=True)
    assert {info.path for info in root.list("/usr/share", depth=2)} == {
        path for path in before if not (path + "/").startswith("/usr/share/doc/")
    }
