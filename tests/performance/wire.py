"""What the server and its client add: to a command, to a session; and how many commands go through in a second.

The server is `sandlot serve` as users have it, a process of its own; the client is in this one."""

import asyncio
import json
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from sandlot import AsyncSandbox, Client, Sandbox
from sandlot.contracts import Host
from sandlot.model import CallRequest, SessionSpec
from sandlot.rpc.client import HostClient
from tests.performance.engine import TRUE_IN_TEMPLATE, Bench, timed
from tests.performance.measure import Samples, milliseconds_since, quiet
from tests.performance.report import Row, ratio_row
from tests.performance.wire_states import measure_states

COMMAND_TARGET = 2.0
COLD_TARGET = 6.0
WARM_TARGET = 3.5
PER_SECOND_TARGET = 1500.0
SESSIONS = 64
_STOP_S = 60


@dataclass(frozen=True, slots=True)
class Server:
    pid: int
    port: int
    path: Path

    @property
    def unix(self) -> str:
        return f"unix://{self.path}"

    def processor_ms(self) -> float:
        """That all threads of it have had."""
        tasks = Path(f"/proc/{self.pid}/task")
        return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks.iterdir()) / 1e6


async def measure_wire(bench: Bench) -> None:
    async with (
        serving(bench, warm=0) as server,
        HostClient(server.unix) as unix,
        HostClient(f"http://127.0.0.1:{server.port}") as tcp,
        Client(url=server.unix) as client,
    ):
        await _measure_commands(bench, cast("Host", unix), cast("Host", tcp), client)
        await _measure_create(bench, cast("Host", unix), client, "cold", COLD_TARGET)
        await measure_states(bench, cast("Host", unix), client)
        await _measure_many(bench, server, cast("Host", unix))
    async with serving(bench, warm=8) as server, HostClient(server.unix) as unix, Client(url=server.unix) as client:
        await _measure_create(bench, cast("Host", unix), client, "warm", WARM_TARGET, rest_s=0.05)


@asynccontextmanager
async def serving(bench: Bench, warm: int) -> AsyncGenerator[Server]:
    data = bench.data.with_name("wire-data")
    async with bench.engine():
        pass  # it makes the template
    bench.share_template(data)
    path = data / "wire.sock"
    command = [sys.executable, "-m", "sandlot", "--json", "--data-dir", str(data), "serve"]
    command += [
        "--log-level",
        "warning",
        "--listen",
        f"127.0.0.1:0,unix:{path}",
        "--warm-pool",
        str(warm),
        "--keeper",
        str(bench.program),
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            told = json.loads(await asyncio.to_thread(process.stdout.readline))
            yield Server(process.pid, int(told["listen"][0].rpartition(":")[2]), path)
        finally:
            process.terminate()
            await asyncio.to_thread(process.wait, _STOP_S)
    (data / "templates").unlink()
    shutil.rmtree(data)


async def run(host: Host, session_id: str) -> None:
    async with host.call(CallRequest(session_id, argv=TRUE_IN_TEMPLATE)) as stream:
        result = await stream.result()
    if result.exit_code != 0:
        raise RuntimeError(f"the yardstick ended with {result}")


async def _in_turn(bench: Bench, full: int, quick: int, *operations: Callable[[], Awaitable[float]]) -> list[Samples]:
    raws: list[float] = []
    took: list[list[float]] = [[] for _ in operations]
    with quiet():
        for counts in bench.rounds(full, quick):
            raw = bench.raw()
            times = [await operation() for operation in operations]
            if counts:
                raws.append(raw)
                for each, value in zip(took, times, strict=True):
                    each.append(value)
    return [Samples(each, raws) for each in took]


async def _measure_commands(bench: Bench, unix: Host, tcp: Host, client: Client) -> None:
    session_id = (await unix.create(SessionSpec())).session_id
    sync, face = Sandbox.connect(session_id, client=client), AsyncSandbox(session_id, client=client)

    async def through_sync() -> float:
        began = time.perf_counter_ns()
        sync.commands.run(TRUE_IN_TEMPLATE)
        return milliseconds_since(began)

    names = ("unix socket", "TCP", "Sandbox", "AsyncSandbox", "a procedure that does nothing")
    found = await _in_turn(
        bench,
        400,
        80,
        lambda: timed(run(unix, session_id)),
        lambda: timed(run(tcp, session_id)),
        through_sync,
        lambda: timed(face.commands.run(TRUE_IN_TEMPLATE)),
        lambda: timed(unix.capabilities()),
    )
    section = "command through the server and its client (static true)"
    for name, samples in zip(names, found, strict=True):
        target = None if name.startswith("a ") else COMMAND_TARGET
        bench.report.add(ratio_row(section, name, samples, target=target))
    await unix.destroy(session_id)


async def _measure_create(
    bench: Bench, host: Host, client: Client, how: str, target: float, rest_s: float = 0.0
) -> None:
    async def through_client() -> float:
        await asyncio.sleep(rest_s)
        began = time.perf_counter_ns()
        session_id = (await host.create(SessionSpec())).session_id
        await run(host, session_id)
        value = milliseconds_since(began)
        await host.destroy(session_id)
        return value

    async def through_sdk() -> float:
        await asyncio.sleep(rest_s)
        began = time.perf_counter_ns()
        sandbox = await AsyncSandbox.create(client=client)
        await sandbox.commands.run(TRUE_IN_TEMPLATE)
        value = milliseconds_since(began)
        await sandbox.kill()
        return value

    section = "session through the server and its client"
    names = f"create to first result, {how}", f"AsyncSandbox, create to first result, {how}"
    for name, samples in zip(names, await _in_turn(bench, 60, 12, through_client, through_sdk), strict=True):
        bench.report.add(ratio_row(section, name, samples, target=target))


async def _measure_many(bench: Bench, server: Server, host: Host) -> None:
    sessions = [await host.create(SessionSpec()) for _ in range(SESSIONS)]
    seconds, rates = 2.0 if bench.quick else 5.0, list[float]()
    total, spent, own = 0, server.processor_ms(), time.process_time()
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
        total += done
    spent, own = server.processor_ms() - spent, (time.process_time() - own) * 1000
    section = f"commands over {SESSIONS} sessions at once, through the server"
    bench.report.add(
        Row(section, "per second", statistics.median(rates), "/s", target=PER_SECOND_TARGET, at_least=True, n=3)
    )
    for name, value in (("the server", spent), ("the client", own)):
        bench.report.add(Row(section, f"processor time of {name}, each", value / total, "ms", n=total))
    await asyncio.gather(*(host.destroy(session.session_id) for session in sessions))
