"""The server: a host as an ASGI application. Which program serves it, and where it listens, is for others to say."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from typing import Any

from connectrpc.errors import ConnectError
from connectrpc.method import IdempotencyLevel, MethodInfo, StreamType
from connectrpc.server import ConnectASGIApplication, Endpoint

from sandlot.contracts import Host
from sandlot.model import InvalidArgument, InvalidState, SandlotError, limits
from sandlot.rpc import codec, errors, lean
from sandlot.rpc.asgi import Application, Message, Receive, Scope, Send
from sandlot.rpc.messages import PROCEDURES, AnyMessage, Procedure
from sandlot.rpc.services import API_VERSION_MIN, Services, Stream, Unary, Upload, unforeseen

_DIGITS_MAX = 10  # of a timeout in milliseconds, as the protocol has it
_LOOKED_AT = {
    name.encode(): name
    for name in ("content-type", "content-encoding", "connect-content-encoding", "connect-timeout-ms", "x-api-version")
}


def application(host: Host) -> Application:
    """The procedures of the wire on this host: Connect with JSON and with protobuf, gRPC-Web, and gRPC where the server
    has HTTP/2. What is no procedure is answered 404, as Connect does."""
    services = Services(host)
    library = _Library(services)
    routes = {procedure.path: procedure for procedure in PROCEDURES.values()}
    patience = lean.Patience()

    async def serve(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await _live(receive, send, services)
            return
        if scope["type"] != "http":
            return
        procedure = routes.get(scope["path"])
        if procedure is None:
            await _say(send, 404, {"code": "unimplemented", "message": "no such procedure"})
        elif scope["method"] != "POST":
            await _say(send, 405, {"code": "unimplemented", "message": "procedures are asked with POST"})
        else:
            await _serve(procedure, services, library, patience, scope, receive, send)

    return serve


async def _serve(
    procedure: Procedure,
    services: Services,
    library: "_Library",
    patience: lean.Patience,
    scope: Scope,
    receive: Receive,
    send: Send,
) -> None:
    try:
        headers = _headers(scope["headers"])
        content_type = headers.get("content-type", "")
        chosen = codec.of_content_type(content_type)
        request = lean.Request(receive, chosen or codec.JSON, patience)
        _check_version(headers)
        request.deadline = _deadline(headers)
    except SandlotError as error:
        await lean.refuse(lean.Request(receive, codec.JSON, patience), send, error)
        return
    is_stream = procedure.takes_stream or procedure.gives_stream
    encoding = headers.get("connect-content-encoding" if is_stream else "content-encoding", "identity")
    if content_type.startswith("application/grpc") or (chosen is not None and encoding not in ("identity", "")):
        await library(scope, receive, _versioned(send))
    elif chosen is None or is_stream != content_type.strip().lower().startswith("application/connect+"):
        await lean.drain(request)
        prefix = "application/connect+" if is_stream else "application/"
        told = f"the content type of {procedure.name} is {prefix}json or {prefix}proto"
        await _say(send, 415, {"code": "invalid_argument", "message": told})
    elif procedure.takes_stream:
        await lean.serve_upload(procedure, services.uploads[procedure.name], request, send)
    elif procedure.gives_stream:
        await lean.serve_stream(procedure, services.streams[procedure.name], request, send)
    else:
        await lean.serve_unary(procedure, services.unary[procedure.name], request, send)


def _headers(given: Iterable[tuple[bytes, bytes]]) -> Mapping[str, str]:
    """Those that are looked at. Raises InvalidArgument."""
    found: dict[str, str] = {}
    for name, value in given:
        if not value.isascii():
            raise InvalidArgument("a header is not ASCII")
        if (known := _LOOKED_AT.get(name)) is not None:
            found[known] = value.decode("ascii")
    return found


def _check_version(headers: Mapping[str, str]) -> None:
    version = headers.get("x-api-version", "1")
    if not (version.isascii() and version.isdigit() and len(version) <= _DIGITS_MAX):
        raise InvalidArgument(f"x-api-version is a number, not {version[:20]!r}")
    if int(version) < API_VERSION_MIN:
        raise InvalidState(f"this server understands x-api-version {API_VERSION_MIN} and later", next_step="update")


def _deadline(headers: Mapping[str, str]) -> float | None:
    given = headers.get("connect-timeout-ms")
    if given is None:
        return None
    if not (given.isascii() and given.isdigit() and len(given) <= _DIGITS_MAX):
        raise InvalidArgument(f"connect-timeout-ms is a number of at most {_DIGITS_MAX} digits, not {given[:20]!r}")
    return asyncio.get_running_loop().time() + int(given) / 1000


def _versioned(send: Send) -> Send:
    async def with_version(message: Message) -> None:
        if message["type"] == "http.response.start":
            message["headers"] = [*message["headers"], lean.VERSION_HEADER]
        await send(message)

    return with_version


async def _say(send: Send, status: int, told: Mapping[str, str]) -> None:
    body = json.dumps(told).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    if status == 405:
        headers.append((b"allow", b"POST"))
    await send({"type": "http.response.start", "status": status, "headers": [*headers, lean.VERSION_HEADER]})
    await send({"type": "http.response.body", "body": body})


async def _live(receive: Receive, send: Send, services: Services) -> None:
    """The host is opened and closed by whoever made it."""
    while True:
        message = await receive()
        if message["type"] == "lifespan.shutdown":
            services.held.forget()
        await send({"type": f"{message['type']}.complete"})
        if message["type"] == "lifespan.shutdown":
            return


class _Library(ConnectASGIApplication[Services]):
    """The same procedures in the protocols, and with the compressions, that the library speaks."""

    def __init__(self, services: Services) -> None:
        super().__init__(  # pyright: ignore[reportUnknownMemberType] - the library leaves its own types open
            service=services,
            endpoints=_endpoints,
            read_max_bytes=limits.MESSAGE_BYTES_MAX,
            codecs=[_LibraryCodec(codec.BINARY), _LibraryCodec(codec.JSON)],
        )

    @property
    def path(self) -> str:
        return "/"


class _LibraryCodec:
    def __init__(self, inner: codec.Codec) -> None:
        self._inner = inner

    def name(self) -> str:
        return self._inner.name

    def encode(self, message: AnyMessage) -> bytes:
        return self._inner.encode(message)

    def decode(self, data: bytes | bytearray, message_class: type[Any]) -> Any:
        try:
            return self._inner.decode(data, message_class)
        except SandlotError as error:
            raise errors.to_connect(error) from None


def _endpoints(services: Services) -> Mapping[str, Any]:
    return {procedure.path: _endpoint(procedure, services) for procedure in PROCEDURES.values()}


def _endpoint(procedure: Procedure, services: Services) -> Any:
    kinds = {(False, False): StreamType.UNARY, (False, True): StreamType.SERVER_STREAM}
    kind = kinds.get((procedure.takes_stream, procedure.gives_stream), StreamType.CLIENT_STREAM)
    method = MethodInfo(
        name=procedure.name,
        service_name=procedure.service,
        input=procedure.request,
        output=procedure.response,
        idempotency_level=IdempotencyLevel.UNKNOWN,
        stream_type=kind,
    )
    name = procedure.name
    if kind is StreamType.CLIENT_STREAM:
        return Endpoint.client_stream(method=method, function=_taking(name, services.uploads[name]))
    if kind is StreamType.SERVER_STREAM:
        return Endpoint.server_stream(method=method, function=_giving(name, services.streams[name]))
    return Endpoint.unary(method=method, function=_taking(name, services.unary[name]))


def _taking(name: str, work: Unary | Upload) -> Callable[[Any, Any], Any]:
    async def answer(asked: Any, context: Any) -> AnyMessage:
        del context
        try:
            return await work(asked)
        except Exception as error:  # noqa: BLE001 - one that is not ours is a defect, told as one
            raise _told(name, error) from None

    return answer


def _giving(name: str, work: Stream) -> Callable[[Any, Any], Any]:
    async def answer(asked: Any, context: Any) -> AsyncIterator[AnyMessage]:
        del context
        told = work(asked)
        try:
            async for message in told:
                yield message
        except Exception as error:  # noqa: BLE001 - the same
            raise _told(name, error) from None
        finally:
            await told.aclose()

    return answer


def _told(name: str, error: Exception) -> Exception:
    if isinstance(error, SandlotError):
        return errors.to_connect(error)
    if isinstance(error, ConnectError):
        return error
    return errors.to_connect(unforeseen(name, error))
