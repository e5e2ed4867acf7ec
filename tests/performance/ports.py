"""Exposed ports: what a byte takes more than directly, and how much passes in a second.

The program is the same, in a session and on the machine itself, and so is the client; both are asked in turn."""

import asyncio
import shutil
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from sandlot.host.service import SandboxHostService
from sandlot.model import ProcessSpec, ProcessState, Ready, ReadyKind, SessionSpec
from tests.performance.engine import Bench
from tests.performance.measure import milliseconds_since, quantile, quiet
from tests.performance.report import Row

ADDED_TARGET_MS = 0.2
TARGET_GB_S = 1.0
_SECTION = "exposed ports"
_GVISOR = "exposed ports, gvisor"
_PORT = 7000
_PIECE = 1 << 20
_ROUNDS = 3
_PATIENCE_S = 120
# The first byte says what is wanted: an echo, so many pieces, or a count of what comes.
_PROGRAM = """
import socket, sys, threading
def serve(line):
    line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    wanted = line.recv(1)
    if wanted == b"e":
        while data := line.recv(65536):
            line.sendall(data)
    elif wanted == b"d":
        piece = bytes(1 << 20)
        for _ in range(int.from_bytes(line.recv(4), "big")):
            line.sendall(piece)
    else:
        count, room = 0, bytearray(1 << 20)
        while more := line.recv_into(room):
            count += more
        line.sendall(b"%d" % count)
    line.close()
listener = socket.create_server(("127.0.0.1", int(sys.argv[1])))
print(listener.getsockname()[1], flush=True)
while True:
    threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()
"""


async def measure_ports(bench: Bench) -> None:
    async with bench.engine() as host, _on_the_machine() as direct:
        through = await _serve(host, "namespaces")
        await _compare(bench, _SECTION, direct, through, targets=True)
        if shutil.which("runsc") is None:
            bench.report.say("  runsc is not installed: its rows are left out")
        else:
            bench.report.say("  under gvisor:")
            through = await _serve(host, "gvisor")
            await _compare(bench, _GVISOR, direct, through, targets=False)


async def _serve(host: SandboxHostService, runtime: str) -> str:
    """The address of the program in a session of its own."""
    session_id = (await host.create(SessionSpec(runtime=runtime))).session_id
    argv = ("python3", "-c", _PROGRAM, str(_PORT))
    spec = ProcessSpec(session_id, argv, port=_PORT, ready=Ready(ReadyKind.PORT, _PORT))
    process = await host.launch_process(spec)
    await host.wait_process(session_id, process.process_id, until=ProcessState.RUNNING, timeout_s=_PATIENCE_S)
    return process.address


@asynccontextmanager
async def _on_the_machine() -> AsyncGenerator[str]:
    program = await asyncio.create_subprocess_exec(sys.executable, "-c", _PROGRAM, "0", stdout=subprocess.PIPE)
    try:
        assert program.stdout
        async with asyncio.timeout(_PATIENCE_S):
            port = int(await program.stdout.readline())
        yield f"127.0.0.1:{port}"
    finally:
        program.kill()
        await program.wait()


async def _compare(bench: Bench, section: str, direct: str, through: str, *, targets: bool) -> None:
    await asyncio.to_thread(_compare_echoes, bench, section, direct, through, ADDED_TARGET_MS if targets else None)
    count = 256 if bench.quick or not targets else 1024
    for way, move in (("down", _down), ("up", _up)):
        straight: list[float] = []
        there: list[float] = []
        for _ in range(_ROUNDS):
            straight.append(await asyncio.to_thread(move, direct, count))
            there.append(await asyncio.to_thread(move, through, count))
        note = f"directly {statistics.median(straight):.2f} GB/s"
        rate = statistics.median(there)
        target = TARGET_GB_S if targets else None
        bench.report.add(Row(section, way, rate, "GB/s", target, at_least=True, n=_ROUNDS, note=note))


def _compare_echoes(bench: Bench, section: str, direct: str, through: str, target: float | None) -> None:
    straight: list[float] = []
    there: list[float] = []
    with _dial(direct) as one, _dial(through) as other, quiet():
        for line in (one, other):
            line.sendall(b"e")
        for counts in bench.rounds(5000, 1000):
            took = _echo(one), _echo(other)
            if counts:
                straight.append(took[0])
                there.append(took[1])
    added = statistics.median(there) - statistics.median(straight)
    note = f"directly {statistics.median(straight):.3f} ms, through it {statistics.median(there):.3f}"
    p95 = quantile(there, 0.95)
    bench.report.add(Row(section, "added to a byte and back", added, "ms", target, p95_ms=p95, n=len(there), note=note))


def _dial(address: str) -> socket.socket:
    host, _, port = address.rpartition(":")
    line = socket.create_connection((host, int(port)), timeout=_PATIENCE_S)
    line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return line


def _echo(line: socket.socket) -> float:
    began = time.perf_counter_ns()
    line.sendall(b"x")
    if line.recv(1) != b"x":
        raise RuntimeError("the echo has ended")
    return milliseconds_since(began)


def _down(address: str, count: int) -> float:
    room, heard = bytearray(_PIECE), 0
    with _dial(address) as line:
        began = time.perf_counter_ns()
        line.sendall(b"d" + count.to_bytes(4, "big"))
        while more := line.recv_into(room):
            heard += more
    return _rate(began, heard, count)


def _up(address: str, count: int) -> float:
    piece = bytes(_PIECE)
    with _dial(address) as line:
        began = time.perf_counter_ns()
        line.sendall(b"u")
        for _ in range(count):
            line.sendall(piece)
        line.shutdown(socket.SHUT_WR)
        told = b""
        while more := line.recv(64):
            told += more
    return _rate(began, int(told), count)


def _rate(began_ns: int, heard: int, count: int) -> float:
    took_s = milliseconds_since(began_ns) / 1e3
    if heard != count * _PIECE:
        raise RuntimeError(f"{heard} of {count * _PIECE} bytes have come")
    return heard / took_s / 1e9
