"""A small file through the engine, as a model's tools read and write it; and what the kernel takes of that."""

import os
import time
from collections.abc import AsyncIterator
from itertools import count

from sandlot.model import FileAppend, FileRead, FileWrite
from tests.performance.engine import Bench, run, session_with_true, timed
from tests.performance.measure import interleave, milliseconds_since
from tests.performance.report import ratio_row

SECTION = "a small file through the engine"
READ_TARGET = 0.5
_TEXT = b"a line of text\n"


async def measure_small_files(bench: Bench) -> None:
    async with bench.engine() as host:
        session_id = await session_with_true(host, bench.program)
        await run(host, session_id, "mkdir", "many")
        numbers = count()

        async def read() -> float:
            async def whole() -> bytes:
                async with host.read_file(FileRead(session_id, "small")) as stream:
                    return b"".join([piece async for piece in stream])

            return await timed(whole())

        async def replace() -> float:
            return await timed(host.write_file(FileWrite(session_id, "small"), _once()))

        async def make() -> float:
            return await timed(host.write_file(FileWrite(session_id, f"many/{next(numbers)}"), _once()))

        async def append() -> float:
            return await timed(host.append_file(FileAppend(session_id, "more"), _once()))

        async def alone() -> float:
            return _replace_alone(bench)

        await replace()
        _replace_alone(bench)
        for name, operation, target in (
            ("read", read, READ_TARGET),
            ("append", append, None),
            ("write, a new file", make, None),
            ("write, in place of another", replace, None),
            ("the same on the disk below, by the kernel alone", alone, None),
        ):
            samples = await interleave(bench.raw, bench.rounds(200, 40), operation)
            bench.report.add(ratio_row(SECTION, name, samples, target=target))


async def _once() -> AsyncIterator[bytes]:
    yield _TEXT


def _replace_alone(bench: Bench) -> float:
    """Whole or not at all: content without a name first, then in the place of the other."""
    folder = os.open(bench.folder, os.O_RDONLY | os.O_DIRECTORY)
    began = time.perf_counter_ns()
    try:
        fd = os.open(".", os.O_TMPFILE | os.O_RDWR, 0o600, dir_fd=folder)
        os.write(fd, _TEXT)
        os.link(f"/proc/self/fd/{fd}", ".small-new", dst_dir_fd=folder, follow_symlinks=True)
        os.rename(".small-new", "small", src_dir_fd=folder, dst_dir_fd=folder)
        os.close(fd)
        return milliseconds_since(began)
    finally:
        os.close(folder)
