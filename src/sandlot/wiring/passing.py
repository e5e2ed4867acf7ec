"""Requests that a gateway was asked, on their way to a program in a session."""

from collections.abc import Iterable, Sequence

from sandlot.gateways.opensandbox.passage import Pass, PortWay
from sandlot.gateways.web import Receive, Scope, Send
from sandlot.previews.addresses import PreviewAddress
from sandlot.previews.heads import Header
from sandlot.previews.locations import led_back
from sandlot.previews.proxy import Forwarding, Proxy


def passing(proxy: Proxy) -> Pass:
    """On connections that the proxy holds, whoever else uses it."""

    async def forward(scope: Scope, receive: Receive, send: Send, way: PortWay) -> None:
        address = PreviewAddress(way.session_id, way.port)
        own = b"localhost:%d" % way.port  # programs refuse names that they do not know
        said = next((value for name, value in scope["headers"] if name == b"host"), own)
        told = Forwarding(address, way.target, own, way.prefix, dropped=way.dropped, said_host=said)
        if not way.tells_prefix:

            def back(headers: Sequence[Header]) -> Iterable[Header]:
                return led_back(headers, told)

            told_less = Forwarding(address, way.target, own, dropped=way.dropped, said_host=said, outward=back)
            await proxy.forward(scope, receive, send, told_less)
            return
        await proxy.forward(scope, receive, send, told)

    return forward
