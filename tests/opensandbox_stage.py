"""The gateway of OpenSandbox on loopback, and their own SDK on it. What tests take is imported as fixtures."""

import asyncio
import socket
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from importlib.metadata import version
from typing import Any, TypeVar

import pytest
import pytest_asyncio
from opensandbox import Sandbox, SandboxManager
from opensandbox.config import ConnectionConfig

from sandlot.contracts import Host
from sandlot.gateways.opensandbox import GatewaySettings, OpenSandboxGateway
from sandlot.host.admission import Queue
from sandlot.host.service import SandboxHostService
from sandlot.model import Scope, TenantLimits, limits
from sandlot.previews.proxy import Proxy
from sandlot.server.crowd import Bounds
from sandlot.server.http import HttpServer
from sandlot.tenants.host import TenantHost, as_host
from sandlot.tenants.room import Room
from sandlot.wiring.passing import passing

KEY = "key-of-the-test"
LOCKED = "1.1.1"
SECRET = b"secret-of-the-test"

T = TypeVar("T")


def tenant_of(host: Host, tenant: str) -> Host:
    return as_host(TenantHost(host, tenant, Scope.USE, Room(tenant, TenantLimits, Queue())))


@asynccontextmanager
async def serve(host: Host, api_key: str = KEY) -> AsyncGenerator[str]:
    """The gateway on loopback, behind our own server; gives its address."""
    gateway = OpenSandboxGateway(host, GatewaySettings(SECRET, api_key), passing(Proxy(host)))
    server = HttpServer(Bounds(limits.SERVER_CONNECTIONS_MAX, limits.HEADER_TIMEOUT_S, limits.KEEP_ALIVE_S))
    listening = socket.create_server(("127.0.0.1", 0))
    server.open(listening, gateway)
    try:
        yield f"127.0.0.1:{listening.getsockname()[1]}"
    finally:
        server.stop_listening()
        await server.drain(5)
        await server.drop()
        listening.close()


@pytest_asyncio.fixture
async def address(host: SandboxHostService) -> AsyncGenerator[str]:
    async with serve(host) as where:
        yield where


@pytest.fixture
def connection(address: str) -> ConnectionConfig:
    return ConnectionConfig(domain=address, api_key=KEY, protocol="http")


@pytest_asyncio.fixture(autouse=True)
async def opened() -> AsyncGenerator[list[Any]]:
    """Whatever of the SDK was opened is closed: it would complain in a later test."""
    _opened.clear()
    yield _opened
    for close in closed_later:
        await close()
    closed_later.clear()
    for one in _opened:
        await one.close()
    _opened.clear()


_opened: list[Any] = []
closed_later: list[Callable[[], Awaitable[object]]] = []  # before these


async def keep(making: Awaitable[T]) -> T:
    made = await making
    _opened.append(made)
    return made


def needs(one: object, name: str) -> None:
    """What is tried was not in every release of their SDK; in the one that is locked everything is."""
    if not hasattr(one, name) and version("opensandbox") != LOCKED:
        pytest.skip(f"opensandbox {version('opensandbox')} has no {name}")


async def create(connection: ConnectionConfig, **asked: Any) -> Sandbox:
    return await keep(Sandbox.create("python:3.12", connection_config=connection, **asked))


async def manage(connection: ConnectionConfig) -> SandboxManager:
    return await keep(SandboxManager.create(connection_config=connection))


async def until(condition: Callable[[], Awaitable[bool]], within_s: float = 60) -> None:
    deadline = time.monotonic() + within_s
    while not await condition():
        assert time.monotonic() < deadline, "it did not come"
        await asyncio.sleep(0.02)
