"""A session of a host: of the engine in this process, of a server, of a fleet. It is given the host."""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from sandlot.contracts import Host, OnProgress
from sandlot.environments.binding import Binding
from sandlot.environments.progress import tell
from sandlot.model import (
    AUTO,
    Capability,
    CapabilityNotSupported,
    DeadlineExceeded,
    EnvironmentCapabilities,
    EnvironmentState,
    InvalidArgument,
    InvalidState,
    PauseRequest,
    RollbackRequest,
    SandlotError,
    SessionInfo,
    SessionNotFound,
    SessionSpec,
    Snapshot,
    SnapshotRequest,
    Tool,
    ToolRequest,
    ToolResult,
    ToolTier,
    Unavailable,
    limits,
    new_session_id,
)


@dataclass(frozen=True, slots=True)
class NativeSandboxConfig:
    """What the environment insists on. A session of another kind is refused, and none is left behind."""

    storage: str = AUTO
    runtime: str = AUTO

    @classmethod
    def default_config(cls) -> "NativeSandboxConfig":
        """Whatever the host chooses."""
        return cls()


class NativeSandboxEnvironment:
    """The host keeps everything but the id of the session and the fact that it was destroyed, so nothing needs a lock:
    calls go to the host as they come."""

    def __init__(self, host: Host, config: NativeSandboxConfig | None = None) -> None:
        self._host = host
        self._config = config or NativeSandboxConfig.default_config()
        self._binding = Binding()

    @property
    def session_id(self) -> str | None:
        return self._binding.session_id

    # ---- the session -------------------------------------------------------------------------------------------

    async def create(self, spec: SessionSpec) -> str:
        storage = _agreed("storage", spec.storage, self._config.storage)
        runtime = _agreed("runtime", spec.runtime, self._config.runtime)
        own_id = None if spec.session_id else new_session_id()
        asked = replace(spec, storage=storage, runtime=runtime, session_id=own_id or spec.session_id)
        async with self._binding.begin():
            try:
                info = await self._host.create(asked)
            except (asyncio.CancelledError, Unavailable, DeadlineExceeded):
                # It may be there all the same. An id that was made here is nobody else's.
                if own_id:
                    await self._remove(own_id)
                raise
            wrong = self._misfit(info)
            if wrong is not None:
                await self._remove(info.session_id)
                raise wrong
            self._binding.session_id = info.session_id
        return info.session_id

    async def attach_session(self, session_id: str) -> None:
        async with self._binding.begin():
            info = await self._host.get(session_id)
            wrong = self._misfit(info)
            if wrong is not None:
                raise wrong
            self._binding.session_id = info.session_id

    async def pause(self) -> None:
        await self._host.pause(PauseRequest(self._binding.need()))

    async def resume(self) -> None:
        await self._host.resume(self._binding.need())

    async def destroy(self) -> None:
        if self._binding.session_id is None or self._binding.is_destroyed:
            return
        with suppress(SessionNotFound):  # whoever destroyed it, it is gone
            await self._host.destroy(self._binding.session_id)
        self._binding.is_destroyed = True

    async def state(self) -> EnvironmentState:
        if self._binding.is_destroyed:
            return EnvironmentState.DESTROYED
        if self._binding.session_id is None:
            return EnvironmentState.CREATING
        try:
            return EnvironmentState.of((await self._info(self._binding.session_id)).state)
        except SessionNotFound:
            return EnvironmentState.DESTROYED

    # ---- what it can do ----------------------------------------------------------------------------------------

    async def capabilities(self) -> EnvironmentCapabilities:
        """Of the session that there is, on what it stands; before that, of one that leaves the choice to the host."""
        if self._binding.session_id is None:
            if self._config != NativeSandboxConfig():
                raise InvalidState(
                    "what a session of a chosen kind can do is known when it is made",
                    next_step="create it first, or attach to one",
                )
            return await self._told(await self._host.capabilities())
        return await self._told(await self._have(self._binding.need()))

    async def _have(self, session_id: str) -> frozenset[Capability]:
        """A host that tells nothing of a session is asked for what it has in general."""
        info = await self._info(session_id)
        return frozenset(info.capabilities) or await self._host.capabilities()

    async def _told(self, have: frozenset[Capability]) -> EnvironmentCapabilities:
        tiers = {tool.tier for tool in await self._host.tools()}
        return EnvironmentCapabilities(
            snapshots=Capability.SNAPSHOTS in have,
            rollback=Capability.SNAPSHOTS in have,
            pause=Capability.PAUSE in have,
            tier_routing=Capability.ISOLATION in have and tiers == set(ToolTier),
            streaming_progress=ToolTier.CONTAINED in tiers,
            max_session_duration_s=limits.SESSION_LIFETIME_S_MAX,
            concurrent_sessions=(await self._host.health()).sessions_max,
        )

    # ---- tools and snapshots -----------------------------------------------------------------------------------

    async def tools(self) -> Sequence[Tool]:
        return await self._host.tools()

    async def execute_tool(self, request: ToolRequest, on_progress: OnProgress | None = None) -> ToolResult:
        session_id = self._binding.need()
        if request.session_id != session_id:
            raise InvalidArgument(
                f"this environment is session {session_id}, and the request is for {request.session_id}",
                next_step="give it to the environment of that session",
            )
        async with self._host.execute_tool(request) as stream:
            if on_progress is None:
                return await stream.result()
            async for event in stream:
                if isinstance(event, ToolResult):
                    return event
                await tell(on_progress, event)
        raise Unavailable(
            f"the host ended the call of {request.tool} without a result",
            next_step="call it again with the same call id, or look what it did",
            session_id=session_id,
        )

    async def create_snapshot(self, name: str) -> Snapshot:
        return await self._host.create_snapshot(SnapshotRequest(self._binding.need(), name))

    async def rollback(self, snapshot: str) -> None:
        await self._host.rollback(RollbackRequest(self._binding.need(), snapshot))

    # ---- which session -----------------------------------------------------------------------------------------

    async def _info(self, session_id: str) -> SessionInfo:
        try:
            async with asyncio.timeout(limits.STATE_DEADLINE_S):
                return await self._host.get(session_id)
        except DeadlineExceeded:
            raise
        except TimeoutError as error:
            raise DeadlineExceeded(
                f"the host did not tell of session {session_id} within {limits.STATE_DEADLINE_S:g} s",
                next_step="ask again, or look how the host is",
                session_id=session_id,
            ) from error

    def _misfit(self, info: SessionInfo) -> CapabilityNotSupported | None:
        for axis, wanted, found in (
            ("storage", self._config.storage, info.storage),
            ("runtime", self._config.runtime, info.runtime),
        ):
            if wanted not in (AUTO, found):
                return CapabilityNotSupported(
                    f"session {info.session_id} has the {axis} {found}, and this environment insists on {wanted}",
                    next_step=f"use a host that has {wanted}, or another config",
                    capability=wanted,
                )
        return None

    async def _remove(self, session_id: str) -> None:
        """Also while it is cancelled, and never for long."""
        removing = asyncio.ensure_future(self._host.destroy(session_id))
        removing.add_done_callback(lambda task: task.cancelled() or task.exception())  # nobody may wait any more
        with suppress(SandlotError, TimeoutError):
            async with asyncio.timeout(limits.DESTROY_DEADLINE_S):
                await asyncio.shield(removing)


def _agreed(axis: str, asked: str, config: str) -> str:
    if asked != config and AUTO not in (asked, config):
        raise InvalidArgument(
            f"{axis} {asked!r} is asked for, and this environment insists on {config!r}",
            next_step=f"leave the {axis} out, or use an environment with another config",
        )
    return config if asked == AUTO else asked
