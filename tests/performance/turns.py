"""What a turn costs: snapshot, rollback and fork, with few files and with many, early and late in a session's life."""

import asyncio
from pathlib import Path

from sandlot.host.service import SandboxHostService
from sandlot.model import ForkRequest, RollbackRequest, TurnRequest
from tests.performance.engine import Bench, run, session_with_true, timed
from tests.performance.measure import Samples, interleave, quiet
from tests.performance.report import Row, ratio_row

SNAPSHOT_TARGET = 4.0
ROLLBACK_TARGET = 3.0
FORK_TARGET = 5.0
FLAT_TARGET = 1.5
FEW, MANY = 2_000, 100_000
TURNS = 100
FORKS = 100
FORKS_TARGET_MS = 1000.0
_FILL = "mkdir t; cd t; for d in $(seq {dirs}); do mkdir $d; (cd $d; touch $(seq 100)); done"
_COUNTED_S = 120
_WORK = ("sh", "-c", "for n in 1 2 3 4 5; do echo $n > f$n; done")


async def measure_turns(bench: Bench) -> None:
    async with bench.engine() as host:
        few = await _session(host, bench.program, FEW)
        many = await _session(host, bench.program, 10_000 if bench.quick else MANY)
        section = "a session's history"
        taken = {name: await _snapshots(bench, host, session_id) for name, session_id in (("few", few), ("many", many))}
        bench.report.add(ratio_row(section, f"turn snapshot, {FEW} files", taken["few"], target=SNAPSHOT_TARGET))
        bench.report.add(ratio_row(section, f"turn snapshot, {MANY} files", taken["many"]))
        _flat(bench, section, "turn snapshot", taken)
        back = {name: await _rollbacks(bench, host, session_id) for name, session_id in (("few", few), ("many", many))}
        bench.report.add(ratio_row(section, f"rollback, {FEW} files", back["few"], target=ROLLBACK_TARGET))
        bench.report.add(ratio_row(section, f"rollback, {MANY} files", back["many"]))
        _flat(bench, section, "rollback", back)
        forked = {name: await _forks(bench, host, session_id) for name, session_id in (("few", few), ("many", many))}
        bench.report.add(ratio_row(section, f"fork, {FEW} files", forked["few"], target=FORK_TARGET))
        bench.report.add(ratio_row(section, f"fork, {MANY} files", forked["many"]))
        _flat(bench, section, "fork", forked)
        await _late(bench, host, few, section)
        await _hundred_forks(bench, host, few, section)


async def _session(host: SandboxHostService, program: Path, files: int) -> str:
    session_id = await session_with_true(host, program)
    await run(host, session_id, "sh", "-c", _FILL.format(dirs=files // 100))
    await host.turn_complete(TurnRequest(session_id))
    # What this large turn changed is counted behind our back; the turns to be measured are small.
    async with asyncio.timeout(_COUNTED_S):
        while (await host.turns(session_id))[-1].changes is None:  # noqa: ASYNC110 - nothing tells of it
            await asyncio.sleep(0.1)
    return session_id


async def _snapshots(bench: Bench, host: SandboxHostService, session_id: str) -> Samples:
    async def operation() -> float:
        await run(host, session_id, *_WORK)
        return await timed(host.turn_complete(TurnRequest(session_id)))

    return await interleave(bench.raw, bench.rounds(40, 10), operation)


async def _rollbacks(bench: Bench, host: SandboxHostService, session_id: str) -> Samples:
    async def operation() -> float:
        await run(host, session_id, *_WORK)
        return await timed(host.rollback(RollbackRequest(session_id, "1", keep=True)))

    return await interleave(bench.raw, bench.rounds(40, 10), operation)


async def _forks(bench: Bench, host: SandboxHostService, session_id: str) -> Samples:
    async def operation() -> float:
        made = ""

        async def fork() -> None:
            nonlocal made
            made = (await host.fork(ForkRequest(session_id, "1")))[0].session_id

        took = await timed(fork())
        await host.destroy(made)
        return took

    return await interleave(bench.raw, bench.rounds(40, 10), operation)


def _flat(bench: Bench, section: str, what: str, samples: dict[str, Samples]) -> None:
    value = samples["many"].ratio / samples["few"].ratio
    bench.report.add(Row(section, f"{what}: many files, as a multiple of few", value, "times", target=FLAT_TARGET))


async def _late(bench: Bench, host: SandboxHostService, session_id: str, section: str) -> None:
    for _ in range(TURNS if not bench.quick else 20):
        await host.turn_complete(TurnRequest(session_id))
    samples = await _snapshots(bench, host, session_id)
    bench.report.add(ratio_row(section, f"turn snapshot after {TURNS} turns", samples, target=SNAPSHOT_TARGET))


async def _hundred_forks(bench: Bench, host: SandboxHostService, session_id: str, section: str) -> None:
    with quiet():
        took = await timed(_fork_many(host, session_id))
    bench.report.add(Row(section, f"{FORKS} forks in one call", took, "ms", target=FORKS_TARGET_MS))


async def _fork_many(host: SandboxHostService, session_id: str) -> None:
    made = await host.fork(ForkRequest(session_id, "1", count=FORKS))
    await asyncio.gather(*(run(host, child.session_id, "/workspace/sandlot-keeper", "true") for child in made[:10]))
