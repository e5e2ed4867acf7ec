"""What `sandlot doctor --storage` says: whether the journal and the machine agree."""

import dataclasses

from sandlot import registry
from sandlot.cli.context import Build, Context
from sandlot.cli.screen import printable
from sandlot.model import Examination


async def examine(context: Context, *, repair: bool) -> int:
    build: Build = registry.load("host", "engine")
    found = await build(context.settings, context.progress).examine_alone(repair=repair)
    if context.screen.as_json:
        context.screen.json(dataclasses.asdict(found) | {"is_clean": found.is_clean})
    else:
        _show(context, found)
    return 0 if found.is_clean else 1


async def rebuild(context: Context) -> int:
    """Sessions that are there and that the journal does not know."""
    async with context.engine() as host:
        found = await host.rebuild()
    if context.screen.as_json:
        context.screen.json({"sessions": [session.session_id for session in found]})
    else:
        for session in found:
            context.screen.line(f"{session.session_id}: found again; `sandlot recover {session.session_id}` starts it")
        context.screen.line(f"{len(found)} sessions were found again" if found else "no session was found")
    return 0


def _show(context: Context, found: Examination) -> None:
    screen = context.screen
    for finding in found.findings:
        word = screen.mark("mended", "ok") if finding.mended else screen.mark("found", "missing")
        screen.line(f"{word}  {finding.kind}  {printable(finding.name)}: {printable(finding.detail)}")
        if not finding.mended:
            screen.line(f"  → {printable(finding.next_step)}")
    left = sum(not finding.mended for finding in found.findings)
    mended = len(found.findings) - left
    told = f"{found.sessions} sessions, {left} findings" + (f", {mended} mended" if mended else "")
    screen.line(told if found.findings else f"{found.sessions} sessions; the journal and the machine agree")
