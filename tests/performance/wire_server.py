"""An engine behind a server, as a process of its own: `python -m tests.performance.wire_server DATA KEEPER SOCKET N`.

It says its port when it listens, and ends when its standard input does."""

import asyncio
import socket
import sys
from pathlib import Path
from typing import Any, cast

import uvicorn
import uvloop

from sandlot.config.settings import load
from sandlot.model import SessionFilter, limits
from sandlot.rpc.server import application
from sandlot.wiring.embedded import build


async def serve(data: Path, keeper: Path, path: Path, warm: int) -> None:
    environment = {"SANDLOT_DATA_DIR": str(data), "SANDLOT_KEEPER": str(keeper), "SANDLOT_WARM_POOL": str(warm)}
    async with build(load(environment)) as host:
        application_ = cast("Any", application(host))
        config = uvicorn.Config(application_, log_level="warning", access_log=False, timeout_keep_alive=75)
        server = uvicorn.Server(config)
        tcp = socket.create_server(("127.0.0.1", 0))
        unix = socket.socket(socket.AF_UNIX)
        path.unlink(missing_ok=True)  # of one that was killed
        unix.bind(str(path))
        serving = asyncio.create_task(server.serve(sockets=[tcp, unix]))
        while not server.started:  # noqa: ASYNC110 - uvicorn has no event for it
            await asyncio.sleep(0.01)
        print(tcp.getsockname()[1], flush=True)
        await asyncio.to_thread(sys.stdin.read)
        server.should_exit = True
        await serving
        while page := (await host.list(SessionFilter(limit=limits.LIST_PAGE_MAX))).sessions:
            await asyncio.gather(*(host.destroy(session.session_id) for session in page))


if __name__ == "__main__":
    arguments = sys.argv[1:]
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(serve(Path(arguments[0]), Path(arguments[1]), Path(arguments[2]), int(arguments[3])))
