"""Terminals: how long a key takes to its echo. Metrics: what looking at sessions that rest costs."""

import resource
import time

from sandlot.model import (
    SessionSpec,
    TerminalAttach,
    TerminalInput,
    TerminalKill,
    TerminalOutput,
    TerminalRequest,
    limits,
)
from tests.performance.engine import Bench, for_each
from tests.performance.measure import interleave, milliseconds_since
from tests.performance.report import Row, ratio_row

KEY_TARGET = 1.0
LOOK_TARGET = 0.1  # percent of one processor
LOOKS = 10


async def measure_terminals(bench: Bench) -> None:
    section = "terminals"
    async with bench.engine() as host:
        session_id = (await host.create(SessionSpec())).session_id
        opened = await host.open_terminal(TerminalRequest(session_id, ("sleep", "600")))
        name = opened.terminal_id
        async with host.attach_terminal(TerminalAttach(session_id, name)) as stream:
            events = aiter(stream)

            async def press() -> float:
                began = time.perf_counter_ns()
                await host.write_terminal(TerminalInput(session_id, name, b"x"))
                while not isinstance(await anext(events), TerminalOutput):
                    pass
                return milliseconds_since(began)

            # A line has room for no more than 4095 keys.
            samples = await interleave(bench.raw, bench.rounds(300, 60), press)
            bench.report.add(ratio_row(section, "key press to echo", samples, target=KEY_TARGET))
        await host.kill_terminal(TerminalKill(session_id, name))


async def measure_metrics(bench: Bench) -> None:
    """In percent of one processor, for as long as nobody asks."""
    count = 100 if bench.quick else 1000
    section = "metrics"
    async with bench.engine() as host:

        async def create(_number: int) -> None:
            await host.create(SessionSpec())

        await for_each(range(count), create)
        for _settling in range(2):
            await host.meter.look()
        began = resource.getrusage(resource.RUSAGE_SELF)
        for _look in range(LOOKS):
            await host.meter.look()
        ended = resource.getrusage(resource.RUSAGE_SELF)
        used = ended.ru_utime + ended.ru_stime - began.ru_utime - began.ru_stime
        percent = 100 * used / LOOKS / limits.SAMPLE_INTERVAL_S
        bench.report.add(Row(section, f"{count} sessions that rest", percent, "% of one processor", LOOK_TARGET))
