"""What users of OpenSandbox get: its official SDK on `sandlot serve`, beside what its own server needs.

Their figures were taken with images that were there already: create to ready 660 ms, a command 1010 ms, a file written
3.5 ms and read 2.4 ms, twenty sandboxes in parallel 15.4 s.

Their SDK reads the certificates of the machine anew for each sandbox: most of what a create takes, even without TLS.
Users who give all sandboxes one transport do not pay that; the rows that say so show the server.
"""

import asyncio
import os
import statistics
import time
from collections.abc import Awaitable, Callable

import httpx
from opensandbox import Sandbox
from opensandbox.config import ConnectionConfig

from tests.performance.engine import Bench
from tests.performance.measure import milliseconds_since, quantile
from tests.performance.report import Row
from tests.performance.wire import serving

SECTION = "opensandbox"
CREATE_MS = 50.0
COMMAND_MS = 10.0
MANY_MS = 1000.0
WRITE_MS = 3.5
READ_MS = 2.4
MANY = 20


async def measure_opensandbox(bench: Bench) -> None:
    os.environ["OPENSANDBOX_DISABLE_METRICS"] = "1"
    async with serving(bench, warm=0) as server:
        domain = f"127.0.0.1:{server.port}"
        connection = ConnectionConfig(domain=domain, protocol="http")
        await _measure_life(bench, connection, "", CREATE_MS)
        await _measure_one(bench, connection)
        await _measure_many(bench, connection, "", MANY_MS)
        async with httpx.AsyncHTTPTransport() as transport:
            shared = ConnectionConfig(domain=domain, protocol="http", transport=transport)
            await _measure_life(bench, shared, ", one transport", None)
            await _measure_many(bench, shared, ", one transport", None)


async def _create(connection: ConnectionConfig) -> Sandbox:
    return await Sandbox.create("python:3.12", connection_config=connection)


async def _measure_life(bench: Bench, connection: ConnectionConfig, how: str, target: float | None) -> None:
    made: list[Sandbox] = []

    async def create() -> None:
        made.append(await _create(connection))

    await _row(bench, f"create to ready{how}", create, target, rounds=10 if bench.quick else 20)
    for sandbox in made:
        await sandbox.kill()
        await sandbox.close()


async def _measure_one(bench: Bench, connection: ConnectionConfig) -> None:
    sandbox = await _create(connection)
    commands, files = sandbox.commands, sandbox.files
    shell = await commands.create_session()
    rounds = 30 if bench.quick else 200
    for name, operation, target in (
        ("commands.run, true", lambda: commands.run("true"), COMMAND_MS),
        ("run_in_session, true", lambda: commands.run_in_session(shell, "true"), None),
        ("write_file, 1 KiB", lambda: files.write_file("/work/a", "x" * 1024), WRITE_MS),
        ("read_file, 1 KiB", lambda: files.read_file("/work/a"), READ_MS),
    ):
        await _row(bench, name, operation, target, rounds)
    await sandbox.kill()
    await sandbox.close()


async def _measure_many(bench: Bench, connection: ConnectionConfig, how: str, target: float | None) -> None:
    took: list[float] = []
    for _ in range(2 if bench.quick else 5):
        began = time.perf_counter_ns()
        made = await asyncio.gather(*(_create(connection) for _ in range(MANY)))
        took.append(milliseconds_since(began))
        await asyncio.gather(*(sandbox.kill() for sandbox in made))
        await asyncio.gather(*(sandbox.close() for sandbox in made))
    name = f"{MANY} sandboxes in parallel ready{how}"
    bench.report.add(Row(SECTION, name, statistics.median(took), "ms", target, n=len(took)))


async def _row(
    bench: Bench, name: str, operation: Callable[[], Awaitable[object]], target: float | None, rounds: int
) -> None:
    took: list[float] = []
    for number in range(rounds + 3):
        began = time.perf_counter_ns()
        await operation()
        if number >= 3:  # connections are made, and code is loaded
            took.append(milliseconds_since(began))
    median = statistics.median(took)
    p95 = quantile(took, 0.95)
    bench.report.add(Row(SECTION, name, median, "ms", target, median_ms=median, p95_ms=p95, n=len(took)))
