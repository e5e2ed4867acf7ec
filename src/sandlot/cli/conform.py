"""Hold the runtimes of this machine to what every runtime promises, and tell which promise was not kept.

Every check has a session of its own, which is destroyed behind it. Known deviations are told with their reason. The
exit code is 0 when there is no other."""

import argparse
import dataclasses

from sandlot.cli.context import Context, Engine
from sandlot.conformance import RUNTIME_CHECKS, RUNTIME_DEVIATIONS, Outcome, Verdict, conform, is_conforming
from sandlot.model import CapabilityNotSupported, InvalidArgument

USAGE = "conform [options]"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--runtime", metavar="NAME", help="this one alone (default: all that work here)")


async def run(context: Context) -> int:
    found: dict[str, list[Outcome]] = {}
    async with context.engine() as host:
        for runtime in await _runtimes(host, context.args.runtime):
            deviations = RUNTIME_DEVIATIONS.get(runtime, {})
            found[runtime] = [one async for one in conform(host, runtime, RUNTIME_CHECKS, deviations)]
    is_good = bool(found) and all(map(is_conforming, found.values()))
    screen = context.screen
    if screen.as_json:
        documents = {runtime: [dataclasses.asdict(one) for one in outcomes] for runtime, outcomes in found.items()}
        screen.json({"conforming": is_good, "runtimes": documents})
        return 0 if is_good else 1
    heads = ("RUNTIME", "CHECK", "RESULT", "SECONDS", "")
    rows = [
        (runtime, one.check.replace("_", " "), one.verdict, f"{one.seconds:.2f}", one.detail)
        for runtime, outcomes in found.items()
        for one in outcomes
    ]
    screen.table(heads, rows, numbers=(3,))
    for runtime, outcomes in found.items():
        screen.line(f"{runtime}: {_summary(outcomes)}")
    return 0 if is_good else 1


async def _runtimes(host: Engine, asked: str | None) -> list[str]:
    """Raises InvalidArgument for a name that is no runtime, CapabilityNotSupported for one that does not work here."""
    _storages, probes = await host.probes()
    if asked is None:
        return [probe.name for probe in probes if probe.ready]
    for probe in probes:
        if probe.name == asked:
            if not probe.ready:
                raise CapabilityNotSupported(f"{asked} does not work here: {probe.reason}", next_step=probe.next_step)
            return [asked]
    names = ", ".join(probe.name for probe in probes)
    raise InvalidArgument(f"--runtime: {asked!r} is not a runtime", next_step=f"use one of: {names}")


def _summary(outcomes: list[Outcome]) -> str:
    counts = {verdict: sum(one.verdict is verdict for one in outcomes) for verdict in Verdict}
    return ", ".join(f"{count} {verdict}" for verdict, count in counts.items() if count)
