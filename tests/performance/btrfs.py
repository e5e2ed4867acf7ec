"""The storage `btrfs`, in the image that Sandlot makes for itself."""

import shutil

from sandlot.model import ForkRequest, RollbackRequest, SessionSpec, TurnRequest
from tests.performance.engine import Bench, run, timed
from tests.performance.measure import Samples, interleave
from tests.performance.report import ratio_row

SECTION = "the storage btrfs"
SNAPSHOT_TARGET = 12.0
ROLLBACK_TARGET = 12.0
FORK_TARGET = 8.0
_FILL = "mkdir t; cd t; for d in $(seq 20); do mkdir $d; (cd $d; touch $(seq 100)); done"
_WORK = ("sh", "-c", "for n in 1 2 3 4 5; do echo $n > f$n; done")


async def measure_btrfs(bench: Bench) -> None:
    if shutil.which("mkfs.btrfs") is None:
        bench.report.say(f"{SECTION}: not measured, because btrfs-progs is not installed")
        return
    async with bench.engine() as host:
        session_id = (await host.create(SessionSpec(storage="btrfs"))).session_id
        await run(host, session_id, "sh", "-c", _FILL)
        await host.turn_complete(TurnRequest(session_id))

        async def snapshot() -> float:
            await run(host, session_id, *_WORK)
            return await timed(host.turn_complete(TurnRequest(session_id)))

        async def rollback() -> float:
            await run(host, session_id, *_WORK)
            return await timed(host.rollback(RollbackRequest(session_id, "1", keep=True)))

        async def fork() -> float:
            made = ""

            async def work() -> None:
                nonlocal made
                made = (await host.fork(ForkRequest(session_id, "1")))[0].session_id

            took = await timed(work())
            await host.destroy(made)
            return took

        for name, operation, target in (
            ("turn snapshot", snapshot, SNAPSHOT_TARGET),
            ("rollback", rollback, ROLLBACK_TARGET),
            ("fork", fork, FORK_TARGET),
        ):
            samples: Samples = await interleave(bench.raw, bench.rounds(40, 10), operation)
            bench.report.add(ratio_row(SECTION, name, samples, target=target))
