"""Sandboxes of an OpenSandbox server, as an environment stands on them: `sandlot.environments.derived` makes one of it.

The server chooses ids; ours stands among the metadata, and a sandbox is found by it.
"""

import hashlib
import re
import time
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Mapping
from contextlib import aclosing, asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Final

from sandlot.contracts import Heard, VendorCommand, VendorTraits
from sandlot.model import (
    CapabilityNotSupported,
    Conflict,
    EnvironmentState,
    InvalidArgument,
    NotFound,
    Resources,
    SandlotError,
    SessionExists,
    SessionNotFound,
    SessionPaused,
    SessionSpec,
    Stream,
    TemplateNotFound,
    Unavailable,
)
from sandlot.model.template import BUILTIN
from sandlot.opensandbox.async_client import AsyncOpenSandboxClient
from sandlot.opensandbox.values import (
    TIMEOUT_S_MAX,
    TIMEOUT_S_MIN,
    Endpoint,
    FileUpload,
    SandboxOpts,
    SandboxResponse,
)

SESSION_KEY: Final = "sandlot-session"
ENDPOINT_S: Final = 600.0  # an endpoint is asked for anew after this time
READY_S: Final = 60.0
_KILLED: Final = 137
_VALUE: Final = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?", re.ASCII)
_ENDED: Final = frozenset(["Terminated", "Stopping"])
_STATES: Final[Mapping[str, EnvironmentState]] = {
    "Pending": EnvironmentState.CREATING,
    "Paused": EnvironmentState.PAUSED,
    "Pausing": EnvironmentState.PAUSED,
    "Failed": EnvironmentState.FAILED,
}


@dataclass(frozen=True, slots=True)
class VendorOptions:
    """What sandboxes of a server are made of, where a request says nothing."""

    image: str = "sandlot"
    workspace: str = "/srv/workspace"  # made where it is not there
    resources: Mapping[str, str] = field(default_factory=lambda: {"cpu": "1", "memory": "2Gi"})
    sessions_max: int = 0  # that the server holds us to; 0: not known


@dataclass(slots=True)
class _Known:
    sandbox_id: str
    execd: Endpoint | None = None
    until: float = 0.0


class OpenSandboxVendor:
    """Given a client, which stays its owner's."""

    def __init__(self, client: AsyncOpenSandboxClient, options: VendorOptions | None = None) -> None:
        self._client = client
        self._options = options or VendorOptions()
        self._known: dict[str, _Known] = {}
        self.traits = VendorTraits(
            "OpenSandbox",
            self._options.workspace,
            holds=frozenset({"labels", "envs", "template", "resources"}),
            sessions_max=self._options.sessions_max,
            session_duration_s_max=float(TIMEOUT_S_MAX),
        )

    # ---- the life of sandboxes -----------------------------------------------------------------------------------

    async def create(self, spec: SessionSpec) -> None:
        session_id = str(spec.session_id)
        if await self._of(session_id):
            raise SessionExists(f"there is a session {session_id}", next_step="attach to it", session_id=session_id)
        made = await create_sandbox(
            self._client,
            self._options,
            template=None if spec.template == BUILTIN else spec.template,
            metadata={**spec.labels, SESSION_KEY: label_of(session_id)},
            resources=spec.resources,
            envs=spec.envs,
            timeout_s=spec.timeout_s,
        )
        first = (await self._of(session_id))[:1]
        if first and first[0].sandbox_id != made.sandbox_id:  # somebody else was quicker
            await self._client.delete_sandbox(made.sandbox_id)
            raise SessionExists(f"there is a session {session_id}", next_step="attach to it", session_id=session_id)
        self._known[session_id] = _Known(made.sandbox_id)

    async def state(self, session_id: str) -> EnvironmentState:
        known = await self._find(session_id)
        try:
            found = await self._client.get_sandbox(known.sandbox_id)
        except NotFound as error:
            raise self._gone(session_id) from error
        if found.state in _ENDED:
            raise self._gone(session_id)
        return _STATES.get(found.state, EnvironmentState.ACTIVE)

    async def destroy(self, session_id: str) -> None:
        known = await self._find(session_id)
        try:
            await self._client.delete_sandbox(known.sandbox_id)
        except NotFound as error:
            raise self._gone(session_id) from error
        self._known.pop(session_id, None)

    async def pause(self, session_id: str) -> None:
        known = await self._find(session_id)
        with suppress(Conflict):  # it is already, or says below that it is something else
            await self._client.pause_sandbox(known.sandbox_id)
        await self._expect(session_id, EnvironmentState.PAUSED)

    async def resume(self, session_id: str) -> None:
        known = await self._find(session_id)
        with suppress(Conflict):
            await self._client.resume_sandbox(known.sandbox_id)
        known.execd = None
        await self._expect(session_id, EnvironmentState.ACTIVE)

    async def _expect(self, session_id: str, wanted: EnvironmentState) -> None:
        if (state := await self.state(session_id)) is not wanted:
            raise Conflict(f"session {session_id} is {state}", session_id=session_id)

    async def _of(self, session_id: str) -> list[SandboxResponse]:
        """Those that carry its id: the one that was made first is it."""
        return first_made(await self._client.list_sandboxes({SESSION_KEY: label_of(session_id)}))

    async def _find(self, session_id: str) -> _Known:
        if (known := self._known.get(session_id)) is None:
            found = await self._of(session_id)
            if not found:
                raise self._gone(session_id)
            known = self._known[session_id] = _Known(found[0].sandbox_id)
        return known

    def _gone(self, session_id: str) -> SessionNotFound:
        self._known.pop(session_id, None)
        return SessionNotFound(f"there is no session {session_id}", session_id=session_id)

    # ---- what can be done in one ---------------------------------------------------------------------------------

    async def execute(self, session_id: str, command: VendorCommand, heard: Heard) -> int:
        async with self._in(session_id) as execd:
            stream = self._client.stream_command(
                execd, command.argv, cwd=command.cwd, envs=command.envs, timeout_s=command.timeout_s
            )
            async with aclosing(stream) as events:
                async for event in events:
                    if event.kind in ("stdout", "stderr"):
                        await heard(Stream(event.kind), event.data)
                    elif event.is_end:
                        return _KILLED if event.exit_code in (None, -1) else event.exit_code
        raise Unavailable("the stream ended before the command did", next_step="look at what it was to change")

    async def upload(self, session_id: str, path: str, content: AsyncIterable[bytes]) -> None:
        async with self._in(session_id) as execd:
            await self._client.upload_files(execd, [FileUpload(path, content, mode=0)])

    @asynccontextmanager
    async def download(self, session_id: str, path: str) -> AsyncGenerator[AsyncIterator[bytes]]:
        async with self._in(session_id) as execd, self._client.download_file(execd, path) as pieces:
            yield pieces

    @asynccontextmanager
    async def _in(self, session_id: str) -> AsyncGenerator[Endpoint]:
        known = await self._find(session_id)
        try:
            if known.execd is None or time.monotonic() >= known.until:
                known.execd = await self._client.discover_execd(known.sandbox_id)
                known.until = time.monotonic() + ENDPOINT_S
            yield known.execd
        except (SessionNotFound, Conflict, Unavailable):
            known.execd = None
            state = await self.state(session_id)  # raises when it is gone, which is the better reason
            if state is EnvironmentState.PAUSED:
                raise SessionPaused(f"session {session_id} is paused", next_step="resume it") from None
            raise


async def create_sandbox(
    client: AsyncOpenSandboxClient,
    options: VendorOptions,
    *,
    template: str | None,
    metadata: Mapping[str, str],
    resources: Resources,
    envs: Mapping[str, str] | None = None,
    timeout_s: float = float(TIMEOUT_S_MAX),
) -> SandboxResponse:
    """One that takes commands when this returns; or none is left. A life that is shorter than a server takes is cut
    afterwards."""
    opts = SandboxOpts(
        image="" if template else options.image,
        template_id=template or "",
        envs=envs or {},
        metadata=metadata,
        timeout_s=max(TIMEOUT_S_MIN, min(TIMEOUT_S_MAX, round(timeout_s))),
        resource_limits={**options.resources, **limits_of(resources)},
    )
    try:
        made = await client.create_sandbox(opts)
    except SessionNotFound:
        raise
    except NotFound as error:
        raise TemplateNotFound(f"there is no template {template}", next_step="see what the server has") from error
    try:
        await client.wait_ready(made.sandbox_id, READY_S)
        await client.ping(await client.discover_execd(made.sandbox_id))
        if timeout_s < TIMEOUT_S_MIN:
            await _shorten(client, made.sandbox_id, timeout_s)
    except BaseException:  # whatever it was: what cannot be used does not stay
        with suppress(SandlotError):
            await client.delete_sandbox(made.sandbox_id)
        raise
    return made


async def _shorten(client: AsyncOpenSandboxClient, sandbox_id: str, timeout_s: float) -> None:
    try:
        await client.renew_sandbox(sandbox_id, timeout_s)
    except InvalidArgument as error:
        raise CapabilityNotSupported(
            f"this server cannot hold a life of {timeout_s:g} s", next_step=f"ask for {TIMEOUT_S_MIN} s or more"
        ) from error


def limits_of(resources: Resources) -> dict[str, str]:
    """As quantities. Raises CapabilityNotSupported for what has no name there."""
    told: dict[str, str] = {}
    for name in resources.asked():
        value = getattr(resources, name)
        if name == "cpus":
            told["cpu"] = f"{round(value * 1000)}m"
        elif name in ("memory_bytes", "disk_bytes"):
            told["memory" if name == "memory_bytes" else "ephemeral-storage"] = str(value)
        else:
            raise CapabilityNotSupported(f"OpenSandbox has no limit of {name}", next_step="leave it out")
    return told


def label_of(name: str) -> str:
    """An id as the value of metadata: what does not fit is told by its hash."""
    return name if _VALUE.fullmatch(name) else "h-" + hashlib.sha256(name.encode()).hexdigest()[:48]


def first_made(found: list[SandboxResponse]) -> list[SandboxResponse]:
    """Those that live, in an order that everybody sees alike."""
    living = [one for one in found if one.state not in _ENDED]
    return sorted(living, key=lambda one: (one.created or 0.0, one.sandbox_id))
