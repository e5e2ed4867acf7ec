"""Managed processes of a sandbox: programs with a name that go on when nobody waits for them."""

import builtins
from collections.abc import AsyncGenerator, Mapping, Sequence

from sandlot.model import (
    InvalidArgument,
    InvalidState,
    Process,
    ProcessLogs,
    ProcessOutput,
    ProcessSpec,
    ProcessState,
    Ready,
    ReadyKind,
    Restart,
    address_to_url,
    limits,
)
from sandlot.sdk.client import Client, in_portal, iterate_in_portal
from sandlot.sdk.content import to_bytes


class AsyncManagedProcess:
    """One process. It goes on whether or not anyone holds this; `sandbox.processes.get` finds it."""

    def __init__(self, client: Client, sandbox_id: str, id: str) -> None:
        self.client = client
        self.sandbox_id = sandbox_id
        self.id = id

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.sandbox_id!r}, {self.id!r})"

    @in_portal
    async def info(self) -> Process:
        """All that can be told of it, also when it has ended."""
        return await (await self.client.host()).process_status(self.sandbox_id, self.id)

    @in_portal
    async def url(self, scheme: str = "http") -> str:
        """Where its port is reached from outside. Raises InvalidState when it has none, or has ended."""
        told = await (await self.client.host()).process_status(self.sandbox_id, self.id)
        if not told.address:
            raise InvalidState(f"process {self.id} has no address", next_step="launch it with `port`")
        return address_to_url(told.address, scheme)

    @iterate_in_portal
    async def logs(
        self, *, follow: bool = False, stdout_from: int | None = 0, stderr_from: int | None = 0
    ) -> AsyncGenerator[ProcessOutput]:
        """What it has printed, in the order in which it came; negative places count from the end, None leaves a stream
        out. With `follow` until it has ended for good. A piece tells in `lost` how many bytes before it are gone."""
        request = ProcessLogs(self.sandbox_id, self.id, stdout_from, stderr_from, follow)
        async with (await self.client.host()).process_logs(request) as logs:
            async for piece in logs:
                yield piece

    @in_portal
    async def ready(self, timeout: float | None = None) -> Process:
        """Wait until it is ready. Raises StartFailed when it ended before, DeadlineExceeded."""
        host = await self.client.host()
        return await host.wait_process(self.sandbox_id, self.id, until=ProcessState.RUNNING, timeout_s=timeout)

    @in_portal
    async def wait(self, timeout: float | None = None) -> Process:
        """How it ended, once it has for good. Raises DeadlineExceeded, Unavailable when its sandbox goes."""
        return await (await self.client.host()).wait_process(self.sandbox_id, self.id, timeout_s=timeout)

    @in_portal
    async def send_stdin(self, data: str | bytes) -> None:
        """Waits while it does not read. Raises InvalidState when it was launched without `stdin=True`."""
        await (await self.client.host()).write_process_stdin(self.sandbox_id, self.id, to_bytes(data))

    @in_portal
    async def close_stdin(self) -> None:
        """It reads the end of its input."""
        await (await self.client.host()).close_process_stdin(self.sandbox_id, self.id)

    @in_portal
    async def kill(self, signal: int | None = None) -> Process:
        """End it and all that descends from it: it has a moment to end by itself. A signal that is given is sent alone,
        and not waited for. One that has ended is told as it is."""
        return await (await self.client.host()).kill_process(self.sandbox_id, self.id, signal)


class AsyncProcesses:
    """`sandbox.processes`."""

    def __init__(self, client: Client, sandbox_id: str) -> None:
        self.client = client
        self._sandbox_id = sandbox_id

    @in_portal
    async def launch(
        self,
        cmd: str | Sequence[str],
        *,
        name: str | None = None,
        cwd: str | None = None,
        envs: Mapping[str, str] | None = None,
        user: str | None = None,
        port: int | None = None,
        ready: str | None = None,
        timeout: float = limits.READY_TIMEOUT_S,
        stdin: bool = False,
        restart: str = Restart.NONE,
        restarts: int = limits.RESTARTS,
        log_bytes: int = limits.PROCESS_LOG_BYTES,
        wait: bool = True,
        id: str | None = None,
    ) -> AsyncManagedProcess:
        """Begin a program with its arguments, or text for the shell, and wait until it is ready. `port`: where it
        listens inside; it is reached from outside at `url()`. `ready` says when it is: `running`, `port 8000`,
        `http 8000 /health` or `log "now serving"`; without it when its port is answered, or at once. With
        `restart="on-failure"` it is started again when it fails. An `id` that is given twice launches it once.

        Raises StartFailed when it cannot be started or is not ready in `timeout` seconds, Conflict when its name or its
        port is taken, CapabilityNotSupported, LimitReached, SessionPaused, InvalidArgument."""
        spec = ProcessSpec(
            self._sandbox_id,
            ("sh", "-c", cmd) if isinstance(cmd, str) else tuple(cmd),
            name,
            envs or {},
            cwd,
            user,
            port,
            _ready(ready, port),
            timeout,
            stdin,
            _restart(restart),
            restarts,
            log_bytes_max=log_bytes,
            process_id=id,
        )
        host = await self.client.host()
        launched = await host.launch_process(spec)
        if wait:
            await host.wait_process(self._sandbox_id, launched.process_id, until=ProcessState.RUNNING)
        return AsyncManagedProcess(self.client, self._sandbox_id, launched.process_id)

    @in_portal
    async def get(self, id: str) -> AsyncManagedProcess:
        """One that somebody launched before, by its id or its name, also when it has ended. Raises ProcessNotFound."""
        found = await (await self.client.host()).process_status(self._sandbox_id, id)
        return AsyncManagedProcess(self.client, self._sandbox_id, found.process_id)

    @in_portal
    async def list(self) -> builtins.list[Process]:
        """In the order in which they were launched; the newest of those that have ended are kept."""
        return [*await (await self.client.host()).list_processes(self._sandbox_id)]


def _ready(text: str | None, port: int | None) -> Ready:
    if text is not None:
        return Ready.parse(text)
    return Ready() if port is None else Ready(ReadyKind.PORT, port)


def _restart(text: str) -> Restart:
    try:
        return Restart(text)
    except ValueError:
        raise InvalidArgument(f"restart must be one of {', '.join(Restart)}, not {text!r}") from None
