"""What the audit log adds to a call, and how long it takes to verify one."""

import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import cast

from sandlot.audit.files import ANCHOR_FILE, FOLDER
from sandlot.audit.host import audited
from sandlot.audit.log import AuditLog
from sandlot.audit.verifying import verify
from sandlot.contracts import Host
from sandlot.model import CallRequest
from sandlot.server.redaction import redact
from tests.performance.engine import Bench
from tests.performance.measure import interleave, milliseconds_since, quiet
from tests.performance.report import Row, ratio_row

CALL_TARGET = 0.1
VERIFY_TARGET_S = 10.0
RECORDS = 100_000
AT_ONCE = 50  # calls of one sample
SECTION = "audit"


class _Nothing:
    """A host whose calls are done at once: what is left is the log."""

    @asynccontextmanager
    async def call(self, _request: CallRequest) -> AsyncGenerator[None]:
        yield


async def measure_auditing(bench: Bench) -> None:
    log = AuditLog(bench.folder / FOLDER, bench.folder / ANCHOR_FILE)
    log.open()
    host = audited(cast("Host", _Nothing()), log, redact)
    request = CallRequest("tenant-team.work", ("sh", "-c", "make test && echo done"))

    async def operation() -> float:
        began = time.perf_counter_ns()
        for _ in range(AT_ONCE):
            async with host.call(request):
                pass
        return milliseconds_since(began) / AT_ONCE

    with quiet():
        samples = await interleave(bench.raw, bench.rounds(300, 60), operation)
    bench.report.add(ratio_row(SECTION, "both records of one call", samples, target=CALL_TARGET))
    last = log.record({"who": "k", "verb": "call"})
    for _ in range(RECORDS - last):
        log.record({"who": "e9a63550f270", "verb": "call", "phase": "asked", "session": "tenant-team.work"})
    log.close()
    began = time.perf_counter_ns()
    verdict = verify(bench.folder / FOLDER, bench.folder / ANCHOR_FILE)
    seconds = milliseconds_since(began) / 1000
    note = "" if verdict.is_whole and verdict.records == RECORDS else "; ".join(verdict.findings) or "records are lost"
    value = None if note else seconds
    bench.report.add(Row(SECTION, f"verify {RECORDS:,} records", value, "s", VERIFY_TARGET_S, note=note))
