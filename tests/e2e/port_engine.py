"""An engine in a process of its own that exposes ports, to be killed. Prints the two addresses.

Usage: python -m tests.e2e.port_engine DATA_DIR
"""

import asyncio
import os
import sys

import uvloop

from sandlot.config.settings import load
from sandlot.conformance.port_stage import ECHO
from sandlot.model import ExposeRequest, ProcessSpec, ProcessState, Ready, ReadyKind, SessionSpec
from sandlot.wiring.embedded import build

SESSION = "kept"
OWN, OTHER = 7801, 7802


def spec(port: int, own: int | None) -> ProcessSpec:
    argv = ("python3", "-c", ECHO, str(port), "127.0.0.1")
    return ProcessSpec(SESSION, argv, process_id=f"p{port}", port=own, ready=Ready(ReadyKind.PORT, port))


async def main(data: str) -> None:
    async with build(load({**os.environ, "SANDLOT_DATA_DIR": data})) as host:
        await host.create(SessionSpec(session_id=SESSION))
        process = await host.launch_process(spec(OWN, OWN))
        await host.launch_process(spec(OTHER, None))
        for port in (OWN, OTHER):
            await host.wait_process(SESSION, f"p{port}", until=ProcessState.RUNNING, timeout_s=60)
        exposed = await host.expose_port(ExposeRequest(SESSION, OTHER))
        print(process.address, exposed.address, flush=True)
        await asyncio.sleep(600)


if __name__ == "__main__":
    uvloop.run(main(sys.argv[1]))
