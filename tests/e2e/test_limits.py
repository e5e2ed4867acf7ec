"""Limits of sessions, held by this machine's kernel."""

import asyncio
import os
import signal
from dataclasses import replace
from hashlib import blake2b
from pathlib import Path

import pytest

from sandlot.config.settings import Settings
from sandlot.host.service import SandboxHostService
from sandlot.model import (
    CallRequest,
    Capability,
    CapabilityNotSupported,
    ForkRequest,
    HostFull,
    InvalidArgument,
    LimitHit,
    LimitReached,
    Resources,
    RollbackRequest,
    SessionFilter,
    SessionSpec,
    SessionState,
    TurnRequest,
    limits,
)
from sandlot.wiring.embedded import build
from tests.conftest import Ran, clean_up, run

pytestmark = pytest.mark.root

# Prints how many processes it can have beside itself, up to 400, and ends them.
FORKS = """
import os, signal
alive = []
try:
    while len(alive) < 400:
        alive.append(os.fork() or signal.pause())
except OSError as error:
    print(error.errno, end=" ")
print(len(alive))
for pid in alive:
    os.kill(pid, signal.SIGKILL)
"""
GROW = "x = bytearray(200 << 20); print(len(x))"


async def python(host: SandboxHostService, session_id: str, program: str) -> Ran:
    return await run(host, CallRequest(session_id, ("python3", "-c", program)))


async def make(host: SandboxHostService, need: Capability, resources: Resources) -> str:
    if need not in await host.capabilities():
        pytest.skip(f"this machine has no {need}")
    return (await host.create(SessionSpec(resources=resources))).session_id


async def stops_at(host: SandboxHostService, session_id: str, pids: int) -> bool:
    return (await python(host, session_id, FORKS)).stdout.split() == [b"11", str(pids - 1).encode()]


async def stops_by(host: SandboxHostService, session_id: str, pids: int) -> bool:
    """Of a default limit: sessions of another engine on this machine that has the same range of ids count too."""
    error, alive = (await python(host, session_id, FORKS)).stdout.split()
    return error == b"11" and int(alive) < pids


def groups(settings: Settings) -> dict[str, set[Path]]:
    """The groups of an engine's guests, by name. There may be others on this machine."""
    found: dict[str, set[Path]] = {}
    base = "sandlot-" + blake2b(os.fsencode(settings.data), digest_size=6).hexdigest()
    for path in Path("/sys/fs/cgroup").glob(f"**/{base}/v-*"):
        found.setdefault(path.name, set()).add(path)
    return found


async def test_processes_stop_at_their_limit_and_neighbours_run_on(host: SandboxHostService) -> None:
    session_id = await make(host, Capability.LIMIT_PIDS, Resources(pids=20))
    neighbour = await make(host, Capability.LIMIT_PIDS, Resources())
    assert await stops_at(host, session_id, 20)
    ran = await python(host, neighbour, FORKS)
    assert ran.stdout == b"400\n", ran
    assert (await run(host, CallRequest(session_id, ("sh", "-c", "(true); true")))).exit_code == 0


async def test_memory_ends_a_process_and_not_the_session(host: SandboxHostService) -> None:
    session_id = await make(host, Capability.LIMIT_MEMORY, Resources(memory_bytes=64 * limits.MIB))
    ran = await python(host, session_id, GROW)
    assert (ran.exit_code, ran.result.signal, ran.result.limit) == (137, 9, LimitHit.OOM), ran
    assert (await run(host, CallRequest(session_id, ("echo", "on")))).stdout == b"on\n"


async def test_a_result_tells_which_limit_it_met(host: SandboxHostService) -> None:
    asked = Resources(memory_bytes=64 * limits.MIB, pids=20)
    session_id = await make(host, Capability.LIMIT_MEMORY, asked)

    async def met(script: str, **more: int) -> LimitHit | None:
        return (await run(host, CallRequest(session_id, ("sh", "-c", script), **more))).result.limit  # pyright: ignore[reportArgumentType]

    grow = f"python3 -c '{GROW}'"
    assert await met("exit 3") is None
    assert await met(grow) is LimitHit.OOM
    assert await met(f"{grow}; exit 4") is LimitHit.OOM, "a shell that says something else"
    assert await met(f"{grow}; exit 0") is None, "it was not in the way"
    assert await met("exit 3") is None, "what came before is not blamed"
    assert await met("kill -9 $$") is None, "a kill of its own"
    assert await met("seq 100000", output_bytes_max=100) is LimitHit.OUTPUT
    assert await met("sleep 60", timeout_s=1) is LimitHit.TIMEOUT
    assert await met("for i in $(seq 50); do sleep 60 & done; wait") is LimitHit.PIDS
    assert await met("/bin/true; exit 0") is LimitHit.PIDS, "there is no process left for it"


async def test_the_reason_is_recorded_and_known_after_a_restart(settings: Settings) -> None:
    async with build(settings) as host:
        session_id = await make(host, Capability.LIMIT_MEMORY, Resources(memory_bytes=64 * limits.MIB))
        assert (await python(host, session_id, GROW)).result.limit is LimitHit.OOM
        slow = CallRequest(
            session_id, ("sh", "-c", f"read x; python3 -c '{GROW}'"), stdin=True, detach=True, call_id="slow"
        )
        async with host.call(slow):
            pass
    async with build(settings) as host:
        ended = {call.call_id: call.result for call in await host.calls(session_id)}
        assert [result.limit for result in ended.values() if result] == [LimitHit.OOM]
        async with host.attach(session_id, "slow") as stream:
            await stream.close_stdin()
            assert (await stream.result()).limit is LimitHit.OOM
        assert (await run(host, CallRequest(session_id, ("false",)))).result.limit is None
        await clean_up(host)


SEES = """
import os, re
total = int(re.search(r"MemTotal:\\s+(\\d+)", open("/proc/meminfo").read())[1])
listed = open("/proc/cpuinfo").read().count("processor\\t:")
print(os.cpu_count(), len(os.sched_getaffinity(0)), os.sysconf("SC_NPROCESSORS_CONF"), listed, total)
"""


async def test_programs_see_what_the_session_may_use(host: SandboxHostService) -> None:
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("there is nothing less than one processor")
    session_id = await make(host, Capability.LIMIT_CPUS, Resources(cpus=0.7, memory_bytes=256 * limits.MIB))
    seen = [b"1", b"1", b"1", b"1", b"262144"]
    assert (await python(host, session_id, SEES)).stdout.split() == seen
    ran = await run(host, CallRequest(session_id, ("sh", "-c", "nproc; free -m | awk '/Mem/{print $2}'")))
    assert ran.stdout.split() == [b"1", b"256"], ran
    await host.turn_complete(TurnRequest(session_id))
    await host.rollback(RollbackRequest(session_id, "1"))
    assert (await python(host, session_id, SEES)).stdout.split() == seen, "after a rollback"
    (fork,) = await host.fork(ForkRequest(session_id, "1"))
    assert (await python(host, fork.session_id, SEES)).stdout.split() == seen, "in a fork"
    tries = (
        "sudo umount /proc/meminfo || sudo sh -c 'echo 8 > /sys/devices/system/cpu/online' || sudo rm -rf /sys/devices"
    )
    assert (await run(host, CallRequest(session_id, ("sh", "-c", tries)))).exit_code != 0
    assert (await python(host, session_id, SEES)).stdout.split() == seen
    other = (await host.create(SessionSpec())).session_id
    ran = await run(host, CallRequest(other, ("sh", "-c", "ls /sys; nproc")))
    assert ran.stdout == f"{len(os.sched_getaffinity(0))}\n".encode(), "who has no limit sees the machine"


async def test_cpus_are_shared_out(host: SandboxHostService) -> None:
    session_id = await make(host, Capability.LIMIT_CPUS, Resources(cpus=0.5))
    spin = "for i in 1 2; do timeout 2 sh -c 'while :; do :; done' & done; wait"
    ran = await run(host, CallRequest(session_id, ("sh", "-c", spin)))
    # A busy machine gives less, never more. The last slice may be taken in advance.
    assert ran.result.user_s + ran.result.system_s <= 0.5 * ran.result.duration_s + 0.3, ran
    assert (await run(host, CallRequest(session_id, ("nproc",)))).stdout == b"1\n"


async def test_open_files_are_counted(host: SandboxHostService) -> None:
    session_id = await make(host, Capability.LIMIT_OPEN_FILES, Resources(open_files=32))
    ran = await python(host, session_id, "import os\nfor _ in range(40): os.dup(0)")
    assert b"Too many open files" in ran.stderr
    raised = "ulimit -n 64"
    assert (await run(host, CallRequest(session_id, ("sudo", "sh", "-c", raised)))).exit_code != 0


@pytest.mark.parametrize("field", ["disk_bytes", "io_weight", "swap_bytes"])
async def test_what_cannot_be_enforced_is_refused(host: SandboxHostService, field: str) -> None:
    names = {"disk_bytes": "limit_disk", "io_weight": "limit_io", "swap_bytes": "limit_swap"}
    if Capability(names[field]) in await host.capabilities():
        pytest.skip("this machine can do it")
    values = {"disk_bytes": limits.GIB, "io_weight": 50, "swap_bytes": 0}
    asked = Resources(**{field: values[field]}, memory_bytes=limits.GIB)  # pyright: ignore[reportArgumentType]
    with pytest.raises(CapabilityNotSupported):
        await host.create(SessionSpec(resources=asked))
    assert (await host.list(SessionFilter())).sessions == ()


async def test_limits_outlive_the_engine_a_rollback_and_a_fork(settings: Settings) -> None:
    async with build(settings) as host:
        session_id = await make(host, Capability.LIMIT_PIDS, Resources(pids=12))
        await host.turn_complete(TurnRequest(session_id))
        await host.rollback(RollbackRequest(session_id, "1"))
    async with build(replace(settings, resources=Resources(pids=300))) as host:
        assert (await host.get(session_id)).resources == Resources(pids=12)
        assert await stops_at(host, session_id, 12)
        (fork,) = await host.fork(ForkRequest(session_id, "1"))
        assert fork.resources == Resources(pids=12)
        assert await stops_at(host, fork.session_id, 12)
        other = await make(host, Capability.LIMIT_PIDS, Resources())
        assert await stops_by(host, other, 300)
        assert len(groups(settings)) == 3
        await clean_up(host)
    assert groups(settings) == {}


async def test_groups_of_a_guest_that_died_unseen_are_removed(settings: Settings) -> None:
    async with build(settings) as host:
        session_id = await make(host, Capability.LIMIT_PIDS, Resources(pids=12))
        inside = await run(host, CallRequest(session_id, ("sh", "-c", "echo")))
        assert inside.exit_code == 0
        (paths,) = groups(settings).values()
        guest = {int(pid) for path in paths for pid in (path / "cgroup.procs").read_text().split()}
    for pid in guest:
        os.kill(pid, signal.SIGKILL)
    async with build(settings) as host:
        async with asyncio.timeout(60):
            while (await host.get(session_id)).state is not SessionState.FAILED:  # noqa: ASYNC110 - it dies when it dies
                await asyncio.sleep(0.02)
        await clean_up(host)
    assert groups(settings) == {}


async def test_a_guest_that_waited_gets_the_limits_of_its_session(settings: Settings) -> None:
    async with build(replace(settings, warm_pool=2)) as host:
        async with asyncio.timeout(60):
            while len(groups(settings)) < 2:  # noqa: ASYNC110 - the second is begun when the first is ready
                await asyncio.sleep(0.02)
        waiting = groups(settings)
        session_id = await make(host, Capability.LIMIT_PIDS, Resources(pids=10, memory_bytes=64 * limits.MIB))
        assert await stops_at(host, session_id, 10)
        assert (await python(host, session_id, GROW)).exit_code == 137
        ran = await run(host, CallRequest(session_id, ("grep", "MemTotal", "/proc/meminfo")))
        assert ran.stdout.split()[1] == b"65536"
        changed = [name for name, paths in groups(settings).items() if name in waiting and paths > waiting[name]]
        assert len(changed) == 1 or "memory" not in str(groups(settings)), "the pool was not used"
        await clean_up(host)
    assert groups(settings) == {}


async def test_defaults_hold_and_are_told(settings: Settings) -> None:
    chosen = replace(settings, resources=Resources(pids=300, open_files=64, disk_bytes=limits.GIB))
    async with build(chosen) as host:
        session_id = await make(host, Capability.LIMIT_PIDS, Resources())
        info = await host.get(session_id)
        assert (info.resources, info.unlimited) == (Resources(pids=300, open_files=64), ("disk_bytes",))
        assert await stops_by(host, session_id, 300)
        as_root = CallRequest(session_id, ("python3", "-c", FORKS), user="root")
        error, alive = (await run(host, as_root)).stdout.split()
        assert (error, int(alive) < 300) == (b"11", True), "root inside has no more"
        wider = await make(host, Capability.LIMIT_PIDS, Resources(pids=350))
        assert await stops_at(host, wider, 350)
        await clean_up(host)


async def test_a_host_holds_no_more_than_it_has(settings: Settings) -> None:
    async with build(replace(settings, overcommit=0.5)) as host:
        machine = next(int(line.split()[1]) * 1024 for line in Path("/proc/meminfo").read_text().splitlines())
        third = Resources(memory_bytes=machine // 6)
        first = await make(host, Capability.LIMIT_MEMORY, third)
        made = await asyncio.gather(
            *(host.create(SessionSpec(resources=third)) for _ in range(4)), return_exceptions=True
        )
        refused = [error for error in made if isinstance(error, HostFull)]
        assert len(refused) in (2, 3), made  # the machine's memory is not quite what the file says
        assert refused[0].retryable
        assert refused[0].context["asked"] == machine // 6
        await host.create(SessionSpec())  # who has no limit counts nothing
        await host.destroy(first)
        await host.create(SessionSpec(resources=third))
        with pytest.raises(InvalidArgument, match="cpus"):
            await host.create(SessionSpec(resources=Resources(cpus=65000)))
        await clean_up(host)


async def test_a_call_has_limits_of_its_own(host: SandboxHostService, settings: Settings) -> None:
    session_id = await make(host, Capability.LIMIT_CALLS, Resources(pids=40, open_files=64))

    async def limited(resources: Resources, *argv: str) -> Ran:
        return await run(host, CallRequest(session_id, argv, resources=resources))

    few = Resources(pids=8, memory_bytes=64 * limits.MIB)
    ran = await limited(few, "python3", "-c", FORKS)
    assert ran.stdout.split() == [b"11", b"7"], ran
    ran = await limited(few, "python3", "-c", GROW)
    assert (ran.exit_code, ran.result.limit) == (137, LimitHit.OOM), ran
    ran = await limited(few, "sh", "-c", "for i in $(seq 20); do sleep 60 & done; wait")
    assert ran.result.limit is LimitHit.PIDS, ran
    assert await stops_at(host, session_id, 40 - 7), "what it left runs on, and counts"
    assert (await python(host, session_id, GROW)).exit_code == 0, "others are not under its limits"
    assert (await limited(Resources(open_files=32), "sh", "-c", "ulimit -n")).stdout == b"32\n"
    spin = "for i in 1 2; do timeout 1 sh -c 'while :; do :; done' & done; wait"
    ran = await limited(Resources(cpus=0.3), "sh", "-c", spin)
    assert ran.result.user_s + ran.result.system_s <= 0.3 * ran.result.duration_s + 0.3, ran
    await host.destroy(session_id)
    assert groups(settings) == {}


async def test_limits_of_a_call_are_below_those_of_its_session(host: SandboxHostService) -> None:
    session_id = await make(host, Capability.LIMIT_CALLS, Resources(pids=40))
    for more in (Resources(pids=41), Resources(io_weight=5), Resources(disk_bytes=limits.GIB)):
        with pytest.raises(InvalidArgument):
            await run(host, CallRequest(session_id, ("true",), resources=more))
    assert await host.calls(session_id) == []
    plain = (await host.create(SessionSpec(runtime="none"))).session_id
    with pytest.raises(CapabilityNotSupported):
        await run(host, CallRequest(plain, ("true",), resources=Resources(pids=5)))


@pytest.mark.timeout(120)
async def test_calls_at_once_are_limited_by_name(host: SandboxHostService) -> None:
    session_id = (await host.create(SessionSpec())).session_id

    async def start(number: int) -> None:
        async with host.call(CallRequest(session_id, ("sleep", "1000"), call_id=f"n{number}", detach=True)) as events:
            async for _started in events:
                break

    for first in range(0, limits.CALLS_AT_ONCE_MAX, 50):
        await asyncio.gather(*(start(number) for number in range(first, first + 50)))
    with pytest.raises(LimitReached, match="runs 1000 calls already") as refused:
        await start(limits.CALLS_AT_ONCE_MAX)
    assert refused.value.context["limit"] == "calls_at_once"
    async with host.attach(session_id, "n7") as stream:
        await stream.signal(signal.SIGKILL)
        await stream.result()
    await start(limits.CALLS_AT_ONCE_MAX)
