"""The storage `zfs`, beside its own command line: nothing that it does can be quicker than that."""

import os
import shutil
from collections.abc import Callable, Coroutine
from typing import Any

from sandlot.host.storage.zfs_commands import ZfsManager
from sandlot.model import ForkRequest, RollbackRequest, SessionSpec, TurnRequest
from tests.performance.engine import Bench, run, timed
from tests.performance.measure import interleave
from tests.performance.report import ratio_row

SECTION = "the storage zfs"
_WORK = ("sh", "-c", "for n in 1 2 3 4 5; do echo $n > f$n; done")


async def measure_zfs(bench: Bench) -> None:
    """Told without targets: the daemon and its commands are most of it."""
    if shutil.which("zfs") is None:
        bench.report.say(f"{SECTION}: not measured, because zfs is not installed")
        return
    async with bench.engine() as host:
        session_id = (await host.create(SessionSpec(storage="zfs"))).session_id
        await run(host, session_id, *_WORK)
        await host.turn_complete(TurnRequest(session_id))
        pool = (bench.data / "zfs.pool").read_text()
        for name, operation in {
            "command: zfs snapshot": _bare(pool, snapshot=True),
            "turn snapshot": lambda: timed(host.turn_complete(TurnRequest(session_id))),
            "command: zfs clone": _bare(pool, snapshot=False),
            "rollback": lambda: timed(host.rollback(RollbackRequest(session_id, "1", keep=True))),
            "fork": lambda: timed(host.fork(ForkRequest(session_id, "1"))),
        }.items():
            bench.report.add(ratio_row(SECTION, name, await interleave(bench.raw, bench.rounds(20, 5), operation)))


def _bare(pool: str, *, snapshot: bool) -> Callable[[], Coroutine[Any, Any, float]]:
    """The command alone, on a dataset of its own."""
    zfs, name = ZfsManager(), f"{pool}/bench-{os.urandom(4).hex()}"
    made = False

    async def operation() -> float:
        nonlocal made
        if not made:
            await zfs.create(name, {"mountpoint": "none"})
            await zfs.snapshot(f"{name}@first")
            made = True
        number = os.urandom(4).hex()
        if snapshot:
            return await timed(zfs.snapshot(f"{name}@{number}"))
        return await timed(zfs.clone(f"{name}@first", f"{name}-{number}", {"mountpoint": "none"}))

    return operation
