"""What every host promises of what it tells about use: figures follow what sessions do, and none is made up."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence

from sandlot.conformance.checks import Check, Outcome, Stage, conform, equal, expect, read_until
from sandlot.conformance.file_stage import refused
from sandlot.contracts import Host
from sandlot.model import (
    AUTO,
    Capability,
    InvalidArgument,
    MetricsRequest,
    Resources,
    SessionNotFound,
    SessionSample,
    limits,
)

_DEADLINE_S = 60.0
_POLL_S = 0.1
_MIB = 1 << 20


async def now(stage: Stage) -> SessionSample:
    return (await stage.host.session_metrics(MetricsRequest(stage.session.session_id, limit=1)))[-1]


async def until(stage: Stage, condition: Callable[[SessionSample], bool]) -> SessionSample:
    """What the kernel counts may be told a moment later. The check's own deadline ends the waiting."""
    while not condition(sample := await now(stage)):  # noqa: ASYNC110 - nothing tells of it
        await asyncio.sleep(_POLL_S)
    return sample


async def a_session_tells_what_it_uses(stage: Stage) -> None:
    """A sample is of now and of this session, and nothing in it is less than nothing or more than there is."""
    began = time.time()
    sample = await now(stage)
    equal(sample.session_id, stage.session.session_id)
    expect(began - 60 <= sample.at <= time.time() + 60, f"it is of {sample.at}")
    expect(sample.cpus_used >= 0 and sample.cpu_s >= 0 and sample.cpus_max > 0, f"processors: {sample}")
    expect(0 <= sample.memory_bytes <= sample.memory_bytes_max, f"memory: {sample}")
    expect(sample.pids >= 1, f"processes: {sample}")
    expect((sample.received_bytes is None) == (sample.sent_bytes is None), f"network: {sample}")


async def work_is_counted(stage: Stage) -> None:
    """Processor time grows by what a program used of it, and never shrinks."""
    before = await now(stage)
    ran = await stage.sh("i=0; while [ $i -lt 100000 ]; do i=$((i+1)); done")
    used = ran.result.user_s + ran.result.system_s
    expect(used > 0, "a program that worked used no time")
    after = await until(stage, lambda sample: sample.cpu_s - before.cpu_s >= 0.5 * used)
    expect(after.cpu_s - before.cpu_s < 3 * used + 5, f"{after.cpu_s - before.cpu_s} s are counted, {used} s were used")


async def memory_is_counted(stage: Stage) -> None:
    """What a program holds is in use, and no longer when it has ended."""
    before = await now(stage)
    hold = "import sys; held = bytearray(b'x') * (96 << 20); print('held', flush=True); sys.stdin.read()"
    async with stage.host.call(stage.request("python3", "-c", hold, stdin=True)) as stream:
        await read_until(stream, b"held")
        await until(stage, lambda sample: sample.memory_bytes - before.memory_bytes > 64 * _MIB)
    await until(stage, lambda sample: sample.memory_bytes - before.memory_bytes < 64 * _MIB)


async def processes_are_counted(stage: Stage) -> None:
    """Those that run, the guest among them."""
    before = await until(stage, lambda sample: sample.pids == 1)
    async with stage.host.call(stage.request("sh", "-c", "sleep 600 & sleep 600 & echo up; wait")) as stream:
        await read_until(stream, b"up")
        await until(stage, lambda sample: sample.pids >= before.pids + 3)
    await until(stage, lambda sample: sample.pids == before.pids)


async def calls_are_counted(stage: Stage) -> None:
    """Those that run, and all that were begun."""
    before = await now(stage)
    await stage.sh("echo one")
    async with stage.host.call(stage.request("sleep", "600")) as stream:
        await anext(aiter(stream))
        during = await now(stage)
        equal((during.calls, during.calls_begun - before.calls_begun), (1, 2))
    after = await now(stage)
    equal((after.calls, after.calls_begun - before.calls_begun), (0, 2))


async def files_are_counted(stage: Stage) -> None:
    """What a session wrote is on its disk, where that can be told."""
    before = (await now(stage)).disk_bytes
    await stage.sh("head -c 16777216 /dev/urandom > a; sync a")
    after = (await now(stage)).disk_bytes
    equal(after is None, before is None)
    expect(after is None or before is None or after - before >= 12 * _MIB, f"{before} bytes, then {after}")


async def limits_are_told(stage: Stage) -> None:
    """A session with limits tells them beside what it uses."""
    other = await stage.another(resources=Resources(cpus=0.5, memory_bytes=256 * _MIB, pids=64))
    sample = await now(other)
    equal((sample.cpus_max, sample.memory_bytes_max, sample.pids_max), (0.5, 256 * _MIB, 64))


async def samples_are_told_in_order(stage: Stage) -> None:
    """Oldest first, no more than were asked for, none from before, and the last one always."""
    await stage.sh("echo one")
    ask = stage.host.session_metrics
    found = await ask(MetricsRequest(stage.session.session_id))
    times = [sample.at for sample in found]
    equal(times, sorted(times))
    equal({sample.session_id for sample in found}, {stage.session.session_id})
    expect(1 <= len(found) <= limits.SAMPLES_KEPT + 1, f"{len(found)} samples")
    equal(len(await ask(MetricsRequest(stage.session.session_id, limit=1))), 1)
    late = await ask(MetricsRequest(stage.session.session_id, since=time.time() + 3600))
    expect(len(late) <= 1, "samples of the past are told as of the future")


async def samples_are_taken_while_nobody_asks(stage: Stage) -> None:
    """A session in which something runs has one for every five seconds."""
    async with stage.host.call(stage.request("sleep", "600")) as stream:
        await anext(aiter(stream))
        began = (await now(stage)).at
        # Nothing tells of a sample.
        while not [one for one in (await _series(stage))[:-1] if one.at >= began and one.calls]:  # noqa: ASYNC110
            await asyncio.sleep(_POLL_S)


async def _series(stage: Stage) -> Sequence[SessionSample]:
    return await stage.host.session_metrics(MetricsRequest(stage.session.session_id))


async def the_host_tells_what_it_uses(stage: Stage) -> None:
    """Processors, memory, disk and load of its machine, and how many sessions and calls it has."""
    before = (await stage.host.host_metrics(MetricsRequest()))[-1]
    expect(0 <= before.cpus_used <= before.cpus_max + 1 and before.cpus_max >= 1, f"processors: {before}")
    expect(0 < before.memory.used <= before.memory.total and 0 < before.disk.used <= before.disk.total, str(before))
    expect(before.load >= 0 and before.received_bytes >= 0 and before.sent_bytes >= 0, str(before))
    expect(before.sessions >= 1, "a session is there and not counted")
    await stage.another()
    async with stage.host.call(stage.request("sleep", "600")) as stream:
        await anext(aiter(stream))
        during = (await stage.host.host_metrics(MetricsRequest()))[-1]
    equal(during.sessions - before.sessions, 1)
    expect(during.calls >= 1 and during.calls_begun > before.calls_begun, f"calls: {during}")
    expect(during.at >= before.at, "its time goes backwards")


async def every_session_is_told_once(stage: Stage) -> None:
    """The newest sample of each, whether anything runs in it or not."""
    other = await stage.another()
    await stage.sh("echo one")
    found = [sample.session_id for sample in await stage.host.all_metrics()]
    equal(len(found), len(set(found)))
    expect({stage.session.session_id, other.session.session_id} <= set(found), "a session is missing")
    await stage.host.destroy(other.session.session_id)
    expect(
        other.session.session_id not in {sample.session_id for sample in await stage.host.all_metrics()},
        "a session that is gone is told",
    )


async def what_has_no_metrics_is_refused(stage: Stage) -> None:
    """A session that is not there, and a request that names one where none belongs, or none where one does."""
    host = stage.host
    await refused(host.session_metrics(MetricsRequest("no-such-session")), SessionNotFound)
    await refused(host.session_metrics(MetricsRequest()), InvalidArgument)
    await refused(host.host_metrics(MetricsRequest(stage.session.session_id)), InvalidArgument)


METRICS_CHECKS: tuple[Check[Stage], ...] = tuple(
    Check(run, needs, deadline_s=_DEADLINE_S)
    for run, needs in (
        (a_session_tells_what_it_uses, ()),
        (work_is_counted, ()),
        (memory_is_counted, ()),
        (processes_are_counted, ()),
        (calls_are_counted, ()),
        (files_are_counted, ()),
        (limits_are_told, (Capability.LIMIT_CPUS, Capability.LIMIT_MEMORY, Capability.LIMIT_PIDS)),
        (samples_are_told_in_order, ()),
        (samples_are_taken_while_nobody_asks, ()),
        (the_host_tells_what_it_uses, ()),
        (every_session_is_told_once, ()),
        (what_has_no_metrics_is_refused, ()),
    )
)


async def conform_metrics(
    host: Host,
    runtime: str = AUTO,
    storage: str = AUTO,
    have: frozenset[Capability] | None = None,
    checks: Sequence[Check[Stage]] = METRICS_CHECKS,
    deviations: Mapping[str, str] = {},
) -> AsyncIterator[Outcome]:
    """As `conform_host` does it."""
    told = await host.capabilities() if have is None else have
    async for outcome in conform(host, runtime, checks, deviations, storage, told):
        yield outcome
