"""What the SDK adds to the engine: to a command, to a small file; and what it costs to import."""

import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from sandlot import AsyncSandbox, Client, Sandbox
from tests.performance.engine import TRUE_IN_WORKSPACE, Bench, run, session_with_true, timed
from tests.performance.measure import Samples, milliseconds_since, quiet
from tests.performance.report import Row, ratio_row

ADDED_TARGET = 0.3
IMPORT_TARGET_MS = 100.0
_IMPORT = "import time; t = time.perf_counter(); import sandlot; print((time.perf_counter() - t) * 1000)"
_TEXT = "a line of text\n"


async def measure_sdk(bench: Bench) -> None:
    """Engine and SDK in turn, in one process: each has an engine and a session of its own."""
    async with bench.engine() as host:
        session_id = await session_with_true(host, bench.program)
        data = bench.data.with_name("sdk-data")
        bench.share_template(data)
        async with Client(data_dir=data) as client:
            sync = Sandbox.create(client=client)
            try:
                sync.files.write(TRUE_IN_WORKSPACE[0], bench.program.read_bytes(), mode=0o755)
                face = AsyncSandbox(sync.id, client=client)

                async def through_engine() -> float:
                    return await timed(run(host, session_id, *TRUE_IN_WORKSPACE))

                async def through_sync() -> float:
                    began = time.perf_counter_ns()
                    sync.commands.run(TRUE_IN_WORKSPACE)
                    return milliseconds_since(began)

                async def through_async() -> float:
                    return await timed(face.commands.run(TRUE_IN_WORKSPACE))

                await _measure_commands(bench, through_engine, through_sync, through_async)
                await _measure_files(bench, face)
            finally:
                sync.kill()
    (data / "templates").unlink()
    shutil.rmtree(data)
    _measure_import(bench)


async def _in_turn(bench: Bench, full: int, quick: int, *operations: Callable[[], Awaitable[float]]) -> list[Samples]:
    took: list[list[float]] = [[] for _ in operations]
    raws: list[float] = []
    with quiet():
        for counts in bench.rounds(full, quick):
            raw = bench.raw()
            times = [await operation() for operation in operations]
            if counts:
                raws.append(raw)
                for each, value in zip(took, times, strict=True):
                    each.append(value)
    return [Samples(each, raws) for each in took]


async def _measure_commands(bench: Bench, *operations: Callable[[], Awaitable[float]]) -> None:
    engine, sync, face = await _in_turn(bench, 300, 60, *operations)
    section = "command through the SDK (static true)"
    bench.report.add(ratio_row(section, "the engine alone, in the same loop", engine))
    for name, samples in (("Sandbox", sync), ("AsyncSandbox", face)):
        bench.report.add(ratio_row(section, name, samples))
        more = statistics.median(samples.operation_ms) - statistics.median(engine.operation_ms)
        value = more / statistics.median(engine.raw_ms)
        bench.report.add(Row(section, f"added by {name}", value, "raw", target=ADDED_TARGET, n=len(samples.raw_ms)))


async def _measure_files(bench: Bench, face: AsyncSandbox) -> None:
    await face.files.write("small.txt", _TEXT)

    async def write() -> float:
        return await timed(face.files.write("small.txt", _TEXT))

    async def read() -> float:
        return await timed(face.files.read("small.txt"))

    async def look() -> float:
        return await timed(face.files.stat("small.txt"))

    section = "small file through AsyncSandbox"
    for name, samples in zip(
        ("write (replace, whole or not at all)", "read", "stat"),
        await _in_turn(bench, 200, 40, write, read, look),
        strict=True,
    ):
        bench.report.add(ratio_row(section, name, samples))


def _measure_import(bench: Bench) -> None:
    source = Path(__file__).parents[2]
    # With bytecode, as pip leaves a package.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}

    def once() -> float:
        program = [sys.executable, "-c", _IMPORT]
        return float(subprocess.run(program, capture_output=True, check=True, cwd=source, env=environment).stdout)

    once()
    told = [once() for _ in range(5 if bench.quick else 20)]
    value, note = statistics.median(told), "in a new process"
    bench.report.add(Row("import", "import sandlot", value, "ms", target=IMPORT_TARGET_MS, n=len(told), note=note))
