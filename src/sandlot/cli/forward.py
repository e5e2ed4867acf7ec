"""Bring a port of a session to this machine, until you interrupt it.

Also from a server that is far away. It needs no address on the host of the session."""

import argparse
import asyncio
import errno
import json
from collections.abc import Callable
from contextlib import suppress

from sandlot.cli import values
from sandlot.cli.context import Context
from sandlot.contracts import Host, PortStream
from sandlot.model import Conflict, SandlotError, limits

USAGE = "forward [options] ID PORT[:LOCAL]"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--address", metavar="ADDRESS", default="127.0.0.1", help="here (default: 127.0.0.1)")
    parser.add_argument("id", metavar="ID", help="the session's id")
    parser.add_argument(
        "port", metavar="PORT[:LOCAL]", help="inside the session, and here (default: the same; 0: one that is free)"
    )


async def run(context: Context) -> int:
    args, screen = context.args, context.screen
    inside, _, here = args.port.partition(":")
    port = values.count("PORT", inside)
    local = values.count("LOCAL", here) if here else port
    limits.within("port", port, 1, 65535)
    limits.within("LOCAL", local, 0, 65535)
    async with context.host() as host:
        await host.get(args.id)  # one that is not there is told before anybody comes
        forwarding = Forwarding(host, args.id, port, screen.note)
        server = await _listen(forwarding, args.address, local)
        async with server:
            address = f"{args.address}:{server.sockets[0].getsockname()[1]}"
            told = {"address": address, "session_id": args.id, "port": port}
            screen.line(json.dumps(told) if screen.as_json else address)
            await server.serve_forever()
    return 0


async def _listen(forwarding: "Forwarding", address: str, local: int) -> asyncio.Server:
    """Raises Conflict."""
    try:
        return await asyncio.start_server(forwarding.serve, address, local)
    except OSError as error:
        why = "is taken" if error.errno == errno.EADDRINUSE else f"cannot be had: {error.strerror}"
        raise Conflict(f"{address}:{local} {why}", next_step=f"give another, {forwarding.port}:0 for any") from None


class Forwarding:
    """Whoever comes gets a connection of his own."""

    def __init__(self, host: Host, session_id: str, port: int, note: Callable[[str], None]) -> None:
        self._host = host
        self._session_id = session_id
        self.port = port
        self._note = note
        self._count = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._count >= limits.CONNECTIONS_MAX:
            writer.transport.abort()
            return
        self._count += 1
        try:
            async with self._host.connect_port(self._session_id, self.port) as stream:
                await _carry(reader, writer, stream)
            writer.close()
        except (SandlotError, OSError, ExceptionGroup) as error:
            writer.transport.abort()
            if isinstance(error, SandlotError):
                self._note(str(error))
        finally:
            self._count -= 1


async def _carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, stream: PortStream) -> None:
    async def inward() -> None:
        while data := await reader.read(limits.PIECE_BYTES):
            await stream.write(data)
        await stream.close_write()

    async def outward() -> None:
        while data := await stream.read():
            writer.write(data)
            await writer.drain()
        with suppress(OSError):
            writer.write_eof()

    async with asyncio.TaskGroup() as ways:
        ways.create_task(inward())
        ways.create_task(outward())
