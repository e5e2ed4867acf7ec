"""An engine in a process of its own that launches and follows processes, to be killed. Prints a line for each that it
launched.

Usage: python -m tests.soak.process_engine DATA_DIR SESSIONS EACH BURSTS
"""

import asyncio
import os
import sys

import uvloop

from sandlot.config.settings import load
from sandlot.host.service import SandboxHostService
from sandlot.model import ProcessLogs, ProcessSpec, SessionSpec
from sandlot.wiring.embedded import build

AT_ONCE = 16
LINES = 25  # in a burst
PAUSE_S = 2
# Counts on by itself, and stays when it has counted.
COUNT = """n=0; b=0
while [ $b -lt $1 ]; do
  i=0
  while [ $i -lt $2 ]; do echo "$0 line $n"; n=$((n+1)); i=$((i+1)); done
  echo "$0 burst $b" >&2
  b=$((b+1))
  sleep $3
done
echo end
exec sleep 86400"""


def names(sessions: int, each: int) -> list[tuple[str, str]]:
    """Those of one session come one after the other."""
    return [(f"s{session}", f"p{session}-{number}") for session in range(sessions) for number in range(each)]


def spec(session_id: str, name: str, bursts: int) -> ProcessSpec:
    argv = ("sh", "-c", COUNT, name, str(bursts), str(LINES), str(PAUSE_S))
    return ProcessSpec(session_id, argv, process_id=name)


def expected(name: str, bursts: int) -> tuple[bytes, bytes]:
    out = "".join(f"{name} line {number}\n" for number in range(bursts * LINES)) + "end\n"
    err = "".join(f"{name} burst {number}\n" for number in range(bursts))
    return out.encode(), err.encode()


async def follow(host: SandboxHostService, session_id: str, name: str) -> None:
    async with host.process_logs(ProcessLogs(session_id, name, follow=True)) as logs:
        async for _piece in logs:
            pass


async def main(data: str, sessions: int, each: int, bursts: int) -> None:
    room = asyncio.Semaphore(AT_ONCE)
    async with build(load({**os.environ, "SANDLOT_DATA_DIR": data})) as host:

        async def one(session_id: str, name: str) -> None:
            async with room:
                await host.launch_process(spec(session_id, name, bursts))
                print(name, flush=True)
            await follow(host, session_id, name)

        for number in range(sessions):
            await host.create(SessionSpec(session_id=f"s{number}"))
        print("sessions", flush=True)
        # The last of them are left to the next engine, however late this one is killed.
        begun = names(sessions, each)[: -(sessions * each // 10)]
        await asyncio.gather(*(one(*place) for place in begun))
        await asyncio.sleep(600)


if __name__ == "__main__":
    uvloop.run(main(sys.argv[1], *(int(word) for word in sys.argv[2:5])))
