"""What the server and its client add: to a command, to a session; and how many commands go through in a second.

The server is a process of its own, as it is for users; the client is in this one."""

import asyncio
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import cast

from sandlot.contracts import Host
from sandlot.model import CallRequest, SessionSpec
from sandlot.rpc.client import HostClient
from tests.performance.engine import TRUE_IN_TEMPLATE, Bench, timed
from tests.performance.measure import Samples, milliseconds_since, quiet
from tests.performance.report import Row, ratio_row

COMMAND_TARGET = 2.0
COLD_TARGET = 6.0
WARM_TARGET = 3.5
PER_SECOND_TARGET = 1500.0
SESSIONS = 64


async def measure_wire(bench: Bench) -> None:
    async with (
        _server(bench, warm=0) as (port, path),
        HostClient(f"unix://{path}") as unix,
        HostClient(f"http://127.0.0.1:{port}") as tcp,
    ):
        await _measure_commands(bench, cast("Host", unix), cast("Host", tcp))
        await _measure_create(bench, cast("Host", unix), "create to first result, cold", COLD_TARGET)
        await _measure_many(bench, cast("Host", unix))
    async with _server(bench, warm=8) as (port, path), HostClient(f"unix://{path}") as unix:
        await _measure_create(bench, cast("Host", unix), "create to first result, warm", WARM_TARGET, rest_s=0.05)


@asynccontextmanager
async def _server(bench: Bench, warm: int) -> AsyncGenerator[tuple[int, Path]]:
    data = bench.data.with_name("wire-data")
    async with bench.engine():
        pass  # it makes the template
    bench.share_template(data)
    path = data / "wire.sock"
    path.unlink(missing_ok=True)
    command = [
        sys.executable,
        "-m",
        "tests.performance.wire_server",
        str(data),
        str(bench.program),
        str(path),
        str(warm),
    ]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        try:
            yield int(await asyncio.to_thread(server.stdout.readline)), path
        finally:
            server.stdin.close()
            await asyncio.to_thread(server.wait)
    (data / "templates").unlink()
    shutil.rmtree(data)


async def run(host: Host, session_id: str) -> None:
    async with host.call(CallRequest(session_id, argv=TRUE_IN_TEMPLATE)) as stream:
        result = await stream.result()
    if result.exit_code != 0:
        raise RuntimeError(f"the yardstick ended with {result}")


async def _measure_commands(bench: Bench, unix: Host, tcp: Host) -> None:
    session_id = (await unix.create(SessionSpec())).session_id
    raws: list[float] = []
    took: dict[str, list[float]] = {"unix socket": [], "TCP": [], "a procedure that does nothing": []}
    with quiet():
        for counts in bench.rounds(400, 80):
            raw = bench.raw()
            times = [
                await timed(run(unix, session_id)),
                await timed(run(tcp, session_id)),
                await timed(unix.capabilities()),
            ]
            if counts:
                raws.append(raw)
                for each, value in zip(took.values(), times, strict=True):
                    each.append(value)
    section = "command through the server and its client (static true)"
    for name, values in took.items():
        target = None if name.startswith("a ") else COMMAND_TARGET
        bench.report.add(ratio_row(section, name, Samples(values, raws), target=target))


async def _measure_create(bench: Bench, host: Host, name: str, target: float, rest_s: float = 0.0) -> None:
    raws: list[float] = []
    took: list[float] = []
    with quiet():
        for counts in bench.rounds(60, 12):
            await asyncio.sleep(rest_s)
            raw, began = bench.raw(), time.perf_counter_ns()
            session_id = (await host.create(SessionSpec())).session_id
            await run(host, session_id)
            value = milliseconds_since(began)
            await host.destroy(session_id)
            if counts:
                raws.append(raw)
                took.append(value)
    bench.report.add(ratio_row("session through the server and its client", name, Samples(took, raws), target=target))


async def _measure_many(bench: Bench, host: Host) -> None:
    sessions = [await host.create(SessionSpec()) for _ in range(SESSIONS)]
    seconds, rates = 2.0 if bench.quick else 5.0, list[float]()
    for _ in range(3):
        done, began = 0, time.perf_counter()

        async def worker(session_id: str, began: float = began) -> None:
            nonlocal done
            while time.perf_counter() - began < seconds:
                await run(host, session_id)
                done += 1

        with quiet():
            await asyncio.gather(*(worker(session.session_id) for session in sessions))
        rates.append(done / (time.perf_counter() - began))
    section = f"commands over {SESSIONS} sessions at once, through the server"
    bench.report.add(
        Row(section, "per second", statistics.median(rates), "/s", target=PER_SECOND_TARGET, at_least=True, n=3)
    )
    await asyncio.gather(*(host.destroy(session.session_id) for session in sessions))
