"""Previews: what the way through the server adds to a request, and what an idle websocket costs it.

The program is the same, in a session, and so is the client; directly it is reached by a socket that was made in the
network of the session."""

import asyncio
import os
import resource
import socket
import statistics
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from urllib.parse import urlsplit

from sandlot import AsyncSandbox, Client
from sandlot.host.kernel import enter_network
from sandlot.model import Preview
from tests.performance.engine import Bench
from tests.performance.measure import milliseconds_since, quantile, quiet
from tests.performance.report import Row
from tests.performance.wire import Server, serving

ADDED_TARGET_MS = 0.3
SOCKETS = 5000
SOCKET_TARGET_KIB = 64.0
_SECTION = "previews"
_BODY = 200
_UPGRADE = "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Key: eA==\r\nSec-WebSocket-Version: 13\r\n"
# Answers at once, and holds whoever upgrades.
_PROGRAM = f"""
import asyncio, resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
class Answer(asyncio.Protocol):
    def connection_made(self, transport):
        self.transport, self.up = transport, False
    def data_received(self, data):
        if self.up:
            self.transport.write(data)
        elif b"Upgrade: websocket" in data or b"upgrade: websocket" in data:
            self.up = True
            self.transport.write(b"HTTP/1.1 101 Yes\\r\\nConnection: Upgrade\\r\\nUpgrade: websocket\\r\\n\\r\\n")
        else:
            self.transport.write(b"HTTP/1.1 200 OK\\r\\ncontent-length: {_BODY}\\r\\n\\r\\n" + b"x" * {_BODY})
async def main():
    server = await asyncio.get_running_loop().create_server(Answer, "127.0.0.1", int(sys.argv[1]), backlog=4096)
    await server.serve_forever()
asyncio.run(main())
"""


async def measure_previews(bench: Bench) -> None:
    async with serving(bench, warm=0) as server, Client(url=f"http://127.0.0.1:{server.port}") as client:
        sandbox = await AsyncSandbox.create(client=client)
        try:
            await sandbox.files.write("program.py", _PROGRAM)
            command = await sandbox.commands.run("exec python3 program.py 3000", background=True, timeout=3600)
            preview = await sandbox.preview(3000)
            await asyncio.to_thread(_until_answered, server, preview)
            await asyncio.to_thread(_measure_added, bench, server, preview)
            await asyncio.to_thread(_measure_sockets, bench, server, preview)
            await command.kill()
        finally:
            await sandbox.kill()


def _head(preview: Preview, more: str = "") -> bytes:
    host = urlsplit(preview.url).netloc
    return f"GET / HTTP/1.1\r\nHost: {host}\r\nX-Sandlot-Preview-Token: {preview.token}\r\n{more}\r\n".encode()


def _to_server(server: Server) -> socket.socket:
    line = socket.create_connection(("127.0.0.1", server.port), timeout=60)
    line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return line


def _ask(line: socket.socket, head: bytes) -> float:
    began = time.perf_counter_ns()
    line.sendall(head)
    heard = line.recv(65536)
    while not heard.endswith(b"x" * _BODY):
        piece = line.recv(65536)
        if not piece:
            raise RuntimeError(f"there was no answer: {heard[:200]!r}")
        heard += piece
    return milliseconds_since(began)


def _until_answered(server: Server, preview: Preview) -> None:
    for _ in range(300):
        with _to_server(server) as line:
            line.sendall(_head(preview, "Connection: close\r\n"))
            if b" 200 " in line.recv(65536):
                return
        time.sleep(0.1)
    raise RuntimeError("the program does not answer")


def _direct() -> socket.socket:
    """In the network of the program, from a thread that ends there."""
    pid = next(
        int(found.parent.name)
        for found in Path("/proc").glob("[0-9]*/cmdline")
        if b"\0program.py\x003000" in _read(found) and _listens(int(found.parent.name))
    )

    def make() -> socket.socket:
        there = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        try:
            enter_network(there)
            line = socket.create_connection(("127.0.0.1", 3000), timeout=60)
        finally:
            os.close(there)
        line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return line

    with ThreadPoolExecutor(1) as thread:
        return thread.submit(make).result()


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


def _listens(pid: int) -> bool:
    return b":0BB8 00000000:0000 0A" in _read(Path(f"/proc/{pid}/net/tcp"))


def _measure_added(bench: Bench, server: Server, preview: Preview) -> None:
    rounds = bench.rounds(3000, 600)
    direct: list[float] = []
    through: list[float] = []
    head = _head(preview)
    with _direct() as straight, _to_server(server) as line, quiet():
        before, began = server.processor_ms(), len(direct)
        for counts in rounds:
            took = _ask(straight, head), _ask(line, head)
            if counts:
                direct.append(took[0])
                through.append(took[1])
        used = (server.processor_ms() - before) / (rounds.count + rounds.warm_up)
        assert began == 0
    added = statistics.median(through) - statistics.median(direct)
    least = quantile(through, 0.1) - quantile(direct, 0.1)
    note = f"directly {statistics.median(direct):.3f} ms, through it {statistics.median(through):.3f}; p10 adds "
    note += f"{least:.3f} ms; the server's own processor time is {used:.3f} ms"
    row = Row(_SECTION, "added to a request", added, "ms", ADDED_TARGET_MS, p95_ms=quantile(through, 0.95), note=note)
    bench.report.add(row)


def _measure_sockets(bench: Bench, server: Server, preview: Preview) -> None:
    count = SOCKETS // 10 if bench.quick else SOCKETS
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, count + 2000), hard))
    head = _head(preview, _UPGRADE)
    try:
        with ExitStack() as stack:
            before = _resident_kib(server.pid)
            lines: list[socket.socket] = []
            for _ in range(count):
                line = stack.enter_context(_to_server(server))
                line.sendall(head)
                heard = line.recv(65536)
                if b" 101 " not in heard:
                    raise RuntimeError(f"websocket {len(lines)} was refused: {heard[:300]!r}")
                lines.append(line)
            each = (_resident_kib(server.pid) - before) / count
            began = server.processor_ms()
            time.sleep(2)
            rest = (server.processor_ms() - began) / 20
            for line in lines:  # all of them are still there
                line.sendall(b"ping")
            alive = sum(line.recv(16) == b"ping" for line in lines)
        note = f"{alive} of {count} answer; the server uses {rest:.2f} % of a processor meanwhile"
        row = Row(_SECTION, f"idle websocket, of {count}", each, "KiB", SOCKET_TARGET_KIB, n=count, note=note)
        bench.report.add(row)
        bench.report.add(Row(_SECTION, "idle websockets held", float(alive), "", float(count), at_least=True))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def _resident_kib(pid: int) -> float:
    return int(_read(Path(f"/proc/{pid}/statm")).split()[1]) * resource.getpagesize() / 1024
