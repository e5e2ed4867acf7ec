"""The server: a host as an ASGI application. Which program serves it, and where it listens, is for others to say."""

import json

from sandlot.contracts import Host
from sandlot.rpc.asgi import Application, Receive, Scope, Send


def application(host: Host) -> Application:
    """The procedures of the wire on this host. What is none of them is answered 404, as Connect does."""
    del host  # no procedure is served yet

    async def serve(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await _live(receive, send)
            return
        if scope["type"] != "http":
            return
        body = json.dumps({"code": "unimplemented", "message": "no such procedure"}).encode()
        headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
        await send({"type": "http.response.start", "status": 404, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    return serve


async def _live(receive: Receive, send: Send) -> None:
    """The host is opened and closed by whoever made it."""
    while True:
        message = await receive()
        await send({"type": f"{message['type']}.complete"})
        if message["type"] == "lifespan.shutdown":
            return
