"""Many idle sessions: what each costs in memory, and whether the others notice."""

import os
import resource
import statistics
import time
from pathlib import Path

from sandlot.host.service import SandboxHostService
from sandlot.model import SessionSpec
from tests.performance.commands import COMMAND_TARGET
from tests.performance.engine import TRUE_IN_WORKSPACE, Bench, for_each, run, session_with_true, timed
from tests.performance.measure import interleave, milliseconds_since, quiet
from tests.performance.report import Row, ratio_row

MEMORY_TARGET_MB = 1.0
HELD_TARGET = 3000
PER_SESSION_DESCRIPTORS = 8
GUEST = "sandlot-guest"


async def measure_density(bench: Bench) -> None:
    count = 100 if bench.quick else 1000
    section = f"{count} living sessions"
    _raise_descriptor_limit(count)
    async with bench.engine() as host:
        session_id = await session_with_true(host, bench.program)
        before, own_before = _memory_kb(), _own_kb()

        async def create(_number: int) -> None:
            await host.create(SessionSpec())

        with quiet():
            began = time.perf_counter_ns()
            failed = await for_each(range(count - 1), create)
            took = milliseconds_since(began)
        living = count - len(failed)
        note = f"{len(failed)} failed: {failed[0]}" if failed else "8 at a time, no destroy between them"
        bench.report.add(Row(section, "creates per second", (living - 1) / took * 1000, "/s", n=living - 1, note=note))
        _report_memory(bench, section, living - 1, before, own_before)

        async def operation() -> float:
            return await timed(run(host, session_id, *TRUE_IN_WORKSPACE))

        samples = await interleave(bench.raw, bench.rounds(200, 40), operation)
        bench.report.add(ratio_row(section, "command in one of them, static true", samples, target=COMMAND_TARGET))
        await _report_destroy(bench, section, host, living)


async def measure_idle(bench: Bench) -> None:
    """As many as two cores and 24 GiB are to hold, and each of them answers."""
    section = "idle sessions"
    count = HELD_TARGET // 10 if bench.quick else HELD_TARGET
    _raise_descriptor_limit(count)
    async with bench.engine() as host:
        before, own_before, sessions = _memory_kb(), _own_kb(), list[str]()

        async def create(_number: int) -> None:
            sessions.append((await host.create(SessionSpec())).session_id)

        async def ask(session_id: str) -> None:
            await run(host, session_id, "/bin/true")

        with quiet():
            failed = [*await for_each(range(count), create), *await for_each(sessions, ask)]
        note = f"{len(failed)} failed: {failed[0]}" if failed else "each of them then ran a command"
        held = len(sessions) if not failed else min(len(sessions), count - len(failed))
        target = count if bench.quick else HELD_TARGET
        bench.report.add(Row(section, "held", held, target=target, at_least=True, note=note))
        _report_memory(bench, section, held, before, own_before)
        await _report_destroy(bench, section, host, held)


async def _report_destroy(bench: Bench, section: str, host: SandboxHostService, living: int) -> None:
    with quiet():
        took = await timed(bench.destroy_all(host))
    note = f"8 at a time, {living / took * 1000:.0f} per second"
    bench.report.add(Row(section, "destroy all of them", took / 1000, "s", n=living, note=note))


def _report_memory(bench: Bench, section: str, sessions: int, before: dict[str, int], own_before: int) -> None:
    after, own_after = _memory_kb(), _own_kb()

    def each(kb: float) -> float:
        return kb / 1024 / sessions

    # The kernel counts most of the reclaimable slab as available; a living session holds it all the same.
    gone = before["MemAvailable"] - after["MemAvailable"]
    reclaimable = after["SReclaimable"] - before["SReclaimable"]
    slab = after["Slab"] - before["Slab"]
    note = f"MemAvailable {each(gone):.3f} + reclaimable slab {each(reclaimable):.3f}, of the whole machine"
    bench.report.add(
        Row(section, "memory each", each(gone + reclaimable), "MB", MEMORY_TARGET_MB, n=sessions, note=note)
    )
    bench.report.add(Row(section, "slab each", each(slab), "MB"))
    bench.report.add(Row(section, "the engine's own process, each", each(own_after - own_before), "MB"))
    guests = _guest_pids()
    pss = [_pss_kb(pid) for pid in guests]
    if pss:
        note = f"{len(guests)} guest processes"
        bench.report.add(Row(section, "guest process (PSS, median)", statistics.median(pss) / 1024, "MB", note=note))


def _raise_descriptor_limit(sessions: int) -> None:
    """The keeper and the engine hold a few descriptors per session; the keeper inherits the limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = sessions * PER_SESSION_DESCRIPTORS + 1024
    if soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(wanted, hard), hard))


def _memory_kb() -> dict[str, int]:
    lines = Path("/proc/meminfo").read_text().splitlines()
    return {name: int(value.split()[0]) for name, _, value in (line.partition(":") for line in lines)}


def _own_kb() -> int:
    return _pss_kb(os.getpid())


def _pss_kb(pid: int) -> int:
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith("Pss:")), 0)


def _guest_pids() -> list[int]:
    """Guests of this process: children of its children. Other engines may run on the machine."""
    parents: dict[int, int] = {}
    guests: list[int] = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            stat = (entry / "stat").read_text()
        except OSError:
            continue
        name, _, rest = stat.partition("(")[2].rpartition(")")
        parents[int(entry.name)] = int(rest.split()[1])
        if name == GUEST:
            guests.append(int(entry.name))
    return [pid for pid in guests if parents.get(parents[pid]) == os.getpid()]
