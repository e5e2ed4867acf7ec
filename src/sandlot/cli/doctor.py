"""Tell what this machine can do, and what to do about what it cannot.

The engine's parts are tried for real, in a directory that is made for it and removed. The exit code is 0 when sessions
can be isolated. With --storage it is 0 when the journal and the machine agree, or have been made to; with --rebuild
too, when sessions were found again."""

import argparse
import asyncio
import dataclasses
import os
import shutil
import tempfile
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager
from itertools import groupby
from pathlib import Path

from sandlot.cli.checks import Check, Section, Verdict
from sandlot.cli.context import Context, Engine
from sandlot.cli.examination import examine, rebuild
from sandlot.cli.machine import look, nearest
from sandlot.cli.screen import Screen, decoded, printable
from sandlot.model import (
    AUTO,
    Capability,
    CapabilityNotSupported,
    DataDirectoryHeld,
    InvalidArgument,
    Probe,
    SandlotError,
    SessionFilter,
    limits,
)

USAGE = "doctor [options]"
# The probes of the engine's parts do not find these out.
_DECISIVE = ("capabilities", "sessions")
_TO_TRY = ("data directory", "open files")  # without these the parts cannot be tried, and not be cleaned up
_ABOVE = "look at what is missing above, or give another --data-dir"
_OTHER = "give another data directory with --data-dir"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    # Other verbs give --storage a value, and shells that complete words know an option by its name alone.
    parser.add_argument(
        "--storage",
        metavar="all",
        nargs="?",
        const="all",
        choices=("all",),
        help="compare what the journal says with what the machine holds instead; the value may be left out",
    )
    parser.add_argument("--repair", action="store_true", help="with --storage: remove what is ours and nobody needs")
    parser.add_argument(
        "--rebuild",
        action="store_true",
        help="with --storage: find sessions again whose journal was lost, where the storage has notes of them (zfs)",
    )


async def run(context: Context) -> int:
    if context.args.rebuild:
        if not context.args.storage or context.args.repair:
            raise InvalidArgument("--rebuild is for --storage alone", next_step="give both, without --repair")
        return await rebuild(context)
    if context.args.storage:
        return await examine(context, repair=context.args.repair)
    if context.args.repair:
        raise InvalidArgument("--repair is for --storage", next_step="give both")
    report = await report_of(context)
    if context.screen.as_json:
        context.screen.json(report.document)
    else:
        _show(context.screen, report.checks, report.summary)
    return 0 if report.ready else 1


@dataclasses.dataclass(frozen=True, slots=True)
class Report:
    ready: bool
    summary: str
    checks: list[Check]

    @property
    def document(self) -> dict[str, object]:
        checks = [dataclasses.asdict(check) | {"detail": decoded(check.detail)} for check in self.checks]
        return {"ready": self.ready, "summary": self.summary, "checks": checks}


async def report_of(context: Context, *, opens: bool = True) -> Report:
    """`opens`: whether the engine of the data directory is tried too, which may mend what it finds there."""
    checks = await asyncio.to_thread(lambda: list(look(context.settings)))
    if lacking := [check for check in checks if check.name in _TO_TRY and _is_missing(check)]:
        told = f"not tried: see {lacking[0].name}"
        tried, isolates = [Check(Section.ENGINE, "engine", Verdict.MISSING, told, lacking[0].next_step)], False
    else:
        tried, isolates = await _try_parts(context)
    checks += tried
    if opens and await asyncio.to_thread(os.access, context.settings.data / "journal.db", os.F_OK):
        checks.append(await _try_data(context))
    ready = isolates and not any(_is_missing(check) for check in checks if check.name in _DECISIVE)
    if ready:
        # It works all the same, as with a kernel that loads what it needs only now.
        checks = [dataclasses.replace(check, verdict=Verdict.NOTE) if _is_missing(check) else check for check in checks]
    return Report(ready, _summary(checks, ready), checks)


def _is_missing(check: Check) -> bool:
    return check.verdict is Verdict.MISSING


def _summary(checks: list[Check], ready: bool) -> str:
    if ready:
        return "This machine is ready: sessions are isolated."
    trusted = any(check.name == "runtime none" and check.verdict is Verdict.OK for check in checks)
    told = "This machine cannot isolate sessions yet; what is missing above says what to do."
    return told + (" Code you trust can run with `--runtime none`." if trusted else "")


# ---- the engine --------------------------------------------------------------------------------------------------


async def _try_parts(context: Context) -> tuple[list[Check], bool]:
    """What the engine's parts say, and whether one of them isolates."""
    try:
        async with _place(context.settings.data) as place:
            settings = dataclasses.replace(context.settings, data=place, runtime=AUTO, storage=AUTO)
            async with context.engine(settings) as host:
                storages, runtimes = await host.probes()
                able = await _able(host)
    except SandlotError as error:
        return [Check(Section.ENGINE, "engine", Verdict.MISSING, error.message, error.next_step or _ABOVE)], False
    except Exception as error:  # noqa: BLE001 - whatever it is, it is why people ask the doctor
        return [Check(Section.ENGINE, "engine", Verdict.MISSING, f"it does not start: {error}", _ABOVE)], False
    probed = [*(_probed("storage", probe) for probe in storages), *(_probed("runtime", probe) for probe in runtimes)]
    return [*_limits(able), *probed], Capability.ISOLATION in able


@asynccontextmanager
async def _place(data: Path) -> AsyncGenerator[Path]:
    """A data directory for a moment, on the filesystem of the real one, which is left as it is."""
    place = Path(await asyncio.to_thread(tempfile.mkdtemp, prefix=".sandlot-doctor-", dir=nearest(data)))
    try:
        yield place
    finally:
        await asyncio.to_thread(shutil.rmtree, place, ignore_errors=True)


async def _able(host: Engine) -> frozenset[Capability]:
    try:
        return await host.capabilities()
    except CapabilityNotSupported:
        return frozenset()


def _limits(able: frozenset[Capability]) -> Iterator[Check]:
    """Which limits of a session hold here."""
    known = {limit: limit.removeprefix("limit_") for limit in Capability if limit.startswith("limit_")}
    held = [word for limit, word in known.items() if limit in able]
    missing = [word for limit, word in known.items() if limit not in able]
    if held:
        yield Check(Section.LIMITS, "session limits", Verdict.OK, f"can be enforced: {', '.join(held)}")
    if missing:
        told = f"cannot be enforced, and are refused when asked for: {', '.join(missing)}"
        step = "docs/operating/limits.md says what each needs"
        yield Check(Section.LIMITS, "further limits", Verdict.NOTE, told, step)


def _probed(axis: str, probe: Probe) -> Check:
    verdict = Verdict.OK if probe.ready else Verdict.MISSING
    step = probe.next_step if probe.ready else probe.next_step or _ABOVE
    return Check(Section.ENGINE, f"{axis} {probe.name}", verdict, probe.reason or "ready", step)


async def _try_data(context: Context) -> Check:
    """Whether the engine of this data directory opens, with the sessions that are in it."""
    try:
        # It answers at once: who asks what is wrong does not want to wait.
        async with dataclasses.replace(context, wait_s=0.0).engine() as host:
            page = await host.list(SessionFilter(limit=limits.LIST_PAGE_MAX))
    except DataDirectoryHeld as error:
        return Check(Section.ENGINE, "sessions", Verdict.NOTE, f"in use: {error.message}", error.next_step)
    except SandlotError as error:
        return Check(Section.ENGINE, "sessions", Verdict.MISSING, error.message, error.next_step or _OTHER)
    except Exception as error:  # noqa: BLE001 - whatever it is, it is why people ask the doctor
        return Check(Section.ENGINE, "sessions", Verdict.MISSING, f"they cannot be opened: {error}", _OTHER)
    count = f"more than {len(page.sessions)}" if page.next else str(len(page.sessions))
    return Check(Section.ENGINE, "sessions", Verdict.OK, count)


# ---- telling -----------------------------------------------------------------------------------------------------


def _show(screen: Screen, checks: list[Check], summary: str) -> None:
    width = max(len(check.name) for check in checks)
    order = list(Section)
    for section, group in groupby(sorted(checks, key=lambda check: order.index(check.section)), lambda c: c.section):
        screen.line(screen.mark(section, "bold"))
        if screen.is_terminal:
            _show_rich(screen, list(group), width)
        else:
            _show_plain(screen, list(group), width)
        screen.line()
    screen.line(screen.mark(summary, "bold"))


def _show_plain(screen: Screen, checks: list[Check], width: int) -> None:
    for check in checks:
        screen.line(f"  {check.verdict:<7}  {check.name:<{width}}  {printable(check.detail)}")
        if check.next_step and check.verdict is not Verdict.OK:
            screen.line(f"{'':<{width + 11}}  → {printable(check.next_step)}")


def _show_rich(screen: Screen, checks: list[Check], width: int) -> None:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(width=2)
    table.add_column(width=7)
    table.add_column(width=width)
    table.add_column(overflow="fold")
    styles = {Verdict.OK: "green", Verdict.MISSING: "red", Verdict.NOTE: "cyan"}
    for check in checks:
        detail = Text(printable(check.detail))
        if check.next_step and check.verdict is not Verdict.OK:
            detail.append(f"\n→ {printable(check.next_step)}", style="bold")
        table.add_row("", Text(check.verdict, style=styles[check.verdict]), check.name, detail)
    screen.console.print(table, soft_wrap=False)
