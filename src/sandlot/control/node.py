"""Sandboxes on one host: of the engine in this process, of a server. It is given the host."""

import asyncio
import secrets
from collections.abc import Coroutine
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, TypeVar

from sandlot.contracts import Host
from sandlot.model import (
    AUTO,
    BUILTIN,
    Capability,
    CapabilityNotSupported,
    CreateSandboxRequest,
    CreateSandboxResponse,
    DeadlineExceeded,
    GetProcessStatusRequest,
    GetProcessStatusResponse,
    InvalidState,
    KillProcessRequest,
    LaunchProcessRequest,
    LaunchProcessResponse,
    LimitReached,
    PauseRequest,
    ProcessSpec,
    Ready,
    ReadyKind,
    Resources,
    SandboxCapabilities,
    SandlotError,
    SessionInfo,
    SessionNotFound,
    SessionSpec,
    Unavailable,
    check_address,
    limits,
    new_session_id,
)

_T = TypeVar("_T")
_LOST = (asyncio.CancelledError, Unavailable, DeadlineExceeded)  # what was begun may have been done all the same


@dataclass(frozen=True, slots=True)
class NodeConfig:
    """What sandboxes of this node are, where a request says nothing."""

    address: str = ""  # host:port of the server that is given as host; empty for an engine in this process
    storage: str = AUTO  # insisted on: a sandbox of another kind is refused, and none is left behind
    runtime: str = AUTO
    resources: Resources = field(default_factory=Resources)
    timeout_s: float = limits.SESSION_LIFETIME_S
    timeout_s_max: float = limits.SESSION_LIFETIME_S_MAX

    def __post_init__(self) -> None:
        check_address(self.address)
        limits.within("timeout_s_max", self.timeout_s_max, 0.001, limits.SESSION_LIFETIME_S_MAX)
        limits.within("timeout_s", self.timeout_s, 0.001, self.timeout_s_max)


class NodeSandboxControl:
    """A sandbox is a session, and has its id. The host keeps everything, so any number of these can be used at once,
    also one after another by programs that end."""

    def __init__(self, host: Host, config: NodeConfig | None = None) -> None:
        self._host = host
        self._config = config or NodeConfig()
        self._kind: frozenset[Capability] | None = None  # what a sandbox of the kind insisted on can do

    # ---- sandboxes ---------------------------------------------------------------------------------------------

    async def create_sandbox(self, request: CreateSandboxRequest) -> CreateSandboxResponse:
        config = self._config
        timeout_s = config.timeout_s if request.timeout_s is None else request.timeout_s
        if timeout_s > config.timeout_s_max:
            raise LimitReached(
                f"a sandbox lives for at most {config.timeout_s_max:g} s here, not {timeout_s:g}",
                next_step="ask for less time",
                limit="timeout_s_max",
            )
        own_id = None if request.request_id else new_session_id()
        wanted = request.resources.over(config.resources)
        spec = SessionSpec(
            session_id=own_id,
            template=request.template or BUILTIN,
            storage=config.storage,
            runtime=config.runtime,
            labels=dict(request.labels),
            resources=wanted,
            timeout_s=timeout_s,
            request_id=request.request_id,
        )
        try:
            info = await self._host.create(spec)
        except _LOST:
            # With a request id the caller can ask what became of it; without one nobody else will ever know of it.
            if own_id:
                await _bounded(self._host.destroy(own_id))
            raise
        wrong = self._misfit(info, request.resources)
        if wrong is not None:
            await _bounded(self._host.destroy(info.session_id))
            raise wrong
        self._kind = await self._have(info)
        return CreateSandboxResponse(info.session_id, config.address, await self._told(self._kind))

    async def destroy_sandbox(self, sandbox_id: str) -> None:
        with suppress(SessionNotFound):  # whoever destroyed it, it is gone
            await self._host.destroy(sandbox_id)

    async def pause_sandbox(self, sandbox_id: str) -> None:
        await self._host.pause(PauseRequest(sandbox_id))

    async def resume_sandbox(self, sandbox_id: str) -> None:
        await self._host.resume(sandbox_id)

    # ---- processes ---------------------------------------------------------------------------------------------

    async def launch_process(self, request: LaunchProcessRequest) -> LaunchProcessResponse:
        own_id = None if request.process_id else "p-" + secrets.token_hex(8)
        port = request.expose_port
        spec = ProcessSpec(
            session_id=request.sandbox_id,
            argv=(request.binary, *request.args),
            envs=dict(request.envs),
            cwd=request.cwd,
            port=port,
            ready=Ready() if port is None else Ready(ReadyKind.PORT, port),
            ready_timeout_s=limits.READY_TIMEOUT_S_MAX,
            process_id=own_id or request.process_id,
        )
        try:
            process = await self._host.launch_process(spec)
        except _LOST:
            if own_id:
                await _bounded(self._host.kill_process(request.sandbox_id, own_id))
            raise
        return LaunchProcessResponse(process.process_id, process.address, process.state)

    async def kill_process(self, request: KillProcessRequest) -> None:
        await self._host.kill_process(request.sandbox_id, request.process_id, request.signal)

    async def get_process_status(self, request: GetProcessStatusRequest) -> GetProcessStatusResponse:
        process = await _soon(
            self._host.process_status(request.sandbox_id, request.process_id), f"process {request.process_id}"
        )
        return GetProcessStatusResponse(process.state, process.exit_code, process.reason)

    # ---- what it can do ----------------------------------------------------------------------------------------

    async def capabilities(self) -> SandboxCapabilities:
        if (self._config.storage, self._config.runtime) == (AUTO, AUTO):
            return await self._told(await _soon(self._host.capabilities(), "its capabilities"))
        if self._kind is None:
            raise InvalidState(
                "what a sandbox of a chosen kind can do is known when one was made",
                next_step="make one: the answer tells it",
            )
        return await self._told(self._kind)

    async def _have(self, info: SessionInfo) -> frozenset[Capability]:
        """A host that tells nothing of a session is asked for what it has in general."""
        return frozenset(info.capabilities) or await self._host.capabilities()

    async def _told(self, have: frozenset[Capability]) -> SandboxCapabilities:
        health = await _soon(self._host.health(), "its health")
        return SandboxCapabilities(
            snapshots=Capability.SNAPSHOTS in have,
            rollback=Capability.SNAPSHOTS in have,
            pause=Capability.PAUSE in have,
            pause_keeps_processes=Capability.PAUSE in have,
            launch_process=True,  # every host has processes
            expose_port=Capability.PORTS in have,
            deep_pause=False,  # no host puts files away elsewhere
            concurrent_sandboxes=health.sessions_max,
            sandbox_duration_s_max=self._config.timeout_s_max,
        )

    def _misfit(self, info: SessionInfo, wanted: Resources) -> CapabilityNotSupported | None:
        """What is wrong with a session that a host has made otherwise than it was asked to."""
        for axis, asked, found in (
            ("storage", self._config.storage, info.storage),
            ("runtime", self._config.runtime, info.runtime),
        ):
            if asked not in (AUTO, found):
                return CapabilityNotSupported(
                    f"the host made a sandbox with the {axis} {found}, and this node insists on {asked}",
                    next_step=f"use a host that has {asked}, or another config",
                    capability=asked,
                )
        for name in wanted.asked():
            if getattr(info.resources, name) != getattr(wanted, name):
                return CapabilityNotSupported(
                    f"the host made a sandbox that is not held to the {name} asked for",
                    next_step="leave it out, or use a host that can hold it",
                    capability=f"limit_{name}",
                )
        return None


async def _soon(answer: Coroutine[Any, Any, _T], what: str) -> _T:
    """Questions that need no work have an answer soon, or none."""
    try:
        async with asyncio.timeout(limits.STATE_DEADLINE_S):
            return await answer
    except DeadlineExceeded:
        raise
    except TimeoutError as error:
        raise DeadlineExceeded(
            f"the host did not tell {what} within {limits.STATE_DEADLINE_S:g} s",
            next_step="ask again, or look how the host is",
        ) from error


async def _bounded(work: Coroutine[Any, Any, object]) -> None:
    """To its end also while the caller is cancelled, and never for long."""
    doing = asyncio.ensure_future(work)
    doing.add_done_callback(lambda task: task.cancelled() or task.exception())  # nobody may wait any more
    with suppress(SandlotError, TimeoutError):
        async with asyncio.timeout(limits.DESTROY_DEADLINE_S):
            await asyncio.shield(doing)
