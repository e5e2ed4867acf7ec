"""Sessions that sleep: their processes are on disk with their memory, and go on from there."""

import asyncio
import os
import shutil
import signal
from pathlib import Path

import pytest

from sandlot import Client, Sandbox
from sandlot.config.settings import Settings, load
from sandlot.host import failpoints
from sandlot.host.service import SandboxHostService
from sandlot.model import (
    CallOutput,
    CallRequest,
    CallState,
    CapabilityNotSupported,
    ForkRequest,
    InvalidState,
    PauseRequest,
    RollbackRequest,
    SandlotError,
    SessionPaused,
    SessionSpec,
    SessionState,
    SnapshotRequest,
    TurnRequest,
)
from sandlot.wiring.embedded import build
from tests.conftest import clean_up, collect, run
from tests.e2e.test_gvisor import NO_RUNSC, is_keeper, processes, read

pytestmark = [pytest.mark.root, pytest.mark.skipif(shutil.which("runsc") is None, reason=NO_RUNSC)]
SOON_S = 60
KILLED = 9
MIB = 1 << 20
# Holds memory that cannot be told from a file, an open file, and says when what it holds is not what it wrote.
COUNTS = """
import random, sys, time
size = int(sys.argv[1]) << 20
held = bytearray(random.Random(7).randbytes(1 << 20) * (size >> 20))
log = open("/workspace/count", "w")
for number in range(1, 100000):
    assert held[number * 4096 % size] == random.Random(7).randbytes(1 << 20)[number * 4096 % (1 << 20)]
    log.write(f"{number}\\n")
    log.flush()
    print(number, flush=True)
    time.sleep(0.02)
"""
# A file, a mapping and a directory without a name; a listener that an epoll may watch. The rest is kept.
UNKEEPABLE = """
import mmap, os, select, socket, time
file = open("gone", "w+")
file.write("x" * 4096)
file.flush()
mapping = mmap.mmap(file.fileno(), 4096)
os.mkdir("there")
os.chdir("there")
os.rmdir("../there")
os.unlink("../gone")
listener, epoll, pair = socket.create_server(("127.0.0.1", 0)), select.epoll(), socket.socketpair()
datagrams, shm = socket.socket(type=socket.SOCK_DGRAM), open("/dev/shm/gone", "w")
datagrams.bind(("127.0.0.1", 0))
os.unlink("/dev/shm/gone")
print("ready", flush=True)
time.sleep(99)
"""


@pytest.fixture
def settings(data_dir: Path) -> Settings:
    known = {"SANDLOT_DATA_DIR": str(data_dir), "SANDLOT_STORAGE": "", "SANDLOT_RUNTIME": "gvisor"}
    return load({**os.environ, **known})


async def count(host: SandboxHostService, megabytes: int = 1, session_id: str = "s") -> None:
    """Begin to, in a call that stays."""
    request = CallRequest(session_id, ("python3", "-c", COUNTS, str(megabytes)), call_id="count", detach=True)
    async with asyncio.timeout(SOON_S), host.call(request) as call:
        async for event in call:
            if isinstance(event, CallOutput):
                return


async def counted(host: SandboxHostService, session_id: str = "s") -> int:
    lines = (await read(host, session_id, "count")).split()
    assert lines == [str(number) for number in range(1, len(lines) + 1)], "a number is missing, or there twice"
    return len(lines)


async def until_counting(host: SandboxHostService, session_id: str = "s") -> int:
    """More than before: how many."""
    before = await counted(host, session_id)
    async with asyncio.timeout(SOON_S):
        while (now := await counted(host, session_id)) <= before:  # noqa: ASYNC110 - another kernel sets no event
            await asyncio.sleep(0.02)
    return now


def sandboxes(data: Path) -> int:
    """How many processes of runsc belong to this data directory."""
    found = 0
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                found += (
                    str(data).encode() in (entry / "cmdline").read_bytes()
                    and b"runsc" in (entry / "cmdline").read_bytes()
                )
            except OSError:
                continue
    return found


async def test_a_program_with_memory_and_an_open_file_goes_on(settings: Settings) -> None:
    """Through another engine and another keeper, with its call, its input and all of its output."""
    async with build(settings) as host:
        await host.create(SessionSpec(session_id="s"))
        await count(host, 100)
        async with host.call(CallRequest("s", ("cat",), call_id="cat", stdin=True, detach=True)) as call:
            await call.write_stdin(b"before ")
            before = await counted(host)
            asleep = await host.pause(PauseRequest("s", memory=True))
            assert (asleep.state, asleep.sleeps) == (SessionState.PAUSED, True)
            assert sandboxes(settings.data) == 0, "its memory is free"
            image = sum(file.stat().st_size for file in (settings.data / "memory").rglob("*.img"))
            assert ((await host.get("s")).space_used or 0) >= image >= MIB, "and its disk is counted"
            with pytest.raises(SessionPaused):
                await run(host, CallRequest("s", ("true",)))
            assert (await host.turn_complete(TurnRequest("s"))).snapshot, "a snapshot needs no processes"
            written = asyncio.create_task(call.write_stdin(b"meanwhile "))
            await host.pause(PauseRequest("s", memory=True))  # it sleeps already
            awake = await host.resume("s")
            assert (awake.state, awake.sleeps) == (SessionState.ACTIVE, False)
            await written
        assert await until_counting(host) > before
        assert not list((settings.data / "memory").iterdir()), "nobody needs the image any more"
        await host.pause(PauseRequest("s"))
        await host.pause(PauseRequest("s", memory=True))  # deeper
    keeper = [int(e.name) for e in Path("/proc").iterdir() if e.name.isdigit() and is_keeper(e, settings.data)]
    for pid in keeper:  # none is needed to sleep
        os.kill(pid, signal.SIGKILL)
    async with build(settings) as host:
        assert (await host.get("s")).sleeps
        await host.resume("s")
        number = await until_counting(host)
        async with host.attach("s", "cat") as call:
            await call.write_stdin(b"after")
            await call.close_stdin()
            assert (await collect(call)).stdout == b"before meanwhile after"
        async with host.attach("s", "count") as call:
            await call.signal(signal.SIGKILL)
            lines = (await collect(call)).stdout.split()
        assert lines == [str(each).encode() for each in range(1, len(lines) + 1)]
        assert len(lines) >= number, "no line was lost"
        await clean_up(host)
    assert not list((settings.data / "memory").iterdir())


async def test_a_snapshot_with_memory_brings_processes_back_and_into_forks(
    host: SandboxHostService, settings: Settings
) -> None:
    await host.create(SessionSpec(session_id="s"))
    await count(host, 100)
    assert (await host.create_snapshot(SnapshotRequest("s", "m", memory=True))).memory
    assert (await host.get("s")).state is SessionState.ACTIVE
    after = await until_counting(host)
    (told,) = await host.list_snapshots("s")
    image = sum(file.stat().st_size for file in (settings.data / "memory").rglob("*.img"))
    assert told.memory
    assert (told.space_bytes or 0) >= image >= MIB
    forks = await host.fork(ForkRequest("s", "m", count=2, memory=True))
    for fork in forks:
        assert await until_counting(host, fork.session_id) > 0
        assert await host.calls(fork.session_id) == [], "a call is its session's"
        ran = await run(host, CallRequest(fork.session_id, ("pgrep", "-c", "python3")))
        assert ran.stdout == b"1\n"
    (plain,) = await host.fork(ForkRequest("s", "m"))
    assert (await run(host, CallRequest(plain.session_id, ("pgrep", "python3")))).exit_code == 1
    await run(host, CallRequest("s", ("touch", "new")))
    assert await until_counting(host) > after, "it never knew of the others"
    await host.rollback(RollbackRequest("s", "m"))
    assert await until_counting(host) < after + 50, "it went back"
    assert [call.state for call in await host.calls("s")] == [CallState.ENDED], "its call ended with the rollback"
    ran = await run(host, CallRequest("s", ("sh", "-c", "pgrep -c python3; ls")))
    assert ran.stdout == b"1\ncount\n"
    await host.create_snapshot(SnapshotRequest("s", "files"))
    with pytest.raises(InvalidState, match="without memory"):
        await host.fork(ForkRequest("s", "files", memory=True))
    await host.delete_snapshot("s", "m")
    assert not list((settings.data / "memory").iterdir())


def die_at(settings: Settings, place: str) -> int:
    """In a process of its own."""

    async def live() -> None:
        async with build(settings) as host:
            if place.startswith(("rollback:", "restore: replaced")):
                failpoints.arm(place, lambda: os._exit(KILLED))
                await host.rollback(RollbackRequest("s", "m"))
            if place.startswith(("checkpoint:", "snapshot:")):
                failpoints.arm(place, lambda: os._exit(KILLED))
            if place.startswith("snapshot:"):
                await host.create_snapshot(SnapshotRequest("s", "n", memory=True))
            await host.pause(PauseRequest("s", memory=True))
            failpoints.arm(place, lambda: os._exit(KILLED))
            await host.resume("s")

    if child := os.fork():
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    try:
        asyncio.run(live())
    finally:
        os._exit(1)


async def begin_to_count(settings: Settings) -> None:
    async with build(settings) as host:
        await host.create(SessionSpec(session_id="s"))
        await count(host)
        await host.create_snapshot(SnapshotRequest("s", "m", memory=True))


async def look_after(settings: Settings, place: str) -> None:
    async with build(settings) as host:
        asleep = (await host.get("s")).sleeps
        assert asleep is (place in ("checkpoint: written", "checkpoint: recorded")), place
        snapshots = [snapshot.name for snapshot in await host.list_snapshots("s")]
        assert snapshots == (["m", "n"] if place == "snapshot: recorded" else ["m"]), place
        assert len(list((settings.data / "memory").iterdir())) == asleep + len(snapshots), place
        await host.resume("s")
        if place == "rollback: layer made":  # what runs has ended, and nothing has come back yet
            await host.rollback(RollbackRequest("s", "m"))
        await until_counting(host)


async def leave(settings: Settings) -> None:
    async with build(settings) as host:
        await clean_up(host)


PLACES = (
    *(name for name in failpoints.NAMES if name.startswith(("checkpoint:", "restore:"))),
    *("rollback: layer made", "rollback: recorded", "snapshot: layer made", "snapshot: recorded"),
)


def test_the_next_engine_finds_it_asleep_or_awake_and_it_counts_on(settings: Settings) -> None:
    """Killed at every place, one after the other; the program never notices."""
    asyncio.run(begin_to_count(settings))
    for place in PLACES:
        assert die_at(settings, place) == KILLED, place
        asyncio.run(look_after(settings, place))
    asyncio.run(leave(settings))
    assert not list((settings.data / "memory").iterdir())


async def test_what_cannot_be_kept_is_told_and_files_are_never_lost(
    host: SandboxHostService, settings: Settings
) -> None:
    await host.create(SessionSpec(session_id="plain", runtime="namespaces"))
    with pytest.raises(CapabilityNotSupported) as refused:
        await host.pause(PauseRequest("plain", memory=True))
    assert "gvisor" in (refused.value.next_step or "")
    assert (await host.get("plain")).state is SessionState.ACTIVE
    await host.create(SessionSpec(session_id="s"))
    async with host.call(CallRequest("s", ("python3", "-c", UNKEEPABLE), detach=True)) as call:
        async for event in call:
            if isinstance(event, CallOutput):
                break
        with pytest.raises(InvalidState, match="uses 4 of them"):
            await host.pause(PauseRequest("s", memory=True))
        await call.signal(signal.SIGTERM)  # all is as before
        assert (await call.result()).signal == signal.SIGTERM
    # What turns out halfway costs what runs, and no file.
    await run(host, CallRequest("s", ("sh", "-c", "echo kept > a; sleep 1000 > /dev/null 2>&1 &")))
    failpoints.arm("checkpoint: begun", lambda: os.kill(processes(settings.data)["sandbox"], signal.SIGKILL))
    try:
        with pytest.raises(SandlotError):
            await host.pause(PauseRequest("s", memory=True))
    finally:
        failpoints.disarm()
    assert (await host.get("s")).state is SessionState.FAILED
    await host.recover("s")
    assert await read(host, "s", "a") == "kept\n"
    assert not list((settings.data / "memory").iterdir())


def test_a_program_pauses_with_memory_by_the_sdk(settings: Settings) -> None:
    with Client(data_dir=settings.data) as client, Sandbox.create(runtime="gvisor", client=client) as sandbox:
        sandbox.commands.run("echo here > /dev/shm/note; sleep 1000 > /dev/null 2>&1 &")
        assert sandbox.pause(memory=True).sleeps
        sandbox.resume()
        assert sandbox.commands.run("cat /dev/shm/note; pgrep -c sleep").stdout == "here\n1\n"
