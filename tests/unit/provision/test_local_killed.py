"""A provisioner that is killed at any step leaves nothing that the next one does not know."""

import asyncio
import os
import signal
import sys
from pathlib import Path

import pytest

from sandlot.model import InstanceConfig, InstanceFilter, InstanceState, InvalidState
from sandlot.provision.holding import holders
from sandlot.provision.local import LocalProvisioner
from tests.unit.provision.test_local import IMAGES, left
from tests.waiting import until

# What changes something that others see, as the interpreter tells of it before it is done.
STEPS = {"open", "os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.posix_spawn", "fcntl.flock", "socket.bind"}
TRIED = 8  # of all steps, at equal distances; each was tried by hand
CONFIG = InstanceConfig("tidy", tags={"fleet": "f"}, request_id="r")


def provisioner(root: Path) -> LocalProvisioner:
    return LocalProvisioner(root, IMAGES, stop_s=20)


async def life(root: Path) -> None:
    """All verbs that change something."""
    one = provisioner(root)
    made = await one.launch(CONFIG)
    await one.stop(made.instance_id)
    await one.start(made.instance_id)
    await one.terminate(made.instance_id)


def live_until(root: Path, step: int) -> int:
    """In a process of its own, which is killed before this step. How many steps it has told of."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        count = 0

        def hook(name: str, _arguments: object) -> None:
            nonlocal count
            if name in STEPS:
                count += 1
                if count == step:
                    os.kill(os.getpid(), signal.SIGKILL)

        status = 1
        try:
            sys.addaudithook(hook)
            asyncio.run(life(root))
            os.write(writer, str(count).encode())
            status = 0
        finally:
            os._exit(status)
    os.close(writer)
    with os.fdopen(reader, "rb") as said:
        told = said.read()
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == (0 if told else -signal.SIGKILL)
    return int(told or 0)


async def look_after(root: Path, step: int) -> None:
    one = provisioner(root)
    listed = await one.list(InstanceFilter({"fleet": "f"}))
    known = [str(root / "instances" / found.instance_id) for found in listed]
    assert len(listed) <= 1, step
    # What has just been told to end may do so between two looks.
    assert await until(lambda: set(holders(str(root))) <= set(holders(*known)), 60), step
    for found in listed:
        assert found.state is not InstanceState.TERMINATED
        if found.state is not InstanceState.TERMINATING:
            again = await one.launch(CONFIG)
            assert again.instance_id == found.instance_id, step
            assert (await one.stop(again.instance_id)).state is InstanceState.STOPPED, step
        else:
            with pytest.raises(InvalidState):
                await one.launch(CONFIG)
        await one.terminate(found.instance_id)
    made = await one.launch(CONFIG)  # nothing of what was left is in the way
    await one.terminate(made.instance_id)
    assert left(root) == ([], []), step


@pytest.mark.timeout(300)
def test_killed_at_any_step_it_leaves_nothing_unknown(tmp_path: Path) -> None:
    total = live_until(tmp_path / "whole", -1)
    assert total > TRIED
    assert left(tmp_path / "whole") == ([], [])
    for number in range(TRIED):
        step = 1 + number * total // TRIED
        root = tmp_path / str(step)
        if live_until(root, step) == 0:
            asyncio.run(look_after(root, step))
