"""OpenSandbox's client on our gateway, for `sandlot conform`."""

import secrets
import socket
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from functools import partial

from sandlot.conformance import Target
from sandlot.contracts import Host
from sandlot.environments.derived import DerivedProvider
from sandlot.gateways.opensandbox import GatewaySettings, OpenSandboxGateway
from sandlot.model import limits
from sandlot.opensandbox import AsyncOpenSandboxClient, OpenSandboxControl, OpenSandboxVendor
from sandlot.previews.proxy import Proxy
from sandlot.server.crowd import Bounds
from sandlot.server.http import HttpServer
from sandlot.wiring.passing import passing

_DRAIN_S = 5.0


@asynccontextmanager
async def opensandbox(host: Host) -> AsyncGenerator[Target]:
    async with _client(host) as client:
        vendor = OpenSandboxVendor(client)
        yield Target(DerivedProvider(vendor, vendor, pause=vendor).environment)


@asynccontextmanager
async def opensandbox_control(host: Host) -> AsyncGenerator[Target]:
    async with _client(host) as client:
        yield Target(partial(OpenSandboxControl, client))


@asynccontextmanager
async def _client(host: Host) -> AsyncGenerator[AsyncOpenSandboxClient]:
    """Of a server on the loopback, which nobody else has the key of."""
    key = secrets.token_hex(16)
    gateway = OpenSandboxGateway(host, GatewaySettings(secrets.token_bytes(32), key), passing(Proxy(host)))
    server = HttpServer(Bounds(limits.SERVER_CONNECTIONS_MAX, limits.HEADER_TIMEOUT_S, limits.KEEP_ALIVE_S))
    listening = socket.create_server(("127.0.0.1", 0))
    server.open(listening, gateway)
    try:
        async with AsyncOpenSandboxClient(f"http://127.0.0.1:{listening.getsockname()[1]}/v1", key) as client:
            yield client
    finally:
        server.stop_listening()
        await server.drain(_DRAIN_S)
        await server.drop()
        listening.close()
