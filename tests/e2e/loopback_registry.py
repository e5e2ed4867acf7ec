"""A registry on loopback that does what it is told to do wrong."""

import base64
import json
import threading
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from tests.archives import Image, digest


class LoopbackRegistry:
    """Serves one image as `box/app:1`. Its faults are attributes that tests set."""

    def __init__(self, image: Image) -> None:
        self.documents: dict[str, bytes] = {}
        index = json.dumps(image.index()).encode()
        self.documents |= image.blobs
        self.documents[digest(index)] = index
        self.tags = {"1": digest(index), "single": image.manifest}
        self.requests: list[tuple[str, str | None, str | None]] = []  # path, range, authorization
        self.password: str | None = None  # basic for tokens, and tokens for the rest
        self.basic_only = False
        self.cut_after: list[int] = []  # bytes of a blob, for the next answers
        self.ignores_ranges = False
        self.wrong: dict[str, bytes] = {}  # other bytes for a digest
        self.redirect_to = ""  # where blobs are
        self.busy = 0  # answers of 503 that are still to be given
        self.port = 0


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    registry: LoopbackRegistry

    def log_message(self, format: str, *args: object) -> None:
        del format, args

    def do_GET(self) -> None:
        registry = self.registry
        path, given = self.path, self.headers.get("Authorization")
        registry.requests.append((path, self.headers.get("Range"), given))
        if path.startswith("/token"):
            return self._token(given)
        if registry.password is not None and "/elsewhere/" not in path and not self._is_allowed(given):
            return self._challenge()
        if registry.busy:
            registry.busy -= 1
            return self._send(503, b"")
        name = path.rpartition("/")[2]
        if "/manifests/" in path:
            name = registry.tags.get(name, name)
        if name not in registry.documents:
            return self._send(404, b"")
        if "/blobs/" in path and registry.redirect_to and "/elsewhere/" not in path:
            return self._send(307, b"", headers={"Location": f"{registry.redirect_to}/elsewhere/blobs/{name}"})
        return self._send_data(registry.wrong.get(name, registry.documents[name]), is_blob="/blobs/" in path)

    def _is_allowed(self, given: str | None) -> bool:
        if self.registry.basic_only:
            return given == self._basic()
        return given == "Bearer a-token"

    def _basic(self) -> str:
        return "Basic " + base64.b64encode(f"me:{self.registry.password}".encode()).decode()

    def _challenge(self) -> None:
        realm = f"http://127.0.0.1:{self.registry.port}/token"
        bearer = f'Bearer realm="{realm}",service="box",scope="repository:box/app:pull"'
        self._send(401, b"{}", headers={"WWW-Authenticate": "Basic realm=box" if self.registry.basic_only else bearer})

    def _token(self, given: str | None) -> None:
        if given != self._basic():
            return self._send(401, b"{}")
        assert "scope=repository%3Abox%2Fapp%3Apull" in self.path
        return self._send(200, b'{"token": "a-token"}')

    def _send_data(self, data: bytes, *, is_blob: bool) -> None:
        asked = self.headers.get("Range")
        status = 200
        if asked and not self.registry.ignores_ranges:
            data, status = data[int(asked.removeprefix("bytes=").rstrip("-")) :], 206
        cut = self.registry.cut_after.pop(0) if is_blob and self.registry.cut_after else None
        self._send(status, data, cut)

    def _send(self, status: int, data: bytes, cut: int | None = None, headers: Mapping[str, str] | None = None) -> None:
        self.send_response(status)
        for key, value in (headers or {}).items():
            self.send_header(key, value)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data if cut is None else data[:cut])
        if cut is not None and cut < len(data):
            self.wfile.flush()
            self.close_connection = True


@contextmanager
def serving(registry: LoopbackRegistry) -> Generator[str]:
    """Its address, with the name of the repository."""
    handler = type("Handler", (_Handler,), {"registry": registry})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    registry.port = server.server_address[1]
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield f"127.0.0.1:{registry.port}/box/app"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
