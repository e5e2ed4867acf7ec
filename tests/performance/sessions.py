"""Sessions: how long until one has answered, how many at once, how many per second."""

import asyncio
import time
from dataclasses import dataclass

from sandlot.host.service import SandboxHostService
from sandlot.model import SandlotError, SessionSpec
from tests.performance.engine import CONCURRENCY, TRUE_IN_TEMPLATE, Bench, for_each, run, timed
from tests.performance.measure import Samples, interleave, milliseconds_since, quantile, quiet
from tests.performance.report import Row, ratio_row

COLD_TARGET = 5.0
WARM_TARGET = 2.5
RATE_TARGET = 200.0
POOL = 8
REFILL_S = 0.1  # the pool begins half of that after a guest was taken
BURST = 100


async def measure_create(bench: Bench) -> None:
    section = "session, create to first result (static true)"
    async with bench.engine() as host:
        cold, only_create, destroyed = await _create_loop(bench, host)
    bench.report.add(ratio_row(section, "cold", cold, target=COLD_TARGET))
    bench.report.add(ratio_row(section, "cold, the create alone", only_create))
    bench.report.add(ratio_row(section, "destroy", destroyed))
    async with bench.engine(warm_pool=POOL) as host:
        await asyncio.sleep(REFILL_S * POOL)
        warm, only_create, _destroyed = await _create_loop(bench, host)
    note = f"a pool of {POOL}, refilled outside of the timed part"
    bench.report.add(ratio_row(section, "warm", warm, target=WARM_TARGET, note=note))
    bench.report.add(ratio_row(section, "warm, the create alone", only_create))


async def _create_loop(bench: Bench, host: SandboxHostService) -> tuple[Samples, Samples, Samples]:
    """To the first result; the create in it; the destroy behind it."""
    created: list[float] = []
    destroyed: list[float] = []

    async def operation() -> float:
        began = time.perf_counter_ns()
        session_id = (await host.create(SessionSpec())).session_id
        created.append(milliseconds_since(began))
        await run(host, session_id, *TRUE_IN_TEMPLATE)
        took = milliseconds_since(began)
        destroyed.append(await timed(host.destroy(session_id)))
        await asyncio.sleep(REFILL_S)  # the pool refills, the trash is emptied
        return took

    rounds = bench.rounds(100, 20)
    samples = await interleave(bench.raw, rounds, operation)
    kept = slice(rounds.warm_up, None)
    return samples, Samples(created[kept], samples.raw_ms), Samples(destroyed[kept], samples.raw_ms)


async def measure_burst(bench: Bench) -> None:
    section = f"{BURST} creates at once, each with a command"
    async with bench.engine() as host:
        fresh = await _burst(host)
        await bench.destroy_all(host)
        used = await _burst(host)
    for name, burst in (("succeeded, engine just started", fresh), ("succeeded, engine in use", used)):
        note = "; ".join(sorted(set(burst.errors)))[:200]
        bench.report.add(Row(section, name, len(burst.created_ms), target=BURST, at_least=True, note=note))
    for name, value in (
        ("create, p50", quantile(used.created_ms, 0.5)),
        ("create, p99", quantile(used.created_ms, 0.99)),
        ("wall, commands included", used.wall_ms),
    ):
        bench.report.add(Row(section, name, value, "ms", n=BURST))


@dataclass(frozen=True, slots=True)
class Burst:
    created_ms: list[float]
    errors: list[str]
    wall_ms: float


async def _burst(host: SandboxHostService) -> Burst:
    created: list[float] = []
    errors: list[str] = []

    async def one() -> None:
        began = time.perf_counter_ns()
        try:
            session_id = (await host.create(SessionSpec())).session_id
            took = milliseconds_since(began)
            await run(host, session_id, *TRUE_IN_TEMPLATE)
            created.append(took)
        except SandlotError as error:
            errors.append(str(error))

    with quiet():
        wall = await timed(asyncio.gather(*(one() for _ in range(BURST))))
    return Burst(created, errors, wall)


async def measure_rate(bench: Bench) -> None:
    count = 40 if bench.quick else 200
    section = f"sessions per second, {count} times create and destroy"

    async with bench.engine() as host:

        async def one(_number: int) -> None:
            await host.destroy((await host.create(SessionSpec())).session_id)

        for concurrency, name, target in ((1, "one after the other", None), (CONCURRENCY, "8 at a time", RATE_TARGET)):
            await for_each(range(CONCURRENCY), one, concurrency)
            with quiet():
                began = time.perf_counter_ns()
                failed = await for_each(range(count), one, concurrency)
                took = milliseconds_since(began)
            note = f"{len(failed)} failed: {failed[0]}" if failed else ""
            rate = (count - len(failed)) / took * 1000
            bench.report.add(Row(section, name, rate, "/s", target, at_least=True, n=count, note=note))
