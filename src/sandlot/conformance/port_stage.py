"""Short words for what checks of ports do."""

import asyncio
import secrets
import socket
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from typing import Any

from sandlot.conformance.checks import Broken, Stage
from sandlot.conformance.process_stage import until_ready
from sandlot.contracts.ports import PortStream
from sandlot.model import Process, ProcessSpec, Ready, ReadyKind

# Says back what it hears, a connection at a time for each thread; the second word is where it listens.
ECHO = """
import socket, sys, threading
port, address = int(sys.argv[1]), sys.argv[2]
family = socket.AF_INET6 if ":" in address else socket.AF_INET
listener = socket.create_server((address, port), family=family, backlog=128)
def serve(line):
    try:
        while data := line.recv(65536):
            line.sendall(data)
        line.sendall(b"<end>")
    except OSError:
        pass
    line.close()
while True:
    threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()
"""
# Takes connections and does what its word says, one after the other.
ODD = """
import socket, sys, time
listener = socket.create_server(("127.0.0.1", int(sys.argv[1])))
held = []
def answer(line):
    if sys.argv[2] == "talks":
        line.sendall(b"x" * int(sys.argv[3])); line.close()
    elif sys.argv[2] == "ends":
        line.shutdown(socket.SHUT_WR)
        heard = b""
        while data := line.recv(65536):
            heard += data
        print(len(heard), flush=True); line.close()
    elif sys.argv[2] == "breaks":
        line.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\\1\\0\\0\\0\\0\\0\\0\\0"); line.close()
    else:
        held.append(line)
while True:
    try:
        answer(listener.accept()[0])
    except OSError:  # whoever only looked has left
        pass
"""
_ENDS = b"<end>"


def a_port() -> int:
    """One that nobody has: a runtime without isolation shares those of its machine. Below those that the kernel gives
    to connections."""
    for _ in range(100):
        port = 10_000 + secrets.randbelow(20_000)
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port
    raise Broken("this machine has no free port")


async def serve(
    stage: Stage, port: int, *, address: str = "127.0.0.1", own_port: bool = False, **options: Any
) -> Process:
    """What says back what it hears, and listens when this returns."""
    return await _listening(stage, port, ("python3", "-c", ECHO, str(port), address), options, own_port=own_port)


async def serve_oddly(stage: Stage, port: int, *words: str, **options: Any) -> Process:
    return await _listening(stage, port, ("python3", "-c", ODD, str(port), *words), options)


async def _listening(
    stage: Stage, port: int, argv: tuple[str, ...], options: dict[str, Any], *, own_port: bool = False
) -> Process:
    if own_port:
        options["port"] = port
    spec = ProcessSpec(stage.session.session_id, argv, ready=Ready(ReadyKind.PORT, port), **options)
    process = await stage.host.launch_process(spec)
    return await until_ready(stage, process.process_id)


async def read_all(stream: PortStream) -> bytes:
    heard = bytearray()
    while data := await stream.read():
        heard += data
    return bytes(heard)


async def read_exactly(stream: PortStream, count: int) -> bytes:
    heard = bytearray()
    while len(heard) < count and (data := await stream.read(count - len(heard))):
        heard += data
    return bytes(heard)


async def echoed(stream: PortStream, said: bytes) -> bytes:
    """What comes back, until the other side ends too; without the word that it ends with."""
    heard = asyncio.ensure_future(read_all(stream))
    await stream.write(said)
    await stream.close_write()
    told = await heard
    return told.removesuffix(_ENDS) if told.endswith(_ENDS) else told + b" without an end"


class Line:
    """A connection to an address, with the verbs of a PortStream."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def read(self, size_max: int = 65536) -> bytes:
        return await self._reader.read(size_max)

    async def write(self, data: bytes) -> None:
        self._writer.write(data)
        await self._writer.drain()

    async def close_write(self) -> None:
        self._writer.write_eof()


@asynccontextmanager
async def dialled(address: str) -> AsyncGenerator[Line]:
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host.strip("[]"), int(port))
    try:
        yield Line(reader, writer)
    finally:
        writer.transport.abort()


async def is_turned_away(address: str, within_s: float = 30.0) -> bool:
    """Whoever comes is taken, and then broken off; or it is seen at once."""
    try:
        async with asyncio.timeout(within_s), dialled(address) as line:
            return not await line.read()
    except TimeoutError:
        return False
    except OSError:
        return True
