"""A server with keys: nobody without one, two tenants that do not see each other, and a key that is taken back."""

import asyncio
import json
import re
import subprocess
import sys
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import httpx
import pytest
from opensandbox import Sandbox
from opensandbox.config import ConnectionConfig
from opensandbox.exceptions import SandboxApiException

from sandlot.contracts import Host
from sandlot.fakes.host import FakeHost
from sandlot.gateways.opensandbox import GatewaySettings, OpenSandboxGateway
from sandlot.model import (
    CallOutput,
    CallRequest,
    MaxSessionsReached,
    PermissionDenied,
    SandlotError,
    Scope,
    SessionFilter,
    SessionNotFound,
    SessionSpec,
    TenantLimits,
)
from sandlot.rpc.client import HostClient
from sandlot.rpc.messages import PROCEDURES
from sandlot.tenants.keys import KeyStore
from sandlot.wiring.doors import Doors, read_secret
from tests.serving import Server, environment, server

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


async def ask(doors: Doors, method: str, path: str, headers: dict[str, str]) -> tuple[int, bytes]:
    status, body = 0, b""

    async def send(message: Any) -> None:
        nonlocal status, body
        status = message.get("status", status)
        body += message.get("body", b"")

    async def receive() -> Any:
        return {"type": "http.request", "body": b"{}", "more_body": False}

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
    sandbox = await Sandbox.create("x", connection_config=connection)
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
