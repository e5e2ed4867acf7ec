"""Ports of a sandbox: addresses that reach them, and connections to them."""

import builtins
from contextlib import AsyncExitStack
from typing import Self

from sandlot.contracts import PortStream
from sandlot.model import ExposedPort, ExposeRequest, limits
from sandlot.sdk.client import Client, in_portal
from sandlot.sdk.content import to_bytes


class AsyncPortConnection:
    """A connection to a program in a sandbox. Leaving the block closes it."""

    def __init__(self, client: Client, stack: AsyncExitStack, stream: PortStream) -> None:
        self.client = client
        self._stack = stack
        self._stream = stream

    @in_portal
    async def read(self, size: int = limits.PIECE_BYTES) -> bytes:
        """What has come, at most so many bytes; nothing when the program says no more. Raises Unavailable when the
        connection was broken off."""
        return await self._stream.read(size)

    @in_portal
    async def write(self, data: str | bytes) -> None:
        """Waits while the program does not read. Raises Unavailable when it takes no more."""
        await self._stream.write(to_bytes(data))

    @in_portal
    async def close_write(self) -> None:
        """Say that nothing more comes; what the program says can be read on."""
        await self._stream.close_write()

    @in_portal
    async def close(self) -> None:
        """End it. What has been closed is fine."""
        await self._stack.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_exception: object) -> None:
        await self.close()


class AsyncPorts:
    """`sandbox.ports`."""

    def __init__(self, client: Client, sandbox_id: str) -> None:
        self.client = client
        self._sandbox_id = sandbox_id

    @in_portal
    async def expose(self, port: int, *, host_port: int | None = None) -> ExposedPort:
        """An address on the host that reaches a port of the sandbox, whoever listens there, until `unexpose` or the end
        of the sandbox; nobody answers at it while no engine runs. One that is exposed already is told. Raises Conflict
        when `host_port` is taken, CapabilityNotSupported, LimitReached."""
        return await (await self.client.host()).expose_port(ExposeRequest(self._sandbox_id, port, host_port))

    @in_portal
    async def unexpose(self, port: int) -> None:
        """Connections through it end. Raises NotFound, Conflict for the port of a process that has not ended."""
        await (await self.client.host()).unexpose_port(self._sandbox_id, port)

    @in_portal
    async def list(self) -> builtins.list[ExposedPort]:
        """Those that are exposed, those of processes included."""
        return [*await (await self.client.host()).list_ports(self._sandbox_id)]

    @in_portal
    async def connect(self, port: int) -> AsyncPortConnection:
        """A connection to whoever listens there, with no address of the host. Raises NotFound when nobody does,
        SessionPaused, CapabilityNotSupported, LimitReached."""
        stack = AsyncExitStack()
        stream = await stack.enter_async_context((await self.client.host()).connect_port(self._sandbox_id, port))
        return AsyncPortConnection(self.client, stack, stream)
