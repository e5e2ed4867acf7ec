"""Try to break out of sessions of this machine, in every way that is known, and tell what held.

The sessions are made for it, in a data directory that is made for it and removed; yours are left alone. The exit code
is 0 when everything held."""

import argparse
import asyncio
import dataclasses
import shutil
import tempfile
from collections import Counter
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from sandlot.attack import suite
from sandlot.attack.case import Case
from sandlot.attack.verdicts import Finding, Verdict
from sandlot.cli.context import Context
from sandlot.cli.machine import nearest
from sandlot.model import AUTO

USAGE = "attack [--case GLOB]... [--runtime NAME] [--list]"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--case", metavar="GLOB", action="append", default=[], help="only cases with such a name; can be repeated"
    )
    parser.add_argument("--runtime", metavar="NAME", default=AUTO, help="what is attacked (default: auto)")
    parser.add_argument("--list", action="store_true", help="tell the cases and do nothing")


async def run(context: Context) -> int:
    args = context.args
    cases = suite.choose(args.case)
    if args.list:
        _show_cases(context, cases)
        return 0
    findings: list[Finding] = []
    async with _place(context.settings.data) as place:
        settings = dataclasses.replace(context.settings, data=place, runtime=args.runtime, storage=AUTO)
        async with context.engine(settings) as host, suite.arena(host, place) as arena:
            context.progress.close()
            async for finding in suite.attack(arena, cases):
                findings.append(finding)
                if not context.screen.as_json:
                    context.screen.note(f"{finding.verdict:<14} {finding.case}")
    _show(context, findings)
    return 0 if all(finding.verdict.is_fine for finding in findings) else 1


@asynccontextmanager
async def _place(data: Path) -> AsyncGenerator[Path]:
    """A data directory for a while, on the filesystem of the real one; templates that are there already are shared."""
    place = Path(await asyncio.to_thread(tempfile.mkdtemp, prefix=".sandlot-attack-", dir=nearest(data)))
    templates = data / "templates"
    try:
        if await asyncio.to_thread(templates.is_dir):
            await asyncio.to_thread((place / "templates").symlink_to, templates)
        yield place
    finally:
        await asyncio.to_thread(shutil.rmtree, place, ignore_errors=True)


def _show_cases(context: Context, cases: Sequence[Case]) -> None:
    if context.screen.as_json:
        told = [
            {"case": case.name, "severity": case.severity, "attack": case.attack, "defence": case.defence}
            for case in cases
        ]
        context.screen.json({"cases": told})
        return
    rows = [(case.name, case.severity, case.attack, case.defence) for case in cases]
    context.screen.table(("CASE", "SEVERITY", "ATTACK", "DEFENCE"), rows)


def _show(context: Context, findings: Sequence[Finding]) -> None:
    counts = Counter(finding.verdict for finding in findings)
    summary = ", ".join(f"{counts[verdict]} {verdict}" for verdict in Verdict if counts[verdict])
    if context.screen.as_json:
        documents = [dataclasses.asdict(finding) for finding in findings]
        held = all(finding.verdict.is_fine for finding in findings)
        context.screen.json({"held": held, "summary": summary, "findings": documents})
        return
    rows = [
        (one.case, one.runtime, one.defence, one.verdict.upper(), f"{one.seconds:.1f}", one.detail[:500])
        for one in findings
    ]
    context.screen.table(("CASE", "RUNTIME", "DEFENCE", "VERDICT", "SECONDS", "WHAT WAS SEEN"), rows, numbers=(4,))
    context.screen.line()
    context.screen.line(context.screen.mark(summary, "bold"))
