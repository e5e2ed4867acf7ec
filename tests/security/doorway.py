"""A server with keys on a real port, around a host in memory, as `sandlot serve` puts it together."""

import asyncio
import json
import socket
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from sandlot.contracts import Host
from sandlot.fakes.host import FakeHost
from sandlot.model import Scope, SessionFilter, limits
from sandlot.previews.book import Place, PreviewBook
from sandlot.rpc.messages import PROCEDURES
from sandlot.server.crowd import Bounds
from sandlot.server.front import Front
from sandlot.server.http import HttpServer
from sandlot.server.origins import Origins
from sandlot.tenants.keys import KeyStore
from sandlot.wiring.doors import Doors
from tests.security.routes import DOMAIN, Route
from tests.unit.rpc.raw_http import Answer, envelope
from tests.waiting import until

DEADLINE_MS = 1000
ANSWER_S = 60.0
QUIET_S = 0.3


@dataclass
class Doorway:
    port: int
    host: FakeHost
    front: Front
    doors: Doors
    keys: KeyStore
    one: str  # a key of the tenant `one`
    two: str
    operator: str

    async def raw(self, data: bytes) -> bytes:
        """All that comes until the end, or until nothing comes any more: a stream may have none."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        found, patience_s = b"", ANSWER_S
        try:
            writer.write(data)
            while True:
                async with asyncio.timeout(patience_s):
                    piece = await reader.read(65536)
                if not piece:
                    return found
                found, patience_s = found + piece, QUIET_S
        except ConnectionResetError:
            return found
        except TimeoutError:
            assert b"\r\n\r\n" in found, f"no answer to {data[:200]!r}"
            return found
        finally:
            writer.close()

    async def ask(
        self,
        method: str,
        path: str,
        key: str = "",
        body: bytes = b"",
        headers: Mapping[str, str] | None = None,
    ) -> Answer:
        lines = {"host": f"127.0.0.1:{self.port}", "connection": "close", "content-length": str(len(body))}
        if key:
            lines["authorization"] = f"Bearer {key}"
        lines |= headers or {}
        head = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
        return parse(await self.raw(f"{method} {path} HTTP/1.1\r\n{head}\r\n".encode("latin-1") + body))

    async def visit(self, route: Route, session_id: str, key: str, headers: Mapping[str, str] | None = None) -> Answer:
        """As a client that means well would, of this session."""
        body = json.dumps({"sessionId": session_id} if route.is_procedure else {"id": session_id}).encode()
        kind = "application/connect+json" if route.is_stream else "application/json"
        told = {"content-type": kind, "connect-timeout-ms": str(DEADLINE_MS)}
        told |= {**route.headers(session_id), **(headers or {})}
        body = envelope(body) if route.is_stream else body
        return await self.ask(route.method, route.of(session_id), key, body, told)

    async def create(self, session_id: str, key: str) -> int:
        body = json.dumps({"sessionId": session_id}).encode()
        kind = {"content-type": "application/json"}
        return (await self.ask("POST", PROCEDURES["CreateSession"].path, key, body, kind)).status

    async def sessions(self) -> list[str]:
        return [info.session_id for info in (await self.host.list(SessionFilter())).sessions]


def parse(data: bytes) -> Answer:
    """Its body as it came: of a stream that was left, and of an answer to HEAD, it is not whole."""
    head, _, body = data.partition(b"\r\n\r\n")
    first, *lines = head.decode("latin-1").split("\r\n")
    headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
    return Answer(int(first.split(" ")[1]), headers, body)


@asynccontextmanager
async def doorway(data: Path, *, has_keys: bool = True) -> AsyncGenerator[Doorway]:
    keys, host = KeyStore(data), FakeHost()
    made = [keys.create(name, name, Scope.USE).secret for name in ("one", "two")] if has_keys else ["", ""]
    operator = keys.create("ops", "", Scope.OPERATE).secret if has_keys else ""
    doors = Doors(cast("Host", host), data, DOMAIN)
    PreviewBook(data).show(Place("http://127.0.0.1", domain=DOMAIN))
    front = Front(doors.application, cast("Host", host), Origins(()), None, access_log=True, previews=doors.previews)
    front.is_ready = True
    server = HttpServer(Bounds(200, limits.HEADER_TIMEOUT_S, limits.KEEP_ALIVE_S))
    watching = asyncio.ensure_future(doors.watch())
    with socket.create_server(("127.0.0.1", 0)) as listening:
        server.open(listening, front.application(is_open=True))
        try:
            yield Doorway(listening.getsockname()[1], host, front, doors, keys, made[0], made[1], operator)
        finally:
            watching.cancel()
            server.stop_listening()
            await server.drop()
            assert await until(lambda: server.crowd.count == 0)
            await doors.forget()
