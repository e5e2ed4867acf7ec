"""Times SWE-ReX in turn with raw. Runs in a virtual environment that has it: `… swerex_loop PROGRAM STARTS COUNT`."""

import asyncio
import contextlib
import importlib
import json
import secrets
import socket
import subprocess
import sys
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from tests.performance.measure import Raw, Rounds, Samples, interleave, milliseconds_since

ALIVE_S = 20.0
STOP_S = 5.0


@asynccontextmanager
async def server() -> AsyncGenerator[Any]:
    """Its own server on loopback, and its own client, once the two have spoken."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    token = secrets.token_hex(16)
    argv = [Path(sys.executable).parent / "swerex-remote", "--host", "127.0.0.1", "--port", str(port)]
    process = subprocess.Popen(
        [*argv, "--auth-token", token],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        remote = importlib.import_module("swerex.runtime.remote")
        client = remote.RemoteRuntime(host="http://127.0.0.1", port=port, auth_token=token, timeout=10.0)
        await client.wait_until_alive(timeout=ALIVE_S)
        yield client
    finally:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(STOP_S)
        process.kill()
        process.wait(STOP_S)


async def measure(program: Path, starts: int, count: int) -> dict[str, Samples]:
    abstract = importlib.import_module("swerex.runtime.abstract")
    raw = Raw(program)
    command = abstract.Command(command=[str(program), "true"], timeout=10.0, check=True)

    async def start() -> float:
        began = time.perf_counter_ns()
        async with server() as client:
            await client.execute(command)
            return milliseconds_since(began)

    started = await interleave(raw, Rounds(starts, warm_up=1), start)
    async with server() as client:
        executed = await interleave(raw, Rounds(count, warm_up=3), timed(lambda: client.execute(command)))
        await client.create_session(abstract.CreateBashSessionRequest(session="old", startup_timeout=10.0))
        action = abstract.BashAction(command=f"{program} true", session="old", timeout=10.0)
        in_session = await interleave(raw, Rounds(count, warm_up=3), timed(lambda: client.run_in_session(action)))
        created = await interleave(raw, Rounds(starts, warm_up=1), bash_session(client, abstract, program))
    return {"server start": started, "execute": executed, "bash session": in_session, "bash session create": created}


def timed(work: Callable[[], Awaitable[object]]) -> Callable[[], Awaitable[float]]:
    async def operation() -> float:
        began = time.perf_counter_ns()
        await work()
        return milliseconds_since(began)

    return operation


def bash_session(client: Any, abstract: Any, program: Path) -> Callable[[], Awaitable[float]]:
    async def operation() -> float:
        began = time.perf_counter_ns()
        await client.create_session(abstract.CreateBashSessionRequest(session="new", startup_timeout=10.0))
        await client.run_in_session(abstract.BashAction(command=f"{program} true", session="new", timeout=10.0))
        took = milliseconds_since(began)
        await client.close_session(abstract.CloseBashSessionRequest(session="new"))
        return took

    return operation


def main() -> None:
    program, starts, count = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    try:
        found = asyncio.run(measure(program, starts, count))
    except Exception as error:  # noqa: BLE001 - whatever a foreign library raises becomes a line of the report
        print(json.dumps({"error": f"{type(error).__name__}: {error}"[:300]}))
        return
    told = {name: {"operation_ms": s.operation_ms, "raw_ms": s.raw_ms} for name, s in found.items()}
    print(json.dumps(told))


if __name__ == "__main__":
    main()
