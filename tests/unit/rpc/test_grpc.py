"""Clients of other makes: gRPC over HTTP/2, gRPC-Web over HTTP/1.1."""

import asyncio
import socket
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, cast

import grpc
import grpc.aio
import pytest
from hypercorn.asyncio import serve  # pyright: ignore[reportUnknownVariableType] - the library leaves types open
from hypercorn.config import Config

from sandlot.contracts import Host
from sandlot.fakes.host import FakeHost
from sandlot.rpc.gen.sandlot.v1.calls_pb import CallMessage, CallRequest, CallStart
from sandlot.rpc.gen.sandlot.v1.files_pb import FileInfo, FileWrite, FileWriting
from sandlot.rpc.gen.sandlot.v1.sessions_pb import SessionInfo
from sandlot.rpc.gen.sandlot.v1.sessions_pb import SessionSpec as Spec
from sandlot.rpc.messages import PROCEDURES
from sandlot.rpc.server import application
from tests.unit.rpc.raw_http import ask, envelope, envelopes
from tests.unit.rpc.serving import serving

DEADLINE_S = 60.0


@asynccontextmanager
async def serving_http2(host: object) -> AsyncGenerator[int]:
    listening = socket.create_server(("127.0.0.1", 0))
    port: int = listening.getsockname()[1]
    config = Config()
    config.bind = [f"fd://{listening.detach()}"]
    config.errorlog = None
    over = asyncio.Event()
    task = asyncio.create_task(
        serve(cast("Any", application(cast("Host", host))), config, shutdown_trigger=cast("Any", over.wait))
    )
    try:
        yield port
    finally:
        over.set()
        async with asyncio.timeout(DEADLINE_S):
            await task


def method(channel: Any, name: str) -> Any:
    procedure = PROCEDURES[name]
    kind = f"{'stream' if procedure.takes_stream else 'unary'}_{'stream' if procedure.gives_stream else 'unary'}"
    return getattr(channel, kind)(
        procedure.path,
        request_serializer=procedure.request.to_binary,
        response_deserializer=procedure.response.from_binary,
    )


async def test_a_client_of_grpc() -> None:
    async def content() -> AsyncIterator[FileWriting]:
        yield FileWriting(request=FileWrite(session_id="s", path="a"), data=b"one ")
        yield FileWriting(data=b"two")

    async with serving_http2(FakeHost()) as port, grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        async with asyncio.timeout(DEADLINE_S):
            made = await method(channel, "CreateSession")(Spec(session_id="s", labels={"a": "b"}), wait_for_ready=True)
            assert isinstance(made, SessionInfo)
            assert (made.state, made.labels) == ("active", {"a": "b"})
            written = await method(channel, "WriteFile")(content())
            assert isinstance(written, FileInfo)
            assert written.size_bytes == 7
            call = method(channel, "Call")(CallStart(request=CallRequest(session_id="s", argv=["cat", "a"])))
            told: list[CallMessage] = [message async for message in call]
            assert [one.message.field for one in told if one.message] == ["opened", "started", "output", "result"]
            with pytest.raises(grpc.aio.AioRpcError) as raised:
                await method(channel, "CreateSession")(Spec(session_id="s"))
            assert raised.value.code() is grpc.StatusCode.ALREADY_EXISTS
            trailing = dict(raised.value.trailing_metadata())
            assert b"session_exists" in cast("bytes", trailing["grpc-status-details-bin"])


async def test_a_client_of_grpc_web() -> None:
    async with serving(FakeHost()) as server:
        body = envelope(Spec(session_id="s").to_binary())
        path = PROCEDURES["CreateSession"].path
        answer = await ask(server.port, path, body, "application/grpc-web+proto", x_grpc_web="1")
        (flags, data), (last, trailers) = envelopes(answer.body)
        assert (answer.status, flags, SessionInfo.from_binary(data).session_id, last) == (200, 0, "s", 0x80)
        assert trailers.replace(b" ", b"").startswith(b"grpc-status:0")
        again = await ask(server.port, path, body, "application/grpc-web+proto", x_grpc_web="1")
        assert "6" in (again.headers.get("grpc-status"), again.body.partition(b"grpc-status:")[2].strip()[:1].decode())
        assert answer.headers["x-api-version"] == "1"
