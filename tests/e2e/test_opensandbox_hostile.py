"""Every route of the gateway, taken from its own tables: what strangers and hostile requests get on it."""

import json
import time
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final
from urllib.parse import quote

import httpx
import pytest

from sandlot.config.settings import Settings
from sandlot.contracts import Host
from sandlot.gateways.opensandbox import GatewaySettings, OpenSandboxGateway
from sandlot.host.service import SandboxHostService
from sandlot.model import FileRead, FileWrite, SessionFilter, SessionSpec
from tests.opensandbox_stage import KEY, serve, tenant_of

pytestmark = [pytest.mark.root, pytest.mark.timeout(300)]
HEADERS: Final = {"OPEN-SANDBOX-API-KEY": KEY}
EXECD, EGRESS = "/sandboxes/{id}/proxy/44772", "/sandboxes/{id}/proxy/18080"
UPLOAD = (
    b'--B\r\ncontent-disposition: form-data; name="metadata"; filename="m"\r\n\r\n{"path":"/work/a"}\r\n'
    b'--B\r\ncontent-disposition: form-data; name="file"; filename="f"\r\n\r\nx\r\n--B--\r\n'
)
SOON: Final = datetime.fromtimestamp(time.time() + 3600, UTC).isoformat()
# What each route takes when all is well. `{...}` are parts of the path; `?` begins a query.
GOOD: Final[dict[tuple[str, str], tuple[str, object]]] = {
    ("GET", "/sandboxes/{id}"): ("", None),
    ("PATCH", "/sandboxes/{id}/metadata"): ("", {"a": "b"}),
    ("POST", "/sandboxes/{id}/renew-expiration"): ("", {"expiresAt": SOON}),
    ("GET", "/sandboxes/{id}/endpoints/{port}"): ("", None),
    ("POST", "/sandboxes/{id}/snapshots"): ("", {}),
    ("GET", "/sandboxes/{id}/diagnostics/logs"): ("", None),
    ("GET", "/sandboxes/{id}/diagnostics/events"): ("", None),
    ("GET", "/sandboxes/{id}/diagnostics/inspect"): ("", None),
    ("GET", "/sandboxes/{id}/diagnostics/summary"): ("", None),
    ("GET", "/sandboxes/{id}/networkpolicy"): ("", None),
    ("PUT", "/sandboxes/{id}/networkpolicy"): ("", {}),
    ("PATCH", "/sandboxes/{id}/networkpolicy"): ("", [{"action": "deny", "target": "a.b"}]),
    ("DELETE", "/sandboxes/{id}/networkpolicy"): ("", ["a.b"]),
    ("GET", f"{EXECD}/ping"): ("", None),
    ("POST", f"{EXECD}/command"): ("", {"command": "touch /tmp/strange"}),
    ("DELETE", f"{EXECD}/command"): ("?id=c", None),
    ("GET", f"{EXECD}/command/status/{{command}}"): ("", None),
    ("GET", f"{EXECD}/command/{{command}}/logs"): ("", None),
    ("POST", f"{EXECD}/session"): ("", {}),
    ("POST", f"{EXECD}/session/{{session}}/run"): ("", {"command": "touch /tmp/strange"}),
    ("DELETE", f"{EXECD}/session/{{session}}"): ("", None),
    ("GET", f"{EXECD}/files/info"): ("?path=/work/kept", None),
    ("POST", f"{EXECD}/files/upload"): ("", UPLOAD),
    ("GET", f"{EXECD}/files/download"): ("?path=/work/kept", None),
    ("GET", f"{EXECD}/files/search"): ("?path=/work", None),
    ("POST", f"{EXECD}/files/replace"): ("", {"/work/kept": {"old": "k", "new": "x"}}),
    ("POST", f"{EXECD}/files/mv"): ("", [{"src": "/work/kept", "dest": "/work/moved"}]),
    ("POST", f"{EXECD}/files/permissions"): ("", {"/work/kept": {"mode": 777}}),
    ("DELETE", f"{EXECD}/files"): ("?path=/work/kept", None),
    ("GET", f"{EXECD}/directories/list"): ("?path=/work", None),
    ("POST", f"{EXECD}/directories"): ("", {"/work/new": {"mode": 755}}),
    ("DELETE", f"{EXECD}/directories"): ("?path=/work", None),
    ("GET", f"{EXECD}/metrics"): ("", None),
    ("GET", f"{EXECD}/metrics/watch"): ("", None),
    ("POST", f"{EXECD}/pty"): ("", {}),
    ("GET", f"{EXECD}/pty/{{pty}}"): ("", None),
    ("DELETE", f"{EXECD}/pty/{{pty}}"): ("", None),
    ("GET", f"{EXECD}/pty/{{pty}}/ws"): ("", None),
    ("POST", f"{EXECD}/code/context"): ("", {"language": "python"}),
    ("GET", f"{EXECD}/code/contexts"): ("", None),
    ("DELETE", f"{EXECD}/code/contexts"): ("?language=python", None),
    ("GET", f"{EXECD}/code/contexts/{{context}}"): ("", None),
    ("DELETE", f"{EXECD}/code/contexts/{{context}}"): ("", None),
    ("POST", f"{EXECD}/code"): ("", {"code": "1"}),
    ("DELETE", f"{EXECD}/code"): ("?id=x", None),
    ("GET", f"{EGRESS}/policy"): ("", None),
    ("POST", f"{EGRESS}/policy"): ("", {}),
    ("PUT", f"{EGRESS}/policy"): ("", {}),
    ("PATCH", f"{EGRESS}/policy"): ("", [{"action": "deny", "target": "a.b"}]),
    ("DELETE", f"{EGRESS}/policy"): ("", ["a.b"]),
    ("GET", f"{EGRESS}/healthz"): ("", None),
    ("POST", "/sandboxes/{id}/pause"): ("", None),
    ("POST", "/sandboxes/{id}/resume"): ("", None),
    ("DELETE", "/sandboxes/{id}"): ("", None),
    ("GET", "/snapshots/{snapshot}"): ("", None),
    ("DELETE", "/snapshots/{snapshot}"): ("", None),
}


@dataclass(frozen=True)
class Found:
    method: str
    pattern: str


def routes(gateway: OpenSandboxGateway) -> Iterator[Found]:
    """All that name a sandbox or a snapshot, those in it with the path that leads there."""
    for before, table in (("", gateway.lifecycle), (EXECD, gateway.execd), (EGRESS, gateway.egress)):
        for route in table.routes:
            if before or "{id}" in route.pattern or "{snapshot}" in route.pattern:
                for method in ("GET", "POST") if route.method == "*" else (route.method,):
                    yield Found(method, before + route.pattern.replace("...", ""))


def path_of(pattern: str, sandbox: str, other: str = "x") -> str:
    """With the sandbox where one is named, and the other word everywhere else."""
    path = pattern.replace("{id}", quote(sandbox, safe="")).replace("{snapshot}", quote(sandbox, safe=""))
    for name in ("command", "session", "pty", "context", "rest", "name"):
        path = path.replace(f"{{{name}}}", other)
    return path.replace("{port}", "44772").replace("{uid}", "0").replace("{gid}", "0")


def gateway_of(host: Host) -> OpenSandboxGateway:
    return OpenSandboxGateway(host, GatewaySettings(b"secret"))


async def ask(client: httpx.AsyncClient, method: str, path: str, body: object) -> httpx.Response:
    if body is None:
        return await client.request(method, path)
    if isinstance(body, bytes):
        kind = {"content-type": "multipart/form-data; boundary=B"} if body is UPLOAD else {}
        return await client.request(method, path, content=body, headers=kind)
    return await client.request(method, path, json=body)


@asynccontextmanager
async def client_of(host: Host) -> AsyncGenerator[httpx.AsyncClient]:
    async with serve(host) as address, httpx.AsyncClient(headers=HEADERS, timeout=60) as client:
        client.base_url = f"http://{address}/v1"
        yield client


def test_every_route_is_tried(host: SandboxHostService) -> None:
    found = {(one.method, one.pattern) for one in routes(gateway_of(host))}
    found = {one for one in found if not one[1].startswith(f"{EXECD}/v1/")}
    assert {one for one in found if "credential-vault" not in one[1]} == set(GOOD)


async def test_its_owner_is_served_on_every_route(host: SandboxHostService) -> None:
    """Else it would prove nothing that strangers are not."""
    made = await host.create(SessionSpec(timeout_s=3600))

    async def content() -> AsyncGenerator[bytes]:
        yield b"kept"

    async with client_of(host) as client:
        for (method, pattern), (query, body) in GOOD.items():
            if any(f"{{{name}}}" in pattern for name in ("command", "session", "pty", "context", "snapshot")):
                continue  # of what is not there yet
            if pattern.endswith("/watch") or query in ("?id=c", "?id=x"):
                continue
            if "/files" in pattern:
                await host.write_file(FileWrite(made.session_id, "/work/kept", "root", parents=True), content())
            answer = await ask(client, method, path_of(pattern, made.session_id) + query, body)
            assert answer.status_code < 300, (method, pattern, answer.text[:300])


async def test_a_sandbox_of_another_tenant_is_found_on_no_route(host: SandboxHostService) -> None:
    """What they get is what everybody gets for a sandbox that there never was, and it is not touched."""
    made = await host.create(SessionSpec(session_id="one.s-theirs"))

    async def content() -> AsyncGenerator[bytes]:
        yield b"kept"

    await host.write_file(FileWrite(made.session_id, "/work/kept", "root"), content())
    before = await host.get(made.session_id)
    async with client_of(tenant_of(host, "two")) as client:
        for (method, pattern), (query, body) in GOOD.items():
            told: list[tuple[int, str]] = []
            for name in ("s-nobody", "s-theirs", "one.s-theirs"):
                answer = await ask(client, method, path_of(pattern, name) + query, body)
                told.append((answer.status_code, answer.text.replace(name, "NAME")))
            assert told[0] == told[1], (method, pattern)
            assert told[2][0] in (400, 403, 404), (method, pattern, told[2])
            assert told[0][0] in (400, 404), (method, pattern, told[0])
            assert {"code", "message"} == set(json.loads(told[1][1])), (method, pattern)
        assert (await client.get("/sandboxes")).json()["items"] == []
    after = await host.get(made.session_id)
    assert (after.state, after.expires, after.labels) == (before.state, before.expires, before.labels)
    assert await host.calls(made.session_id) == []
    async with host.read_file(FileRead(made.session_id, "/work/kept", "root")) as pieces:
        assert b"".join([piece async for piece in pieces]) == b"kept"
    assert len((await host.list(SessionFilter())).sessions) == 1, "and no snapshot was made of it"


HOSTILE_BODIES: Final = (
    b"",
    b"{",
    b"[" * 50_000,
    b'{"a": NaN}',
    b"null",
    b"[]",
    b'"x"',
    b"1e999999",
    b'{"path": "\\u0000", "command": "\\u0000", "cwd": 1, "code": [], "language": {}}',
    b'{"a": 1, "a": 2}',
    b"\xff\xfe",
    b'{"' + b"x" * 70_000 + b'": {"old": "a", "new": "b", "mode": -1}}',
)
HOSTILE_WORDS: Final = ("..", "%2e%2e%2f%2e%2e%2fetc%2fpasswd", "%00", "a%0d%0ab", "x" * 300, "%ff", "-rf", "$(id)")
HOSTILE_QUERIES: Final = (
    "?path=%00",
    "?path=" + "a/" * 3000,
    "?id=%0d%0ax&path=-",
    "?cursor=-1&since=x&depth=9e9&path=/",
)


async def test_hostile_requests_are_refused_on_every_route(host: SandboxHostService, settings: Settings) -> None:
    """An error that their SDK can read, which tells nothing of the machine; and the sandbox is as it was."""
    made = await host.create(SessionSpec(timeout_s=3600))
    secrets = (str(settings.data), "Traceback", 'File "')
    ends = {"/sandboxes/{id}", "/sandboxes/{id}/pause", "/sandboxes/{id}/resume", "/sandboxes/{id}/snapshots"}
    async with client_of(host) as client:
        for one in routes(gateway_of(host)):
            tried: list[tuple[str, bytes | None]] = []
            if "/v1/filesystem/" in one.pattern:  # the same handlers as without it
                tried += [(one.pattern.replace("{id}", made.session_id).replace("{uid}", "x"), b"{}")]
            elif one.pattern not in ends or one.method == "GET":
                if one.method != "GET":  # which reads no body
                    tried += [(path_of(one.pattern, made.session_id), body) for body in HOSTILE_BODIES]
                if one.method != "POST":
                    tried += [(path_of(one.pattern, made.session_id) + query, None) for query in HOSTILE_QUERIES]
                if path_of(one.pattern, "X", "Y") != path_of(one.pattern, "X", "Z"):
                    tried += [(path_of(one.pattern, made.session_id, word), b"{}") for word in HOSTILE_WORDS]
            tried += [(path_of(one.pattern, "X").replace("X", word), b"{}") for word in HOSTILE_WORDS[:4]]
            for path, body in tried:
                if one.pattern.endswith("/watch"):
                    continue  # it would go on
                answer = await client.request(one.method, path, content=body)
                where = (one, path[:100], body and body[:40], answer.status_code, answer.text[:300])
                # A directory where a file is meant is a 500 in their words, with this code.
                is_theirs = answer.status_code == 500 and answer.json()["code"] == "RUNTIME_ERROR"
                assert answer.status_code < 500 or answer.status_code == 501 or is_theirs, where
                assert not any(secret in answer.text for secret in secrets), where
                if answer.status_code >= 400 and answer.status_code != 405:
                    assert {"code", "message"} <= set(answer.json()), where
    after = await host.get(made.session_id)
    assert after.state == made.state
