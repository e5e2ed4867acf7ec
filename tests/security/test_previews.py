"""Requests that two servers could read differently, sent to ports of a session: the program hears one request, to the
last byte of its body, or none; and no other client gets an answer that was not its own."""

import itertools
import re
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from sandlot import Client, Sandbox
from tests.serving import Server, raw, read_all, server

pytestmark = pytest.mark.root
# Keeps all that it hears on one port, and tells it on the next one.
PROGRAM = r"""
import socket, sys, threading
heard = []
def serve(line):
    kept, mine = b"", []
    heard.append(mine)
    try:
        while data := line.recv(65536):
            mine.append(data); kept += data
            while b"\r\n\r\n" in kept:  # as careless as can be: whatever looks like a head is answered
                head, _, kept = kept.partition(b"\r\n\r\n")
                line.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nheard")
    except OSError: pass
    line.close()
def tell(line):
    line.recv(65536); body = b"<line>".join(b"".join(mine) for mine in heard)
    line.sendall(b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: %d\r\n\r\n" % len(body) + body); line.close()
def listen(port, what):
    listener = socket.create_server(("127.0.0.1", port), backlog=64)
    while True: threading.Thread(target=what, args=(listener.accept()[0],), daemon=True).start()
threading.Thread(target=listen, args=(3000, serve), daemon=True).start()
listen(3001, tell)
"""
INNER = b"GET /smuggled HTTP/1.1\r\nHost: inner\r\n\r\n"
LENGTHS = (
    b"Content-Length: 4",
    b"Content-Length: 04",
    b"content-length : 4",
    b"Content-Length: 4\r\nContent-Length: 0",
    b"Content-Length: 0\r\nContent-Length: 4",
    b"Content-Length: 0, 4",
    b"Content-Length: +4",
    b"Content-Length: -1",
    b"Content-Length: 0x4",
    b"Content-Length:\r\n 4",
    b"Content-Length: 4\x0b",
    b"Content_Length: 4",
    b"X: y\nContent-Length: 4",
    b"X: y\rContent-Length: 4",
    b"X: y\0\r\nContent-Length: 4",
)
ENCODINGS = (
    b"Transfer-Encoding: chunked",
    b"Transfer-Encoding:\tchunked",
    b"Transfer-Encoding: xchunked",
    b"Transfer-Encoding: chunked, identity",
    b"Transfer-Encoding: identity, chunked",
    b"Transfer-Encoding: identity",
    b"Transfer-Encoding: chunked\r\nTransfer-Encoding: x",
    b"Transfer-Encoding: x\r\nTransfer-Encoding: chunked",
    b"Transfer-Encoding\t: chunked",
    b"Transfer_Encoding: chunked",
    b"Transfer-Encoding: \x0bchunked",
    b"Transfer-Encoding:\r\n chunked",
    b"X: y\nTransfer-Encoding: chunked",
    b" Transfer-Encoding: chunked",
    b'Transfer-Encoding: "chunked"',
)
BODIES = (b"0\r\n\r\n" + INNER, b"abcd" + INNER, INNER)
PAIRS = (*itertools.product(LENGTHS[:4], ENCODINGS), *itertools.product(ENCODINGS[:6], LENGTHS[:4]))
FRAMINGS = (*LENGTHS, *ENCODINGS, *(b"\r\n".join(pair) for pair in PAIRS))
HOSTS = (
    b"Host: inner\r\nHost: %s",
    b"Host: %s\r\nHost: inner",
    b"Host: %s\r\n Host: inner",
    b"Host : %s",
    b"Host: %s, inner",
    b"Host: inner/%s",
    b"Host: inner@%s",
    b"Host: %s\0",
    b"Host: %s#",
    b"X: %s",
)
TARGETS = (
    b"http://inner/",
    b"//inner/",
    b"/a\r\nX: y",
    b"/a\rX: y",
    b"/a\nX: y",
    b"/a HTTP/1.1 b",
    b"/a\tHTTP/1.1",
    b"*",
    b"inner:80",
    b"/a#b",
    b"\\a",
    b"/\0",
)


@dataclass
class Stage:
    server: Server
    token: str
    host: str
    ear_token: str
    ear: str

    def head(self, more: bytes, method: bytes = b"POST", target: bytes = b"/first", host: bytes | None = None) -> bytes:
        lines = [method + b" " + target + b" HTTP/1.1", host or f"Host: {self.host}".encode()]
        lines += [b"X-Sandlot-Preview-Token: " + self.token.encode(), *([more] if more else [])]
        return b"\r\n".join(lines) + b"\r\n\r\n"

    def send(self, data: bytes) -> bytes:
        """What comes back until the server closes."""
        with closing(raw(self.server.port, data)) as line:
            return read_all(line)

    def heard(self) -> list[bytes]:
        """What the program did, line by line, once it hears no more."""
        before, found = None, b""
        while before != found:
            before, answer = found, self.server.ask("/", Host=self.ear, X_Sandlot_Preview_Token=self.ear_token)
            assert answer.status == 200
            found = answer.body
            time.sleep(0.1)
        return found.split(b"<line>")


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory, shared_templates: Path) -> Iterator[Stage]:
    data = tmp_path_factory.mktemp("smuggling") / "data"
    data.mkdir(mode=0o700)
    (data / "templates").symlink_to(shared_templates)
    with server(data) as one, Client(url=f"http://127.0.0.1:{one.port}") as client:
        sandbox = Sandbox.create(id="work", client=client, detach=True)
        sandbox.files.write("program.py", PROGRAM)
        sandbox.commands.run("exec python3 program.py", timeout=3600, background=True)
        told, ear = sandbox.preview(3000), sandbox.preview(3001)
        found = Stage(one, told.token, urlsplit(told.url).netloc, ear.token, urlsplit(ear.url).netloc)
        deadline = time.monotonic() + 60
        while one.ask("/", Host=found.ear, X_Sandlot_Preview_Token=ear.token).status != 200:
            assert time.monotonic() < deadline, "the program does not answer"
            time.sleep(0.1)
        yield found
        sandbox.kill()
    (data / "templates").unlink()


def test_the_program_is_heard(stage: Stage) -> None:
    """Else nothing of this would prove anything."""
    assert stage.send(stage.head(b"Connection: close", b"GET", b"/alone")).endswith(b"heard")
    assert any(b"GET /alone HTTP/1.1\r\n" in line for line in stage.heard())


def requests_in(line: bytes) -> list[bytes]:
    """The first lines of all requests of a connection, to the letter; what is cut off at its end counts too."""
    found: list[bytes] = []
    while line:
        head, end, line = line.partition(b"\r\n\r\n")
        first, *others = head.split(b"\r\n")
        assert re.fullmatch(rb"[A-Z]+ /[!-~]* HTTP/1\.1", first), first
        headers = [other.partition(b": ") for other in others]
        assert all(colon and re.fullmatch(rb"[a-z0-9_-]+", name) for name, colon, _ in headers), head
        framing = [(name, value) for name, _, value in headers if re.match(rb"content.length|transfer.encoding", name)]
        found.append(first)
        if end and framing:
            ((name, value),) = framing
            line = _behind(line, None if name == b"transfer-encoding" and value == b"chunked" else int(value))
    return found


def _behind(line: bytes, size: int | None) -> bytes:
    if size is not None:
        return line[size:]
    while line:
        text, end, line = line.partition(b"\r\n")
        if not end:
            return b""
        size = int(text, 16)
        assert line[size : size + 2] in (b"\r\n", b"\r", b"")
        line = line[size + 2 :]
        if not size:
            break
    return line


def test_requests_are_read_out_of_what_was_heard() -> None:
    sized = b"POST /a HTTP/1.1\r\nhost: x\r\ncontent-length: 3\r\n\r\nabc"
    chunks = b"POST /b HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n"
    inner = INNER.replace(b"Host", b"host")
    assert requests_in(sized + chunks + inner) == [b"POST /a HTTP/1.1", b"POST /b HTTP/1.1", b"GET /smuggled HTTP/1.1"]
    assert requests_in(sized[:-1]) == [b"POST /a HTTP/1.1"]
    assert requests_in(chunks[:-9]) == [b"POST /b HTTP/1.1"]
    for wrong in (b"x" + chunks[:-5] + b"5", b"GET /a b HTTP/1.1\r\n\r\n", b"GET /a HTTP/1.1\r\na: b\r\n c\r\n\r\n"):
        with pytest.raises(AssertionError):
            requests_in(wrong.replace(b"x", b" ", 1))


def check_heard(stage: Stage) -> list[bytes]:
    """Nothing that was smuggled, and no line of what is no request."""
    found = [first for line in stage.heard() for first in requests_in(line)]
    assert not any(b"smuggled" in first for first in found), found
    return found


def test_no_request_goes_in_behind_another(stage: Stage) -> None:
    refused = 0
    for framing, body in itertools.product(FRAMINGS, BODIES):
        answer = stage.send(stage.head(b"Connection: close\r\n" + framing) + body)
        assert answer.count(b"HTTP/1.1 ") == 1, (framing, body, answer)
        refused += answer.startswith(b"HTTP/1.1 400 ")
    assert refused > len(FRAMINGS) * 2, "most of them are refused"
    assert len(check_heard(stage)) >= len(FRAMINGS) * len(BODIES) - refused
    for _ in range(3):
        assert stage.send(stage.head(b"Connection: close", b"GET", b"/after")).endswith(b"heard")
    assert [first for first in check_heard(stage) if b"/after" in first] == [b"GET /after HTTP/1.1"] * 3


def test_what_comes_behind_a_request_is_asked_for_its_own_token(stage: Stage) -> None:
    behind = f"GET /smuggled HTTP/1.1\r\nHost: {stage.host}\r\nConnection: close\r\n\r\n".encode()
    for framing in (b"", b"Content-Length: 0"):
        answer = stage.send(stage.head(framing) + behind)
        assert re.findall(rb"HTTP/1\.1 (\d+)", answer) == [b"200", b"401"]
    check_heard(stage)


def test_hosts_that_two_could_read_differently(stage: Stage) -> None:
    for form in HOSTS:
        host = form.replace(b"%s", stage.host.encode())
        answer = stage.send(stage.head(b"Connection: close", b"GET", b"/smuggled", host))
        assert answer[9:10] == b"4", (form, answer)
    check_heard(stage)


def test_targets_that_two_could_read_differently(stage: Stage) -> None:
    before = len(check_heard(stage))
    for target in TARGETS:
        stage.send(stage.head(b"Connection: close", b"GET", target))
    assert check_heard(stage).count(b"GET //inner/ HTTP/1.1") == 1
    assert len(check_heard(stage)) <= before + 1, "all others are refused"


def test_trailers_say_nothing(stage: Stage) -> None:
    chunks = b"3\r\nabc\r\n0\r\nX-Forwarded-For: 6.6.6.6\r\nX-Else: trailer-value\r\n\r\n"
    framing = b"Connection: close\r\nTransfer-Encoding: chunked\r\nTrailer: X-Else"
    assert b"heard" in stage.send(stage.head(framing, target=b"/with-trailers") + chunks)
    deadline, line = time.monotonic() + 60, b""
    while not line.endswith(b"3\r\nabc\r\n0\r\n\r\n"):  # it answers before it has heard the body
        assert time.monotonic() < deadline, line
        (line,) = [line for line in stage.heard() if b"/with-trailers" in line]
    assert b"6.6.6.6" not in line
    assert b"trailer-value" not in line


def test_a_trailer_is_no_credential(stage: Stage) -> None:
    head = f"POST /smuggled HTTP/1.1\r\nHost: {stage.host}\r\nConnection: close\r\n".encode()
    head += b"Transfer-Encoding: chunked\r\n\r\n"
    answer = stage.send(head + b"0\r\nX-Sandlot-Preview-Token: " + stage.token.encode() + b"\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 401 ")
    check_heard(stage)


@pytest.mark.parametrize("protocol", [b"h2c", b"HTTP/2.0", b"TLS/1.0"])
def test_no_other_http_is_agreed_on(stage: Stage, protocol: bytes) -> None:
    upgrade = b"Connection: Upgrade, HTTP2-Settings\r\nHTTP2-Settings: AAMAAABkAAQAAP__\r\nUpgrade: " + protocol
    path = b"/other-" + protocol.replace(b"/", b"-")
    answer = stage.send(stage.head(upgrade, b"GET", path) + INNER)
    assert answer.startswith(b"HTTP/1.1 200 ")
    assert answer.count(b"HTTP/1.1 ") == 1
    check_heard(stage)
    (line,) = [line for line in stage.heard() if path in line]
    assert b"upgrade" not in line.lower()


def test_an_upgrade_with_a_body_is_refused(stage: Stage) -> None:
    for framing in (b"Content-Length: 4", b"Transfer-Encoding: chunked"):
        upgrade = b"Connection: Upgrade\r\nUpgrade: websocket\r\n" + framing
        assert stage.send(stage.head(upgrade, target=b"/smuggled") + b"abcd" + INNER).startswith(b"HTTP/1.1 400 ")
    check_heard(stage)


def test_a_refused_upgrade_ends_its_connection(stage: Stage) -> None:
    """What comes behind it is neither a request nor the program's."""
    answer = stage.send(stage.head(b"Connection: Upgrade\r\nUpgrade: websocket", b"GET") + INNER)
    assert answer.count(b"HTTP/1.1 ") == 1
    check_heard(stage)
