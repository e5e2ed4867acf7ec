"""All cases, one after the other, against one host."""

import asyncio
import fnmatch
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path

from sandlot.attack.arena import Arena, load_program
from sandlot.attack.bait import lay_bait
from sandlot.attack.case import Case
from sandlot.attack.cases import CASES
from sandlot.attack.verdicts import Finding, Severity, Verdict
from sandlot.contracts import Host
from sandlot.model import InvalidArgument

_TARGETS = Case("targets", "Is everything there that the attacks look for?", "bait that is real", Severity.HIGH)


def choose(patterns: Sequence[str]) -> tuple[Case, ...]:
    """The cases whose names match one of the patterns; all without any. Raises InvalidArgument when none does."""
    chosen = tuple(
        case for case in CASES if not patterns or any(fnmatch.fnmatchcase(case.name, one) for one in patterns)
    )
    if not chosen:
        raise InvalidArgument(
            f"no case is called {' or '.join(patterns)}", next_step="`sandlot attack --list` tells their names"
        )
    return chosen


@asynccontextmanager
async def arena(host: Host, data: Path) -> AsyncGenerator[Arena]:
    """The place for attacks on a host. All sessions of that host are destroyed at the end. Raises Unavailable."""
    program = await asyncio.to_thread(load_program)
    with ExitStack() as stack:
        bait = await asyncio.to_thread(stack.enter_context, lay_bait())
        place = Arena(host, bait, program, data)
        try:
            await place.open()
            yield place
        finally:
            await place.close()


async def attack(place: Arena, cases: Sequence[Case]) -> AsyncGenerator[Finding]:
    """Each finding when it is there; last, whether the attacks had real targets."""
    for case in cases:
        yield await case.carry_out(place)
        if not await place.is_alive():
            await place.renew()
    yield await _check_targets(place)


async def _check_targets(place: Arena) -> Finding:
    """A suite whose targets are missing would hold always."""
    began = time.monotonic()
    gone = await asyncio.to_thread(place.bait.missing)
    if not await place.other_is_there():
        gone.append("the session beside")
    verdict = Verdict.BROKEN if gone else Verdict.HELD
    case = _TARGETS
    seconds = time.monotonic() - began
    return Finding(
        case.name, case.attack, case.defence, case.severity, place.runtime, verdict, seconds, ", ".join(gone)
    )
