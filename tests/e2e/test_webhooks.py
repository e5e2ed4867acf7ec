"""A server tells its events: at least once, in their order, over every death of it."""

import contextlib
import http.server
import json
import signal
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
from sandlot.webhooks import signing
from tests.serving import environment, server

pytestmark = pytest.mark.root


@dataclass
class Receiver:
    port: int = 0
    told: list[tuple[Any, bytes]] = field(default_factory=list[tuple[Any, bytes]])
    refuses: bool = False

    def offsets(self) -> list[int]:
        return [json.loads(body)["data"]["offset"] for _, body in self.told]


@contextlib.contextmanager
def receiving() -> Generator[Receiver]:
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
    wrong = ("--webhooks", "ftp://x/,http://ok.test/", "--webhook-networks", "x", "--webhook-events", "created,nothing")
    ran = subprocess.run([*command, *wrong], capture_output=True, text=True, env=environment(), timeout=60)
    assert ran.returncode == 2
    for word in ("--webhooks", "--webhook-networks", "--webhook-events"):
        assert word in ran.stderr
    assert not (tmp_path / "data").exists()
