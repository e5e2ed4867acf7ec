"""Requests as nobody should send them: bytes in, status and bytes out."""

import asyncio
import http.client
import io
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

DEADLINE_S = 60.0


@dataclass(frozen=True)
class Answer:
    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def code(self) -> str:
        """Of the error, wherever the protocol puts it; empty when there is none."""
        kind = self.headers.get("content-type", "")
        if kind.startswith("application/connect+"):
            told = last_envelope(self.body).get("error", {})
        elif self.status == 200:
            return ""
        else:
            told = json.loads(self.body)
        return str(told.get("code", ""))


def envelope(data: bytes, flags: int = 0) -> bytes:
    return bytes([flags]) + len(data).to_bytes(4, "big") + data


def envelopes(body: bytes) -> list[tuple[int, bytes]]:
    found: list[tuple[int, bytes]] = []
    while body:
        size = int.from_bytes(body[1:5], "big")
        found.append((body[0], body[5 : 5 + size]))
        body = body[5 + size :]
    return found


def last_envelope(body: bytes) -> dict[str, Any]:
    flags, data = envelopes(body)[-1]
    assert flags == 2, "a stream ends with its end"
    return json.loads(data)


async def ask(port: int, path: str, body: bytes, content_type: str = "application/json", **headers: str) -> Answer:
    lines = {"host": "x", "content-type": content_type, "content-length": str(len(body)), "connection": "close"}
    lines |= {name.replace("_", "-"): value for name, value in headers.items()}
    head = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
    return parse(await exchange(port, f"POST {path} HTTP/1.1\r\n{head}\r\n".encode("latin-1") + body))


async def exchange(port: int, data: bytes) -> bytes:
    """What comes until the server ends the connection."""
    async with asyncio.timeout(DEADLINE_S):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            writer.write(data)
            return await reader.read()
        finally:
            writer.close()


class _Sock:
    def __init__(self, data: bytes) -> None:
        self._data = data

    def makefile(self, mode: str) -> io.BytesIO:
        del mode
        return io.BytesIO(self._data)


def parse(data: bytes) -> Answer:
    found = http.client.HTTPResponse(_Sock(data))  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]
    found.begin()
    headers = {name.lower(): value for name, value in found.getheaders()}
    return Answer(found.status, headers, found.read())
