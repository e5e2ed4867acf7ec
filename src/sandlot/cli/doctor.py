"""Tell what this machine can do, and what to do about what it cannot."""

import argparse
import asyncio
import dataclasses

from sandlot.cli.context import Context, Engine
from sandlot.cli.machine import Check, Verdict, look
from sandlot.cli.screen import Screen, printable
from sandlot.model import (
    AUTO,
    Capability,
    CapabilityNotSupported,
    DataDirectoryHeld,
    Probe,
    SandlotError,
)

USAGE = "doctor [options]"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    del parser


async def run(context: Context) -> int:
    checks = await asyncio.to_thread(lambda: list(look(context.settings)))
    found, ready = await _try_engine(context)
    checks += found
    if context.screen.as_json:
        context.screen.json({"ready": ready, "checks": [dataclasses.asdict(check) for check in checks]})
    else:
        _show(context.screen, checks, ready)
    return 0 if ready else 1


async def _try_engine(context: Context) -> tuple[list[Check], bool | None]:
    """What the engine's parts say, and whether one of them isolates; None when that could not be found out."""
    settings = dataclasses.replace(context.settings, runtime=AUTO, storage=AUTO)
    try:
        # It answers at once: who asks what is wrong does not want to wait.
        async with dataclasses.replace(context, wait_s=0.0).engine(settings) as host:
            storages, runtimes = await host.probes()
            isolates = await _isolates(host)
    except DataDirectoryHeld as error:
        return [Check("engine", Verdict.NOTE, f"{error.message}; not probed", error.next_step)], None
    except SandlotError as error:
        return [Check("engine", Verdict.MISSING, error.message, error.next_step)], False
    except OSError as error:
        step = "look at what is missing above, or give another --data-dir"
        return [Check("engine", Verdict.MISSING, f"it does not start: {error}", step)], False
    probed = [*(_probed("storage", probe) for probe in storages), *(_probed("runtime", probe) for probe in runtimes)]
    return probed, isolates


async def _isolates(host: Engine) -> bool:
    try:
        return Capability.ISOLATION in await host.capabilities()
    except CapabilityNotSupported:
        return False


def _probed(axis: str, probe: Probe) -> Check:
    verdict = Verdict.OK if probe.ready else Verdict.MISSING
    return Check(f"{axis} {probe.name}", verdict, probe.reason or "ready", probe.next_step)


def _show(screen: Screen, checks: list[Check], ready: bool | None) -> None:
    width = max(len(check.name) for check in checks)
    for check in checks:
        word = screen.mark(f"{check.verdict:<7}", check.verdict)
        screen.line(f"{word}  {check.name:<{width}}  {printable(check.detail)}")
        if check.next_step and check.verdict is not Verdict.OK:
            screen.line(f"{'':<{width + 9}}  → {printable(check.next_step)}")
    screen.line()
    if ready:
        screen.line("This machine is ready: sessions are isolated.")
    elif ready is None:
        screen.line("Whether sessions can be isolated was not tried: another engine holds the data directory.")
    else:
        screen.line("This machine cannot isolate sessions yet. Code you trust can run with `--runtime none`.")
