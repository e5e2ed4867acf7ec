"""A session that changes its files as fast as it can, under the hands of the host. The race that tries to lead out is a
case of `sandlot attack` (`src/sandlot/attack/races.py`)."""

import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress

import pytest

from sandlot.model import (
    SandlotError,
)
from tests.security.door import Door
from tests.security.stage import Stage

pytestmark = [pytest.mark.root, pytest.mark.timeout(120)]


@pytest.fixture
def door(stage: Stage) -> Iterator[Door]:
    session = stage.create()
    yield Door(stage, session)
    stage.wait(stage.host.destroy(session))


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
