"""Both clients against recorded answers: what they send, how they read it, and what they make of a bad day."""

import asyncio
import inspect
import json
from collections.abc import AsyncGenerator, Callable
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from sandlot.model import (
    CapabilityNotSupported,
    Conflict,
    DeadlineExceeded,
    FileNotFound,
    InvalidArgument,
    LimitReached,
    NotFound,
    PermissionDenied,
    SandlotError,
    SessionNotFound,
    StartFailed,
    Unavailable,
)
from sandlot.opensandbox import (
    AsyncOpenSandboxClient,
    EgressRule,
    Endpoint,
    FileUpload,
    NetworkPolicy,
    OpenSandboxClient,
    SandboxOpts,
)
from tests.unit.opensandbox.recorded import HANG_UP, SILENCE, Recorded, head, recorded

KEY = "key-of-the-test"
SANDBOX = {
    "id": "sb-1",
    "status": {"state": "Running", "lastTransitionAt": "2026-06-15T10:00:00Z"},
    "createdAt": "2026-06-15T10:00:00.123456789Z",
    "expiresAt": "2026-06-15T10:10:00+00:00",
    "entrypoint": ["tail", "-f", "/dev/null"],
    "metadata": {"team": "a"},
    "image": {"uri": "python:3.12"},
    "unknown": [1],
}
STREAM = [b'{"type":"init","text":"c1"}\n\n', b'{"type":"stdout","text":"x"}\n\n', b'{"type":"execution_complete"}\n\n']

Ask = Callable[..., Any]


@pytest_asyncio.fixture
async def server() -> AsyncGenerator[Recorded]:
    async with recorded() as made:
        yield made


@pytest.fixture(params=["async", "sync"])
def ask(request: pytest.FixtureRequest, server: Recorded) -> Ask:
    """One method of a client, by name; the sync one is in a thread, as its users would not be."""

    async def asking(name: str, *arguments: Any, **named: Any) -> Any:
        settings = {key: named.pop(key) for key in ("request_timeout_s", "use_server_proxy") if key in named}
        if request.param == "async":
            async with AsyncOpenSandboxClient(server.url, KEY, **settings) as client:
                return await getattr(client, name)(*arguments, **named)

        def work() -> Any:
            with OpenSandboxClient(server.url, KEY, **settings) as sync_client:
                return getattr(sync_client, name)(*arguments, **named)

        return await asyncio.to_thread(work)

    return asking


@pytest.fixture
def execd(server: Recorded) -> Endpoint:
    return Endpoint(server.url.replace("/v1", "/execd"), {"X-EXECD-ACCESS-TOKEN": "t"})


async def test_a_sandbox_is_created_as_the_server_wants_it(server: Recorded, ask: Ask) -> None:
    server.say_json("POST /v1/sandboxes", 202, SANDBOX)
    policy = NetworkPolicy("deny", [EgressRule("allow", "*.example.com")])
    made = await ask(
        "create_sandbox", SandboxOpts("python:3.12", envs={"A": "b"}, timeout_s=None, network_policy=policy)
    )
    assert (made.sandbox_id, made.state, made.image, made.metadata) == ("sb-1", "Running", "python:3.12", {"team": "a"})
    assert made.created == pytest.approx(1781517600.123456)
    assert made.expires - made.created == pytest.approx(599.876544)
    asked = server.asked[0]
    assert asked.headers["open-sandbox-api-key"] == KEY
    assert asked.document == {
        "image": {"uri": "python:3.12"},
        "entrypoint": ["tail", "-f", "/dev/null"],
        "timeout": None,
        "resourceLimits": {"cpu": "1", "memory": "2Gi"},
        "env": {"A": "b"},
        "metadata": {},
        "networkPolicy": {"defaultAction": "deny", "egress": [{"action": "allow", "target": "*.example.com"}]},
    }


@pytest.mark.parametrize("timeout_s", [0, 59, 86_401, -1])
def test_a_timeout_that_no_server_takes_is_refused_before_it_is_sent(timeout_s: int) -> None:
    with pytest.raises(InvalidArgument, match="timeout_s"):
        SandboxOpts("x", timeout_s=timeout_s)


def test_a_sandbox_is_made_of_one_thing() -> None:
    for image, snapshot_id, entrypoint in (("", "", ("x",)), ("x", "y", ("x",)), ("x", "", ())):
        with pytest.raises(InvalidArgument):
            SandboxOpts(image, snapshot_id, entrypoint)


async def test_the_older_spelling_of_an_answer_is_read(server: Recorded, ask: Ask) -> None:
    old = {"id": "sb-1", "status": "Running", "created_at": "2026-06-15T10:00:00Z", "expires_at": "", "metadata": None}
    server.say_json("GET /v1/sandboxes/sb-1", 200, old)
    found = await ask("get_sandbox", "sb-1")
    assert (found.state, found.created, found.expires, found.metadata) == ("Running", 1781517600.0, None, {})


async def test_all_pages_are_listed_and_all_pairs_asked_for_at_once(server: Recorded, ask: Ask) -> None:
    for number in (1, 2):
        item = SANDBOX | {"id": f"sb-{number}"}
        paging = {"page": number, "hasNextPage": number == 1}
        server.say_json("GET /v1/sandboxes", 200, {"items": [item], "pagination": paging})
    found = await ask("list_sandboxes", {"team": "a", "x": "1&2"}, ["Running", "Paused"])
    assert [one.sandbox_id for one in found] == ["sb-1", "sb-2"]
    params = server.asked[0].params
    assert ("metadata", "team=a&x=1%262") in params
    assert [value for name, value in params if name == "state"] == ["Running", "Paused"]
    assert [dict(asked.params)["page"] for asked in server.asked] == ["1", "2"]


async def test_a_bare_list_is_a_list_too(server: Recorded, ask: Ask) -> None:
    server.say_json("GET /v1/sandboxes", 200, [SANDBOX])
    assert [one.sandbox_id for one in await ask("list_sandboxes")] == ["sb-1"]


async def test_its_life_is_asked_for_in_the_right_words(server: Recorded, ask: Ask) -> None:
    server.say("DELETE /v1/sandboxes/sb-1", head(204, {}, 0))
    server.say("POST /v1/sandboxes/sb-1/pause", head(202, {}, 0))
    server.say("POST /v1/sandboxes/sb-1/resume", head(202, {}, 0))
    server.say_json("POST /v1/sandboxes/sb-1/renew-expiration", 200, {"expiresAt": "2026-06-15T10:00:00Z"})
    server.say_json("PATCH /v1/sandboxes/sb-1/metadata", 200, SANDBOX)
    for verb in ("pause", "resume", "delete"):
        await ask(f"{verb}_sandbox", "sb-1")
    assert await ask("renew_sandbox", "sb-1", 600) == 1781517600.0
    await ask("patch_metadata", "sb-1", {"team": None})
    assert server.asked[-1].document == {"team": None}
    assert str(server.asked[-2].document).count("+00:00") == 1


async def test_an_id_is_one_part_of_a_path(server: Recorded, ask: Ask) -> None:
    with pytest.raises(NotFound):
        await ask("get_sandbox", "../../x?y")
    assert server.asked[0].path == "/v1/sandboxes/..%2F..%2Fx%3Fy"
    for wrong in ("", ".."):
        with pytest.raises(InvalidArgument):
            await ask("get_sandbox", wrong)


async def test_headers_of_an_endpoint_go_with_every_request(server: Recorded, ask: Ask) -> None:
    where = server.url.removeprefix("http://").replace("/v1", "/execd")
    server.say_json("GET /v1/sandboxes/sb-1/endpoints/44772", 200, {"endpoint": where, "headers": {"X-Token": "t"}})
    server.say("GET /execd/ping", head(200, {}, 0))
    found = await ask("discover_execd", "sb-1")
    assert (found.url, found.headers) == (f"http://{where}", {"X-Token": "t"})
    assert "X-Token" not in repr(found), "a token is not printed"
    await ask("ping", found)
    assert server.asked[-1].headers["x-token"] == "t"
    assert "open-sandbox-api-key" not in server.asked[-1].headers, "the key is not for who is in the sandbox"


async def test_the_key_goes_to_the_proxy_of_the_server(server: Recorded, ask: Ask) -> None:
    where = f"{server.url}/sandboxes/sb-1/proxy/44772"
    server.say_json("GET /v1/sandboxes/sb-1/endpoints/44772", 200, {"endpoint": where.removeprefix("http://")})
    server.say("GET /v1/sandboxes/sb-1/proxy/44772/ping", head(200, {}, 0))
    found = await ask("discover_execd", "sb-1", use_server_proxy=True)
    assert dict(server.asked[0].params) == {"use_server_proxy": "true"}
    await ask("ping", found)
    assert server.asked[-1].headers["open-sandbox-api-key"] == KEY


async def test_ready_is_waited_for(server: Recorded, ask: Ask) -> None:
    for state in ("Pending", "Somewhere", "Running"):
        server.say_json("GET /v1/sandboxes/sb-1", 200, SANDBOX | {"status": {"state": state}})
    assert (await ask("wait_ready", "sb-1")).state == "Running"
    assert len(server.asked) == 3


async def test_one_that_failed_is_not_waited_for(server: Recorded, ask: Ask) -> None:
    status = {"state": "Failed", "message": "no such image"}
    server.say_json("GET /v1/sandboxes/sb-1", 200, SANDBOX | {"status": status})
    with pytest.raises(StartFailed, match="no such image"):
        await ask("wait_ready", "sb-1")


async def test_waiting_has_an_end(server: Recorded, ask: Ask) -> None:
    server.say_json("GET /v1/sandboxes/sb-1", 200, SANDBOX | {"status": {"state": "Pending"}})
    with pytest.raises(DeadlineExceeded, match="Pending"):
        await ask("wait_ready", "sb-1", 0.3)


@pytest.mark.parametrize("size", [1, 5, 1000])
async def test_a_command_is_run(server: Recorded, ask: Ask, execd: Endpoint, size: int) -> None:
    whole = b"".join(STREAM)
    server.say_events("POST /execd/command", *(whole[at : at + size] for at in range(0, len(whole), size)))
    found = await ask("run_command", execd, "echo x", cwd="/w", timeout_s=1.5, envs={"A": "b"}, uid=1000)
    assert (found.stdout, found.exit_code, found.command_id) == ("x\n", 0, "c1")
    told = {"command": "echo x", "background": False, "cwd": "/w", "timeout": 1500, "envs": {"A": "b"}, "uid": 1000}
    assert server.asked[0].document == told
    assert server.asked[0].headers["x-execd-access-token"] == "t"


async def test_arguments_are_passed_as_they_are(server: Recorded, ask: Ask, execd: Endpoint) -> None:
    server.say_events("POST /execd/command", *STREAM)
    await ask("run_command", execd, ["echo", "a b"])
    assert server.asked[0].document == {"argv": ["echo", "a b"], "background": False}


async def test_a_command_that_is_refused_is_typed(server: Recorded, ask: Ask, execd: Endpoint) -> None:
    server.say_json("POST /execd/command", 400, {"code": "INVALID_REQUEST_BODY", "message": "no such cwd"})
    with pytest.raises(InvalidArgument, match="no such cwd"):
        await ask("run_command", execd, "true", cwd="/nowhere")
    for wrong in ({"command": ""}, {"command": "x", "timeout_s": 0}, {"command": "x", "gid": 1}):
        with pytest.raises(InvalidArgument):
            await ask("run_command", execd, **wrong)


async def test_a_stream_that_is_cut_is_no_result(server: Recorded, ask: Ask, execd: Endpoint) -> None:
    server.say_events("POST /execd/command", *STREAM[:2])
    with pytest.raises(Unavailable, match="ended before"):
        await ask("run_command", execd, "true")
    pieces = server.answers["POST /execd/command"][0]
    server.answers["POST /execd/command"] = [(*pieces[:2], HANG_UP)]
    with pytest.raises(Unavailable):
        await ask("run_command", execd, "true")
    assert len(server.asked) == 2, "a command that may have run is not run again"


async def test_a_server_that_forgets_a_timeout_is_not_waited_for(
    server: Recorded, ask: Ask, execd: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("async_client", "client"):
        monkeypatch.setattr(f"sandlot.opensandbox.{module}._GRACE_S", 0.2)
    server.say_events("POST /execd/command", STREAM[0])
    server.answers["POST /execd/command"] = [(*server.answers["POST /execd/command"][0][:2], SILENCE)]
    with pytest.raises(DeadlineExceeded):
        await ask("run_command", execd, "sleep 9", timeout_s=0.1)


async def test_a_command_in_the_background(server: Recorded, ask: Ask, execd: Endpoint) -> None:
    server.say_events("POST /execd/command", STREAM[0], STREAM[2])
    status = {"id": "c1", "content": "x", "running": False, "exit_code": 3, "started_at": "2026-06-15T10:00:00Z"}
    server.say_json("GET /execd/command/status/c1", 200, status)
    server.say("GET /execd/command/c1/logs", head(200, {"EXECD-COMMANDS-TAIL-CURSOR": "7"}, 3) + b"abc")
    server.say("DELETE /execd/command", head(200, {}, 0))
    assert await ask("start_command", execd, "x") == "c1"
    found = await ask("command_status", execd, "c1")
    assert (found.running, found.exit_code, found.started, found.finished) == (False, 3, 1781517600.0, None)
    logs = await ask("command_logs", execd, "c1", 4)
    assert (logs.text, logs.cursor, dict(server.asked[-1].params)) == ("abc", 7, {"cursor": "4"})
    await ask("interrupt_command", execd, "c1")
    assert dict(server.asked[-1].params) == {"id": "c1"}


async def test_a_shell_that_remembers(server: Recorded, ask: Ask, execd: Endpoint) -> None:
    server.say_json("POST /execd/session", 200, {"session_id": "s1"})
    server.say_events("POST /execd/session/s1/run", *STREAM)
    server.say("DELETE /execd/session/s1", head(200, {}, 0))
    assert await ask("create_session", execd, "/w") == "s1"
    assert (await ask("run_in_session", execd, "s1", "cd x", timeout_s=2)).stdout == "x\n"
    assert server.asked[-1].document == {"command": "cd x", "timeout": 2000}
    await ask("delete_session", execd, "s1")


async def test_files_go_up_in_pairs(server: Recorded, ask: Ask, execd: Endpoint, tmp_path: Path) -> None:
    server.say("POST /execd/files/upload", head(200, {}, 0))
    (tmp_path / "big").write_bytes(b"y" * 600_000)
    files = [
        FileUpload('/w/a "quoted"\r\n.txt', b"one", mode=0o600, owner="user"),
        FileUpload("/w/big", tmp_path / "big"),
        FileUpload("/w/pieces", [b"two", b"three"]),
    ]
    await ask("upload_files", execd, files)
    asked = server.asked[0]
    boundary = asked.headers["content-type"].partition("boundary=")[2].strip('"').encode()
    parts = [part.partition(b"\r\n\r\n") for part in asked.body.split(b"--" + boundary)[1:-1]]
    assert [b'name="metadata"' in part[0] for part in parts] == [True, False] * 3
    assert all(b"filename=" in part[0] for part in parts)
    assert json.loads(parts[0][2]) == {"path": '/w/a "quoted"\r\n.txt', "mode": 600, "owner": "user"}
    assert [part[2].removesuffix(b"\r\n") for part in parts[1::2]] == [b"one", b"y" * 600_000, b"twothree"]


async def test_a_file_comes_down_in_pieces(server: Recorded, execd: Endpoint) -> None:
    server.say("GET /execd/files/download", head(200, {}, 10) + b"01234", b"56789")
    async with AsyncOpenSandboxClient(server.url, KEY) as client, client.download_file(execd, "/w/a b") as pieces:
        assert b"".join([piece async for piece in pieces]) == b"0123456789"
    assert dict(server.asked[0].params) == {"path": "/w/a b"}

    def sync() -> bytes:
        with OpenSandboxClient(server.url, KEY) as client, client.download_file(execd, "/w/a b") as pieces:
            return b"".join(pieces)

    assert await asyncio.to_thread(sync) == b"0123456789"


async def test_half_a_file_is_no_file(server: Recorded, execd: Endpoint) -> None:
    server.say("GET /execd/files/download", head(200, {}, 10) + b"01234", HANG_UP)
    with pytest.raises(Unavailable):
        async with AsyncOpenSandboxClient(server.url) as client, client.download_file(execd, "/x") as pieces:
            _ = [piece async for piece in pieces]


async def test_a_file_that_is_not_there(server: Recorded, execd: Endpoint) -> None:
    server.say_json("GET /execd/files/download", 404, {"code": "FILE_NOT_FOUND", "message": "no such file"})
    with pytest.raises(FileNotFound, match="no such file"):
        async with AsyncOpenSandboxClient(server.url) as client, client.download_file(execd, "/x"):
            pass


async def test_verbs_of_files(server: Recorded, ask: Ask, execd: Endpoint) -> None:
    info = {
        "path": "/w/a",
        "size": 3,
        "modified_at": "2026-06-15T10:00:00Z",
        "mode": 644,
        "owner": "root",
        "group": "root",
    }
    server.say_json("GET /execd/files/search", 200, [info])
    server.say_json("GET /execd/files/info", 200, {"/w/a": info})
    server.say_json("GET /execd/directories/list", 200, [info | {"type": "directory"}])
    server.say_json("POST /execd/files/replace", 200, {"/w/a": {"replacedCount": 2}})
    for what in ("POST /execd/files/mv", "POST /execd/files/permissions", "POST /execd/directories"):
        server.say(what, head(200, {}, 0))
    for what in ("DELETE /execd/files", "DELETE /execd/directories"):
        server.say(what, head(200, {}, 0))
    found = await ask("search_files", execd, "/w", "*.py")
    assert [(one.path, one.size_bytes, one.mode, one.modified) for one in found] == [("/w/a", 3, 0o644, 1781517600.0)]
    assert (await ask("file_info", execd, "/w/a"))["/w/a"].owner == "root"
    assert (await ask("list_directory", execd, "/w"))[0].kind == "directory"
    assert await ask("replace_in_files", execd, {"/w/a": ("x", "y")}) == {"/w/a": 2}
    await ask("move_files", execd, {"/a": "/b"})
    assert server.asked[-1].document == [{"src": "/a", "dest": "/b"}]
    await ask("set_permissions", execd, "/a", 0o750, owner="u")
    assert server.asked[-1].document == {"/a": {"mode": 750, "owner": "u"}}
    await ask("make_directories", execd, "/a", "/b")
    assert server.asked[-1].document == {"/a": {"mode": 755}, "/b": {"mode": 755}}
    await ask("remove_files", execd, "/a", "/b")
    assert server.asked[-1].params == [("path", "/a"), ("path", "/b")]
    await ask("remove_directories", execd, "/a")


async def test_metrics_policies_and_snapshots(server: Recorded, ask: Ask, execd: Endpoint) -> None:
    told = {"cpu_count": 1, "cpu_used_pct": 12.5, "mem_total_mib": 256, "mem_used_mib": 1.5, "timestamp": 1}
    server.say_json("GET /execd/metrics", 200, told)
    found = await ask("metrics", execd)
    assert (found.cpu_percent, found.memory_bytes, found.memory_total_bytes) == (12.5, 3 << 19, 256 << 20)
    policy = {"defaultAction": "deny", "egress": [{"action": "allow", "target": "a.example"}]}
    server.say_json("GET /execd/policy", 200, {"status": "ok", "mode": "enforcing", "policy": policy})
    assert (await ask("get_policy", execd)).egress == (EgressRule("allow", "a.example"),)
    for verb in ("PUT", "PATCH", "DELETE"):
        server.say_json(f"{verb} /execd/policy", 200, {"status": "ok"})
    await ask("set_policy", execd, NetworkPolicy())
    await ask("add_rules", execd, [EgressRule("deny", "b.example")])
    await ask("remove_rules", execd, ["b.example"])
    assert server.asked[-1].document == ["b.example"]
    point = {"id": "sn-1", "sandboxId": "sb-1", "name": "n", "status": {"state": "Ready"}, "createdAt": None}
    server.say_json("POST /v1/sandboxes/sb-1/snapshots", 202, point)
    server.say_json("GET /v1/snapshots/sn-1", 200, point)
    server.say_json("GET /v1/snapshots", 200, {"items": [point], "pagination": {"hasNextPage": False}})
    server.say("DELETE /v1/snapshots/sn-1", head(204, {}, 0))
    assert (await ask("create_snapshot", "sb-1", "n")).state == "Ready"
    assert (await ask("get_snapshot", "sn-1")).sandbox_id == "sb-1"
    assert [one.name for one in await ask("list_snapshots", "sb-1")] == ["n"]
    await ask("delete_snapshot", "sn-1")


@pytest.mark.parametrize(
    ("status", "document", "kind"),
    [
        (400, {"code": "X", "message": "words"}, InvalidArgument),
        (401, {"code": "INVALID_API_KEY", "message": "words"}, PermissionDenied),
        (404, {"code": "DOCKER::SANDBOX_NOT_FOUND", "message": "words"}, SessionNotFound),
        (404, {"detail": "words"}, NotFound),
        (409, {"code": "X", "message": "words"}, Conflict),
        (422, {"detail": [{"msg": "words"}]}, InvalidArgument),
        (429, {"code": "X", "message": "words"}, LimitReached),
        (500, {"code": "DOCKER::SANDBOX_IMAGE_PULL_FAILED", "message": "words"}, Unavailable),
        (501, {"message": "words"}, CapabilityNotSupported),
        (418, "words", SandlotError),
    ],
)
async def test_a_refusal_is_typed(
    server: Recorded, ask: Ask, status: int, document: object, kind: type[SandlotError]
) -> None:
    headers = {"Retry-After": "99"}
    server.say_json("GET /v1/sandboxes/sb-1", status, document, headers)
    with pytest.raises(kind, match="words") as found:
        await ask("get_sandbox", "sb-1", request_timeout_s=5)
    assert type(found.value) is kind
    assert found.value.context["status"] == status
    assert KEY not in str(found.value)


async def test_what_may_be_done_twice_is_tried_again(server: Recorded, ask: Ask) -> None:
    for status in (503, 502):
        server.say_json("GET /v1/sandboxes/sb-1", status, {}, {"Retry-After": "0"})
    server.say_json("GET /v1/sandboxes/sb-1", 200, SANDBOX)
    assert (await ask("get_sandbox", "sb-1")).sandbox_id == "sb-1"
    server.say_json("POST /v1/sandboxes", 503, {"code": "X", "message": "y"}, {"Retry-After": "0"})
    seen = len(server.asked)
    with pytest.raises(Unavailable):
        await ask("create_sandbox", SandboxOpts("x"))
    assert len(server.asked) == seen + 1, "what may have been done is not done again"


async def test_one_that_was_too_much_is_tried_again(server: Recorded, ask: Ask) -> None:
    server.say_json("POST /v1/sandboxes", 429, {"code": "X", "message": "y"}, {"Retry-After": "0"})
    server.say_json("POST /v1/sandboxes", 202, SANDBOX)
    assert (await ask("create_sandbox", SandboxOpts("x"))).sandbox_id == "sb-1"


async def test_a_server_that_says_nothing_is_given_up(server: Recorded, ask: Ask) -> None:
    server.say("GET /v1/sandboxes/sb-1", SILENCE)
    with pytest.raises(DeadlineExceeded):
        await ask("get_sandbox", "sb-1", request_timeout_s=0.3)


async def test_nobody_there(ask: Ask, server: Recorded) -> None:
    server.url = "http://127.0.0.1:9/v1"
    with pytest.raises(Unavailable, match="cannot be reached"):
        await ask("create_sandbox", SandboxOpts("x"))


@pytest.mark.parametrize(
    "body", [b"", b"no json", b"[]", b"{}", b'{"id": 1, "status": [], "metadata": 3}', b"[" * 9999]
)
async def test_an_answer_that_is_none_is_typed(server: Recorded, ask: Ask, body: bytes) -> None:
    server.say("GET /v1/sandboxes/sb-1", head(200, {}, len(body)) + body)
    with pytest.raises(Unavailable):
        await ask("get_sandbox", "sb-1")


async def test_a_redirect_is_not_followed(server: Recorded, ask: Ask) -> None:
    server.say("GET /v1/sandboxes/sb-1", head(302, {"location": f"{server.url}/elsewhere"}, 0))
    with pytest.raises(SandlotError, match="302"):
        await ask("get_sandbox", "sb-1")
    assert [asked.path for asked in server.asked] == ["/v1/sandboxes/sb-1"]


@pytest.mark.parametrize("url", ["", "localhost:8080", "ftp://x/v1", "http://"])
def test_an_address_is_checked(url: str) -> None:
    for kind in (OpenSandboxClient, AsyncOpenSandboxClient):
        with pytest.raises(InvalidArgument):
            kind(url)


def test_both_have_the_same_methods() -> None:
    def methods(kind: type) -> set[str]:
        return {name for name, _ in inspect.getmembers(kind, callable) if not name.startswith("_")}

    assert methods(OpenSandboxClient) == {name.replace("aclose", "close") for name in methods(AsyncOpenSandboxClient)}
