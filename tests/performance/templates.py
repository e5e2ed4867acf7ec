"""An image of 500 MB and 20,000 files: how long it takes to become a template, in how much memory, and how quickly its
sessions start."""

import asyncio
import shutil
import tarfile
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path

from sandlot.host.service import SandboxHostService
from sandlot.model import BUILTIN, SessionSpec, TemplateImport, TemplateInfo
from tests.performance.engine import TRUE_IN_TEMPLATE, Bench, run, timed
from tests.performance.measure import Samples, interleave, milliseconds_since
from tests.performance.report import Row, ratio_row
from tests.performance.sessions import COLD_TARGET, POOL, REFILL_S, WARM_TARGET
from tests.performance.trees import beside_tar, make_tree, scratch, shell, taking_turns

FILES, FILE_BYTES = 20_000, 25_000
TARGET = 1.5
SAME_TARGET = 1.25
MEMORY_TARGET_MIB = 128
_CHILD = b"sandlot.host.templates.unpacking.child"
_POLL_S = 0.02


async def measure_templates(bench: Bench) -> None:
    files = 4_000 if bench.quick else FILES
    section = "template of an image"
    top = bench.folder / "templates"
    shutil.rmtree(top, ignore_errors=True)
    top.mkdir()
    try:
        await asyncio.to_thread(_make_image, top / "image.tar", bench.program, files)
        async with bench.engine() as host:
            with _watched() as memory:
                row = await _imports(section, host, top, files, 2 if bench.quick else 4)
            bench.report.add(row)
            peak = max(memory, default=0.0)
            bench.report.add(Row(section, "memory of what unpacks, at most", peak, "MiB", MEMORY_TARGET_MIB))
            await _make(host, top / "image.tar", "kept:1")
            cold, usual = await _create_loop(bench, host, BUILTIN)
            bench.report.add(ratio_row(section, "create to first result, cold", cold, target=COLD_TARGET))
            value = cold.ratio / usual.ratio
            name = "cold, as a multiple of the built-in template"
            bench.report.add(Row(section, name, value, "times", target=SAME_TARGET))
            await host.warm_template("kept:1", POOL)
            warm, _same = await _create_loop(bench, host, "kept:1")
            bench.report.add(ratio_row(section, "create to first result, warm", warm, target=WARM_TARGET))
            await host.warm_template("kept:1", 0)
    finally:
        shutil.rmtree(top)


def _make_image(path: Path, program: Path, files: int) -> None:
    tree = path.with_suffix("")
    make_tree(tree / "data", files, FILE_BYTES)
    inside = tree / TRUE_IN_TEMPLATE[0].lstrip("/")
    inside.parent.mkdir(parents=True)
    shutil.copy(program, inside)
    inside.chmod(0o755)
    with tarfile.open(path, "w") as archive:
        archive.add(tree, ".")
    shutil.rmtree(tree)


async def _make(host: SandboxHostService, path: Path, name: str) -> None:
    async with host.make_template(TemplateImport(str(path), name)) as events:
        async for event in events:
            if isinstance(event, TemplateInfo):
                return


async def _imports(section: str, host: SandboxHostService, top: Path, files: int, rounds: int) -> Row:
    """Durable when it is told of, so `tar` has to sync too."""

    async def ours() -> float:
        took = await timed(_make(host, top / "image.tar", "image:1"))
        await host.remove_template("image:1")
        return took

    async def tar() -> float:
        async with scratch(top / "by-tar") as folder:
            return await shell(f"tar -C {folder} -xf {top}/image.tar && sync -f {folder}")

    pair = taking_turns(ours, tar)
    return await beside_tar(section, f"import, {files} files of {FILE_BYTES // 1000} kB", rounds, pair, TARGET)


@contextmanager
def _watched() -> Generator[list[float]]:
    """The largest memory of each process that unpacks, in MiB."""
    found: list[float] = []
    over = threading.Event()

    def watch() -> None:
        while not over.wait(_POLL_S):
            for line in Path("/proc").glob("[0-9]*/cmdline"):
                with suppress(OSError, ValueError, StopIteration):
                    if _CHILD in line.read_bytes():
                        status = (line.parent / "status").read_text().splitlines()
                        found.append(next(int(one.split()[1]) for one in status if one.startswith("VmHWM:")) / 1024)

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield found
    finally:
        over.set()
        watcher.join()


async def _create_loop(bench: Bench, host: SandboxHostService, beside: str) -> tuple[Samples, Samples]:
    """Of the image, and in turn of another template."""
    others: list[float] = []

    async def one(template: str) -> float:
        began = time.perf_counter_ns()
        session_id = (await host.create(SessionSpec(template=template))).session_id
        await run(host, session_id, *TRUE_IN_TEMPLATE)
        took = milliseconds_since(began)
        await host.destroy(session_id)
        await asyncio.sleep(REFILL_S)  # the pool refills, the trash is emptied
        return took

    async def operation() -> float:
        others.append(await one(beside))
        return await one("kept:1")

    rounds = bench.rounds(50, 10)
    samples = await interleave(bench.raw, rounds, operation)
    return samples, Samples(others[rounds.warm_up :], samples.raw_ms)
