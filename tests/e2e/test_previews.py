"""Ports of real sessions through a real server."""

import base64
import hashlib
import http.client
import json
import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from sandlot import Client, Sandbox, SandlotError
from sandlot.model import InvalidState, PermissionDenied, Scope, SessionNotFound
from sandlot.tenants.keys import KeyStore
from tests.e2e.preview_stage import TOKEN, Stage, at, heard, run_program, staged
from tests.serving import ask, environment, read_all

pytestmark = pytest.mark.root
DOMAIN = "preview.localhost"


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory, shared_templates: Path) -> Iterator[Stage]:
    data = tmp_path_factory.mktemp("previews") / "data"
    data.mkdir(mode=0o700)
    (data / "templates").symlink_to(shared_templates)
    with staged(data) as found:
        yield found
    (data / "templates").unlink()


# ---- there and back ------------------------------------------------------------------------------------------------


def test_a_request_reaches_the_program(stage: Stage) -> None:
    answer = stage.get("/a%20b/..%2fc?d=e&f", "POST", b"x" * 100_000)
    assert answer.status == 200
    told = answer.document
    assert (told["method"], told["path"], told["body"]) == ("POST", "/a%20b/..%2fc?d=e&f", 100_000)
    assert heard(answer)["host"] == stage.host


def test_what_the_program_hears_of_its_client_is_what_the_server_saw(stage: Stage) -> None:
    lies = {
        "X_Forwarded_For": "6.6.6.6",
        "Forwarded": "for=6.6.6.6",
        "X_Forwarded_Host": "evil",
        "X_Real_Ip": "6.6.6.6",
    }
    told = heard(stage.get("/", **lies))
    assert told["x-forwarded-for"] == "127.0.0.1"
    assert told["x-forwarded-host"] == stage.host
    assert told["x-forwarded-proto"] == "http"
    assert told["forwarded"] == f'for=127.0.0.1;host="{stage.host}";proto=http'
    assert "6.6.6.6" not in str(told)
    assert "evil" not in str(told)


def test_no_credential_of_ours_reaches_the_program(stage: Stage) -> None:
    key = "sl_0123456789ab_" + "k" * 40
    given = {
        "Authorization": f"Bearer {key}",
        "X_Api_Key": key,
        "Open_Sandbox_Api_Key": "other",
        "X_Access_Token": "other",
        "X_Execd_Access_Token": "other",
        "E2b_Traffic_Access_Token": "other",
        "X_Else": f"({key})",
        "Cookie": f"mine=1; sandlot_preview={stage.token}; __Host-sandlot_preview=x; other=2",
        "Referer": f"http://{stage.host}/?sandlot-token={stage.token}",
    }
    told = heard(stage.get(f"/p?x=1&sandlot-token={stage.token}&y=2", **given))
    assert told["cookie"] == "mine=1; other=2"
    text = json.dumps(told)
    assert key not in text
    assert stage.token not in text
    assert "access-token" not in text
    assert "api-key" not in text
    assert stage.get(f"/p?x=1&sandlot-token={stage.token}&y=2").document["path"] == "/p?x=1&y=2"
    assert (
        heard(stage.get("/", Authorization="Basic eDp5", X_Api_Key="the program's own"))["authorization"]
        == "Basic eDp5"
    )


def test_events_come_as_they_are_said(stage: Stage) -> None:
    with closing(stage.server.connection()) as connection:
        connection.request("GET", "/events", headers={"Host": stage.host, TOKEN: stage.token})
        answer = connection.getresponse()
        moments: list[float] = []
        while line := answer.readline():
            if line.startswith(b"data"):
                moments.append(time.monotonic())
    assert len(moments) == 3
    assert moments[2] - moments[0] > 0.3, "they came one after the other"


@pytest.mark.parametrize("form", ["host", "path", "headers"])
def test_websockets(stage: Stage, form: str) -> None:
    host = stage.host if form == "host" else stage.api
    path = "/preview/work/3000/ws" if form == "path" else "/ws"
    named = "X-Sandlot-Session: work\r\nX-Sandlot-Port: 3000\r\n" if form == "headers" else ""
    key = base64.b64encode(os.urandom(16)).decode()
    with closing(socket.create_connection(("127.0.0.1", stage.server.port), timeout=60)) as line:
        line.sendall(
            f"GET {path} HTTP/1.1\r\nHost: {host}\r\n{named}{TOKEN}: {stage.token}\r\nConnection: Upgrade\r\n"
            f"Upgrade: websocket\r\nSec-WebSocket-Key: {key}\r\nSec-WebSocket-Version: 13\r\n\r\n".encode()
        )
        stream = line.makefile("rb")
        head = b""
        while not head.endswith(b"\r\n\r\n"):
            head += stream.read(1)
        assert head.startswith(b"HTTP/1.1 101 "), head
        accept = base64.b64encode(hashlib.sha1((key + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11").encode()).digest())
        assert b"sec-websocket-accept: " + accept in head
        for text in (b"hello", b"again"):
            mask = os.urandom(4)
            line.sendall(bytes([0x81, 0x80 | len(text)]) + mask + bytes(b ^ mask[i % 4] for i, b in enumerate(text)))
            assert stream.read(2 + len(text)) == bytes([0x81, len(text)]) + text.upper()
        line.sendall(bytes([0x88, 0x80]) + bytes(4))
        assert stream.read() == b""


def test_by_path_and_by_headers(stage: Stage) -> None:
    by_path = stage.server.ask("/preview/work/3000/a/b?c=d")
    assert by_path.document["path"] == "/a/b?c=d"
    told = heard(by_path)
    assert told["host"] == "localhost:3000"
    assert told["x-forwarded-prefix"] == "/preview/work/3000"
    by_headers = stage.server.ask("/a/b?c=d", X_Sandlot_Session="work", X_Sandlot_Port="3000")
    assert by_headers.document["path"] == "/a/b?c=d"
    assert "x-sandlot-session" not in heard(by_headers)
    beside = stage.server.ask("/preview/work/3000")
    assert (beside.status, beside.headers["location"]) == (308, "/preview/work/3000/")


# ---- who may -------------------------------------------------------------------------------------------------------


def test_a_visit_exchanges_the_token_for_a_cookie(stage: Stage) -> None:
    visit = at(stage.server, stage.host, f"/a?b=c&sandlot-token={stage.token}", Accept="text/html,*/*")
    assert (visit.status, visit.headers["location"], visit.body) == (303, "/a?b=c", b"")
    cookie = visit.headers["set-cookie"]
    assert re.fullmatch(r"sandlot_preview=[\w-]+; Path=/; Max-Age=\d+; HttpOnly; SameSite=Lax", cookie)
    assert visit.headers["referrer-policy"] == "no-referrer"
    pair = cookie.partition(";")[0]
    assert at(stage.server, stage.host, "/a?b=c", Cookie=pair).status == 200
    assert at(stage.server, stage.host, "/a?b=c", Cookie=f"x=y; {pair}").status == 200
    other = stage.host.replace("3000-", "3001-")
    assert at(stage.server, other, "/", Cookie=pair).status == 401, "of that preview alone"
    away = at(stage.server, stage.host, f"//evil.test/?sandlot-token={stage.token}", Accept="text/html")
    assert away.headers["location"] == "/.//evil.test/"


def test_a_cookie_counts_for_the_previews_own_pages_alone(stage: Stage) -> None:
    cookie = f"sandlot_preview={stage.token}"
    own, sibling = f"http://{stage.host}", f"http://3001-work.{DOMAIN}:{stage.server.port}"
    for status, headers in (
        (200, {}),
        (200, {"Origin": own}),
        (200, {"Sec_Fetch_Site": "same-origin", "Sec_Fetch_Mode": "cors"}),
        (200, {"Sec_Fetch_Site": "cross-site", "Sec_Fetch_Mode": "navigate", "Sec_Fetch_Dest": "document"}),
        (401, {"Origin": sibling}),
        (401, {"Origin": "null"}),
        (401, {"Origin": f"https://{DOMAIN}"}),
        (401, {"Sec_Fetch_Site": "same-site", "Sec_Fetch_Mode": "cors"}),
        (401, {"Sec_Fetch_Site": "same-site", "Sec_Fetch_Mode": "no-cors"}),
        (401, {"Sec_Fetch_Site": "same-site", "Sec_Fetch_Mode": "navigate", "Sec_Fetch_Dest": "iframe"}),
    ):
        assert at(stage.server, stage.host, "/", Cookie=cookie, **headers).status == status, headers
    socket_of_sibling = {"Connection": "Upgrade", "Upgrade": "websocket", "Origin": sibling}
    assert at(stage.server, stage.host, "/ws", Cookie=cookie, **socket_of_sibling).status == 401
    assert stage.get("/", Origin=sibling).status == 200, "who has the token itself comes from anywhere"


def test_without_a_token_a_session_is_as_one_that_nobody_has(stage: Stage) -> None:
    told: set[tuple[int, bytes]] = set()
    wrong = stage.token[:-1] + ("A" if stage.token[-1] != "A" else "B")
    for name in ("3000-work", "3001-work", "3000-nobody"):
        for headers in ({}, {TOKEN.replace("-", "_"): wrong}, {"Cookie": f"sandlot_preview={wrong}"}):
            answer = at(stage.server, f"{name}.{DOMAIN}", "/", **headers)
            told.add((answer.status, answer.body))
    assert {status for status, _ in told} == {401}
    assert len(told) == 1


@pytest.mark.parametrize(
    "host",
    [
        DOMAIN,
        f"work.{DOMAIN}",
        f"0-work.{DOMAIN}",
        f"65536-work.{DOMAIN}",
        f"3000-WORK.{DOMAIN}",
        f"3000-work.x.{DOMAIN}",
        f"x.3000-work.{DOMAIN}",
        f"3000-work.{DOMAIN}.",
        f"3000-work.{DOMAIN.upper()}",
    ],
)
def test_no_other_name_reaches_a_preview_or_anything_else(stage: Stage, host: str) -> None:
    for path in (
        "/",
        "/healthz",
        "/metrics",
        "/sandlot.v1.HostService/HealthCheck",
        "/v1/sandboxes",
        "/preview/work/3000/",
    ):
        for method in ("GET", "POST"):
            answer = at(stage.server, host, path, method, **{TOKEN.replace("-", "_"): stage.token})
            assert (answer.status, answer.headers["content-type"]) == (404, "text/plain; charset=utf-8")
            assert b"No preview" in answer.body


def test_a_preview_host_reaches_the_program_alone(stage: Stage) -> None:
    for path in (
        "/healthz",
        "/readyz",
        "/metrics",
        "/v1/sandboxes",
        "/preview/work/3000/",
        "/sandlot.v1.HostService/HealthCheck",
    ):
        assert stage.get(path).document["who"] == "x"
        assert at(stage.server, stage.host, path).status == 401
    named = {"X_Sandlot_Session": "nobody", "X_Sandlot_Port": "1"}
    assert stage.get("/", **named).document["who"] == "x"


def test_on_the_shared_origin_a_page_is_nobodys(stage: Stage) -> None:
    answer = stage.server.ask("/preview/work/3000/cookies")
    assert "set-cookie" not in answer.headers
    assert "clear-site-data" not in answer.headers
    assert "strict-transport-security" not in answer.headers
    policy = answer.headers["content-security-policy"]
    assert policy.startswith("sandbox ")
    assert "allow-same-origin" not in policy
    assert "cookie" not in heard(stage.server.ask("/preview/work/3000/", Cookie="a=b"))
    assert stage.server.ask("/preview/work/3000/sw.js", Service_Worker="script").status == 403


def test_on_its_own_host_cookies_are_of_that_host(stage: Stage) -> None:
    with closing(stage.server.connection()) as connection:
        connection.request("GET", "/cookies", headers={"Host": stage.host, TOKEN: stage.token})
        answer = connection.getresponse()
        answer.read()
    assert answer.headers.get_all("set-cookie") == ["a=1; Path=/", "b=2"]


def test_pages_of_others_are_let_in_with_a_token_alone(stage: Stage) -> None:
    foreign = {"Origin": "http://evil.test", "Sec_Fetch_Site": "cross-site"}
    assert stage.server.ask("/preview/work/3000/", **foreign).status == 403
    assert stage.server.ask("/", X_Sandlot_Session="work", X_Sandlot_Port="3000", **foreign).status == 403
    token = {TOKEN.replace("-", "_"): stage.token}
    assert stage.server.ask("/preview/work/3000/", **foreign, **token).status == 200
    assert stage.server.ask("/preview/work/3001/", **foreign, **token).status == 403
    led_here = {**token, "Host": "evil.test"}
    assert stage.server.ask("/preview/work/3000/", **led_here).status == 403, "DNS rebinding"


# ---- no answer -----------------------------------------------------------------------------------------------------


def test_why_there_is_no_answer(stage: Stage) -> None:
    token = stage.sandbox.preview(3999).token
    host = stage.host.replace("3000-", "3999-")
    for accept, kind in (("text/html", "text/html"), ("*/*", "text/plain"), ("application/json", "application/json")):
        answer = at(stage.server, host, "/", X_Sandlot_Preview_Token=token, Accept=accept)
        assert answer.status == 502
        assert answer.headers["content-type"].startswith(kind)
        assert b"3999" in answer.body
        assert "default-src 'none'" in answer.headers["content-security-policy"]
    stage.sandbox.pause()
    try:
        stopped = stage.get("/")
        assert (stopped.status, "retry-after" in stopped.headers) == (503, True)
    finally:
        stage.sandbox.resume()
    assert stage.get("/").status == 200


def test_a_token_ends_with_its_session(stage: Stage) -> None:
    def make() -> Sandbox:
        made = Sandbox.create(id="short", client=stage.client, detach=True)
        run_program(made, 3000, "new")
        return made

    first = make()
    preview = first.preview(3000)
    host, token = urlsplit(preview.url).netloc, {"X_Sandlot_Preview_Token": preview.token}
    assert at(stage.server, host, "/", **token).status == 200
    first.kill()
    assert at(stage.server, host, "/", **token).status == 404
    second = make()
    try:
        assert at(stage.server, host, "/", **token).status == 404, "another session has the id now"
        again = {"X_Sandlot_Preview_Token": second.preview(3000).token}
        assert at(stage.server, host, "/", **again).status == 200
    finally:
        second.kill()


def test_what_a_token_opened_ends_with_it(stage: Stage) -> None:
    token = stage.sandbox.preview(3000, expires_s=3).token
    with closing(socket.create_connection(("127.0.0.1", stage.server.port), timeout=60)) as line:
        line.sendall(
            f"GET /ws HTTP/1.1\r\nHost: {stage.host}\r\n{TOKEN}: {token}\r\nConnection: Upgrade\r\n"
            "Upgrade: websocket\r\nSec-WebSocket-Key: eA==\r\n\r\n".encode()
        )
        assert b" 101 " in line.recv(65536)
        assert read_all(line) == b""
    assert at(stage.server, stage.host, "/", X_Sandlot_Preview_Token=token).status == 401


# ---- faces ---------------------------------------------------------------------------------------------------------


def test_the_command_line(stage: Stage, tmp_path: Path) -> None:
    def run(*words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "sandlot", "--url", f"http://{stage.api}", *words]
        return subprocess.run(command, capture_output=True, text=True, env=environment(), timeout=120)

    told = run("--json", "preview", "work", "3000", "--expires", "1h")
    document = json.loads(told.stdout)
    assert document["url"] == f"http://{stage.host}/"
    assert 3500 < document["expires"] - time.time() < 3700
    plain = run("preview", "work", "3000").stdout.strip()
    assert plain.startswith(f"http://{stage.host}/?sandlot-token=slp_")
    with closing(http.client.HTTPConnection("127.0.0.1", stage.server.port, timeout=60)) as connection:
        assert ask(connection, "/" + plain.partition("/?")[2].join(["?", ""]), Host=stage.host).status == 200
    assert run("preview", "work", "3000", "--path").stdout.startswith(f"http://{stage.api}/preview/work/3000/?")
    assert "SANDLOT_PREVIEW_PUBLIC" in run("preview", "work", "3000", "--public").stderr
    assert run("preview", "nobody", "3000").returncode != 0
    assert run("preview", "work", "0").returncode != 0


def test_python(stage: Stage) -> None:
    assert stage.sandbox.preview_url(3000).startswith(f"http://{stage.host}/?sandlot-token=")
    with pytest.raises(PermissionDenied):
        stage.sandbox.preview_url(3000, public=True)
    with pytest.raises(SessionNotFound):
        Sandbox("nobody", client=stage.client).preview_url(3000)
    for port, expires_s in ((0, 60), (70000, 60), (3000, 0)):
        with pytest.raises(SandlotError):
            stage.sandbox.preview_url(port, expires_s=expires_s)


def test_without_a_server_there_are_none(data_dir: Path) -> None:
    with Client(data_dir=data_dir) as client, Sandbox.create(client=client) as sandbox, pytest.raises(InvalidState):
        sandbox.preview_url(3000)


def test_tenants_and_public_ports(data_dir: Path) -> None:
    keys = KeyStore(data_dir)
    key = keys.create("a", "a", Scope.USE).secret
    other = keys.create("b", "b", Scope.USE).secret
    with staged(data_dir, "--preview-public", key=key) as stage:
        assert stage.host.startswith("3000-e-tenant-ha-dwork.")
        assert stage.get("/").document["who"] == "x"
        assert at(stage.server, stage.host, "/", X_Api_Key=key).status == 401, "keys mean nothing there"
        path = "/preview/work/3000/"
        assert stage.server.ask(path, X_Api_Key=key).document["who"] == "x"
        assert key not in stage.server.ask(path, Authorization=f"Bearer {key}").body.decode()
        unknown = stage.server.ask("/preview/nobody/3000/", X_Api_Key=other)
        theirs = stage.server.ask(path, X_Api_Key=other)
        assert (theirs.status, theirs.body.replace(b"work", b"nobody")) == (unknown.status, unknown.body)
        for wrong in (path, "/preview/nobody/3000/", "/preview/", "/preview/x"):
            assert stage.server.ask(wrong).status == 401
        assert stage.server.ask("/preview/tenant-a.work/3000/", X_Sandlot_Preview_Token=stage.token).status == 200
        assert stage.server.ask(path, X_Sandlot_Preview_Token=stage.token).status == 401

        url = stage.sandbox.preview_url(3000, public=True)
        assert "token" not in url
        assert at(stage.server, stage.host, "/").status == 200
        assert stage.server.ask("/preview/tenant-a.work/3000/").status == 200
        assert at(stage.server, stage.host.replace("3000-", "3001-"), "/").status == 401
        stage.sandbox.preview(3000, public=False)
        assert at(stage.server, stage.host, "/").status == 401
        token = stage.token
    assert token not in stage.server.log
