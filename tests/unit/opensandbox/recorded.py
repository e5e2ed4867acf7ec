"""A server on loopback that answers what a test tells it to, byte by byte, and remembers what it was asked."""

import asyncio
import json
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from urllib.parse import parse_qsl, urlsplit


@dataclass
class Asked:
    method: str
    path: str
    params: list[tuple[str, str]]
    headers: dict[str, str]
    body: bytes

    @property
    def document(self) -> object:
        return json.loads(self.body)


@dataclass
class Recorded:
    """Answers by `METHOD path`: each is given once, the last one again and again."""

    answers: dict[str, list[Sequence[bytes]]] = field(default_factory=dict[str, list[Sequence[bytes]]])
    asked: list[Asked] = field(default_factory=list[Asked])
    url: str = ""
    silent: bool = False

    def say(self, what: str, *pieces: bytes) -> None:
        self.answers.setdefault(what, []).append(pieces)

    def say_json(self, what: str, status: int, document: object, headers: Mapping[str, str] | None = None) -> None:
        body = json.dumps(document).encode()
        self.say(what, head(status, {"content-type": "application/json", **(headers or {})}, len(body)) + body)

    def say_events(self, what: str, *pieces: bytes) -> None:
        """Chunked, a chunk for each piece."""
        begin = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
        self.say(what, begin, *(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in pieces), b"0\r\n\r\n")

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while await self._answer(reader, writer):
                pass
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        lines = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        method, target, _version = lines[0].split(" ")
        headers = {
            name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines[1:] if line)
        }
        parts = urlsplit(target)
        body = await _body(reader, headers)
        self.asked.append(Asked(method, parts.path, parse_qsl(parts.query, keep_blank_values=True), headers, body))
        waiting = self.answers.get(f"{method} {parts.path}")
        if not waiting:
            waiting = [(head(404, {}, 0),)]
        for piece in waiting.pop(0) if len(waiting) > 1 else waiting[0]:
            if piece == HANG_UP:
                return False
            if piece == SILENCE:
                await asyncio.sleep(30)
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(0)
        return True


HANG_UP = b"\0hang up"
SILENCE = b"\0say nothing more"


async def _body(reader: asyncio.StreamReader, headers: Mapping[str, str]) -> bytes:
    if "chunked" not in headers.get("transfer-encoding", ""):
        return await reader.readexactly(int(headers.get("content-length", "0")))
    body = b""
    while size := int(await reader.readline(), 16):
        body += await reader.readexactly(size)
        await reader.readline()
    await reader.readline()
    return body


def head(status: int, headers: Mapping[str, str], length: int) -> bytes:
    lines = [f"HTTP/1.1 {status} Said", *(f"{name}: {value}" for name, value in headers.items())]
    return "\r\n".join([*lines, f"content-length: {length}", "", ""]).encode()


@asynccontextmanager
async def recorded() -> AsyncGenerator[Recorded]:
    made = Recorded()
    server = await asyncio.start_server(made.serve, "127.0.0.1", 0)
    made.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
    try:
        yield made
    finally:
        server.close()
