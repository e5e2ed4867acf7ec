"""Going through files: beside ripgrep and fd, run in the same session; and large files, in and out."""

import os
import shutil
import statistics
import time
from collections.abc import AsyncIterator, Awaitable, Callable

from sandlot.host.service import SandboxHostService
from sandlot.model import CallOutput, CallRequest, FileFind, FileList, FileRead, FileSearch, FileUsage, FileWrite
from tests.performance.engine import Bench, run, session_with_true, timed
from tests.performance.report import Row

FILES, FILES_QUICK = 100_000, 10_000
ROUNDS, ROUNDS_QUICK = 15, 5
SECTION = "going through files, beside ripgrep and fd in the same session"
LARGE = "a large file through the engine"
TARGET = 1.0
TARGET_MB_S = 500.0
_FILL = """
import os
for folder in range({folders}):
    os.makedirs(f"t/{{folder % 100}}/{{folder}}")
    for number in range(100):
        with open(f"t/{{folder % 100}}/{{folder}}/file{{number}}.py", "w") as file:
            file.write(f"def function_{{number}}(argument):\\n    return argument + {{folder}}\\n" * 10)
            if number == 7: file.write(f"needle{{folder}} = 1\\n")
"""
_GREP = ("rg", "--no-ignore", "-n", "--no-heading", "--color=never", "--sort=none")
_FIND = ("fdfind", "--no-ignore", "--color=never")
_PACKAGES = {"rg": "ripgrep", "fdfind": "fd-find"}  # sessions see what the machine has


async def measure_files(bench: Bench) -> None:
    async with bench.engine() as host:
        session_id = await session_with_true(host, bench.program)
        files = FILES_QUICK if bench.quick else FILES
        await run(host, session_id, "python3", "-c", _FILL.format(folders=files // 100))
        await _measure_searches(bench, host, session_id, files)
        await _measure_large(bench, host, session_id)


async def _measure_searches(bench: Bench, host: SandboxHostService, session_id: str, files: int) -> None:
    async def search(pattern: str) -> int:
        request = FileSearch(session_id, "t", pattern=pattern, limit=1_000_000)
        async with host.search_files(request) as stream:
            return sum([len(batch) async for batch in stream])

    async def find(pattern: str) -> int:
        async with host.find_files(FileFind(session_id, "t", pattern=pattern, limit=1_000_000)) as stream:
            return sum([len(batch) async for batch in stream])

    async def command(*argv: str) -> int:
        count = 0
        async with host.call(CallRequest(session_id, argv)) as stream:
            async for event in stream:
                if isinstance(event, CallOutput):
                    count += event.data.count(b"\n")
        return count

    pairs: dict[str, tuple[Callable[[], Awaitable[int]], Callable[[], Awaitable[int]]]] = {
        "search for a text that is in 1 % of files": (
            lambda: search("needle"), lambda: command(*_GREP, "needle", "t")
        ),
        "search for an expression": (
            lambda: search(r"need\w+\d+ ="), lambda: command(*_GREP, r"need\w+\d+ =", "t")
        ),
        "search for what no file has": (
            lambda: search("nowhere[0-9]"), lambda: command(*_GREP, "nowhere[0-9]", "t")
        ),
        "find 1 % of names": (
            lambda: find("**/file77.py"), lambda: command(*_FIND, "--glob", "file77.py", "t")
        ),
        "find all names": (
            lambda: find("**/*.py"), lambda: command(*_FIND, "--glob", "*.py", "t")
        ),
    }  # fmt: skip
    missing = [package for program, package in _PACKAGES.items() if shutil.which(program) is None]
    for name, (ours, theirs) in pairs.items():
        if missing:
            bench.report.add(Row(SECTION, name, note=f"not measured: install {' and '.join(missing)} from Debian"))
            continue
        took: tuple[list[float], list[float]] = ([], [])
        for number in range(1 + (ROUNDS_QUICK if bench.quick else ROUNDS)):
            began = time.perf_counter()
            found = await ours()
            between = time.perf_counter()
            expected = await theirs()
            if found != expected:
                raise RuntimeError(f"{name}: {found} were found, and {expected} by the other")
            if number:
                took[0].append((between - began) * 1000)
                took[1].append((time.perf_counter() - between) * 1000)
        value = statistics.median(took[0]) / statistics.median(took[1])
        note = f"{files:,} files; {statistics.median(took[0]):.0f} ms and {statistics.median(took[1]):.0f} ms"
        bench.report.add(Row(SECTION, name, value, "times", target=TARGET, n=len(took[0]), note=note))

    async def listed() -> None:
        async with host.list_files(FileList(session_id, "t", depth=9, ordered=True)) as batches:
            if sum([len(batch) async for batch in batches]) < files:
                raise RuntimeError("some are not listed")

    bench.report.add(Row(SECTION, "a listing of all, in order", await timed(listed()), "ms"))
    took_ms = await timed(host.measure_files(FileUsage(session_id, "t")))
    bench.report.add(Row(SECTION, "what all take together", took_ms, "ms"))


async def _measure_large(bench: Bench, host: SandboxHostService, session_id: str) -> None:
    size = (100 if bench.quick else 1000) << 20
    piece = os.urandom(1 << 20)

    async def content() -> AsyncIterator[bytes]:
        for _piece in range(size >> 20):
            yield piece

    up_ms = await timed(host.write_file(FileWrite(session_id, "large"), content()))

    async def read() -> None:
        async with host.read_file(FileRead(session_id, "large")) as stream:
            if sum([len(part) async for part in stream]) != size:
                raise RuntimeError("some of it is missing")

    down_ms = await timed(read())
    for name, took_ms in (("in", up_ms), ("out", down_ms)):
        value = size / 1e6 / (took_ms / 1000)
        bench.report.add(Row(LARGE, name, value, "MB/s", target=TARGET_MB_S, at_least=True))
