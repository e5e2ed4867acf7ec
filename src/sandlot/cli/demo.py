"""Show a sandbox at work, step by step, with times. Uses a data directory of its own and removes it."""

import argparse
import dataclasses
import os
import shutil
import tempfile
import time
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path

from sandlot.cli.context import Context
from sandlot.cli.scenes import ISOLATED, TRUSTED
from sandlot.cli.story import Story
from sandlot.config.settings import Settings
from sandlot.model import AUTO, Capability, CapabilityNotSupported, SandlotError, SessionFilter, Unavailable

USAGE = "demo [options]"
_NO_ISOLATION = """\
This story runs on the runtime `none`, because sessions cannot be isolated here: {why}.
`none` is for code you trust: commands run on this machine as you, and see what you see.
As root every sandbox would have its own files, users, processes and network, and none of yours."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    del parser


async def run(context: Context) -> int:
    began = time.perf_counter()
    with _settings(context) as settings:
        story = Story(context, settings)
        why_not = await _choose(story)
        if why_not and not context.screen.as_json:
            context.screen.line(_NO_ISOLATION.format(why=why_not) + "\n")
        try:
            for scene in TRUSTED if why_not else ISOLATED:
                await scene(story)
        finally:
            with context.interruption.held_off():
                await _clean_up(story)
    _conclude(story, time.perf_counter() - began)
    return 0 if story.ok else 1


@contextmanager
def _settings(context: Context) -> Generator[Settings]:
    """The data directory that was given, or a new one where the template can be made of hard links."""
    settings = dataclasses.replace(context.settings, storage=AUTO, runtime=AUTO)
    if context.args.data_dir is not None:
        yield settings
        return
    place = Path(tempfile.mkdtemp(prefix="sandlot-demo-", dir=_parent(settings.data)))
    try:
        yield dataclasses.replace(settings, data=place)
    finally:
        shutil.rmtree(place, ignore_errors=True)


def _parent(default: Path) -> Path:
    usr = Path("/usr").stat().st_dev
    writable = [
        folder
        for folder in (Path.cwd() / "build", default.parent, Path("/var/tmp"))
        if folder.is_dir() and os.access(folder, os.W_OK | os.X_OK)
    ]
    if not writable:
        raise Unavailable("there is no place for the demo's files", next_step="give one with --data-dir")
    return next((folder for folder in writable if folder.stat().st_dev == usr), writable[0])


async def _choose(story: Story) -> str:
    """Open the engine. Why sessions cannot be isolated here; empty when they can."""
    await story.open()
    try:
        if Capability.ISOLATION in await story.host.capabilities():
            return ""
        why = "no runtime here isolates"
    except CapabilityNotSupported:
        _storages, runtimes = await story.host.probes()
        why = "; ".join(f"{probe.name}: {probe.reason}" for probe in runtimes if not probe.ready)
    except OSError as error:
        why = str(error)
    story.runtime = "none"
    return why


async def _clean_up(story: Story) -> None:
    if not story.is_open:
        await story.open()  # it broke off while the engine was away; the session is there all the same
    page = await story.host.list(SessionFilter(labels={"made-by": "demo"}))
    for session in page.sessions:
        with suppress(SandlotError):
            await story.host.destroy(session.session_id)
    await story.close()


def _conclude(story: Story, seconds: float) -> None:
    screen, measures = story.screen, story.measures
    raw_ms = measures[0].ms
    if screen.as_json:
        rows = [{"operation": m.operation, "ms": m.ms, "raw": m.ms / raw_ms} for m in measures]
        steps = [
            {"title": step.title, "ms": step.ms, "ok": step.ok, "lines": [text for _style, text in step.lines]}
            for step in story.steps
        ]
        screen.json({"ok": story.ok, "runtime": story.runtime, "seconds": seconds, "steps": steps, "measures": rows})
        return
    screen.line()
    rows = [(m.operation, f"{m.ms:.2f}", f"{m.ms / raw_ms:.1f}") for m in measures]
    screen.table(("OPERATION", "MS", "x RAW"), rows, numbers=(1, 2))
    screen.line()
    wrong = [str(step.number) for step in story.steps if not step.ok]
    if wrong:
        screen.line(f"Not all was as expected: see step {', '.join(wrong)}. `sandlot doctor` may tell more.")
    else:
        runtime = "" if story.runtime == AUTO else f" --runtime {story.runtime}"
        screen.line(f"All was as expected, in {seconds:.1f} s. Your turn: sandlot shell{runtime}")
