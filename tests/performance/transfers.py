"""Work in and out: trees and one large file, beside `tar` through a pipe."""

import asyncio
import shutil
from functools import partial
from pathlib import Path

from sandlot.host.service import SandboxHostService
from sandlot.model import FileRemove, SessionSpec, TreeDownload, TreeTally, TreeUpload
from sandlot.sdk.workspace import download, upload
from tests.performance.engine import Bench, timed
from tests.performance.report import Row
from tests.performance.trees import Pair, beside_tar, make_tree, scratch, shell, taking_turns

SECTION = "work in and out"
TARGET = 1.5
FILES, FILE_BYTES = 20_000, 2_000
LARGE_BYTES = 1_000_000_000


async def measure_transfers(bench: Bench) -> None:
    files, large = (4_000, 200_000_000) if bench.quick else (FILES, LARGE_BYTES)
    top = bench.folder / "transfers"
    shutil.rmtree(top, ignore_errors=True)
    try:
        await asyncio.to_thread(make_tree, top / "small", files, FILE_BYTES)
        await asyncio.to_thread(make_tree, top / "large", 1, large)
        async with bench.engine() as host:
            session_id = (await host.create(SessionSpec())).session_id
            for row in (
                await _both_ways(host, session_id, top, "small", f"{files} small files", 4),
                await _both_ways(host, session_id, top, "large", "one large file", 6),
            ):
                for one in row:
                    bench.report.add(one)
    finally:
        shutil.rmtree(top)


async def _both_ways(
    host: SandboxHostService, session_id: str, top: Path, name: str, what: str, rounds: int
) -> tuple[Row, Row]:
    source = top / name
    await upload(host, TreeUpload(session_id, f"{name}-there"), str(source), ignore=False, tally=TreeTally())
    return (
        await beside_tar(SECTION, f"{what}, in", rounds, _in(host, session_id, top, source), TARGET),
        await beside_tar(SECTION, f"{what}, out", rounds, _out(host, session_id, top, source), TARGET),
    )


def _in(host: SandboxHostService, session_id: str, top: Path, source: Path) -> Pair:
    async def ours() -> float:
        request = TreeUpload(session_id, "in")
        took = await timed(upload(host, request, str(source), ignore=False, tally=TreeTally()))
        await host.remove_file(FileRemove(session_id, "in", recursive=True))
        return took

    return taking_turns(ours, partial(_tar, top, source))


def _out(host: SandboxHostService, session_id: str, top: Path, source: Path) -> Pair:
    async def ours() -> float:
        async with scratch(top / "ours") as folder:
            return await timed(download(host, TreeDownload(session_id, f"{source.name}-there"), str(folder)))

    return taking_turns(ours, partial(_tar, top, source))


async def _tar(top: Path, source: Path) -> float:
    async with scratch(top / "by-tar") as folder:
        return await shell(f"tar -C {source} -cf - . | tar -C {folder} -xf -")
