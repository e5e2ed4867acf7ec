"""Programs in a sandbox are reached through OpenSandbox's endpoints: HTTP, websockets, and terminals."""

import asyncio
import json
import time
from collections.abc import AsyncGenerator
from typing import Any

import httpx
import pytest
from opensandbox import Sandbox
from opensandbox.config import ConnectionConfig
from opensandbox.models.execd import RunCommandOpts

from sandlot.config.settings import Settings
from sandlot.wiring.embedded import build
from tests.opensandbox_stage import KEY, address, connection, create, keep, needs, opened, serve, until
from tests.websocket_client import Client, NoSocket, connect

__all__ = ["address", "connection", "opened"]
pytestmark = [pytest.mark.root, pytest.mark.filterwarnings("ignore::DeprecationWarning")]
HEADERS = {"OPEN-SANDBOX-API-KEY": KEY}
PORT = 8080
# What it was asked, a redirect to its own root, a body of any length, and a websocket that says what it hears.
PROGRAM = r"""
import base64, hashlib, http.server, json

class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def log_message(self, *_): pass
    def do_GET(self):
        if self.path.startswith("/ws"):
            return self.socket()
        if self.path == "/away":
            self.send_response(302); self.send_header("location", "/there?x=1")
            self.send_header("content-length", "0"); self.end_headers(); return
        self.say(json.dumps({"path": self.path, "headers": {k.lower(): v for k, v in self.headers.items()}}).encode())
    def do_POST(self):
        if self.headers.get("transfer-encoding") == "chunked":
            body = b""
            while size := int(self.rfile.readline(), 16):
                body += self.rfile.read(size); self.rfile.readline()
            self.rfile.readline()
        else:
            body = self.rfile.read(int(self.headers["content-length"]))
        self.say(hashlib.sha256(body).hexdigest().encode())
    do_PUT = do_PATCH = do_DELETE = do_GET
    def say(self, body):
        self.send_response(200); self.send_header("content-length", str(len(body))); self.end_headers()
        self.wfile.write(body)
    def socket(self):
        key = self.headers["sec-websocket-key"].encode() + b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
        self.send_response(101); self.send_header("upgrade", "websocket"); self.send_header("connection", "upgrade")
        self.send_header("sec-websocket-accept", base64.b64encode(hashlib.sha1(key).digest()).decode())
        self.end_headers(); self.close_connection = True
        while True:
            head = self.rfile.read(2)
            if len(head) < 2 or head[0] & 15 == 8: return
            size = head[1] & 127
            mask = self.rfile.read(4)
            data = bytes(b ^ mask[i % 4] for i, b in enumerate(self.rfile.read(size)))
            self.wfile.write(bytes([head[0], len(data)]) + data)

http.server.ThreadingHTTPServer(("127.0.0.1", 8080), Handler).serve_forever()
"""


async def serving(connection: ConnectionConfig) -> Sandbox:
    """A sandbox with the program in it, which answers."""
    sandbox = await create(connection)
    await sandbox.files.write_file("/work/server.py", PROGRAM)
    await sandbox.commands.run("python3 /work/server.py", opts=RunCommandOpts(background=True))
    endpoint = await sandbox.get_endpoint(PORT)

    async def answers() -> bool:
        async with httpx.AsyncClient(headers=endpoint.headers, timeout=30) as client:
            return (await client.get(f"http://{endpoint.endpoint}/")).status_code == 200

    await until(answers)
    return sandbox


async def test_a_program_is_reached_by_its_endpoint(address: str, connection: ConnectionConfig) -> None:
    sandbox = await serving(connection)
    endpoint = await sandbox.get_endpoint(PORT)
    where = f"http://{endpoint.endpoint}"
    async with httpx.AsyncClient(headers=endpoint.headers, timeout=30) as client:
        secret = {"cookie": "a=b", "authorization": "Basic eDp5", **HEADERS, "x-own": "kept"}
        asked = (await client.get(f"{where}/a%2Fb/../c//d?x=%20&y", headers=secret)).json()
        assert asked["path"].endswith("c//d?x=%20&y"), "as it was sent"
        told: dict[str, str] = asked["headers"]
        assert told["x-own"] == "kept"
        assert told["host"] == f"localhost:{PORT}"
        assert told["x-forwarded-host"] == address
        hidden = {"cookie", "authorization", "open-sandbox-api-key", *(name.lower() for name in endpoint.headers or {})}
        assert hidden.isdisjoint(told)
        assert (await client.get(f"{where}/away")).headers[
            "location"
        ] == f"/v1/sandboxes/{sandbox.id}/proxy/{PORT}/there?x=1"
        for content in (b"1" * 300_000, _pieces()):
            answer = await client.post(f"{where}/", content=content)
            assert len(answer.text) == 64
        for method in ("PUT", "PATCH", "DELETE"):
            assert (await client.request(method, f"{where}/m")).json()["path"] == "/m"
        nobody = (await sandbox.get_endpoint(9)).endpoint
        silent = await client.get(f"http://{nobody}/", headers=HEADERS)
        assert (silent.status_code, silent.json()["code"]) == (502, "BACKEND_CONNECTION_FAILED")
    async with httpx.AsyncClient(timeout=30) as client:
        assert (await client.get(where)).status_code == 401, "without the token"
        needs(Sandbox, "get_signed_endpoint")
        signed = await sandbox.get_signed_endpoint(PORT, int(time.time()) + 600)
        asked = (await client.get(f"http://{signed.endpoint}/x")).json()
        assert asked["path"] == "/x"
        assert "signed" not in json.dumps(asked), "what is in the address is not for the program"
        moved = (await client.get(f"http://{signed.endpoint}/away")).headers["location"]
        assert moved == f"/{signed.endpoint.partition('/')[2]}/there?x=1"
    await sandbox.kill()


async def _pieces() -> AsyncGenerator[bytes]:
    for _ in range(30):
        yield b"2" * 10_000


async def test_a_websocket_goes_through(connection: ConnectionConfig) -> None:
    sandbox = await serving(connection)
    endpoint = await sandbox.get_endpoint(PORT)
    async with connect(f"{endpoint.endpoint}/ws", endpoint.headers) as client:
        for message in ("hello", b"\x00\xff", "x" * 100):
            await client.say(message)
            assert await client.hear() == message
    with pytest.raises(NoSocket) as refused:
        async with connect(f"{endpoint.endpoint}/ws"):
            pass
    assert refused.value.status == 401
    await sandbox.kill()


async def test_the_proxy_of_the_sdk_leads_to_the_same(address: str) -> None:
    connection = ConnectionConfig(domain=address, api_key=KEY, protocol="http", use_server_proxy=True)
    sandbox = await serving(connection)
    endpoint = await sandbox.get_endpoint(PORT)
    assert endpoint.endpoint.endswith(f"/sandboxes/{sandbox.id}/proxy/{PORT}")
    async with httpx.AsyncClient(headers=HEADERS, timeout=30) as client:
        assert (await client.get(f"http://{endpoint.endpoint}/p")).json()["path"] == "/p"
    await sandbox.kill()


class Shell:
    """A terminal, as a client of ExecD has it."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.replayed, self.printed, self.told = b"", b"", list[dict[str, Any]]()
        self.next = 0  # offset behind what was replayed

    async def hear(self) -> bool:
        message = await self.client.hear()
        if isinstance(message, str):
            self.told.append(json.loads(message))
        elif message is not None and message[:1] == b"\x03":
            self.next = int.from_bytes(message[1:9], "big")
            self.replayed += message[9:]
        elif message is not None:
            assert message[:1] == b"\x01"
            self.printed += message[1:]
        return message is not None

    async def until(self, wanted: bytes) -> None:
        while wanted not in self.printed:
            assert await self.hear(), (self.printed, self.client.closed)

    async def until_told(self, kind: str) -> dict[str, Any]:
        while not (self.told and self.told[-1]["type"] == kind):
            assert await self.hear(), (self.told, self.client.closed)
        return self.told[-1]


async def test_a_terminal_with_replay_and_takeover(connection: ConnectionConfig) -> None:
    sandbox = await create(connection)
    execd = await sandbox.get_endpoint(44772)
    async with httpx.AsyncClient(headers=execd.headers, timeout=30) as http:
        made = (await http.post(f"http://{execd.endpoint}/pty", json={"cwd": "/usr", "command": "exec sh -i"})).json()
        pty = f"{execd.endpoint}/pty/{made['session_id']}"
        async with connect(f"{pty}/ws?pty=1", execd.headers) as client:
            shell = Shell(client)
            assert await shell.until_told("connected") == {
                "type": "connected",
                "session_id": made["session_id"],
                "mode": "pty",
            }
            await client.say('{"type":"resize","cols":101,"rows":31}')
            await client.say(b"\x00stty size; pwd; echo o''ne\n")
            await shell.until(b"one\r\n")
            assert b"31 101\r\n/usr\r\n" in shell.printed
            await client.say(b"\x00sleep 4321\n")
            await shell.until(b"sleep 4321\r\n")
            await client.say(b"\x00\x03")
            await shell.until(b"^C")  # what is typed before it is dropped, as terminals do
            await client.say(b"\x00echo $?; echo t''wo\n")
            await shell.until(b"two\r\n")
            assert b"130\r\n" in shell.printed, "Ctrl-C reaches what runs"
            await client.say('{"type":"ping"}')
            await shell.until_told("pong")
            for wrong in ("[]", "{", b"\x09x", '{"type":"resize","cols":"x"}', '{"type":"signal","signal":"SIGX"}'):
                await client.say(wrong)
                assert (await shell.until_told("error"))["code"] in ("INVALID_FRAME", "RUNTIME_ERROR")
                shell.told.clear()
            with pytest.raises(NoSocket) as second:
                async with connect(f"{pty}/ws", execd.headers):
                    pass
            assert second.value.status == 409
            async with connect(f"{pty}/ws?since=0&takeover=1", execd.headers) as taker:
                other = Shell(taker)
                await other.until_told("connected")
                assert b"one\r\n" in other.replayed
                assert b"two\r\n" in other.replayed
                while await shell.hear():
                    pass
                assert client.closed == (4001, "TAKEN_OVER")
                state = (await http.get(f"http://{pty}")).json()
                assert state["running"] is True
                assert state["output_offset"] >= other.next > 0
                await taker.say(b"\x00exit 7\n")
                assert (await other.until_told("exit"))["exit_code"] == 7
                while await other.hear():
                    pass
                assert client.closed is not None
                assert taker.closed == (1000, "process exited")
        assert (await http.get(f"http://{pty}")).json()["running"] is False
        assert (await http.get(f"http://{execd.endpoint}/pty/nothing")).status_code == 404
        assert (await http.get(f"http://{pty}/ws")).status_code == 400, "not without asking for a websocket"
        again = (await http.post(f"http://{execd.endpoint}/pty", json={"command": "sleep 1000"})).json()["session_id"]
        assert (await http.delete(f"http://{execd.endpoint}/pty/{again}")).status_code == 200
        assert (await http.get(f"http://{execd.endpoint}/pty/{again}")).json()["running"] is False
    await sandbox.kill()


async def test_a_hostile_client_of_a_terminal_is_sent_off(connection: ConnectionConfig) -> None:
    sandbox = await create(connection)
    execd = await sandbox.get_endpoint(44772)
    async with httpx.AsyncClient(headers=execd.headers, timeout=30) as http:
        made = (await http.post(f"http://{execd.endpoint}/pty", json={})).json()["session_id"]
    where = f"{execd.endpoint}/pty/{made}/ws?takeover=1"
    long = b"\x82\xff" + (100_000).to_bytes(8, "big") + b"mask" * 30_000
    for data, code in ((b"\xff" * 100, 1002), (b"\x81\x05hello", 1002), (long, 1009)):
        async with connect(where, execd.headers) as client:
            await client.raw(data)
            while await client.hear() is not None:
                pass
            assert client.closed is not None
            assert client.closed[0] == code, data[:10]
    assert (await sandbox.commands.run("echo alive")).text == "alive"
    await sandbox.kill()


async def test_a_restart_of_the_server_leaves_programs_and_terminals(settings: Settings) -> None:

    first, again = build(settings), build(settings)
    async with first, serve(first) as address:
        sandbox = await serving(ConnectionConfig(domain=address, api_key=KEY, protocol="http"))
    async with again, serve(again) as address:
        connection = ConnectionConfig(domain=address, api_key=KEY, protocol="http")
        found = await keep(Sandbox.connect(sandbox.id, connection_config=connection))
        endpoint = await found.get_endpoint(PORT)
        async with httpx.AsyncClient(headers=endpoint.headers, timeout=30) as client:
            assert (await client.get(f"http://{endpoint.endpoint}/still")).json()["path"] == "/still"
        await found.kill()


async def test_many_go_through_at_once(connection: ConnectionConfig) -> None:
    sandbox = await serving(connection)
    endpoint = await sandbox.get_endpoint(PORT)
    async with httpx.AsyncClient(headers=endpoint.headers, timeout=60) as client:
        answers = await asyncio.gather(*(client.get(f"http://{endpoint.endpoint}/{n}") for n in range(50)))
    assert [answer.json()["path"] for answer in answers] == [f"/{n}" for n in range(50)]
    await sandbox.kill()
