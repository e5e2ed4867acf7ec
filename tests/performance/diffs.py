"""What a comparison of two points costs: it grows with what changed, not with what is there."""

import asyncio

from sandlot.host.service import SandboxHostService
from sandlot.model import DiffRequest, TurnRequest
from tests.performance.engine import Bench, run, session_with_true, timed
from tests.performance.measure import Samples, interleave
from tests.performance.report import Row, ratio_row

SECTION = "comparing two points"
FEW, MANY = 2_000, 100_000
FLAT_TARGET = 1.5
CHANGED, CHANGED_MORE = 10, 1_000
_FILL = "mkdir t; cd t; for d in $(seq {dirs}); do mkdir $d; (cd $d; touch $(seq 100)); done"
_CHANGE = "cd /workspace/t/1; for n in $(seq {count}); do echo changed > new-$n; done"
_COUNTED_S = 120


async def measure_diffs(bench: Bench) -> None:
    async with bench.engine() as host:
        few = await _compared(bench, host, FEW, CHANGED)
        many = await _compared(bench, host, 10_000 if bench.quick else MANY, CHANGED)
        more = await _compared(bench, host, FEW, CHANGED_MORE)
    bench.report.add(ratio_row(SECTION, f"diff, {CHANGED} changes among {FEW} files", few))
    bench.report.add(ratio_row(SECTION, f"diff, {CHANGED} changes among {MANY} files", many))
    bench.report.add(ratio_row(SECTION, f"diff, {CHANGED_MORE} changes among {FEW} files", more))
    value = many.ratio / few.ratio
    bench.report.add(Row(SECTION, "diff: many files, as a multiple of few", value, "times", target=FLAT_TARGET))


async def _compared(bench: Bench, host: SandboxHostService, files: int, changed: int) -> Samples:
    session_id = await session_with_true(host, bench.program)
    await run(host, session_id, "sh", "-c", _FILL.format(dirs=files // 100))
    await host.turn_complete(TurnRequest(session_id))
    await run(host, session_id, "sh", "-c", _CHANGE.format(count=changed))
    await host.turn_complete(TurnRequest(session_id))
    # What both turns changed is counted behind our back.
    async with asyncio.timeout(_COUNTED_S):
        while any(turn.changes is None for turn in await host.turns(session_id)):  # noqa: ASYNC110 - nothing tells of it
            await asyncio.sleep(0.1)

    async def compare() -> None:
        async with host.diff(DiffRequest(session_id, "1", "2")) as batches:
            found = sum([len(batch) async for batch in batches])
        if found < changed:
            raise RuntimeError(f"{found} changes were found, and {changed} were made")

    async def operation() -> float:
        return await timed(compare())

    return await interleave(bench.raw, bench.rounds(40, 10), operation)
