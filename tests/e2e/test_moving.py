"""Sessions on another storage, in one file, and out of it: the same files, turn by turn."""

import asyncio
import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from sandlot.config.settings import Settings
from sandlot.host import failpoints
from sandlot.host.service import SandboxHostService
from sandlot.model import (
    CallOutput,
    CallRequest,
    CallState,
    Capability,
    CapabilityNotSupported,
    DiffRequest,
    EventFilter,
    EventKind,
    ExportRequest,
    ForkRequest,
    ImportRequest,
    InvalidArgument,
    InvalidState,
    MoveProgress,
    MoveRequest,
    PauseRequest,
    Resources,
    RollbackRequest,
    SandlotError,
    SessionFilter,
    SessionSpec,
    SessionState,
    SnapshotRequest,
    ToolsInFlight,
    TurnRequest,
    Unavailable,
)
from tests.conftest import clean_up, run
from tests.e2e.test_comparing import EDITS
from tests.soak.shelf import SHELF, build_two

pytestmark = pytest.mark.root

ROOT = Path(__file__).parents[2]
# All that can be seen of the files of a session from inside, in one line.
LOOK = r"""
import hashlib, json, os, stat
told, links = {}, {}
for top in ("/workspace", "/opt", "/tmp", "/home", "/etc", "/srv"):
    for folder, dirs, files in os.walk(top):
        for name in [".", *dirs, *files]:
            path = os.path.join(folder, name)
            found = os.lstat(path)
            content = ""
            if stat.S_ISREG(found.st_mode):
                with open(path, "rb") as file: content = hashlib.md5(file.read()).hexdigest()
            elif stat.S_ISLNK(found.st_mode): content = os.readlink(path)
            attributes = {name: os.getxattr(path, name, follow_symlinks=False).hex()
                          for name in os.listxattr(path, follow_symlinks=False)}
            own = stat.S_ISREG(found.st_mode) and found.st_nlink > 1 and top == "/workspace"
            same = links.setdefault(found.st_ino, path) if own else ""
            size = found.st_size if stat.S_ISREG(found.st_mode) else 0
            told[os.fsencode(path).hex()] = [found.st_mode, found.st_uid, found.st_gid, size, found.st_mtime_ns,
                                             content, attributes, same]
print(json.dumps(told, sort_keys=True))
"""
# What a file can be beside its content.
SPECIAL = """
import os, socket, struct
os.makedirs("/workspace/special"); os.chdir("/workspace/special")
open("plain", "w").write("one"); os.link("plain", "second"); os.symlink("nowhere", "link"); os.mkfifo("pipe")
socket.socket(socket.AF_UNIX).bind("socket")
with open("sparse", "wb") as file:
    file.write(b"a"); file.seek(50 << 20); file.write(b"b"); file.truncate(80 << 20)
os.setxattr("plain", "user.note", b"\\x00\\xff"); os.setxattr("plain", "security.capability",
    struct.pack("<IIIII", 0x02000001, 1 << 10, 0, 0, 0))
os.chown("link", 7, 8, follow_symlinks=False)
odd = b"\\xff\\n"
os.makedirs(odd); open(odd + b"/" + b"n" * 255, "w").write("x"); os.utime(odd, ns=(1, 1234567890123456789))
os.mkdir("sticky"); os.chmod("sticky", 0o3777); os.mkdir("closed", 0o000)
open("setuid", "w").write("x"); os.chmod("setuid", 0o6755); os.utime("setuid", ns=(5, -5_000_000_001))
os.chmod("/etc/hostname", 0o600) if os.path.exists("/etc/hostname") else None
os.remove("/etc/motd") if os.path.exists("/etc/motd") else None
os.makedirs("/opt/new/deep"); os.rename("/srv", "/opt/srv"); open("/etc/passwd", "a").write("#\\n")
"""


@pytest.fixture
async def two(settings: Settings) -> AsyncIterator[SandboxHostService]:
    async with build_two(settings) as engine:
        yield engine
        failpoints.disarm()
        await clean_up(engine)


async def script(host: SandboxHostService, session_id: str, text: str, *words: str, user: str = "root") -> str:
    ran = await run(host, CallRequest(session_id, ("python3", "-c", text, *words), user=user))
    assert ran.exit_code == 0, ran
    return ran.stdout.decode()


async def sh(host: SandboxHostService, session_id: str, text: str) -> str:
    ran = await run(host, CallRequest(session_id, ("sh", "-ec", text)))
    assert ran.exit_code == 0, ran
    return ran.stdout.decode()


async def move(host: SandboxHostService, session_id: str, storage: str) -> list[MoveProgress]:
    async with host.move(MoveRequest(session_id, storage)) as progress:
        return [each async for each in progress]


async def export(host: SandboxHostService, session_id: str) -> bytes:
    async with host.export(ExportRequest(session_id)) as stream:
        return b"".join([piece async for piece in stream])


async def pieces(data: bytes, size: int = 10_000) -> AsyncIterator[bytes]:
    for at in range(0, len(data), size):
        yield data[at : at + size]


async def bring(host: SandboxHostService, data: bytes, session_id: str, storage: str = "auto") -> str:
    made = await host.import_session(ImportRequest(session_id, storage), pieces(data))
    assert made.state is SessionState.ACTIVE
    return made.session_id


async def look(host: SandboxHostService, session_id: str) -> dict[str, Any]:
    return json.loads(await script(host, session_id, LOOK))


async def history(host: SandboxHostService, session_id: str) -> list[object]:
    shots = [
        (shot.name, shot.kind, shot.turn, shot.parent, shot.created) for shot in await host.list_snapshots(session_id)
    ]
    turns = [
        (turn.number, turn.closed, turn.snapshot, [(call.call_id, call.argv, call.result) for call in turn.calls])
        for turn in await host.turns(session_id)
    ]
    return [*shots, *turns, (await host.get(session_id)).head]


async def diffs(host: SandboxHostService, session_id: str) -> list[object]:
    """Of every snapshot to what it grew from, and to the files as they are now."""
    found: list[object] = []
    shots = [*await host.list_snapshots(session_id)]
    pairs = [(shot.parent or shots[0].name, shot.name) for shot in shots] + [(shot.name, ".") for shot in shots]
    for old, new in pairs:
        async with host.diff(DiffRequest(session_id, old, new)) as batches:
            found.append([change async for batch in batches for change in batch])
    return found


async def look_everywhere(host: SandboxHostService, session_id: str) -> dict[str, Any]:
    """The files now, and at every snapshot."""
    seen = {"": await look(host, session_id)}
    for shot in await host.list_snapshots(session_id):
        (fork,) = await host.fork(ForkRequest(session_id, shot.name))
        seen[shot.name] = await look(host, fork.session_id)
        await host.destroy(fork.session_id)
    return seen


async def make_branches(host: SandboxHostService, seed: int, storage: str = "auto") -> str:
    """A session with a history of random edits, and branches in it."""
    rng = random.Random(seed)
    session_id = (await host.create(SessionSpec(storage=storage, labels={"task": "move"}))).session_id
    await script(host, session_id, SPECIAL)
    names: list[str] = []
    for number in range(5):
        await script(host, session_id, EDITS, f"{seed}-{number}", "25")
        if number == 2:
            names.append((await host.create_snapshot(SnapshotRequest(session_id, "mine"))).name)
        else:
            names.append((await host.turn_complete(TurnRequest(session_id))).snapshot or "")
        if number in (1, 3):
            await host.rollback(RollbackRequest(session_id, rng.choice(names), keep=True))
    await script(host, session_id, EDITS, f"{seed}-last", "10")
    return session_id


async def no_leftovers(host: SandboxHostService) -> None:
    async with asyncio.timeout(20):
        while (await host.examine()).findings:  # noqa: ASYNC110
            await asyncio.sleep(0.1)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("seed", [1])
async def test_a_moved_session_is_the_same(two: SandboxHostService, seed: int) -> None:
    session_id = await make_branches(two, seed)
    before = await history(two, session_id), await diffs(two, session_id), await look_everywhere(two, session_id)
    told = await move(two, session_id, SHELF)
    assert (told[0].points, told[-1].points, told[-1].points_total) == (0, 6, 6)
    assert told[-1].size_bytes > 0
    info = await two.get(session_id)
    assert (info.storage, info.state, info.labels) == (SHELF, SessionState.ACTIVE, {"task": "move"})
    after = await history(two, session_id), await diffs(two, session_id), await look_everywhere(two, session_id)
    assert after == before
    # It goes on there, and comes back.
    await sh(two, session_id, "echo more > more")
    await two.turn_complete(TurnRequest(session_id))
    await move(two, session_id, "layers")
    assert await sh(two, session_id, "cat more") == "more\n"
    await two.rollback(RollbackRequest(session_id, "turn-0001"))
    assert await look(two, session_id) == before[2]["turn-0001"]
    await no_leftovers(two)


@pytest.mark.timeout(300)
async def test_an_imported_session_is_the_same(two: SandboxHostService) -> None:
    session_id = await make_branches(two, 2)
    before = await history(two, session_id), await diffs(two, session_id), await look_everywhere(two, session_id)
    data = await export(two, session_id)
    assert (await history(two, session_id)) == before[0], "an export changes nothing"
    for storage in ("layers", SHELF):
        copy = await bring(two, data, f"copy-{storage}", storage)
        after = await history(two, copy), await diffs(two, copy), await look_everywhere(two, copy)
        assert after == before
        assert (await two.get(copy)).storage == storage
        await sh(two, copy, "echo more > more")
        assert (await two.turn_complete(TurnRequest(copy))).number == 5
    await no_leftovers(two)


@pytest.mark.timeout(600)
async def test_every_storage_can_be_left_for_every_other(storage: str, settings: Settings) -> None:
    async with build_two(settings) as host:
        parts = host._parts.storages  # pyright: ignore[reportPrivateUsage]
        ready = [name for name in parts if Capability.SNAPSHOTS in parts[name].capabilities]
        others = [name for name in ready if name != storage and (await parts[name].probe()).ready]
        assert SHELF in others
        session_id = await make_branches(host, 3)
        before = await history(host, session_id), await look_everywhere(host, session_id)
        for other in others if storage != "layers" else [SHELF]:
            for target in (other, storage):
                await move(host, session_id, target)
                assert (await history(host, session_id), await look_everywhere(host, session_id)) == before, target
        copy = await bring(host, await export(host, session_id), "copy", SHELF)
        assert await look_everywhere(host, copy) == before[1]
        await no_leftovers(host)
        await clean_up(host)


async def test_a_paused_session_is_moved_and_stays_paused(two: SandboxHostService) -> None:
    session_id = (await two.create(SessionSpec(resources=Resources(pids=64)))).session_id
    await sh(two, session_id, "echo kept > kept")
    await two.pause(PauseRequest(session_id))
    await move(two, session_id, SHELF)
    info = await two.get(session_id)
    assert (info.state, info.storage, info.resources.pids) == (SessionState.PAUSED, SHELF, 64)
    await two.resume(session_id)
    assert await sh(two, session_id, "cat kept") == "kept\n"
    await no_leftovers(two)


async def test_a_failed_session_is_moved_with_its_files(two: SandboxHostService) -> None:
    session_id = (await two.create(SessionSpec())).session_id
    await sh(two, session_id, "echo kept > kept")
    guest = two._lifecycle.find(session_id).guest  # pyright: ignore[reportPrivateUsage]
    assert guest is not None
    os.kill(guest.pid, signal.SIGKILL)
    async with asyncio.timeout(20):
        while (await two.get(session_id)).state is not SessionState.FAILED:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    await move(two, session_id, SHELF)
    assert (await two.get(session_id)).state is SessionState.FAILED
    await two.recover(session_id)
    assert await sh(two, session_id, "cat kept") == "kept\n"


async def leave_running(host: SandboxHostService, session_id: str) -> str:
    """A command that nobody waits for, and that ends when it is told to."""
    text = "while [ ! -e stop ]; do echo tick >> ticks; sleep 0.05; done; echo over > over"
    async with host.call(CallRequest(session_id, ("sh", "-c", text), detach=True, timeout_s=60)) as stream:
        call_id = stream.call_id
    async with asyncio.timeout(20):
        while (await run(host, CallRequest(session_id, ("test", "-s", "ticks")))).exit_code:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
    return call_id


async def test_what_runs_ends_with_a_move_and_its_output_is_kept(two: SandboxHostService) -> None:
    session_id = (await two.create(SessionSpec())).session_id
    loud = await run(two, CallRequest(session_id, ("head", "-c", "600000", "/dev/zero"), call_id="loud"))
    call_id = await leave_running(two, session_id)
    await move(two, session_id, SHELF)
    states = {call.call_id: call.state for call in await two.calls(session_id)}
    assert (states[call_id], states["loud"]) == (CallState.LOST, CallState.ENDED)
    assert (await run(two, CallRequest(session_id, ("pgrep", "-x", "sh")))).exit_code == 1
    async with two.attach(session_id, "loud") as stream:
        size = sum([len(event.data) async for event in stream if isinstance(event, CallOutput)])
    assert size == len(loud.stdout) == 600_000
    async with two.events(EventFilter(session_id=session_id)) as events:
        told = [(event.kind, event.detail) async for event in events]
    assert (EventKind.MOVED, SHELF) in told


@pytest.mark.parametrize("place", ["move: volume made", "move: point made", "move: synced", "move: guest started"])
async def test_a_move_that_fails_leaves_everything_running(two: SandboxHostService, place: str) -> None:
    session_id = (await two.create(SessionSpec())).session_id
    await two.turn_complete(TurnRequest(session_id))
    await leave_running(two, session_id)

    def fail() -> None:
        raise Unavailable("something broke")

    failpoints.arm(place, fail)
    with pytest.raises(Unavailable, match="something broke"):
        await move(two, session_id, SHELF)
    failpoints.disarm()
    info = await two.get(session_id)
    assert (info.storage, info.state) == ("layers", SessionState.ACTIVE)
    await sh(two, session_id, "touch stop; for i in $(seq 200); do [ -e over ] && exit 0; sleep 0.05; done; exit 1")
    await two.turn_complete(TurnRequest(session_id))
    await no_leftovers(two)
    await move(two, session_id, SHELF)
    assert await sh(two, session_id, "cat over") == "over\n"


async def test_what_cannot_be_there_is_refused_before_anything_is_done(two: SandboxHostService) -> None:
    session_id = (await two.create(SessionSpec())).session_id
    with pytest.raises(InvalidArgument, match="no storage 'nowhere'"):
        await move(two, session_id, "nowhere")
    assert await move(two, session_id, "layers") == [], "it is there"
    shelf = two._parts.storages[SHELF]  # pyright: ignore[reportPrivateUsage]
    await two.turn_complete(TurnRequest(session_id))
    shelf.capabilities = frozenset[Capability]()
    with pytest.raises(CapabilityNotSupported, match="has none"):
        await move(two, session_id, SHELF)
    async with two.call(CallRequest(session_id, ("sleep", "100"))):
        with pytest.raises(ToolsInFlight):
            await move(two, session_id, SHELF)
    assert (await two.get(session_id)).storage == "layers"


async def test_a_session_that_is_being_moved_takes_no_calls_and_can_be_destroyed(two: SandboxHostService) -> None:
    session_id = (await two.create(SessionSpec())).session_id
    await two.turn_complete(TurnRequest(session_id))
    reached, go_on = asyncio.Event(), asyncio.Event()

    async def wait() -> None:
        reached.set()
        await go_on.wait()

    failpoints.arm("move: volume made", wait)
    moving = asyncio.create_task(move(two, session_id, SHELF))
    await reached.wait()
    with pytest.raises(InvalidState, match="being moved"):
        await sh(two, session_id, "true")
    with pytest.raises(InvalidState, match="being moved"):
        await move(two, session_id, SHELF)
    destroying = asyncio.create_task(two.destroy(session_id))
    await asyncio.sleep(0.1)
    go_on.set()
    with pytest.raises(SandlotError):
        await moving
    await destroying
    assert not (await two.list(SessionFilter())).sessions
    await no_leftovers(two)


async def test_whoever_leaves_a_move_undoes_it(two: SandboxHostService) -> None:
    session_id = (await two.create(SessionSpec())).session_id
    await sh(two, session_id, "echo kept > kept")
    async with two.move(MoveRequest(session_id, SHELF)) as progress:
        async for _told in progress:
            break
    assert (await two.get(session_id)).storage in ("layers", SHELF)
    assert await sh(two, session_id, "cat kept") == "kept\n"
    await no_leftovers(two)


KILLED = """
import asyncio, os, signal, sys
from sandlot.config.settings import load
from sandlot.host import failpoints
from sandlot.model import ExportRequest, ImportRequest, MoveRequest
from tests.soak.shelf import SHELF, build_two

async def main():
    async with build_two(load()) as host:
        failpoints.arm(sys.argv[1], lambda: os.kill(os.getpid(), signal.SIGKILL))
        if sys.argv[1].startswith("move"):
            async with host.move(MoveRequest("one", SHELF)) as progress:
                async for _told in progress: pass
        else:
            async with host.export(ExportRequest("one")) as stream:
                await host.import_session(ImportRequest("two", SHELF), stream)

asyncio.run(main())
"""


@pytest.mark.timeout(300)
async def test_an_engine_killed_on_the_way_leaves_the_old_or_the_new(settings: Settings) -> None:
    environment = {**os.environ, "SANDLOT_DATA_DIR": str(settings.data)}
    async with build_two(settings) as host:
        await host.create(SessionSpec("one"))
        for number in range(2):
            await sh(host, "one", f"echo {number} > value")
            await host.turn_complete(TurnRequest("one"))
        await sh(host, "one", "echo now > value; sleep 1000 >/dev/null 2>&1 &")
    for place in [name for name in failpoints.NAMES if name.startswith(("move:", "import:"))]:
        ran = await asyncio.to_thread(
            subprocess.run,
            [sys.executable, "-c", KILLED, place],
            cwd=ROOT,
            env=environment,
            capture_output=True,
            check=False,
        )
        assert ran.returncode == -signal.SIGKILL, (place, ran.stderr)
        async with build_two(settings) as host:
            assert [session.session_id for session in (await host.list(SessionFilter())).sessions] == ["one"], place
            info = await host.get("one")
            is_moved = place in ("move: recorded", "move: guest ended")
            assert (info.state, info.storage) == (SessionState.ACTIVE, SHELF if is_moved else "layers"), place
            assert [turn.number for turn in await host.turns("one")] == [1, 2]
            assert await sh(host, "one", "cat value") == "now\n", place
            async with host.diff(DiffRequest("one", "1", "2")) as batches:
                assert [change.path async for batch in batches for change in batch] == ["/workspace/value"]
            await no_leftovers(host)
            if is_moved:
                await move(host, "one", "layers")
    async with build_two(settings) as host:
        await clean_up(host)
