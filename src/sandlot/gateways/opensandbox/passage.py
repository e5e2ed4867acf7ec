"""Ports of programs in a sandbox: HTTP and websockets go through, as they come."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

from sandlot.gateways.opensandbox.schema import Refused
from sandlot.gateways.web import Passage, Receive, Request, Scope, Send
from sandlot.model import DeadlineExceeded, NotFound, SessionNotFound, Unavailable

_DROPPED: Final = frozenset([b"authorization", b"cookie"])  # they are for this server; theirs keeps them too


@dataclass(frozen=True, slots=True)
class PortWay:
    """Where a request goes, and what of it."""

    session_id: str
    port: int
    target: bytes  # path and query, raw
    prefix: bytes  # what stands before it for the client; what leads to the program's root leads there
    tells_prefix: bool  # to the program; not where there is a secret in it
    dropped: frozenset[bytes]  # names of headers


Pass = Callable[[Scope, Receive, Send, PortWay], Awaitable[None]]


async def no_way(_scope: Scope, _receive: Receive, _send: Send, _way: PortWay) -> None:
    raise Unavailable("this server leads to no ports")


def passage(through: Pass, request: Request, port: int, taken: int) -> Passage:
    """`taken`: so many parts of the path are ours."""
    parts = request.raw_path.lstrip(b"/").split(b"/")
    query: bytes = request.scope.get("query_string", b"")
    way = PortWay(
        request.values["id"],
        port,
        b"/" + b"/".join(parts[taken:]) + (b"?" + query if query else b""),
        b"/" + b"/".join(parts[:taken]),
        "signature" not in request.values,
        _DROPPED,
    )

    async def run(scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await through(scope, receive, send, way)
        except SessionNotFound:
            raise
        except (NotFound, Unavailable) as error:
            raise Refused("BACKEND_CONNECTION_FAILED", str(error), status=502) from error
        except DeadlineExceeded as error:
            raise Refused("BACKEND_TIMEOUT", str(error), status=504) from error

    return Passage(run)
