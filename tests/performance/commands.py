"""Commands in one session: how long one takes, how many go at once, how fast output flows."""

import asyncio
import os
import statistics
import subprocess
import time

from sandlot.host.service import SandboxHostService
from sandlot.model import CallOutput, CallRequest, SessionSpec, limits
from tests.performance.engine import TRUE_IN_WORKSPACE, Bench, run, session_with_true, timed
from tests.performance.measure import interleave, milliseconds_since, quiet
from tests.performance.report import Row, ratio_row

COMMAND_TARGET = 1.4
PARALLEL = 64
REST_S = 0.003
READ_BYTES = 1 << 20


async def measure_command(bench: Bench) -> None:
    commands: tuple[tuple[str, tuple[str, ...], float | None], ...] = (
        ("static true", TRUE_IN_WORKSPACE, COMMAND_TARGET),
        ("/bin/true, dynamic", ("/bin/true",), None),
        ("sh -c 'echo hi'", ("sh", "-c", "echo hi"), None),
    )
    section = "command in a session"
    async with bench.engine() as host:
        session_id = await session_with_true(host, bench.program)
        for name, argv, target in commands:

            async def operation(argv: tuple[str, ...] = argv) -> float:
                return await timed(run(host, session_id, *argv))

            samples = await interleave(bench.raw, bench.rounds(300, 60), operation)
            bench.report.add(ratio_row(section, name, samples, target=target))

        def rested_raw() -> float:
            time.sleep(REST_S)
            return bench.raw()

        async def rested() -> float:
            # Asleep, the loop hears what the call before left to do, and the cores come to rest.
            await asyncio.sleep(REST_S)
            return await timed(run(host, session_id, *TRUE_IN_WORKSPACE))

        samples = await interleave(rested_raw, bench.rounds(300, 60), rested)
        note = f"{REST_S * 1000:g} ms of rest before each command and each raw"
        bench.report.add(ratio_row(section, "static true, after a rest", samples, note=note))


async def measure_parallel(bench: Bench) -> None:
    async with bench.engine() as host:
        session_id = await session_with_true(host, bench.program)

        def raws() -> float:
            return sum(bench.raw() for _ in range(PARALLEL))

        async def operation() -> float:
            return await timed(asyncio.gather(*(run(host, session_id, *TRUE_IN_WORKSPACE) for _ in range(PARALLEL))))

        samples = await interleave(raws, bench.rounds(30, 5), operation)
    section = f"{PARALLEL} commands at once in one session"
    wall = statistics.median(samples.operation_ms)
    in_turn = statistics.median(samples.raw_ms)
    note = f"its raw is {PARALLEL} raw in sequence"
    bench.report.add(ratio_row(section, "wall, static true", samples, note=note))
    bench.report.add(Row(section, "commands per second", PARALLEL / wall * 1000, "/s"))
    bench.report.add(Row(section, "raw in sequence per second", PARALLEL / in_turn * 1000, "/s"))


async def measure_throughput(bench: Bench) -> None:
    mib = 64 if bench.quick else 512
    argv = ("head", "-c", f"{mib}M", "/dev/zero")
    speeds: list[float] = []
    plain: list[float] = []
    async with bench.engine() as host:
        session_id = (await host.create(SessionSpec())).session_id
        with quiet():
            for _ in range(3):
                plain.append(mib / _read_pipe(argv, mib) * 1000)
                speeds.append(mib / await _read_call(host, session_id, argv, mib) * 1000)
    section = f"stdout of one command, {mib} MiB, read to the end"
    note = "the engine also keeps all of it in a file"
    bench.report.add(Row(section, "through the engine", statistics.median(speeds), "MiB/s", n=len(speeds), note=note))
    bench.report.add(Row(section, "plain subprocess pipe", statistics.median(plain), "MiB/s", n=len(plain)))


async def _read_call(host: SandboxHostService, session_id: str, argv: tuple[str, ...], mib: int) -> float:
    request = CallRequest(session_id, argv=argv, output_bytes_max=2 * mib * limits.MIB)
    began, count = time.perf_counter_ns(), 0
    async with host.call(request) as stream:
        async for event in stream:
            if isinstance(event, CallOutput):
                count += len(event.data)
    took = milliseconds_since(began)
    if count != mib * limits.MIB:
        raise RuntimeError(f"{count} bytes arrived instead of {mib} MiB")
    return took


def _read_pipe(argv: tuple[str, ...], mib: int) -> float:
    began, count = time.perf_counter_ns(), 0
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL) as process:
        assert process.stdout is not None
        while piece := os.read(process.stdout.fileno(), READ_BYTES):
            count += len(piece)
    took = milliseconds_since(began)
    if count != mib * limits.MIB:
        raise RuntimeError(f"{count} bytes arrived instead of {mib} MiB")
    return took
