"""An engine in a process of its own, to be killed. Prints one line per acknowledged event.

Usage: python -m tests.e2e.engine_process DATA_DIR ROUND CALLS
"""

import asyncio
import os
import sys

import uvloop

from sandlot.config.settings import load
from sandlot.model import CallRequest, SessionNotFound, SessionSpec
from sandlot.wiring.embedded import build

SESSION = "crash"
LINES = 120
# Says once that it ran, then writes slowly to both streams, so that a kill falls into the middle of it.
PROGRAM = """
import os, sys, time
name, lines = sys.argv[1], int(sys.argv[2])
fd = os.open("/workspace/ran", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
os.write(fd, (name + "\\n").encode())
for number in range(lines):
    os.write(1, f"{name} {number:06d} {'o' * 4000}\\n".encode())
    os.write(2, f"{name} {number:06d} {'e' * 400}\\n".encode())
    time.sleep(0.003)
"""


def expected(name: str) -> tuple[bytes, bytes]:
    out = "".join(f"{name} {number:06d} {'o' * 4000}\n" for number in range(LINES))
    err = "".join(f"{name} {number:06d} {'e' * 400}\n" for number in range(LINES))
    return out.encode(), err.encode()


def request(name: str) -> CallRequest:
    argv = ("python3", "-c", PROGRAM, name, str(LINES))
    return CallRequest(SESSION, argv, call_id=name, detach=True)


def say(*words: object) -> None:
    print(*words, flush=True)


async def main(data: str, round_number: int, calls: int) -> None:
    async with build(load({**os.environ, "SANDLOT_DATA_DIR": data})) as host:
        say("keeper", host.keeper_pid)
        try:
            await host.get(SESSION)
        except SessionNotFound:
            await host.create(SessionSpec(session_id=SESSION, request_id="crash-request"))
        say("session")
        for number in range(calls):
            name = f"r{round_number}-{number}"
            async with host.call(request(name)) as events:
                async for _started in events:
                    say("started", name)
                    break
        say("all")
        await asyncio.sleep(30)


if __name__ == "__main__":
    uvloop.run(main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])))
