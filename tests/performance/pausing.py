"""What it costs to let a session stand still, and to let it go on."""

from sandlot.model import PauseRequest
from tests.performance.engine import Bench, session_with_true, timed
from tests.performance.measure import interleave
from tests.performance.report import ratio_row

PAUSE_TARGET = 0.5
RESUME_TARGET = 0.5


async def measure_pausing(bench: Bench) -> None:
    async with bench.engine() as host:
        session_id = await session_with_true(host, bench.program)
        section = "pausing"

        async def pause() -> float:
            took = await timed(host.pause(PauseRequest(session_id)))
            await host.resume(session_id)
            return took

        async def resume() -> float:
            await host.pause(PauseRequest(session_id))
            return await timed(host.resume(session_id))

        paused = await interleave(bench.raw, bench.rounds(200, 50), pause)
        bench.report.add(ratio_row(section, "pause", paused, target=PAUSE_TARGET))
        resumed = await interleave(bench.raw, bench.rounds(200, 50), resume)
        bench.report.add(ratio_row(section, "resume", resumed, target=RESUME_TARGET))
