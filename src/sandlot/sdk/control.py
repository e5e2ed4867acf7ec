"""Many sandboxes by their ids, as an orchestrator has them."""

from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from sandlot import registry
from sandlot.contracts import SandboxControl
from sandlot.model import (
    CreateSandboxRequest,
    CreateSandboxResponse,
    GetProcessStatusRequest,
    GetProcessStatusResponse,
    KillProcessRequest,
    LaunchProcessRequest,
    LaunchProcessResponse,
    SandboxCapabilities,
)
from sandlot.sdk.client import Client, default_client

_T = TypeVar("_T")


class AsyncControl:
    """Makes sandboxes, launches programs in them, and ends them; it remembers none of them. Whatever keeps the contract
    `SandboxControl` can take its place: the sandboxes of a fleet, or of a vendor.

    A sandbox has the id of `Sandbox`, and can be used as one too: `Sandbox.connect(sandbox_id)`.
    """

    def __init__(self, *, client: Client | None = None) -> None:
        self._client = client or default_client()

    @property
    def client(self) -> Client:
        return self._client

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"

    async def _ask(self, question: Callable[[SandboxControl], Coroutine[Any, Any, _T]]) -> _T:
        """Where the host lives. Not by decoration: what is decorated is no verb of the contract any more."""

        async def ask() -> _T:
            node: SandboxControl = registry.load("control", "node")(await self._client.host())
            return await question(node)

        return await self._client.run(ask())

    async def create_sandbox(self, request: CreateSandboxRequest) -> CreateSandboxResponse:
        """When this returns it takes everything else. A request id that came before gives the sandbox that was made for
        it, as long as it is there.

        Raises TemplateNotFound, MaxSessionsReached, LimitReached, CapabilityNotSupported for a limit that would not
        hold, HostUnhealthy. Then there is none, and nothing is left of one.
        """
        return await self._ask(lambda node: node.create_sandbox(request))

    async def destroy_sandbox(self, sandbox_id: str) -> None:
        """End everything in it and give back all that it had. Again does nothing."""
        await self._ask(lambda node: node.destroy_sandbox(sandbox_id))

    async def launch_process(self, request: LaunchProcessRequest) -> LaunchProcessResponse:
        """Begin a program; when this returns it runs, and it outlives this one. With an exposed port it is `starting`
        until it listens there.

        Raises SessionNotFound, StartFailed when the program cannot be started, SessionPaused, Conflict when the id or
        the port is somebody else's, CapabilityNotSupported, LimitReached.
        """
        return await self._ask(lambda node: node.launch_process(request))

    async def kill_process(self, request: KillProcessRequest) -> None:
        """Without a signal it has ended when this returns. Raises SessionNotFound, ProcessNotFound, SessionPaused."""
        await self._ask(lambda node: node.kill_process(request))

    async def get_process_status(self, request: GetProcessStatusRequest) -> GetProcessStatusResponse:
        """As it is now, whoever launched it. Raises SessionNotFound, ProcessNotFound."""
        return await self._ask(lambda node: node.get_process_status(request))

    async def pause_sandbox(self, sandbox_id: str) -> None:
        """Nothing is launched in it from now on, and what runs stands still. Again does nothing. Raises
        SessionNotFound, CapabilityNotSupported."""
        await self._ask(lambda node: node.pause_sandbox(sandbox_id))

    async def resume_sandbox(self, sandbox_id: str) -> None:
        """Again does nothing. Raises SessionNotFound, InvalidState when its time is up."""
        await self._ask(lambda node: node.resume_sandbox(sandbox_id))

    async def capabilities(self) -> SandboxCapabilities:
        """What a sandbox without wishes can do here."""
        return await self._ask(lambda node: node.capabilities())
