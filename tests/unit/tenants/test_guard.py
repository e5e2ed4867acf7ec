"""Nobody gets past it without a key, and what a key began ends with it."""

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sandlot.model import KeyInfo, Scope, TenantLimits
from sandlot.tenants.asgi import Application, Message
from sandlot.tenants.guard import Guard, given_key
from sandlot.tenants.keys import KeyStore


@pytest.fixture
def keys(tmp_path: Path) -> KeyStore:
    return KeyStore(tmp_path)


async def answering(scope: Any, _receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": scope["sandlot.key"].tenant.encode()})


async def ask(guard: Guard, headers: dict[str, str], path: str = "/x", kind: str = "http") -> list[Message]:
    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)

    async def receive() -> Message:
        return {"type": "http.request"}

    raw = [(name.encode(), value.encode("latin-1")) for name, value in headers.items()]
    await guard({"type": kind, "path": path, "headers": raw, "method": "GET"}, receive, send)
    return sent


def guard_of(keys: KeyStore, application: Application = answering, **more: Any) -> Guard:
    return Guard(keys, lambda _info: application, **more)


async def test_a_key_opens_what_is_its_tenants(keys: KeyStore) -> None:
    secret = keys.create("k", "team", Scope.USE).secret
    guard = guard_of(keys)
    for headers in ({"authorization": f"Bearer {secret}"}, {"x-api-key": secret}, {"open-sandbox-api-key": secret}):
        start, body = await ask(guard, headers)
        assert (start["status"], body["body"]) == (200, b"team")


@pytest.mark.parametrize("path", ["/x", "/", "/v1/sandboxes", "/no/such/path", "/metrics"])
@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"authorization": "Bearer x"},
        {"authorization": "Basic eDp5"},
        {"x-api-key": ""},
        {"x-api-key": "sl_a_b"},
        {"x-api-key": "\xff"},
    ],
    ids=str,
)
async def test_without_a_good_one_every_path_says_the_same(keys: KeyStore, headers: dict[str, str], path: str) -> None:
    keys.create("k", "team", Scope.USE)
    start, body = await ask(guard_of(keys), headers, path)
    assert start["status"] == 401
    assert (b"www-authenticate", b"Bearer") in start["headers"]
    assert body["body"] == (await ask(guard_of(keys), {}, "/other"))[1]["body"]
    (closed,) = await ask(guard_of(keys), headers, path, "websocket")
    assert closed["type"] == "websocket.close"


async def test_a_broken_file_of_keys_lets_nobody_in(keys: KeyStore, tmp_path: Path) -> None:
    secret = keys.create("k", "team", Scope.USE).secret
    (tmp_path / "keys.json").write_text("{")
    start, _ = await ask(guard_of(keys), {"x-api-key": secret})
    assert start["status"] == 503


async def test_what_a_key_began_ends_when_it_is_revoked(keys: KeyStore) -> None:
    made, other = keys.create("k", "team", Scope.USE), keys.create("o", "team", Scope.USE)
    began = asyncio.Semaphore(0)

    async def endless(_scope: Any, _receive: Any, _send: Any) -> None:
        began.release()
        await asyncio.sleep(600)

    guard = guard_of(keys, endless)
    tasks = [asyncio.ensure_future(ask(guard, {"x-api-key": one.secret})) for one in (made, other)]
    for _ in tasks:
        await began.acquire()
    watching = asyncio.ensure_future(guard.watch())
    keys.revoke(made.info.key_id)
    done, pending = await asyncio.wait(tasks, timeout=30, return_when=asyncio.FIRST_COMPLETED)
    assert done == {tasks[0]}
    assert pending == {tasks[1]}
    assert tasks[0].cancelled()
    for task in (watching, tasks[1]):
        task.cancel()
    await asyncio.gather(watching, tasks[1], return_exceptions=True)


async def test_a_tenant_sends_so_many_requests(keys: KeyStore) -> None:
    secret, other = keys.create("k", "team", Scope.USE).secret, keys.create("k", "b", Scope.USE).secret
    keys.set_limits("team", TenantLimits(requests_per_s=2))
    guard = guard_of(keys)
    statuses = [(await ask(guard, {"x-api-key": secret}))[0]["status"] for _ in range(30)]
    assert statuses[:2] == [200, 200]
    assert statuses.count(429) > 10, "thirty requests take no ten seconds"
    limited = await ask(guard, {"x-api-key": secret})
    assert limited[0]["status"] == 200 or dict(limited[0]["headers"])[b"retry-after"] == b"1"
    assert (await ask(guard, {"x-api-key": other}))[0]["status"] == 200


async def test_another_right_to_be_there(keys: KeyStore) -> None:
    """On behalf of a key: it counts for its tenant and ends with it, but nobody has looked at what else it may."""
    made = keys.create("k", "team", Scope.USE)
    seen: list[tuple[str, bool]] = []

    async def behind(scope: Any, _receive: Any, _send: Any) -> None:
        seen.append((scope["path"], "sandlot.key" in scope))

    tokens: Callable[[Any], KeyInfo | None] = lambda scope: made.info if scope["path"] == "/open" else None  # noqa: E731
    guard = guard_of(keys, behind, tokens=tokens)
    await ask(guard, {}, "/open")
    assert seen == [("/open", False)]
    assert (await ask(guard, {}, "/closed"))[0]["status"] == 401


async def test_what_a_token_began_ends_with_it(keys: KeyStore) -> None:
    """With its key, and when its own time is up; also what came in with a token of an endpoint."""
    made = keys.create("k", "team", Scope.USE)
    token = keys.token("k", "work", time.time() + 600, Scope.USE)
    soon = keys.token("k", "work", time.time() + 5, Scope.USE)
    began = asyncio.Semaphore(0)

    async def endless(_scope: Any, _receive: Any, _send: Any) -> None:
        began.release()
        await asyncio.sleep(600)

    behalf: Callable[[Any], KeyInfo | None] = lambda _scope: made.info  # noqa: E731
    guard = guard_of(keys, endless, tokens=behalf)
    tasks = [asyncio.ensure_future(ask(guard, {"x-api-key": one} if one else {})) for one in (token, "", soon)]
    for _ in tasks:
        await began.acquire()
    watching = asyncio.ensure_future(guard.watch())
    done, _ = await asyncio.wait(tasks, timeout=60, return_when=asyncio.FIRST_COMPLETED)
    assert done == {tasks[2]}, "the one whose time is up"
    keys.revoke("k")
    done, pending = await asyncio.wait(tasks, timeout=60)
    assert (len(done), pending) == (3, set())
    watching.cancel()


async def test_a_tenant_is_told_of_its_rate(keys: KeyStore) -> None:
    secret = keys.create("k", "team", Scope.USE).secret
    assert not [name for name, _ in (await ask(guard_of(keys), {"x-api-key": secret}))[0]["headers"] if b"rate" in name]
    keys.set_limits("team", TenantLimits(requests_per_s=0.001))
    guard = guard_of(keys)
    first = dict((await ask(guard, {"x-api-key": secret}))[0]["headers"])
    assert (first[b"ratelimit-limit"], first[b"ratelimit-remaining"]) == (b"1", b"0")
    assert 900 < int(first[b"ratelimit-reset"]) <= 1000
    start, _ = await ask(guard, {"x-api-key": secret})
    told = dict(start["headers"])
    assert (start["status"], told[b"ratelimit-remaining"]) == (429, b"0")
    assert 900 < int(told[b"retry-after"]) <= 1000


def test_where_a_key_stands() -> None:
    assert given_key([(b"authorization", b"bearer  a ")]) == "a"
    assert given_key([(b"authorization", b"Basic a"), (b"x-api-key", b"b")]) == "b"
    assert given_key([(b"x-api-key", b"a"), (b"x-api-key", b"a")]) == ""
    assert given_key([]) == ""
