"""Previews by TLS, and of sandboxes that have another kernel: the same as otherwise."""

import base64
import hashlib
import http.client
import shutil
import socket
import ssl
from contextlib import closing
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from sandlot import Client, Sandbox
from tests.e2e.preview_stage import TOKEN, run_program, staged, websocket
from tests.serving import PATIENCE_S, Answer, ask, certificate, read_all, server

pytestmark = pytest.mark.root
NO_RUNSC = "runsc is not installed: `make setup` as root installs it"
UPGRADE = ("Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Key: eA==")


def say_hello(line: socket.socket) -> bytes:
    """In a websocket, as a client says it; the program says it louder."""
    mask = b"abcd"
    line.sendall(b"\x81\x85" + mask + bytes(one ^ mask[at % 4] for at, one in enumerate(b"hello")))
    found = b""
    while len(found) < 7 and (piece := line.recv(100)):
        found += piece
    return found[2:]


def test_by_tls(data_dir: Path, tmp_path: Path) -> None:
    """The address says so, the cookie is for such ones alone, and the program hears of it."""
    certificate(tmp_path / "keys", "mine")
    files = [str(tmp_path / "keys" / f"mine.{end}") for end in ("pem", "key")]
    context = ssl.create_default_context(cafile=files[0])
    with (
        server(data_dir, "--tls-certificate", files[0], "--tls-key", files[1]) as one,
        Client(data_dir=data_dir) as client,
        Sandbox.create(id="work", client=client) as sandbox,
    ):
        run_program(sandbox, 3000)
        preview = sandbox.preview(3000)
        host = urlsplit(preview.url).netloc
        assert preview.url == f"https://3000-work.preview.localhost:{one.port}/"

        def get(path: str, **headers: str) -> Answer:
            connection = http.client.HTTPSConnection("localhost", one.port, timeout=PATIENCE_S, context=context)
            with closing(connection):
                return ask(connection, path, "GET", None, **{"Host": host, **headers})

        assert get("/").status == 401
        heard = get("/a?b", X_Sandlot_Preview_Token=preview.token)
        told = {name.lower(): value for name, value in heard.document["headers"]}
        assert (told["x-forwarded-proto"], told["x-forwarded-host"]) == ("https", host)
        visit = get(f"/?sandlot-token={preview.token}", Accept="text/html")
        assert (visit.status, visit.headers["location"]) == (303, "/")
        cookie, _, flags = visit.headers["set-cookie"].partition(";")
        assert cookie.startswith("__Host-sandlot_preview=")
        assert "Secure" in flags
        assert get("/", Cookie=cookie).status == 200
        assert get(urlsplit(preview.path_url).path, Host=f"localhost:{one.port}").status == 200, "no keys, so it may"
        big = get("/", Cookie=cookie, X_Big="x" * 20_000)
        assert len(big.body) > 20_000
        plain = socket.create_connection(("localhost", one.port), timeout=PATIENCE_S)
        with closing(context.wrap_socket(plain, server_hostname="localhost")) as line:
            lines = ["GET /ws HTTP/1.1", f"Host: {host}", f"Cookie: {cookie}", *UPGRADE, "", ""]
            line.sendall("\r\n".join(lines).encode())
            head = line.recv(65536)
            key = base64.b64encode(hashlib.sha1(b"eA==258EAFA5-E914-47DA-95CA-C5AB0DC85B11").digest())
            assert key in head
            assert say_hello(line) == b"HELLO"


@pytest.mark.skipif(shutil.which("runsc") is None, reason=NO_RUNSC)
def test_of_a_sandbox_with_another_kernel(data_dir: Path) -> None:
    with staged(data_dir, runtime="gvisor") as stage:
        assert stage.sandbox.info().runtime == "gvisor"
        sent = stage.get("/a%20b?c", "POST", b"x" * 300_000)
        assert (sent.status, sent.document["path"], sent.document["body"]) == (200, "/a%20b?c", 300_000)
        assert stage.server.ask("/preview/work/3000/", X_Sandlot_Preview_Token=stage.token).status == 200
        with closing(stage.server.connection()) as connection:
            connection.request("GET", "/events", headers={"Host": stage.host, TOKEN: stage.token})
            response = connection.getresponse()
            assert response.readline() == b"data: 0\n"
            assert b"data: 2" in response.read()
        with closing(websocket(stage.server, stage.host, f"{TOKEN}: {stage.token}")) as line:
            assert say_hello(line) == b"HELLO"
            stage.sandbox.pause()
            stopped = stage.get("/")
            assert (stopped.status, "retry-after" in stopped.headers) == (503, True)
            stage.sandbox.resume()
            assert say_hello(line) == b"HELLO", "it was open meanwhile"
            assert stage.get("/").status == 200
            stage.sandbox.kill()
            assert read_all(line) == b""
        assert stage.get("/").status == 404
