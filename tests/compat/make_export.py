"""Made the export of version 1 beside it, once. It is never made again: it proves that old ones still can be read.

Usage: python -m tests.compat.make_export
"""

import asyncio
import os
import tempfile
from pathlib import Path

from sandlot.config.settings import load
from sandlot.model import CallRequest, ExportRequest, SessionSpec, TurnRequest
from sandlot.wiring.embedded import build
from tests.conftest import run

TARGET = Path(__file__).parent / "exports" / "v1.tar.gz"
STEPS = ("echo one > a; ln -s a link; mkdir -m 1777 d", "echo two > a; mkdir /opt/made; truncate -s 1M sparse")


async def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        async with build(load({**os.environ, "SANDLOT_DATA_DIR": f"{folder}/data"})) as host:
            await host.create(SessionSpec("old", labels={"from": "version 1"}))
            for step in STEPS:
                await run(host, CallRequest("old", ("sh", "-ec", step), user="root"))
                await host.turn_complete(TurnRequest("old"))
            await run(host, CallRequest("old", ("sh", "-ec", "echo now > a"), user="root"))
            async with host.export(ExportRequest("old")) as stream:
                data = b"".join([piece async for piece in stream])
            await asyncio.to_thread(TARGET.write_bytes, data)
            await host.destroy("old")


if __name__ == "__main__":
    asyncio.run(main())
