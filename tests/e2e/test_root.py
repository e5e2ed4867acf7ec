"""The root of a session: assembled from a template and a volume, and swapped under a living guest."""

import asyncio
import os
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from sandlot.config.settings import Settings
from sandlot.contracts import Guest, ProcessEnd, SpawnPlan, StartPlan, Volume
from sandlot.host.runtimes.keeper import Keeper
from sandlot.host.runtimes.namespaces import NamespacesRuntime
from sandlot.host.storage.canonical import CANONICAL_ID
from sandlot.host.storage.layers import LayersStorage
from sandlot.host.templates.store import TemplateStore
from sandlot.model import Stream, Unavailable
from tests.own_mounts import ours

pytestmark = pytest.mark.root
RANGE = 7


class Listener:
    """Hears one process to its end."""

    def __init__(self) -> None:
        self.output = bytearray()
        self.done: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self.first: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def on_started(self, pid: int) -> None:
        del pid

    def on_output(self, stream: Stream, offset: int, data: bytes) -> None:
        del stream, offset
        self.output += data
        if not self.first.done():
            self.first.set_result(None)

    def on_stdin_taken(self, offset: int, closed: bool) -> None:
        del offset, closed

    def on_failed(self, error: int, stage: str) -> None:
        self.done.set_exception(OSError(error, stage))

    def on_exit(self, ended: ProcessEnd) -> None:
        self.done.set_result(ended.code)

    def on_lost(self, reason: str) -> None:
        if not self.done.done():
            self.done.set_exception(Unavailable(reason))


@dataclass
class Place:
    """A guest on its first root, and what it takes to give it another."""

    data: Path
    runtime: NamespacesRuntime
    storage: LayersStorage
    plan: StartPlan
    guest: Guest
    spawned: int = 0

    def start(self, script: str, user: str = "root") -> Listener:
        self.spawned += 1
        listener = Listener()
        envs = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}
        self.guest.spawn(self.spawned, SpawnPlan(("sh", "-c", script), "/workspace", envs, user), listener)
        return listener

    async def run(self, script: str, user: str = "root") -> str:
        listener = self.start(script, user)
        async with asyncio.timeout(20):
            code = await listener.done
        assert code == 0, (script, code, bytes(listener.output))
        return listener.output.decode()

    async def swap(self, volume: Volume) -> None:
        """The guest keeps its name, whatever the volume is called."""
        await self.runtime.swap(replace(self.plan, volume=replace(volume, name=self.plan.volume.name)))


@pytest.fixture
async def place(settings: Settings) -> AsyncIterator[Place]:
    (settings.data / "run").mkdir()
    keeper = Keeper(settings.data, settings.keeper)
    await keeper.open()
    runtime, storage = NamespacesRuntime(keeper, settings.data), LayersStorage(settings.data)
    await storage.probe()
    template = await TemplateStore(settings.data).find("builtin")
    plan = StartPlan(await storage.create("first"), Path(template.path), RANGE)
    guest = await runtime.start(plan, lambda _reason: None)
    yield Place(settings.data, runtime, storage, plan, guest)
    await runtime.stop("first")
    await keeper.close()


def upper(volume: Volume) -> Path:
    return volume.path / "u"


async def test_the_root_of_a_living_guest_is_swapped(place: Place) -> None:
    mounts = ours(place.data)
    await place.run("echo one > /workspace/file; echo changed > /etc/motd; rm /etc/hostname")
    waiting = place.start("cd /; echo up; while [ ! -e workspace/go ]; do sleep 0.05; done; cat workspace/go; pwd")
    await waiting.first
    second = await place.storage.create("second")
    await place.swap(second)
    # New commands and those that already run stand on the new root, pid 1 too.
    assert await place.run("ls /workspace; cat /etc/hostname") == "sandbox\n"
    assert await place.run("echo swapped > /workspace/go; ls /proc/self/fd | wc -l; ls -d /dev/pts /dev/shm") != ""
    async with asyncio.timeout(20):
        assert await waiting.done == 0
    assert waiting.output == b"up\nswapped\n/\n"
    assert (upper(second) / "workspace" / "go").read_text() == "swapped\n"
    # And back: what was written before is all there.
    await place.swap(place.plan.volume)
    assert await place.run("cat /workspace/file /etc/motd; test ! -e /etc/hostname") == "one\nchanged\n"
    assert ours(place.data) == mounts, "the host's mount table changed"
    there = f"1 2 0:3 / /mnt rw - overlay sandlot rw\n4 5 0:6 / {place.data}/x rw - tmpfs none rw\n"
    assert len(ours(place.data, f"{there}7 8 0:9 / /else rw - tmpfs none rw\n")) == 2, "it would be seen"


async def test_an_older_upper_becomes_a_layer_below_a_new_one(place: Place) -> None:
    await place.run("mkdir -p /workspace/dir/sub; echo old > /workspace/dir/a; ln /workspace/dir/a /workspace/dir/b")
    second = await place.storage.create("second")
    await place.swap(replace(second, layers=(upper(place.plan.volume),)))
    assert await place.run("cat /workspace/dir/a") == "old\n"
    # Directories of an earlier layer can be renamed, modes changed without a copy of the data.
    await place.run("echo new > /workspace/dir/a; chmod 600 /workspace/dir/b; mv /workspace/dir /workspace/moved")
    assert await place.run("cat /workspace/moved/a; stat -c %a /workspace/moved/b") == "new\n600\n"
    assert (upper(place.plan.volume) / "workspace" / "dir" / "a").read_text() == "old\n"
    for number in range(20):
        third = await place.storage.create(f"layer{number}")
        await place.swap(replace(third, layers=(upper(second), upper(place.plan.volume))))
        assert await place.run("cat /workspace/moved/a") == "new\n"


async def test_files_on_disk_carry_the_canonical_ids(place: Place) -> None:
    await place.run("echo r > /workspace/by-root; echo u > /tmp/by-user; chown user /tmp/by-user")
    owners = {
        name: (upper(place.plan.volume) / name).stat().st_uid - CANONICAL_ID
        for name in ("workspace/by-root", "tmp/by-user")
    }
    assert owners == {"workspace/by-root": 0, "tmp/by-user": 1000}
    assert await place.run("stat -c %u /workspace/by-root /tmp/by-user /usr/bin/env /") == "0\n1000\n0\n0\n"


async def test_a_volume_that_is_missing_is_an_error_and_the_guest_lives_on(place: Place) -> None:
    with pytest.raises(Unavailable, match="open a layer"):
        await place.swap(Volume("gone", place.plan.volume.path.parent / "gone"))
    assert await place.run("echo alive") == "alive\n"


async def test_a_link_in_place_of_a_mount_point_does_not_lead_out(place: Place) -> None:
    second = await place.storage.create("second")
    os.symlink("/tmp", upper(second) / "proc")  # noqa: PTH211 - a hostile volume
    with pytest.raises(Unavailable):
        await place.swap(second)
    assert await place.run("echo alive; ls /proc/self/stat") == "alive\n/proc/self/stat\n"


async def test_a_read_only_volume_is_refused_not_served(place: Place) -> None:
    second = await place.storage.create("second")
    os.chown(upper(second), 0, 0)  # root of the session may not write what it does not own
    with pytest.raises(Unavailable, match="test write"):
        await place.swap(second)
    assert await place.run("echo alive") == "alive\n"


async def test_no_path_of_the_host_shows_inside(place: Place, settings: Settings) -> None:
    shown = await place.run("cat /proc/self/mountinfo /proc/1/mountinfo /proc/1/cmdline | tr '\\0' ' '")
    assert str(settings.data) not in shown
    assert "upperdir=/first/u" in shown, "the storage's own names of layers, nothing above them"
