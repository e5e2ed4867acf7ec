"""A server tells its events: at least once, in their order, over every death of it."""

import base64
import contextlib
import http.server
import json
import signal
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from sandlot import Client, Sandbox
from sandlot.model import Scope
from sandlot.tenants.keys import KeyStore
from sandlot.webhooks import signing
from tests.serving import certificate, environment, server

pytestmark = pytest.mark.root


@dataclass
class Receiver:
    port: int = 0
    told: list[tuple[Any, bytes]] = field(default_factory=list[tuple[Any, bytes]])
    refuses: bool = False

    def offsets(self) -> list[int]:
        return [json.loads(body)["data"]["offset"] for _, body in self.told]


@contextlib.contextmanager
def receiving(certified: tuple[Path, Path] | None = None) -> Generator[Receiver]:
    """By TLS, when it has a certificate and its key."""
    receiver = Receiver()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            if not receiver.refuses:
                receiver.told.append((self.headers, body))
            self.send_response(500 if receiver.refuses else 200)
            self.end_headers()

        def log_message(self, format: str, *_args: object) -> None:
            """Nothing."""

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as serving:
        receiver.port = serving.server_address[1]
        if certified is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(*certified)
            serving.socket = context.wrap_socket(serving.socket, server_side=True, do_handshake_on_connect=False)
        threading.Thread(target=serving.serve_forever, daemon=True).start()
        try:
            yield receiver
        finally:
            serving.shutdown()


def until(condition: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + 60
    while not (is_true := condition()) and time.monotonic() < deadline:
        time.sleep(0.02)
    return is_true


def test_events_are_told_over_every_death_of_the_server(data_dir: Path) -> None:
    with receiving() as receiver:
        words = ("--webhooks", f"http://127.0.0.1:{receiver.port}/hook", "--webhook-networks", "127.0.0.0/8")
        ids: list[str] = []
        for is_last in (False, False, True):
            with server(data_dir, *words) as one, Client(url=f"http://127.0.0.1:{one.port}") as client:
                assert until(lambda: any((data_dir / "webhooks").glob("*")))
                receiver.refuses = not is_last
                ids.append(Sandbox.create(client=client).id)
                if not is_last:
                    one.process.send_signal(signal.SIGKILL)
                    one.process.wait(60)
                    continue
                Sandbox.connect(ids[-1], client=client).kill()
                assert until(lambda: b"destroyed" in receiver.told[-1][1] if receiver.told else False)
                events = [event.offset for event in Sandbox.all_events(client=client)]
        found = receiver.offsets()
        assert list(dict.fromkeys(found)) == events, "all of them, and in their order"
        assert len(found) <= len(events) + 2, "one may be told again for each death"
        command = [sys.executable, "-m", "sandlot", "--data-dir", str(data_dir), "--json", "webhook", "secret"]
        ran = subprocess.run(command, capture_output=True, text=True, env=environment(), timeout=60)
        assert json.loads(ran.stdout)["secret"].startswith("whsec_")
        secret = (data_dir / "webhook.secret").read_bytes()
        for headers, body in receiver.told:
            wanted = signing.headers(secret, headers["webhook-id"], int(headers["webhook-timestamp"]), body)
            assert headers["webhook-signature"] == wanted["webhook-signature"]


def test_a_tenant_hears_of_its_own_sessions_alone(data_dir: Path, tmp_path: Path) -> None:
    """By TLS, whose certificate the server knows; the operator hears of all. Each verifies with a secret of its own."""
    keys = KeyStore(data_dir)
    made = {name: keys.create(name, name, Scope.USE).secret for name in ("team", "others")}
    certificate(tmp_path / "keys", "mine")
    mine = (tmp_path / "keys" / "mine.pem", tmp_path / "keys" / "mine.key")
    with receiving(mine) as team, receiving() as operator:
        hooks = f"team=https://localhost:{team.port}/hook,http://127.0.0.1:{operator.port}/hook"
        words = ("--webhooks", hooks, "--webhook-networks", "127.0.0.0/8,::1/128")
        env = environment(SSL_CERT_FILE=str(mine[0]))
        with server(data_dir, *words, env=env) as one:
            assert until(lambda: len([*(data_dir / "webhooks").glob("*")]) == 4), "two offsets, and who holds them"
            for name in ("others", "team"):
                with Client(url=f"http://127.0.0.1:{one.port}", api_key=made[name]) as client:
                    Sandbox.create(id=f"of-{name}", client=client).kill()
            assert until(lambda: any(b"destroyed" in body and b"of-team" in body for _, body in operator.told))
            assert until(lambda: any(b"destroyed" in body for _, body in team.told))

    def told(receiver: Receiver) -> set[str]:
        return {json.loads(body)["data"]["session_id"] for _, body in receiver.told}

    assert told(team) == {"of-team"}, "by the name that it has there"
    assert told(operator) == {"tenant-team.of-team", "tenant-others.of-others"}
    secrets = {name: secret_of(data_dir, name) for name in ("", "team", "others")}
    assert len(set(secrets.values())) == 3
    for receiver, name in ((team, "team"), (operator, "")):
        headers, body = receiver.told[0]
        wanted = signing.headers(
            base64.b64decode(secrets[name].removeprefix("whsec_")),
            headers["webhook-id"],
            int(headers["webhook-timestamp"]),
            body,
        )
        assert headers["webhook-signature"] == wanted["webhook-signature"]


def secret_of(data: Path, tenant: str) -> str:
    command = [sys.executable, "-m", "sandlot", "--data-dir", str(data), "--json", "webhook", "secret"]
    command += ["--tenant", tenant] if tenant else []
    ran = subprocess.run(command, capture_output=True, text=True, env=environment(), timeout=60)
    return str(json.loads(ran.stdout)["secret"])


def test_a_server_does_not_tell_whoever_is_inside(data_dir: Path) -> None:
    with receiving() as receiver:
        hook = f"http://127.0.0.1:{receiver.port}/hook?key=of-mine"
        with server(data_dir, "--webhooks", hook) as one, Client(url=f"http://127.0.0.1:{one.port}") as client:
            assert until(lambda: any((data_dir / "webhooks").glob("*")))
            Sandbox.create(client=client).kill()
            assert until(lambda: "not of the public network" in one.log)
            assert "of-mine" not in one.log
        assert receiver.told == []


def test_wrong_addresses_are_told_before_anything_is_made(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "sandlot", "--data-dir", str(tmp_path / "data"), "serve", "--listen", "none"]
    wrong = (
        "--webhooks",
        "ftp://x/,http://ok.test/,No_Tenant=https://ok.test/",
        "--webhook-networks",
        "x",
        "--webhook-events",
        "created,nothing",
    )
    ran = subprocess.run([*command, *wrong], capture_output=True, text=True, env=environment(), timeout=60)
    assert ran.returncode == 2
    for word in ("--webhooks", "--webhook-networks", "--webhook-events"):
        assert word in ran.stderr
    assert not (tmp_path / "data").exists()
