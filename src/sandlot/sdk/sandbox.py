"""A sandbox: the handle on one session."""

from collections.abc import Mapping, Sequence
from typing import Self

from sandlot.model import (
    AUTO,
    BUILTIN,
    NetworkPolicy,
    Resources,
    SessionFilter,
    SessionInfo,
    SessionNotFound,
    SessionSpec,
    SessionState,
    check_session_id,
    limits,
)
from sandlot.sdk.client import Client, default_client, in_portal
from sandlot.sdk.commands import AsyncCommands
from sandlot.sdk.files import AsyncFiles


class AsyncSandbox:
    """A private computer. `create` makes one, `connect` finds one; leaving the block kills it, unless it was made with
    `detach=True` or found by `connect`.

    Making the object itself does nothing: it only says which sandbox is meant.
    """

    def __init__(self, id: str, *, detach: bool = True, client: Client | None = None) -> None:
        self._id = check_session_id(id)
        self._detach = detach
        self._client = client or default_client()
        self._commands = AsyncCommands(self._client, id)
        self._files = AsyncFiles(self._client, id)

    @property
    def id(self) -> str:
        return self._id

    @property
    def client(self) -> Client:
        return self._client

    @property
    def commands(self) -> AsyncCommands:
        return self._commands

    @property
    def files(self) -> AsyncFiles:
        return self._files

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._id!r})"

    @classmethod
    async def create(
        cls,
        template: str = BUILTIN,
        *,
        id: str | None = None,
        labels: Mapping[str, str] | None = None,
        envs: Mapping[str, str] | None = None,
        user: str | None = None,
        cpus: float | None = None,
        memory_bytes: int | None = None,
        disk_bytes: int | None = None,
        pids: int | None = None,
        timeout: float = limits.SESSION_LIFETIME_S,
        runtime: str = AUTO,
        storage: str = AUTO,
        network: NetworkPolicy | None = None,
        secrets: Mapping[str, str] | None = None,
        ports: Sequence[int] = (),
        snapshot: str | None = None,
        request_id: str | None = None,
        detach: bool = False,
        client: Client | None = None,
    ) -> Self:
        """A new sandbox. When this returns it is durable and takes commands.

        `timeout` is how long it lives, in seconds. What was asked for and cannot be had raises CapabilityNotSupported,
        and then nothing was made. A `request_id` that is given twice makes one sandbox. Also raises InvalidArgument,
        SessionExists, MaxSessionsReached, TemplateNotFound, Unavailable, and DataDirectoryHeld while another program
        has the data directory.
        """
        client = client or default_client()
        spec = SessionSpec(
            session_id=id,
            template=template,
            snapshot=snapshot,
            storage=storage,
            runtime=runtime,
            labels=labels or {},
            envs=envs or {},
            user=user,
            resources=Resources(cpus, memory_bytes, disk_bytes, pids),
            timeout_s=timeout,
            network=network or NetworkPolicy(),
            secrets=secrets or {},
            ports=tuple(ports),
            request_id=request_id,
        )

        made: list[SessionInfo] = []

        async def make() -> None:
            made.append(await (await client.host()).create(spec))

        try:
            await client.run(make())
        except BaseException:  # cancelled when it was just there; then raised again
            if made and request_id is None:  # nobody would know of it
                await cls(made[0].session_id, client=client).kill()
            raise
        return cls(made[0].session_id, detach=detach, client=client)

    @classmethod
    async def connect(cls, id: str, *, client: Client | None = None) -> Self:
        """A sandbox that is there already. Raises InvalidArgument, SessionNotFound."""
        sandbox = cls(id, client=client)
        await sandbox.info()
        return sandbox

    @classmethod
    async def list(
        cls,
        *,
        labels: Mapping[str, str] | None = None,
        states: Sequence[SessionState] = (),
        client: Client | None = None,
    ) -> list[SessionInfo]:
        """All sandboxes, oldest first: those with all of these labels and one of these states."""
        client = client or default_client()

        async def collect() -> list[SessionInfo]:
            host = await client.host()
            found: list[SessionInfo] = []
            query = SessionFilter(labels or {}, frozenset(states), limits.LIST_PAGE_MAX)
            while True:
                page = await host.list(query)
                found += page.sessions
                if page.next is None:
                    return found
                query = SessionFilter(query.labels, query.states, query.limit, page.next)

        return await client.run(collect())

    @in_portal
    async def info(self) -> SessionInfo:
        """All that can be told of it, the space that it takes included. Raises SessionNotFound."""
        return await (await self._client.host()).get(self._id)

    @in_portal
    async def kill(self) -> bool:
        """End everything in it and remove it. False when it was gone already."""
        try:
            await (await self._client.host()).destroy(self._id)
        except SessionNotFound:
            return False
        return True

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_exception: object) -> None:
        # A fork that leaves the block does not take the sandbox from its parent.
        if not self._detach and not self._client.is_inherited:
            await self.kill()
