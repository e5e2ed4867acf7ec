"""A server with keys: nobody without one, two tenants that do not see each other, and a key that is taken back."""

import asyncio
import json
import re
import socket
import subprocess
import sys
import time
from collections.abc import AsyncGenerator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import httpx
import pytest
from opensandbox import Sandbox as TheirSandbox
from opensandbox.config import ConnectionConfig
from opensandbox.exceptions import SandboxApiException

from sandlot import Client, Sandbox
from sandlot.contracts import Host
from sandlot.fakes.host import FakeHost
from sandlot.gateways.opensandbox import GatewaySettings, OpenSandboxGateway
from sandlot.model import (
    CallOutput,
    CallRequest,
    HostFull,
    InvalidArgument,
    MaxSessionsReached,
    PermissionDenied,
    SandlotError,
    Scope,
    SessionFilter,
    SessionNotFound,
    SessionSpec,
    TenantLimits,
    token_of_key,
)
from sandlot.rpc.client import HostClient
from sandlot.rpc.messages import PROCEDURES
from sandlot.tenants.keys import KeyStore
from sandlot.tenants.secret_files import read_secret
from sandlot.wiring.doors import Doors
from tests.serving import Server, environment, raw, read_all, server

ROUTES = [("POST", procedure.path) for procedure in PROCEDURES.values()]


OTHERS = [("GET", "/"), ("GET", "/no/such"), ("GET", "/health")]


def gateway_routes() -> list[tuple[str, str]]:
    gateway = OpenSandboxGateway(cast("Host", FakeHost()), GatewaySettings(b"x"))
    found = [(route.method, f"/v1{route.pattern}") for route in gateway.lifecycle.routes]
    for port, router in ((44772, gateway.execd), (18080, gateway.egress)):
        found += [(route.method, f"/v1/sandboxes/{{id}}/proxy/{port}{route.pattern}") for route in router.routes]
    return [(method, path.replace("{id}", "secret").replace("{", "").replace("}", "")) for method, path in found]


def scope_of(method: str, path: str, headers: list[tuple[bytes, bytes]]) -> dict[str, Any]:
    where = {"type": "http", "method": method, "path": path, "raw_path": path.encode(), "query_string": b""}
    return {**where, "headers": headers}


async def ask(doors: Doors, method: str, path: str, headers: dict[str, str], sent: bytes = b"{}") -> tuple[int, bytes]:
    status, body = 0, b""

    async def send(message: Any) -> None:
        nonlocal status, body
        status = message.get("status", status)
        body += message.get("body", b"")

    async def receive() -> Any:
        return {"type": "http.request", "body": sent, "more_body": False}

    raw = [(name.encode(), value.encode()) for name, value in {"content-type": "application/json", **headers}.items()]
    scope = {
        "type": "http",
        "method": method,
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "headers": raw,
    }
    await doors.application(scope, receive, send)
    return status, body


@pytest.mark.parametrize(
    ("method", "path"), [*ROUTES, *gateway_routes(), ("GET", "/"), ("GET", "/no/such"), ("GET", "/health")]
)
async def test_every_route_asks_for_a_key(method: str, path: str, tmp_path: Path) -> None:
    """The routes are those of the tables: a new one is looked at without being named."""
    KeyStore(tmp_path).create("k", "team", Scope.USE)
    doors = Doors(cast("Host", FakeHost()), tmp_path)
    bad: list[dict[str, str]] = [{}, {"authorization": "Bearer sl_a_b"}, {"open-sandbox-api-key": "x"}]
    bad.append({"x-execd-access-token": "local.0"})
    answers = [await ask(doors, method, path, headers) for headers in bad]
    assert answers == [answers[0]] * len(bad)
    assert answers[0][0] == 401


@pytest.mark.parametrize(("method", "path"), [*ROUTES, *gateway_routes()])
async def test_no_route_tells_of_another_tenants_session(method: str, path: str, tmp_path: Path) -> None:
    """What is asked of a session that another tenant has is answered as if nobody had it."""
    keys = KeyStore(tmp_path)
    one, two = keys.create("a", "a", Scope.USE).secret, keys.create("b", "b", Scope.USE).secret
    told: list[tuple[int, bytes]] = []
    for is_there in (True, False):
        fake = FakeHost()
        doors = Doors(cast("Host", fake), tmp_path)
        if is_there:
            assert (await create(doors, one))[0] == 200
        status, body = await send_json(doors, method, path, two, {"session_id": "secret"})
        told.append((status, re.sub(rb"[0-9.e+-]+", b"0", body)))  # times and figures of the machine
        left = [info.session_id for info in (await fake.list(SessionFilter())).sessions]
        assert ("tenant-a.secret" in left) is is_there
    assert told[0] == told[1]


async def create(doors: Doors, key: str) -> tuple[int, bytes]:
    path = PROCEDURES["CreateSession"].path
    return await send_json(doors, "POST", path, key, {"session_id": "secret"})


async def send_json(doors: Doors, method: str, path: str, key: str, document: object) -> tuple[int, bytes]:
    status, parts = 0, list[bytes]()
    body = json.dumps(document).encode()
    is_stream = any(p.path == path and (p.takes_stream or p.gives_stream) for p in PROCEDURES.values())
    kind = "application/connect+json" if is_stream else "application/json"
    if is_stream:
        body = b"\0" + len(body).to_bytes(4, "big") + body
    waiting = [{"type": "http.request", "body": body, "more_body": False}]

    async def send(message: Any) -> None:
        nonlocal status
        status = message.get("status", status)
        parts.append(message.get("body", b""))

    async def receive() -> Any:
        return waiting.pop() if waiting else await asyncio.sleep(600)

    headers = [
        (b"content-type", kind.encode()),
        (b"authorization", f"Bearer {key}".encode()),
        (b"connect-timeout-ms", b"5000"),
    ]
    scope = {
        "type": "http",
        "method": method,
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "headers": headers,
    }
    await doors.application(scope, receive, send)
    return status, b"".join(parts)


async def test_without_keys_everybody_who_is_near_is_served(tmp_path: Path) -> None:
    doors = Doors(cast("Host", FakeHost()), tmp_path)
    assert (await ask(doors, "POST", PROCEDURES["ListSessions"].path, {}))[0] == 200
    KeyStore(tmp_path).create("k", "team", Scope.USE)
    assert (await ask(doors, "POST", PROCEDURES["ListSessions"].path, {}))[0] == 401, "from the first key on"


def test_the_secret_of_tokens_stays(tmp_path: Path) -> None:
    assert read_secret(tmp_path / "s") == read_secret(tmp_path / "s")
    assert (tmp_path / "s").stat().st_mode & 0o777 == 0o600
    (tmp_path / "s").write_bytes(b"short")
    with pytest.raises(SandlotError):
        read_secret(tmp_path / "s")


@pytest.fixture
def served(data_dir: Path) -> Iterator[tuple[Server, KeyStore]]:
    keys = KeyStore(data_dir)
    keys.create("first", "", Scope.OPERATE)
    with server(data_dir) as one:
        yield one, keys


@asynccontextmanager
async def client(one: Server, key: str) -> AsyncGenerator[HostClient]:
    async with HostClient(f"http://127.0.0.1:{one.port}", api_key=key) as made:
        yield made


@pytest.mark.root
async def test_two_tenants_and_an_operator(served: tuple[Server, KeyStore]) -> None:
    one, keys = served
    secrets = [keys.create(name, name, Scope.USE).secret for name in ("a", "b")]
    operator = keys.create("o", "", Scope.OPERATE).secret
    async with client(one, secrets[0]) as a, client(one, secrets[1]) as b, client(one, operator) as o:
        await a.create(SessionSpec("work"))
        await b.create(SessionSpec("work"))
        for host, word in ((a, "of-a"), (b, "of-b")):
            async with host.call(CallRequest("work", ("sh", "-c", f"echo {word} > f; hostname"))) as call:
                assert (await call.result()).exit_code == 0
        async with a.call(CallRequest("work", ("cat", "f"))) as call:
            assert b"".join([event.data async for event in call if isinstance(event, CallOutput)]) == b"of-a\n"
        assert {info.session_id for info in (await o.list(SessionFilter())).sessions} == {
            "tenant-a.work",
            "tenant-b.work",
        }
        with pytest.raises(SessionNotFound):
            await a.get("tenant-b.work")
        with pytest.raises(PermissionDenied):
            await a.examine()
        keys.set_limits("a", TenantLimits(sessions=1))
        with pytest.raises(MaxSessionsReached):
            await a.create(SessionSpec())
        await a.destroy("work")
        await o.destroy("tenant-b.work")
    async with client(one, "sl_0_0") as stranger:
        with pytest.raises(PermissionDenied):
            await stranger.list(SessionFilter())


@pytest.mark.root
async def test_a_stream_ends_with_its_key(served: tuple[Server, KeyStore]) -> None:
    one, keys = served
    made = keys.create("a", "a", Scope.USE)
    async with client(one, made.secret) as a:
        await a.create(SessionSpec("work"))

        async def follow() -> None:
            async with a.call(CallRequest("work", ("sleep", "600"))) as call:
                keys.revoke(made.info.key_id)
                await call.result()

        with pytest.raises(SandlotError):
            async with asyncio.timeout(60):
                await follow()


@pytest.mark.root
async def test_the_sdk_of_opensandbox_with_a_key(served: tuple[Server, KeyStore]) -> None:
    one, keys = served
    made = keys.create("a", "a", Scope.USE)
    connection = ConnectionConfig(domain=f"127.0.0.1:{one.port}", api_key=made.secret, protocol="http")
    sandbox = await TheirSandbox.create("x", connection_config=connection)
    try:
        assert (await sandbox.commands.run("echo $OPENSANDBOX_ID")).text == sandbox.id
        await sandbox.files.write_file("/work/f", "text")
        point = await sandbox.create_snapshot("p")
        keys.revoke(made.info.key_id)
        with pytest.raises(SandboxApiException) as refused:
            await sandbox.commands.run("true")
        assert refused.value.status_code == 401, "the token was handed out on behalf of a key"
    finally:
        await sandbox.close()
    assert not point.id.startswith("tenant-")


@pytest.mark.root
def test_pages_of_a_server_with_keys(served: tuple[Server, KeyStore]) -> None:
    one, _ = served
    assert one.ask("/healthz").status == 200
    assert one.ask("/readyz").status == 200
    assert one.ask("/metrics").status == 200, "on loopback"
    assert one.ask("/").status == one.ask("/v1/sandboxes").status == 401


def test_the_command_line_makes_keys(tmp_path: Path) -> None:
    def sandlot(*words: str) -> Any:
        command = [sys.executable, "-m", "sandlot", "--json", "--data-dir", str(tmp_path), "key", *words]
        ran = subprocess.run(command, capture_output=True, text=True, env=environment(), timeout=60)
        return json.loads(ran.stdout) if ran.returncode == 0 else ran.stderr

    made = sandlot("create", "ci", "--tenant", "team", "--lifetime", "30d")
    keys = KeyStore(tmp_path)
    assert keys.check(made["key"]) is not None
    (listed,) = sandlot("ls")["keys"]
    assert (listed["name"], listed["scope"], "key" in listed) == ("ci", "use", False)
    assert sandlot("limit", "team", "--sessions", "5")["sessions"] == 5
    assert keys.limits("team").sessions == 5
    assert sandlot("revoke", "ci")["revoked"]
    assert keys.check(made["key"]) is None
    for wrong in (
        ("create",),
        ("create", "x", "--tenant", "A"),
        ("ls", "x"),
        ("revoke", "nobody"),
        ("limit", "t", "--rate", "0"),
    ):
        assert isinstance(sandlot(*wrong), str)


async def test_a_request_over_http_says_so_too(tmp_path: Path) -> None:
    """A plain client: the answer has all that it needs to ask again rightly."""
    KeyStore(tmp_path).create("k", "team", Scope.USE)
    doors = Doors(cast("Host", FakeHost()), tmp_path)
    transport = httpx.ASGITransport(cast("Any", doors.application))
    async with httpx.AsyncClient(transport=transport, base_url="http://x") as http:
        answer = await http.get("/v1/sandboxes")
    assert answer.headers["www-authenticate"] == "Bearer"
    assert answer.json()["code"] == "unauthenticated"


async def test_a_file_of_keys_that_is_gone_opens_nothing(tmp_path: Path) -> None:
    """The server may listen for everybody by now."""
    KeyStore(tmp_path).create("k", "team", Scope.USE)
    doors = Doors(cast("Host", FakeHost()), tmp_path)
    later = Doors(cast("Host", FakeHost()), tmp_path / "none")
    (tmp_path / "keys.json").unlink()
    assert (await ask(doors, "POST", PROCEDURES["ListSessions"].path, {}))[0] == 401
    KeyStore(tmp_path / "none").create("k", "team", Scope.USE)
    assert (await ask(later, "POST", PROCEDURES["ListSessions"].path, {}))[0] == 401
    (tmp_path / "none" / "keys.json").write_text("{")
    broken = Doors(cast("Host", FakeHost()), tmp_path / "none")
    assert (await ask(broken, "POST", PROCEDURES["ListSessions"].path, {}))[0] == 503


async def test_a_token_of_an_endpoint_is_worth_what_it_was_made_with(tmp_path: Path) -> None:
    """Handed out for a token that only looks, it only looks; it ends with it."""
    keys = KeyStore(tmp_path)
    made = keys.create("a", "a", Scope.USE)
    doors = Doors(cast("Host", FakeHost()), tmp_path)
    await create(doors, made.secret)
    read, use = (token_of_key(made.secret, "secret", time.time() + 600, scope) for scope in (Scope.READ, Scope.USE))
    tokens: list[str] = []
    for one in (read, use):
        status, body = await ask(
            doors, "GET", "/v1/sandboxes/secret/endpoints/44772", {"authorization": f"Bearer {one}", "host": "x"}
        )
        assert status == 200
        tokens.append(json.loads(body)["headers"]["X-EXECD-ACCESS-TOKEN"])
    where = "/v1/sandboxes/secret/proxy/44772"
    answers = [
        await ask(doors, "POST", f"{where}/directories", {"x-execd-access-token": one}, b'{"/d": {"mode": 755}}')
        for one in tokens
    ]
    assert answers[0][0] == 403
    assert answers[1][0] == 501, "it was asked, and says what it has not"
    elsewhere = await ask(doors, "GET", "/v1/sandboxes/other/proxy/44772/ping", {"x-execd-access-token": tokens[1]})
    assert elsewhere[0] == 401
    keys.revoke("a")
    assert (await ask(doors, "GET", f"{where}/ping", {"x-execd-access-token": tokens[1]}))[0] == 401


@pytest.mark.root
def test_a_token_of_a_session_over_the_wire(served: tuple[Server, KeyStore]) -> None:
    """Made by the SDK, by the command line with a key, and on the machine of the server."""
    one, keys = served
    made = keys.create("a", "a", Scope.USE)
    url = f"http://127.0.0.1:{one.port}"
    with (
        Client(url=url, api_key=made.secret) as whole,
        Sandbox.create(id="work", client=whole),
        Sandbox.create(id="other", client=whole) as other,
    ):
        token = Sandbox.connect("work", client=whole).token(lifetime=600)
        with Client(url=url, api_key=token) as narrow:
            assert Sandbox.connect("work", client=narrow).commands.run("echo hello").stdout == "hello\n"
            assert [info.session_id for info in Sandbox.list(client=narrow)] == ["work"]
            with pytest.raises(SessionNotFound):
                Sandbox.connect(other.id, client=narrow)
            with pytest.raises(PermissionDenied):
                Sandbox.create(client=narrow)
        command = [sys.executable, "-m", "sandlot", "--json", "key", "token", "work", "--scope", "read"]
        ran = subprocess.run(
            command, capture_output=True, text=True, env=environment(SANDLOT_API_KEY=made.secret), timeout=60
        )
        told = json.loads(ran.stdout)
        found = keys.check(told["token"])
        assert found is not None
        assert (found.session, found.scope, told["session_id"]) == ("work", Scope.READ, "work")


@pytest.mark.root
def test_a_connection_is_closed_when_its_key_is_revoked(served: tuple[Server, KeyStore]) -> None:
    """Not only answered no more: the stream on the socket ends, for a key and for a token."""
    one, keys = served
    made = keys.create("a", "a", Scope.USE)
    token = token_of_key(made.secret, "work", time.time() + 600)
    one.ask(
        PROCEDURES["CreateSession"].path,
        "POST",
        b'{"sessionId": "work"}',
        content_type="application/json",
        authorization=f"Bearer {made.secret}",
    )
    body = json.dumps({"sessionId": "work", "follow": True}).encode()
    body = b"\0" + len(body).to_bytes(4, "big") + body
    path = PROCEDURES["StreamEvents"].path
    head = f"POST {path} HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/connect+json\r\n"
    head += f"content-length: {len(body)}\r\nauthorization: Bearer "
    sockets = [raw(one.port, f"{head}{secret}\r\n\r\n".encode() + body) for secret in (made.secret, token)]
    for connected in sockets:
        assert b"created" in read_until(connected, b"created")
    keys.revoke("a")
    for connected in sockets:
        read_all(connected)  # to its end, or the test takes too long
        connected.close()


def read_until(connected: socket.socket, text: bytes) -> bytes:
    found = b""
    while text not in found:
        piece = connected.recv(65536)
        assert piece, found
        found += piece
    return found


@pytest.mark.root
def test_a_tenants_share_of_the_machine(served: tuple[Server, KeyStore]) -> None:
    one, keys = served
    made = keys.create("a", "a", Scope.USE)
    keys.set_limits("a", TenantLimits(memory_bytes=96 << 20, requests_per_s=1000))
    with Client(url=f"http://127.0.0.1:{one.port}", api_key=made.secret) as client:
        with Sandbox.create(memory_bytes=64 << 20, client=client):
            with pytest.raises(HostFull, match="memory_bytes"):
                Sandbox.create(memory_bytes=64 << 20, client=client)
            with pytest.raises(InvalidArgument, match="any amount"):
                Sandbox.create(client=client)
        Sandbox.create(memory_bytes=64 << 20, client=client).kill()
    answer = one.ask("/v1/sandboxes", authorization=f"Bearer {made.secret}")
    assert (answer.status, answer.headers["ratelimit-limit"]) == (200, "1000")


@pytest.mark.root
def test_a_session_waits_for_room_on_a_full_host(data_dir: Path) -> None:
    with server(data_dir, "--sessions-max", "1") as one, Client(url=f"http://127.0.0.1:{one.port}") as client:
        first = Sandbox.create(client=client)
        with pytest.raises(MaxSessionsReached):
            Sandbox.create(queue_timeout=0.2, client=client)
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(Sandbox.create, queue_timeout=60, client=client)
            time.sleep(0.2)
            assert not waiting.done()
            first.kill()
            waiting.result(60).kill()
