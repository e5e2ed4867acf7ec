"""Somebody who receives webhooks, on a port of his own."""

import asyncio
import json
import ssl
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Told:
    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def document(self) -> Any:
        return json.loads(self.body)


@dataclass
class Receiver:
    port: int
    answer: Callable[[Told], bytes]
    told: list[Told] = field(default_factory=list[Told])

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/hook?key=of-mine"

    def offsets(self) -> list[int]:
        return [one.document["data"]["offset"] for one in self.told]


def well(_told: Told) -> bytes:
    return b"HTTP/1.1 204 No Content\r\n\r\n"


@asynccontextmanager
async def receiving(
    answer: Callable[[Told], bytes] = well, tls: ssl.SSLContext | None = None
) -> AsyncGenerator[Receiver]:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
            headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in head[1:] if line)}
            body = await reader.readexactly(int(headers["content-length"]))
            told = Told(head[0].split()[1], headers, body)
            receiver.told.append(told)
            writer.write(receiver.answer(told))
            await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=tls)
    receiver = Receiver(server.sockets[0].getsockname()[1], answer)
    try:
        yield receiver
    finally:
        server.close()
