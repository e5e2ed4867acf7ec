"""ExecD's metrics: what the sandbox uses of what it may use, not what the machine does."""

import asyncio
import json
from collections.abc import AsyncGenerator
from typing import Any, Final

from sandlot.contracts import Host
from sandlot.gateways.web import Answer, Request
from sandlot.model import MetricsRequest, SessionSample

WATCH_S: Final = 1.0
_MIB: Final = 1 << 20


class Metrics:
    def __init__(self, host: Host) -> None:
        self._host = host

    async def _now(self, session_id: str) -> dict[str, Any]:
        samples = await self._host.session_metrics(MetricsRequest(session_id, limit=1))
        return told(samples[-1])

    async def get(self, request: Request) -> Answer:
        return Answer.json(await self._now(request.values["id"]))

    async def watch(self, request: Request) -> Answer:
        """A line each second, as long as somebody reads and the sandbox is there."""
        first = await self._now(request.values["id"])
        headers = {"content-type": "text/event-stream", "cache-control": "no-cache"}
        return Answer(200, self._lines(request.values["id"], first), headers)

    async def _lines(self, session_id: str, sample: dict[str, Any]) -> AsyncGenerator[bytes]:
        while True:
            yield json.dumps(sample).encode() + b"\n"
            await asyncio.sleep(WATCH_S)
            sample = await self._now(session_id)


def told(sample: SessionSample) -> dict[str, Any]:
    return {
        "cpu_count": sample.cpus_max,
        "cpu_used_pct": round(100 * sample.cpus_used / sample.cpus_max, 3) if sample.cpus_max else 0.0,
        "mem_total_mib": sample.memory_bytes_max / _MIB,
        "mem_used_mib": sample.memory_bytes / _MIB,
        "timestamp": round(sample.at * 1000),
    }
