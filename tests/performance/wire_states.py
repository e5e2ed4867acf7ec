"""What the server and its client add to turns, rollbacks, forks and pauses: engine and server in turn, each with a
session of its own."""

import statistics
import time
from collections.abc import Awaitable, Callable

from sandlot import Client, Sandbox
from sandlot.contracts import Host
from sandlot.model import CallRequest, ForkRequest, PauseRequest, RollbackRequest, SessionSpec, TurnRequest
from tests.performance.engine import Bench, timed
from tests.performance.measure import Samples, milliseconds_since, quiet
from tests.performance.report import Row, ratio_row

ADDED_TARGET = 1.0
PAUSE_TARGET = 1.5
RESUME_TARGET = 1.5
_WORK = ("sh", "-c", "for n in 1 2 3 4 5; do echo $n > f$n; done")
Operation = Callable[[Host, str], Awaitable[float]]


async def measure_states(bench: Bench, remote: Host, client: Client) -> None:
    async with bench.engine() as engine:
        here = (await engine.create(SessionSpec())).session_id
        there = (await remote.create(SessionSpec())).session_id
        await engine.turn_complete(TurnRequest(here))
        await remote.turn_complete(TurnRequest(there))
        section = "history through the server and its client"
        for name, operation in (("turn snapshot", _turn), ("rollback", _rollback), ("fork", _fork)):
            own, far = await _both(bench, operation, engine, here, remote, there)
            bench.report.add(ratio_row(section, f"{name}, the engine alone", own))
            bench.report.add(ratio_row(section, name, far))
            added = statistics.median(far.operation_ms) - statistics.median(own.operation_ms)
            value = added / statistics.median(far.raw_ms)
            bench.report.add(
                Row(section, f"added to a {name}", value, "raw", target=ADDED_TARGET, n=len(far.operation_ms))
            )
        section = "pausing through the server and its client"
        for name, operation, target in (("pause", _pause, PAUSE_TARGET), ("resume", _resume, RESUME_TARGET)):
            own, far = await _both(bench, operation, engine, here, remote, there)
            bench.report.add(ratio_row(section, f"{name}, the engine alone", own))
            bench.report.add(ratio_row(section, name, far, target=target))
        await _measure_sdk(bench, Sandbox.connect(there, client=client))
        await remote.destroy(there)


async def _measure_sdk(bench: Bench, sandbox: Sandbox) -> None:
    raws: list[float] = []
    took: dict[str, list[float]] = {"pause": [], "resume": []}
    with quiet():
        for counts in bench.rounds(60, 20):
            raw = bench.raw()
            for name, verb in (("pause", sandbox.pause), ("resume", sandbox.resume)):
                began = time.perf_counter_ns()
                verb()
                if counts:
                    took[name].append(milliseconds_since(began))
            if counts:
                raws.append(raw)
    for name, target in (("pause", PAUSE_TARGET), ("resume", RESUME_TARGET)):
        section = "pausing through the server and its client"
        bench.report.add(ratio_row(section, f"Sandbox, {name}", Samples(took[name], raws), target=target))


async def _both(
    bench: Bench, operation: Operation, engine: Host, here: str, remote: Host, there: str
) -> tuple[Samples, Samples]:
    raws: list[float] = []
    own: list[float] = []
    far: list[float] = []
    with quiet():
        for counts in bench.rounds(60, 20):
            raw, near, away = bench.raw(), await operation(engine, here), await operation(remote, there)
            if counts:
                raws.append(raw)
                own.append(near)
                far.append(away)
    return Samples(own, raws), Samples(far, raws)


async def _work(host: Host, session_id: str) -> None:
    async with host.call(CallRequest(session_id, _WORK)) as stream:
        result = await stream.result()
    if result.exit_code:
        raise RuntimeError(f"the work before ended with {result}")


async def _turn(host: Host, session_id: str) -> float:
    await _work(host, session_id)
    return await timed(host.turn_complete(TurnRequest(session_id)))


async def _rollback(host: Host, session_id: str) -> float:
    await _work(host, session_id)
    return await timed(host.rollback(RollbackRequest(session_id, "1", keep=True)))


async def _fork(host: Host, session_id: str) -> float:
    made: list[str] = []

    async def fork() -> None:
        made.extend(child.session_id for child in await host.fork(ForkRequest(session_id, "1")))

    took = await timed(fork())
    for child in made:
        await host.destroy(child)
    return took


async def _pause(host: Host, session_id: str) -> float:
    took = await timed(host.pause(PauseRequest(session_id)))
    await host.resume(session_id)
    return took


async def _resume(host: Host, session_id: str) -> float:
    await host.pause(PauseRequest(session_id))
    return await timed(host.resume(session_id))
