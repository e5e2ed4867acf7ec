"""The runtime `gvisor`, on real sandboxes: what is different there from `namespaces`, and what must not be."""

import asyncio
import os
import random
import shutil
import signal
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from sandlot.config.settings import Settings, load
from sandlot.host.service import SandboxHostService
from sandlot.model import (
    CallRequest,
    CapabilityNotSupported,
    Change,
    DiffRequest,
    FileRead,
    FileWrite,
    ForkRequest,
    PauseRequest,
    Resources,
    RollbackRequest,
    SandlotError,
    SessionFilter,
    SessionInfo,
    SessionSpec,
    SessionState,
    TurnRequest,
)
from sandlot.wiring.embedded import build
from tests.conftest import LOOK_AT_TAR, clean_up, run

NO_RUNSC = "runsc is not installed: `make setup` as root installs it"
pytestmark = [pytest.mark.root, pytest.mark.skipif(shutil.which("runsc") is None, reason=NO_RUNSC)]
FAILS_WITHIN_S = 2.0
_UNTIL_CLOCK = "until test -e clock; do sleep 0.05; done"


@pytest.fixture
def settings(data_dir: Path) -> Settings:
    known = {"SANDLOT_DATA_DIR": str(data_dir), "SANDLOT_STORAGE": "", "SANDLOT_RUNTIME": "gvisor"}
    return load({**os.environ, **known})


async def sh(host: SandboxHostService, session_id: str, script: str, user: str | None = None) -> str:
    ran = await run(host, CallRequest(session_id, ("sh", "-ec", script), user=user))
    assert ran.exit_code == 0, ran
    return ran.stdout.decode()


async def write(host: SandboxHostService, session_id: str, path: str, text: str) -> None:
    async def content() -> AsyncIterator[bytes]:
        yield text.encode()

    await host.write_file(FileWrite(session_id, path), content())


async def read(host: SandboxHostService, session_id: str, path: str) -> str:
    async with host.read_file(FileRead(session_id, path)) as stream:
        return b"".join([piece async for piece in stream]).decode()


async def make(host: SandboxHostService, resources: Resources | None = None) -> str:
    return (await host.create(SessionSpec(session_id="s", resources=resources or Resources()))).session_id


async def until(host: SandboxHostService, state: SessionState, within_s: float = 30) -> SessionInfo:
    async with asyncio.timeout(within_s):
        while (info := await host.get("s")).state is not state:  # noqa: ASYNC110 - nothing tells of it
            await asyncio.sleep(0.01)
    return info


def children(pid: int) -> Iterator[int]:
    for task in Path(f"/proc/{pid}/task").iterdir():
        yield from map(int, (task / "children").read_text().split())


def processes(data: Path) -> dict[str, int]:
    """Those of the one sandbox of this data directory, by what they are."""
    (keeper,) = (
        int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit() and is_keeper(entry, data)
    )
    (run_pid,) = (pid for pid in children(keeper) if b"runsc" in Path(f"/proc/{pid}/cmdline").read_bytes())
    found = {"run": run_pid}
    for pid in children(run_pid):
        name = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[0].decode()
        found[name.removeprefix("runsc-")] = pid
    return found


def is_keeper(entry: Path, data: Path) -> bool:
    try:
        return (entry / "comm").read_text() == "sandlot-keeper\n" and (entry / "cwd").samefile(data)
    except OSError:
        return False


async def test_programs_run_on_a_kernel_of_their_own_and_files_are_seen_both_ways(host: SandboxHostService) -> None:
    session_id = await make(host)
    assert (await host.get(session_id)).runtime == "gvisor"
    assert os.uname().release not in await sh(host, session_id, "cat /proc/version")
    # Programs of today pass a flag that this gVisor may refuse; no clean environment takes the help away.
    assert await sh(host, session_id, "ls /etc/passwd; env -i /usr/bin/stat -c %s /etc/hostname > size; cat size")
    await write(host, session_id, "from-host", "one\n")
    assert await sh(host, session_id, "cat from-host; echo two > from-host; id -un") == "one\nuser\n"
    assert await read(host, session_id, "from-host") == "two\n"
    await write(host, session_id, "from-host", "three\n")
    assert await sh(host, session_id, "cat from-host") == "three\n", "what the host writes is seen at once"
    assert await sh(host, session_id, "mkfifo pipe; (echo through > pipe &); cat pipe") == "through\n"
    told = await sh(
        host, session_id, "grep -E '^Cap(Eff|Bnd)' /proc/self/status; mount -t tmpfs x /mnt 2>&1 || :", "root"
    )
    held = {int(line.split()[1], 16) for line in told.splitlines() if line.startswith("Cap")}
    assert len(held) == 1, told
    assert not held.pop() & (1 << 21 | 1 << 18), "neither CAP_SYS_ADMIN nor CAP_SYS_CHROOT"
    assert "mount" in told


async def test_a_rollback_needs_no_restart_and_restores_everything(
    host: SandboxHostService, settings: Settings
) -> None:
    session_id = await make(host)
    await sh(host, session_id, "echo one > a; mkdir d; echo x > d/f; ln -s a link")
    assert (await host.turn_complete(TurnRequest(session_id))).number == 1
    look = f"ls -lRn --time-style=full-iso .; {LOOK_AT_TAR}"
    before, sandbox = await sh(host, session_id, look), processes(settings.data)
    for _ in range(3):
        await sh(host, session_id, "echo two >> a; rm -r d; rm /usr/bin/tar; touch /etc/new; chown user a", "root")
        async with host.call(CallRequest(session_id, ("sleep", "1000"), detach=True)) as stream:
            async for _started in stream:
                break
        await host.rollback(RollbackRequest(session_id, "1"))
        assert await sh(host, session_id, look) == before
        assert await sh(host, session_id, "test ! -e /etc/new; ps -e | grep -c sleep || :") == "0\n"
        assert await sh(host, session_id, "test -c /dev/null; test -d /proc/self; echo there") == "there\n"
        await write(host, session_id, "after", "seen\n")
        assert await sh(host, session_id, "cat after; rm after") == "seen\n"
    assert processes(settings.data) == sandbox, "the same sandbox goes on"


async def test_turns_forks_and_comparisons(host: SandboxHostService) -> None:
    session_id = await make(host)
    await sh(host, session_id, "echo one > a")
    await host.turn_complete(TurnRequest(session_id))
    await sh(host, session_id, "echo two > b; rm a")
    await host.turn_complete(TurnRequest(session_id))
    async with host.diff(DiffRequest(session_id, "1", "2")) as batches:
        found: list[Change] = [change async for batch in batches for change in batch]
    assert {change.path for change in found} == {"/workspace/a", "/workspace/b"}
    (fork,) = await host.fork(ForkRequest(session_id, "1"))
    assert await sh(host, fork.session_id, "ls; echo fork > a") == "a\n"
    assert fork.runtime == "gvisor"
    assert await sh(host, session_id, "ls") == "b\n"
    # With something that runs, a snapshot freezes it for a moment.
    async with host.call(
        CallRequest(session_id, ("sh", "-c", "while :; do date > clock; done"), detach=True)
    ) as stream:
        async for _started in stream:
            break
    await sh(host, session_id, _UNTIL_CLOCK)
    assert (await host.turn_complete(TurnRequest(session_id))).number == 3
    first = await read(host, session_id, "clock")
    async with asyncio.timeout(30):
        while await read(host, session_id, "clock") == first:  # noqa: ASYNC110 - nothing tells of it
            await asyncio.sleep(0.1)


async def test_a_session_outlives_its_engine_and_its_keeper(settings: Settings) -> None:
    script = "for n in 1 2 3 4 5 6; do echo $n; sleep 0.5; done"
    async with build(settings) as host:
        session_id = await make(host)
        await sh(host, session_id, "echo kept > a")
        await host.turn_complete(TurnRequest(session_id))
        async with host.call(CallRequest(session_id, ("sh", "-c", script), call_id="c", detach=True)) as stream:
            async for _started in stream:
                break
    async with build(settings) as host:
        async with host.attach("s", "c") as stream:
            assert (await stream.result()).stdout_bytes == 12
        keeper = next(int(e.name) for e in Path("/proc").iterdir() if e.name.isdigit() and is_keeper(e, settings.data))
        os.kill(keeper, signal.SIGKILL)
        assert await sh(host, "s", "cat a; echo changed > a") == "kept\n"
        # A keeper that did not start the sandbox puts another root under it.
        await host.rollback(RollbackRequest("s", "1"))
        assert await sh(host, "s", "cat a") == "kept\n"
        await clean_up(host)


async def test_a_part_of_runsc_that_dies_fails_the_session_and_it_comes_back_with_its_files(
    host: SandboxHostService, settings: Settings
) -> None:
    """Each of them, then some at random, at any moment while commands run."""
    chance = random.Random(20261115)
    session_id = await make(host)
    for number, which in enumerate(("run", "sandbox", "gofer", "", "")):
        await sh(host, session_id, f"echo {number} >> a")
        calls = [asyncio.create_task(run(host, CallRequest(session_id, ("sleep", "1000")))) for _ in range(3)]
        await asyncio.sleep(chance.random() / 2)
        parts = processes(settings.data)
        os.kill(parts[which or chance.choice(sorted(parts))], signal.SIGKILL)
        failed = await until(host, SessionState.FAILED, FAILS_WITHIN_S)
        assert failed.reason
        for call in await asyncio.gather(*calls, return_exceptions=True):
            assert isinstance(call, SandlotError), call
        assert (await host.recover(session_id)).state is SessionState.ACTIVE
        kept = "".join(f"{each}\n" for each in range(number + 1))
        assert await sh(host, session_id, "cat a; ps -e | grep -c sleep || :") == f"{kept}0\n"


async def test_limits_hold_and_memory_that_is_used_up_is_told(host: SandboxHostService) -> None:
    session_id = await make(host, Resources(pids=12, memory_bytes=256 << 20, open_files=64))
    ran = await run(
        host, CallRequest(session_id, ("sh", "-c", "for i in $(seq 40); do sleep 1000 & done"), timeout_s=20)
    )
    assert b"fork" in ran.stderr.lower(), ran
    await sh(host, session_id, "kill -9 -1 || :", "root")
    assert await sh(host, session_id, "ulimit -n") == "64\n"
    with pytest.raises(SandlotError):
        await run(host, CallRequest(session_id, ("python3", "-c", "x = b'x' * (900 << 20)"), timeout_s=60))
    assert "out of memory" in (await until(host, SessionState.FAILED)).reason
    await host.recover(session_id)
    assert await sh(host, session_id, "echo alive") == "alive\n"


async def test_a_pause_stops_everything_and_destroying_leaves_nothing(
    host: SandboxHostService, settings: Settings
) -> None:
    session_id = await make(host)
    script = "while :; do date +%s%N > clock; done"
    async with host.call(CallRequest(session_id, ("sh", "-c", script), detach=True)) as stream:
        async for _started in stream:
            break
    await sh(host, session_id, _UNTIL_CLOCK)
    parts = processes(settings.data)
    root = Path(f"/proc/{parts['run']}/cwd/cur/workspace/clock")
    paused = await host.pause(PauseRequest(session_id))
    assert paused.state is SessionState.PAUSED
    first = root.read_text()
    await asyncio.sleep(0.3)
    assert root.read_text() == first, "nothing moves"
    await host.resume(session_id)
    async with asyncio.timeout(30):
        while root.read_text() == first:  # noqa: ASYNC110 - nothing tells of it
            await asyncio.sleep(0.05)
    await host.destroy(session_id)
    async with asyncio.timeout(10):
        while any(Path(f"/proc/{pid}").exists() for pid in parts.values()):  # noqa: ASYNC110 - nothing tells of it
            await asyncio.sleep(0.02)
    assert "/sys/tree" not in Path("/proc/self/mountinfo").read_text()
    assert (await host.list(SessionFilter())).sessions == ()


async def test_a_session_cannot_end_its_pid_one_nor_hang_it(host: SandboxHostService) -> None:
    session_id = await make(host)
    tries = "for s in KILL STOP TSTP TERM INT; do kill -$s 1 2>/dev/null && echo $s; done; kill -9 -1; :"
    assert (await run(host, CallRequest(session_id, ("sh", "-c", tries), user="root"))).stdout == b""
    await sh(host, session_id, "mv /etc/passwd /etc/kept; mkfifo /etc/passwd", "0")
    with pytest.raises(SandlotError, match="user"):
        await run(host, CallRequest(session_id, ("true",), user="user", timeout_s=20))
    assert await sh(host, session_id, "rm /etc/passwd; mv /etc/kept /etc/passwd; echo alive", "0") == "alive\n"
    await sh(host, session_id, "chmod 0 /dev/null; rm /dev/zero /dev/shm -rf || :", "0")
    assert (
        await sh(host, session_id, "echo x > /dev/null; head -c 1 /dev/zero | wc -c; ls -d /dev/shm") == "1\n/dev/shm\n"
    )
    for path in ("/proc/version", "/dev/null", "/proc/new"):
        with pytest.raises(SandlotError):
            await write(host, session_id, path, "x")
    assert (await host.get(session_id)).state is SessionState.ACTIVE


async def test_the_warm_pool_holds_sandboxes(settings: Settings) -> None:
    async with build(replace(settings, warm_pool=1)) as host:
        async with asyncio.timeout(60):
            while not list((settings.data / "volumes").iterdir()):  # noqa: ASYNC110 - the pool has no event for others
                await asyncio.sleep(0.05)
            await asyncio.sleep(1)
        session_id = await make(host, Resources(pids=20))
        assert await sh(host, session_id, "echo warm") == "warm\n"
        await clean_up(host)
    assert list((settings.data / "volumes").iterdir()) == []


async def test_without_runsc_nothing_is_made(settings: Settings) -> None:
    async with build(replace(settings, runsc="no-such-runsc", runtime="auto")) as host:
        with pytest.raises(CapabilityNotSupported, match="no-such-runsc") as refused:
            await host.create(SessionSpec(runtime="gvisor"))
        assert "SANDLOT_RUNSC" in str(refused.value)
        assert (await host.list(SessionFilter())).sessions == ()
        assert (await host.create(SessionSpec())).runtime == "namespaces", "auto does without"
        await clean_up(host)
