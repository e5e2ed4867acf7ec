"""An engine in a process of its own, to be killed while it has a terminal.

Usage: python -m tests.e2e.terminal_process DATA_DIR
"""

import asyncio
import os
import sys

import uvloop

from sandlot.config.settings import load
from sandlot.model import SessionSpec, TerminalRequest, TerminalResize, TerminalSize, limits
from sandlot.wiring.embedded import build

SESSION, TERMINAL = "crash", "shell"
WINDOW = limits.TERMINAL_WINDOW_BYTES_MIN
# Prints numbers for ever, quicker than a window is read; what is typed is told in between.
PROGRAM = """
import os, select, sys, tty
tty.setraw(0)
number = 0
while True:
    os.write(1, b"".join(b"%09d " % n for n in range(number, number + 400)))
    number += 400
    if select.select([0], [], [], 0.001)[0]:
        key = os.read(0, 1)
        if key == b"q":
            os.write(1, b"%09d " % number)
            sys.exit(9)
"""


async def main(data: str) -> None:
    async with build(load({**os.environ, "SANDLOT_DATA_DIR": data})) as host:
        await host.create(SessionSpec(session_id=SESSION))
        argv = ("python3", "-c", PROGRAM)
        await host.open_terminal(TerminalRequest(SESSION, argv, terminal_id=TERMINAL, window_bytes=WINDOW))
        await host.resize_terminal(TerminalResize(SESSION, TERMINAL, TerminalSize(33, 44)))
        print("open", flush=True)
        await asyncio.sleep(60)


if __name__ == "__main__":
    uvloop.run(main(sys.argv[1]))
