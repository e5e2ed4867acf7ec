"""What a session that does its worst, under limits, costs the commands of another. Every bomb ends by itself."""

import asyncio

from sandlot.host.service import SandboxHostService
from sandlot.model import CallRequest, Resources, SessionSpec, limits
from tests.performance.engine import Bench, run, session_with_true, timed
from tests.performance.measure import interleave, quantile
from tests.performance.report import Row

TARGET = 3.0
_LIMITS = Resources(cpus=1, memory_bytes=512 * limits.MIB, pids=256)
_SECONDS = 20
_FORK = """
import os
while True:
    try:
        os.fork()
    except OSError:
        pass
"""
_BOMBS = {
    "fork bomb": "exec python3 -c '" + _FORK + "'",
    "memory bomb": "while :; do python3 -c 'x = bytearray(1 << 30)'; done",
    "disk filler": "while :; do dd if=/dev/zero of=fill bs=1M count=128 status=none; done",
    "output flood": "yes",
    "spinners": "for i in 1 2 3 4; do while :; do :; done & done; wait",
}


async def measure_neighbours(bench: Bench) -> None:
    async with bench.engine() as host:
        session_id = await session_with_true(host, bench.program)
        quiet_p99 = await _p99(bench, host, session_id)
        for name, script in _BOMBS.items():
            hostile = (await host.create(SessionSpec(resources=_LIMITS))).session_id
            request = CallRequest(
                hostile, ("sh", "-c", script), timeout_s=_SECONDS, output_bytes_max=limits.MIB, detach=True
            )
            async with host.call(request):
                pass
            worst = await _p99(bench, host, session_id)
            await asyncio.shield(host.destroy(hostile))
            label = f"command, p99 as a multiple of the quiet one: {name}"
            bench.report.add(Row("noisy neighbour", label, worst / quiet_p99, "times", target=TARGET))


async def _p99(bench: Bench, host: SandboxHostService, session_id: str) -> float:
    samples = await interleave(
        bench.raw,
        bench.rounds(400, 150),
        lambda: timed(run(host, session_id, "/workspace/sandlot-keeper", "true")),
    )
    return quantile(samples.operation_ms, 0.99)
