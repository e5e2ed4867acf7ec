"""A server whose previews are looked at, and a program in a session of it."""

import select
import socket
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from sandlot import Client, Sandbox
from tests.serving import Answer, Server, server

# Says what it was asked, streams, counts, and speaks with websockets.
PROGRAM = r"""
import base64, hashlib, json, sys, time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def log_message(self, *_): pass
    def do_GET(self):
        if self.path == "/events":
            self.send_response(200); self.send_header("content-type", "text/event-stream"); self.end_headers()
            for number in range(3):
                self.wfile.write(b"data: %d\n\n" % number); self.wfile.flush(); time.sleep(0.3)
            self.close_connection = True
        elif self.path == "/ws":
            key = self.headers["sec-websocket-key"] + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
            self.send_response(101); self.send_header("upgrade", "websocket"); self.send_header("connection", "upgrade")
            self.send_header("sec-websocket-accept", base64.b64encode(hashlib.sha1(key.encode()).digest()).decode())
            self.end_headers(); self.wfile.flush()
            while True:
                head = self.rfile.read(2)
                if len(head) < 2 or head[0] & 15 == 8: break
                mask = self.rfile.read(4); text = self.rfile.read(head[1] & 127)
                text = bytes(b ^ mask[i % 4] for i, b in enumerate(text)).upper()
                self.wfile.write(bytes([0x81, len(text)]) + text); self.wfile.flush()
            self.close_connection = True
        elif self.path == "/cookies":
            self.send_response(200); self.send_header("content-length", "0")
            for cookie in ("a=1; Domain=preview.localhost; Path=/", "sandlot_preview=stolen", "b=2"):
                self.send_header("set-cookie", cookie)
            self.send_header("clear-site-data", '"*"'); self.send_header("strict-transport-security", "max-age=1")
            self.end_headers()
        else: self.say()
    def do_POST(self):
        size = int(self.headers.get("content-length") or 0); self.say(len(self.rfile.read(size)))
    do_PUT = do_DELETE = do_OPTIONS = do_POST
    def say(self, size=0):
        told = {"who": sys.argv[2], "method": self.command, "path": self.path, "body": size}
        body = json.dumps({**told, "headers": self.headers.items()}).encode()
        self.send_response(200); self.send_header("content-length", str(len(body))); self.end_headers()
        self.wfile.write(body)
ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""
TOKEN = "X-Sandlot-Preview-Token"


@dataclass
class Stage:
    server: Server
    client: Client
    sandbox: Sandbox
    token: str
    host: str

    def get(self, path: str = "/", method: str = "GET", body: bytes | None = None, /, **headers: str) -> Answer:
        """On the preview's host, with its token."""
        return at(self.server, self.host, path, method, body, **{TOKEN.replace("-", "_"): self.token, **headers})

    @property
    def api(self) -> str:
        return f"127.0.0.1:{self.server.port}"


def at(one: Server, host: str, path: str, method: str = "GET", body: bytes | None = None, /, **headers: str) -> Answer:
    return one.ask(path, method, body, Host=host, **headers)


def run_program(sandbox: Sandbox, port: int, who: str = "x") -> None:
    sandbox.files.write("program.py", PROGRAM)
    sandbox.commands.run(f"exec python3 program.py {port} {who}", timeout=3600, background=True)
    look = (
        f"import socket,sys\nfor _ in range(600):\n  try: socket.create_connection(('127.0.0.1',{port})); sys.exit()\n"
    )
    look += "  except OSError: __import__('time').sleep(0.1)\nsys.exit(1)"
    assert sandbox.commands.run(["python3", "-c", look], timeout=90).exit_code == 0


@contextmanager
def staged(data: Path, *words: str, key: str | None = None, runtime: str = "auto") -> Generator[Stage]:
    with server(data, *words) as one, Client(url=f"http://127.0.0.1:{one.port}", api_key=key) as client:
        sandbox = Sandbox.create(id="work", client=client, detach=True, runtime=runtime)
        try:
            run_program(sandbox, 3000)
            preview = sandbox.preview(3000)
            yield Stage(one, client, sandbox, preview.token, urlsplit(preview.url).netloc)
        finally:
            if one.process.poll() is None:  # else whoever stopped it sees to that
                sandbox.kill()


def heard(answer: Answer) -> dict[str, str]:
    """Headers as the program got them."""
    return {name.lower(): value for name, value in answer.document["headers"]}


def websocket(one: Server, host: str, *lines: str) -> socket.socket:
    line = socket.create_connection(("127.0.0.1", one.port), timeout=60)
    upgrade = ("Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Key: eA==")
    line.sendall("\r\n".join(["GET /ws HTTP/1.1", f"Host: {host}", *lines, *upgrade, "", ""]).encode())
    assert b" 101 " in line.recv(65536)
    return line


def is_open(line: socket.socket) -> bool:
    readable, _, _ = select.select([line], [], [], 0)
    return not readable
