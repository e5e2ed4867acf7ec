"""The runtime `gvisor`: a command, a session from nothing and from the pool, a rollback; beside `runsc` by itself."""

import asyncio
import json
import os
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

from sandlot.host.service import SandboxHostService
from sandlot.model import CallOutput, CallRequest, PauseRequest, RollbackRequest, SessionSpec, TurnRequest
from tests.performance.bundle import write_bundle
from tests.performance.engine import TRUE_IN_TEMPLATE, Bench, for_each, run, timed
from tests.performance.measure import Samples, interleave, milliseconds_since
from tests.performance.report import Row, ratio_row

SECTION = "gVisor (static true)"
COMMAND_TARGET = 10.0
START_TARGET = 1.3
WARM_TARGET = 15.0
ROLLBACK_TARGET = 5.0
HELD = 200
SPEC = SessionSpec(runtime="gvisor")
SLEEPERS = (10, 500)  # megabytes
_HOLDS = """
import os, sys, time
held = [os.urandom(1 << 20) for _ in range(int(sys.argv[1]))]
print("held", flush=True)
time.sleep(3600)
"""
_REFILL_S = 1.0


async def measure_gvisor(bench: Bench) -> None:
    if shutil.which("runsc") is None:
        bench.report.say("  runsc is not installed: left out")
        return
    async with bench.engine() as host:
        session_id = (await host.create(SPEC)).session_id
        command = await interleave(
            bench.raw, bench.rounds(100, 20), lambda: timed(run(host, session_id, *TRUE_IN_TEMPLATE))
        )
        bench.report.add(ratio_row(SECTION, "command", command, target=COMMAND_TARGET))
        bench.report.add(ratio_row(SECTION, "runsc exec", await _execs(bench)))
        bench.report.add(
            ratio_row(SECTION, "rollback", await _rollbacks(bench, host, session_id), target=ROLLBACK_TARGET)
        )
        ours, alone = await _starts(bench, host)
        bench.report.add(ratio_row(SECTION, "create to first result", ours))
        bench.report.add(ratio_row(SECTION, "runsc run alone", alone))
        bench.report.add(Row(SECTION, "create, times runsc run", ours.ratio / alone.ratio, "x", START_TARGET))
        for megabytes in SLEEPERS:
            await _sleep(bench, host, megabytes)
        await _hold(bench, host)
    async with bench.engine(warm_pool=2, runtime="gvisor") as host:
        bench.report.add(ratio_row(SECTION, "warm start", await _warm(bench, host), target=WARM_TARGET))


async def _execs(bench: Bench) -> Samples:
    """What one would use instead, in a sandbox that idles."""
    with tempfile.TemporaryDirectory(dir=bench.folder) as folder:
        place = write_bundle(Path(folder) / "idle", bench.program, idle=True, cgroups=False)
        runsc = ("runsc", f"--root={folder}/state", "--network=none", "--ignore-cgroups")
        name = f"bench-exec-{os.getpid()}"

        def do(*words: str) -> None:
            null = subprocess.DEVNULL  # a pipe would be held by the sandbox that it starts
            subprocess.run([*runsc, *words], check=True, timeout=60, stdin=null, stdout=null, stderr=null)

        async def operation() -> float:
            began = time.perf_counter_ns()
            await asyncio.to_thread(do, "exec", name, "/true", "true")
            return milliseconds_since(began)

        await asyncio.to_thread(do, "run", "--detach", f"--bundle={place}", name)
        try:
            return await interleave(bench.raw, bench.rounds(20, 5), operation)
        finally:
            await asyncio.to_thread(do, "delete", "-force", name)


async def _sleep(bench: Bench, host: SandboxHostService, megabytes: int) -> None:
    """A program holds so much that cannot be told in fewer bytes."""
    session_id = (await host.create(SPEC)).session_id
    request = CallRequest(session_id, ("python3", "-c", _HOLDS, str(megabytes)), detach=True)
    async with host.call(request) as call:
        async for event in call:
            if isinstance(event, CallOutput):
                break
    woken: list[float] = []

    async def operation() -> float:
        slept = await timed(host.pause(PauseRequest(session_id, memory=True)))
        woken.append(await timed(host.resume(session_id)))
        return slept

    rounds = bench.rounds(5, 2)
    slept = await interleave(bench.raw, rounds, operation)
    await host.destroy(session_id)
    for name, samples in (("checkpoint", slept), ("restore", Samples(woken[rounds.warm_up :], slept.raw_ms))):
        bench.report.add(ratio_row(SECTION, f"{name} of {megabytes} MB", samples))


async def _rollbacks(bench: Bench, host: SandboxHostService, session_id: str) -> Samples:
    await host.turn_complete(TurnRequest(session_id))

    async def operation() -> float:
        await run(host, session_id, "touch", "new")
        return await timed(host.rollback(RollbackRequest(session_id, "1")))

    return await interleave(bench.raw, bench.rounds(40, 10), operation)


async def _starts(bench: Bench, host: SandboxHostService) -> tuple[Samples, Samples]:
    """In turn, so that both meet the same machine."""
    alone: list[float] = []
    with tempfile.TemporaryDirectory(dir=bench.folder) as folder:
        place = Path(folder)
        _bundle(place, bench.program)

        async def operation() -> float:
            alone.append(await asyncio.to_thread(_run_alone, place))
            began = time.perf_counter_ns()
            session_id = (await host.create(SPEC)).session_id
            await run(host, session_id, *TRUE_IN_TEMPLATE)
            took = milliseconds_since(began)
            await host.destroy(session_id)
            return took

        rounds = bench.rounds(20, 5)
        ours = await interleave(bench.raw, rounds, operation)
    return ours, Samples(alone[rounds.warm_up :], ours.raw_ms)


def _bundle(place: Path, program: Path) -> None:
    (place / "rootfs").mkdir()
    shutil.copy(program, place / "rootfs" / "program")
    config = {
        "ociVersion": "1.0.2",
        "process": {"args": ["/program", "true"], "cwd": "/", "user": {"uid": 0, "gid": 0}},
        "root": {"path": "rootfs", "readonly": True},
        "linux": {"namespaces": [{"type": kind} for kind in ("pid", "mount", "ipc", "uts", "network")]},
    }
    (place / "config.json").write_text(json.dumps(config))


def _run_alone(place: Path) -> float:
    began = time.perf_counter_ns()
    state, name = place / "state", f"bench-{os.getpid()}"
    words = ["runsc", f"--root={state}", "--network=none", "--ignore-cgroups", "run", f"--bundle={place}", name]
    subprocess.run(words, check=True, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, timeout=60)
    return milliseconds_since(began)


async def _warm(bench: Bench, host: SandboxHostService) -> Samples:
    async def operation() -> float:
        await asyncio.sleep(_REFILL_S)
        began = time.perf_counter_ns()
        session_id = (await host.create(SPEC)).session_id
        await run(host, session_id, *TRUE_IN_TEMPLATE)
        took = milliseconds_since(began)
        await host.destroy(session_id)
        return took

    return await interleave(bench.raw, bench.rounds(20, 5), operation)


async def _hold(bench: Bench, host: SandboxHostService) -> None:
    count = 10 if bench.quick else HELD

    async def one(_number: int) -> None:
        await run(host, (await host.create(SPEC)).session_id, *TRUE_IN_TEMPLATE)

    failed = await for_each(range(count), one, 4)
    note = str(failed[0]) if failed else ""
    bench.report.add(Row(SECTION, "sessions held", count - len(failed), target=count, at_least=True, note=note))
