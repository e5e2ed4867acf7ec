"""What comes over the wire is anyone's: whatever it is, it is answered as what it is, and others notice nothing."""

import asyncio
import gzip
import json
import logging
import random
from collections.abc import AsyncGenerator
from typing import Any

import pytest

from sandlot.fakes.host import FakeHost
from sandlot.model import CallRequest, FileWrite, SessionSpec, limits
from sandlot.rpc.client import HostClient
from sandlot.rpc.codec import BINARY, JSON
from sandlot.rpc.messages import MESSAGES, PROCEDURES, AnyMessage, Procedure
from tests.unit.rpc.raw_http import Answer, ask, envelope, exchange, last_envelope, parse
from tests.unit.rpc.serving import Server, serving

# What a request can be told. `internal` and `unknown` would be defects of ours.
TYPED = {
    "",
    "invalid_argument",
    "not_found",
    "already_exists",
    "permission_denied",
    "failed_precondition",
    "resource_exhausted",
    "unimplemented",
    "deadline_exceeded",
    "aborted",
}
LIST = PROCEDURES["ListSessions"].path
CALL = PROCEDURES["Call"].path
SEED = 20


@pytest.fixture
async def server(caplog: pytest.LogCaptureFixture) -> AsyncGenerator[Server]:
    """Behind whatever a test does, a healthy client is served, and the log tells of no defect."""
    caplog.set_level(logging.WARNING)
    async with serving(FakeHost()) as running:
        yield running
        async with asyncio.timeout(60), HostClient(running.url) as client:
            session = await client.create(SessionSpec())
            async with client.call(CallRequest(session.session_id, ("echo", "well"))) as stream:
                assert (await stream.result()).exit_code == 0
    told = [record for record in caplog.records if record.name != "uvicorn.error" or record.exc_info]
    assert [(one.name, one.getMessage()) for one in told] == []


def check(answer: Answer) -> None:
    assert answer.code in TYPED, (answer.status, answer.body[:500])
    assert b"Traceback" not in answer.body


def content_type(procedure: Procedure, codec: str) -> str:
    is_stream = procedure.takes_stream or procedure.gives_stream
    return f"application/{'connect+' if is_stream else ''}{codec}"


def framed(procedure: Procedure, data: bytes) -> bytes:
    return envelope(data) if procedure.takes_stream or procedure.gives_stream else data


DOCUMENTS: tuple[tuple[bytes, str], ...] = (
    (b"", "invalid_argument"),
    (b"null", "invalid_argument"),
    (b"[]", "invalid_argument"),
    (b"{", "invalid_argument"),
    (b"\xff\xfe", "invalid_argument"),
    (b'{"limit": NaN}', "invalid_argument"),
    (b'{"limit": 1e999}', "invalid_argument"),
    (b'{"limit": 1.5}', "invalid_argument"),
    (b'{"limit": 123456789012345678901234567890}', "invalid_argument"),
    (b'{"limit": 5, "limit": 6}', "invalid_argument"),
    (b'{"labels": {"a": "1", "a": "2"}}', "invalid_argument"),
    (b'{"labels": {"a": 1}}', "invalid_argument"),
    (b'{"labels": {"a": "\\ud800"}}', "invalid_argument"),
    (b'{"states": ["asleep"]}', "invalid_argument"),
    (b'{"after": "nowhere"}', "invalid_argument"),
    (b'{"limit":' + b"[" * 100_000, "invalid_argument"),
    (b'{"x":' + b'{"x":' * 100_000, "invalid_argument"),
    (b'{"x":' + b"[" * 70 + b"]" * 70 + b"}", "invalid_argument"),
    (b'{"x": "' + b"[" * 1000 + b'\\"{"}', ""),
    (b'{"of_tomorrow": [{"a": [1, null, true]}], "limit": 3}', ""),
    (b"{}", ""),
)


async def test_json_that_is_none_of_ours(server: Server) -> None:
    for body, code in DOCUMENTS:
        answer = await ask(server.port, LIST, body)
        assert (answer.code, answer.status) == (code, 400 if code else 200), body[:100]


async def test_protobuf_that_is_none(server: Server) -> None:
    dice = random.Random(SEED)
    bodies = [b"\x0b" * 90_000, b"\x0a\xff\xff\xff\xff\x0f", b"\xff" * 20, b"\x0a\x02\xff\xff"]
    bodies += [dice.randbytes(dice.randrange(1, 60)) for _ in range(100)]
    for body in bodies:
        check(await ask(server.port, LIST, body, "application/proto"))


async def test_frames_that_are_none(server: Server) -> None:
    """Lengths that lie, flags that nobody has, ends that come too early: never a defect, never a wait."""
    dice = random.Random(SEED)
    good = b'{"request": {"sessionId": "s", "argv": ["true"]}}'
    bodies = [b"", b"\0", b"\0\0\0\0", envelope(good)[:-1], envelope(good) + b"\0", envelope(good) * 2]
    bodies += [envelope(good, flags) for flags in (1, 2, 3, 4, 128, 255)]
    bodies += [b"\0\xff\xff\xff\xff" + good, b"\0\0\0\0\0", envelope(b"")]
    for _ in range(100):
        noise = bytearray(envelope(good))
        for _ in range(dice.randrange(1, 4)):
            noise[dice.randrange(len(noise))] = dice.randrange(256)
        bodies.append(bytes(noise))
    for body in bodies:
        answer = await ask(server.port, CALL, body, "application/connect+json")
        check(answer)
        assert answer.code != "", "there is no such session"


async def test_content_types_and_methods_that_are_none(server: Server) -> None:
    for kind in ("", "text/plain", "application/xml", "application/connect+json", "application/json/x", "\xff"):
        answer = await ask(server.port, LIST, b"{}", kind)
        assert (answer.status, answer.code) in ((415, "invalid_argument"), (400, "invalid_argument")), kind
    for kind in ("application/json; charset=utf-8", "APPLICATION/JSON"):
        assert (await ask(server.port, LIST, b"{}", kind)).status == 200
    assert (await ask(server.port, CALL, b"{}")).status == 415
    assert (await ask(server.port, "/sandlot.v1.SessionService/Nothing", b"{}")).status == 404
    assert (await ask(server.port, "/", b"{}")).status == 404
    got = parse(await exchange(server.port, f"GET {LIST} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n".encode()))
    assert (got.status, got.headers["allow"]) == (405, "POST")


async def test_headers_that_are_none(server: Server) -> None:
    wrong = [{"connect_timeout_ms": text} for text in ("x", "-1", "1.5", "12345678901", "\u00b2")]
    wrong += [{"x_api_version": text} for text in ("x", "-1", "1.0", "\u00b9", "1" * 400)]
    wrong += [{"content_encoding": "zip"}, {"x_name": "\xff"}]
    for headers in wrong:
        answer = await ask(server.port, LIST, b"{}", **headers)
        assert answer.code in ("invalid_argument", "unimplemented"), (headers, answer)
    assert (await ask(server.port, LIST, b"{}", x_api_version="0")).code == "failed_precondition"
    of_tomorrow = await ask(server.port, LIST, b"{}", x_api_version="7")
    assert (of_tomorrow.status, of_tomorrow.headers["x-api-version"]) == (200, "1")


async def test_a_deadline_that_passes_is_told(server: Server) -> None:
    async with HostClient(server.url) as client:
        session = await client.create(SessionSpec())
        async with client.call(CallRequest(session.session_id, ("sleep", "600"))) as stream:
            body = json.dumps({"sessionId": session.session_id, "callId": stream.call_id}).encode()
            answer = await ask(server.port, PROCEDURES["WaitCall"].path, body, connect_timeout_ms="50")
            assert (answer.status, answer.code) == (504, "deadline_exceeded")
            attach = PROCEDURES["AttachCall"].path
            answer = await ask(server.port, attach, envelope(body), "application/connect+json", connect_timeout_ms="50")
            assert (answer.status, answer.code) == (200, "deadline_exceeded")


async def test_a_body_beyond_the_limit_is_refused_and_its_connection_serves_on(server: Server) -> None:
    """What is left of it is never taken for the next request."""
    for length in (limits.MESSAGE_BYTES_MAX + 1, 1 << 30):
        head = f"POST {LIST} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n"
        answer = parse(await exchange_until_answered(server.port, head.encode(), limits.MESSAGE_BYTES_MAX + 1))
        assert (answer.status, answer.code) == (429, "resource_exhausted")
    good = f"POST {LIST} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: 2\r\n"
    size = limits.MESSAGE_BYTES_MAX + 10
    bad = f"POST {LIST} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {size}\r\n\r\n"
    data = bad.encode() + b" " * size + (good + "\r\n").encode() + b"{}" + (good + "connection: close\r\n\r\n").encode()
    told = await exchange(server.port, data + b"{}")
    assert [line.split()[1] for line in told.split(b"HTTP/1.1 ")[1:] for line in [b"x " + line]] == [
        b"429",
        b"200",
        b"200",
    ]


async def exchange_until_answered(port: int, head: bytes, size: int) -> bytes:
    """Send so much of a body, and read the answer that comes before its end."""
    async with asyncio.timeout(60):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            writer.write(head + b" " * size)
            got = await reader.readuntil(b"\r\n\r\n")
            length = int(got.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
            return got + await reader.readexactly(length)
        finally:
            writer.close()


@pytest.mark.parametrize("length", ["0", "1", "3", "-1", "x", "99999999999999999999999"])
async def test_lengths_that_lie(server: Server, length: str) -> None:
    """The connection ends or the rest is a bad request; nobody hears the answer to another one's."""
    head = f"POST {LIST} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n"
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(head.encode() + b"{}")
    writer.write_eof()
    async with asyncio.timeout(60):
        told = await reader.read()
    writer.close()
    statuses = {part.split()[0] for part in told.split(b"HTTP/1.1 ")[1:]}
    assert statuses <= {b"400"}, told


async def test_what_is_packed_small_and_is_large_is_refused(server: Server) -> None:
    bomb = gzip.compress(b" " * (4 * limits.MESSAGE_BYTES_MAX) + b"{}")
    assert len(bomb) < 1 << 20
    answer = await ask(server.port, LIST, bomb, content_encoding="gzip")
    assert (answer.status, answer.code) == (429, "resource_exhausted")
    answer = await ask(
        server.port, CALL, envelope(bomb, 1), "application/connect+json", connect_content_encoding="gzip"
    )
    assert last_envelope(answer.body)["error"]["code"] == "resource_exhausted"
    assert (await ask(server.port, LIST, b"no gzip", content_encoding="gzip")).code == "invalid_argument"
    assert (await ask(server.port, LIST, gzip.compress(b"{}"), content_encoding="gzip")).status == 200
    deep = gzip.compress(b'{"limit":' + b"[" * 100_000)
    assert (await ask(server.port, LIST, deep, content_encoding="gzip")).code == "invalid_argument"


async def test_readers_that_do_not_read_hold_little_and_nobody_up(server: Server) -> None:
    """A file of 8 MiB waits behind each of them in the host, not in the server."""

    async def content() -> AsyncGenerator[bytes]:
        for _ in range(32):
            yield bytes(256 << 10)

    async with asyncio.timeout(60), HostClient(server.url) as client:
        session = await client.create(SessionSpec())
        await client.write_file(FileWrite(session.session_id, "a"), content())
        body = envelope(json.dumps({"sessionId": session.session_id, "path": "a"}).encode())
        path = PROCEDURES["ReadFile"].path
        head = f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-type: application/connect+json\r\n"
        asked = f"{head}content-length: {len(body)}\r\n\r\n".encode() + body
        sleepers = [await asyncio.open_connection("127.0.0.1", server.port, limit=1024) for _ in range(8)]
        for _, writer in sleepers:
            writer.write(asked)
        for reader, _ in sleepers:
            await reader.readuntil(b"info")
        for _ in range(20):
            await client.get(session.session_id)
            assert max(server.waiting()) < 2 << 20
        for _, writer in sleepers:
            writer.transport.abort()


# ---- every procedure -------------------------------------------------------------------------------------------------

WORDS: list[Any] = [
    *(
        "",
        "s",
        ".",
        "..",
        "../..",
        "a\0b",
        "\0zz",
        "\ud7ff",
        "x" * 5000,
        "-1",
        "NaN",
        "AAAA",
        "active",
        "\u202e",
        "builtin",
        "1",
    ),
    *(0, -1, 1 << 63, 1.5, 1e308, None, True, [], {}),
]


def document(dice: random.Random, message: type[AnyMessage], depth: int = 0) -> dict[str, Any]:
    """Some fields of a message, some of them with what they may hold."""
    told: dict[str, Any] = {}
    for field in message.desc().fields:
        if dice.random() < 0.5:
            below = MESSAGES.get(type(getattr(message(), field.name, None)).__name__)
            told[field.json_name] = (
                dice.choice(WORDS) if below is None or depth > 2 else document(dice, below, depth + 1)
            )
    if "request" in {field.name for field in message.desc().fields} and dice.random() < 0.8:
        inner = message.desc().fields[0].value.message.name  # type: ignore[union-attr] # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType, reportUnknownVariableType]
        told["request"] = document(dice, MESSAGES[str(inner)], depth + 1)  # pyright: ignore[reportUnknownArgumentType]
    return told


async def test_no_request_is_answered_with_a_defect(server: Server) -> None:
    async with asyncio.TaskGroup() as group:
        for name in sorted(PROCEDURES):
            group.create_task(ask_nonsense(server, PROCEDURES[name]))


async def ask_nonsense(server: Server, procedure: Procedure) -> None:
    dice = random.Random(f"{SEED} {procedure.name}")
    for _ in range(8):
        data = json.dumps(document(dice, procedure.request)).encode()
        if dice.random() < 0.3:
            at = dice.randrange(len(data))
            data = data[:at] + bytes([dice.randrange(256)]) + data[at + 1 :]
        kind = content_type(procedure, "json")
        check(await ask(server.port, procedure.path, framed(procedure, data), kind, connect_timeout_ms="2000"))
        noise = framed(procedure, dice.randbytes(dice.randrange(40)))
        kind = content_type(procedure, "proto")
        check(await ask(server.port, procedure.path, noise, kind, connect_timeout_ms="2000"))


def test_the_codecs_are_those_of_the_protocol() -> None:
    assert {BINARY.name, JSON.name} == {"proto", "json"}
