"""An engine in a process of its own that launches processes, to be killed. Prints a line for each that it launched.

Usage: python -m tests.e2e.process_engine DATA_DIR
"""

import asyncio
import os
import sys

import uvloop

from sandlot.config.settings import load
from sandlot.model import ProcessSpec, Restart, SessionSpec
from sandlot.wiring.embedded import build

SESSION = "kept"
LINES = 1500
COUNT = """
import os, sys, time
os.write(os.open("/workspace/begun", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644), (sys.argv[1] + "\\n").encode())
for number in range(int(sys.argv[2])):
    os.write(1, f"out {number:06d} {'o' * 80}\\n".encode())
    os.write(2, f"err {number:06d}\\n".encode())
    if number % 10 == 0:
        time.sleep(0.003)
"""


def expected() -> tuple[bytes, bytes]:
    out = "".join(f"out {number:06d} {'o' * 80}\n" for number in range(LINES))
    err = "".join(f"err {number:06d}\n" for number in range(LINES))
    return out.encode(), err.encode()


def spec(name: str) -> ProcessSpec:
    return ProcessSpec(SESSION, ("python3", "-c", COUNT, name, str(LINES)), process_id=name)


def failing() -> ProcessSpec:
    argv = ("sh", "-c", "echo $$ >> /workspace/runs; sleep 0.02; echo run; exit 3")
    return ProcessSpec(SESSION, argv, name="failing", restart=Restart.ON_FAILURE, restarts_max=10_000, backoff_s=0.01)


async def main(data: str) -> None:
    async with build(load({**os.environ, "SANDLOT_DATA_DIR": data})) as host:
        await host.create(SessionSpec(session_id=SESSION))
        await host.launch_process(failing())
        print("failing", flush=True)
        for number in range(6):
            await host.launch_process(spec(f"p{number}"))
            print(f"p{number}", flush=True)
        print("all", flush=True)
        await asyncio.sleep(60)


if __name__ == "__main__":
    uvloop.run(main(sys.argv[1]))
