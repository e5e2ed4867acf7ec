"""`sandlot serve` in a process of its own, and clients of the plainest kind."""

import contextlib
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

PATIENCE_S = 60.0


@dataclass(frozen=True)
class Answer:
    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def document(self) -> Any:
        return json.loads(self.body)


@dataclass(frozen=True)
class Server:
    process: subprocess.Popen[bytes]
    listen: Sequence[str]
    log_path: Path

    @property
    def port(self) -> int:
        return int(self.listen[0].rpartition(":")[2])

    @property
    def log(self) -> str:
        return self.log_path.read_text()

    def connection(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE_S)

    def ask(self, path: str, method: str = "GET", body: bytes | None = None, /, **headers: str) -> Answer:
        with contextlib.closing(self.connection()) as connection:
            return ask(connection, path, method, body, **headers)

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        return self.process.wait(PATIENCE_S)


def ask(
    connection: http.client.HTTPConnection, path: str, method: str = "GET", body: bytes | None = None, **headers: str
) -> Answer:
    connection.request(method, path, body, {name.replace("_", "-"): value for name, value in headers.items()})
    response = connection.getresponse()
    return Answer(response.status, {k.lower(): v for k, v in response.getheaders()}, response.read())


def environment(**more: str) -> dict[str, str]:
    """Of a server that hears nothing of ours but what is given."""
    own = {name: value for name, value in os.environ.items() if not name.startswith(("SANDLOT_", "LISTEN_", "NOTIFY_"))}
    return own | more


@contextlib.contextmanager
def server(
    data: Path, *arguments: str, listen: str = "127.0.0.1:0", env: Mapping[str, str] | None = None
) -> Generator[Server]:
    """Ready when this is entered; killed when it is left, unless it ended before."""
    log = data.parent / f"serve-{len(list(data.parent.glob('serve-*')))}.log"
    words = ("--json", "--data-dir", str(data), "serve", "--listen", listen, *arguments)
    with log.open("wb") as errors:
        process = subprocess.Popen(
            [sys.executable, "-m", "sandlot", *words],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
            env=dict(env) if env is not None else environment(),
        )
    try:
        told = _first_line(process.stdout)
        assert told, f"the server did not become ready: {log.read_text()}"
        yield Server(process, json.loads(told)["listen"], log)
    finally:
        process.kill()
        process.wait()
        if process.stdout:
            process.stdout.close()


def _first_line(stream: IO[bytes] | None) -> bytes:
    assert stream is not None
    return stream.readline()  # pytest ends a test that takes too long


def raw(port: int, data: bytes) -> socket.socket:
    """A connection that has sent this, and nothing else."""
    connected = socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S)
    connected.sendall(data)
    return connected


def read_all(connected: socket.socket) -> bytes:
    """What comes until the other side closes."""
    found = b""
    with contextlib.suppress(ConnectionResetError):
        while piece := connected.recv(65536):
            found += piece
    return found


def certificate(folder: Path, name: str, issuer: str | None = None) -> None:
    """NAME.pem and NAME.key, for localhost."""
    folder.mkdir(exist_ok=True)
    words = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2"]
    words += ["-subj", f"/CN={name}", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"]
    if issuer is not None:
        words += ["-CA", f"{issuer}.pem", "-CAkey", f"{issuer}.key", "-addext", "basicConstraints=critical,CA:FALSE"]
    words += ["-keyout", f"{name}.key", "-out", f"{name}.pem"]
    subprocess.run(words, cwd=folder, check=True, capture_output=True, timeout=PATIENCE_S)
