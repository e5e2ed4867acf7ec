"""Sandboxes of any OpenSandbox server for an orchestrator, and the programs that it launches in them.

A process is a command in the background. What makes it one that others find again by its id stands in the sandbox, in a
directory of its own: which command it is, its number there, and what it was asked to be.
"""

import asyncio
import hashlib
import json
import shlex
from contextlib import suppress
from secrets import token_hex
from typing import Final
from weakref import WeakValueDictionary

from sandlot.model import (
    CapabilityNotSupported,
    Conflict,
    CreateSandboxRequest,
    CreateSandboxResponse,
    FileNotFound,
    GetProcessStatusRequest,
    GetProcessStatusResponse,
    InvalidState,
    KillProcessRequest,
    LaunchProcessRequest,
    LaunchProcessResponse,
    LimitReached,
    NotFound,
    ProcessNotFound,
    ProcessState,
    SandboxCapabilities,
    SessionDestroying,
    SessionFailed,
    SessionNotFound,
    SessionPaused,
    StartFailed,
    Unavailable,
    check_sandbox_id,
)
from sandlot.opensandbox.async_client import AsyncOpenSandboxClient
from sandlot.opensandbox.values import TIMEOUT_S_MAX, CommandResult, CommandStatus, Endpoint, SandboxResponse
from sandlot.opensandbox.vendor import VendorOptions, create_sandbox, first_made, label_of
from sandlot.tools.contained.ending import END

REQUEST_KEY: Final = "sandlot-request"
PLACE: Final = "/var/tmp/.sandlot-processes"
_TAKEN, _NO_DIRECTORY, _NO_PROGRAM, _UNKNOWN = 91, 92, 93, 94
_ASK_S: Final = 30.0
_ENDED_S: Final = 10.0
_POLL_S: Final = 0.02
# DIRECTORY CWD BINARY WHAT MARK
_CLAIM: Final = f"""
cd "$2" 2>/dev/null || exit {_NO_DIRECTORY}
mkdir -p "${{1%/*}}"
mkdir "$1" 2>/dev/null || {{
  [ "$(cat "$1/what" 2>/dev/null)" = "$4" ] || exit {_TAKEN}
  cat "$1/command" 2>/dev/null; exit 0
}}
command -v "$3" >/dev/null 2>&1 || {{ rmdir "$1"; exit {_NO_PROGRAM}; }}
printf %s "$5" >"$1/mark"
printf %s "$4" >"$1/what"
echo new
"""
_RUN: Final = 'echo $$ >"$1/pid"; shift; exec "$@"'
# DIRECTORY COMMAND NAME
_NOTE: Final = """
printf %s "$2" >"$1/command.new" && mv "$1/command.new" "$1/command" && cd "${1%/*}" && ln -sfn "${1##*/}" "$2"
"""
_SIGNAL: Final = f'pid=$(cat "$1/pid" 2>/dev/null) || exit {_UNKNOWN}; kill "-$2" "$pid" 2>/dev/null; exit 0'
_END: Final = f'mark=$(cat "$1/mark" 2>/dev/null) || exit {_UNKNOWN}; set -- "$mark"\n{END}'


class OpenSandboxControl:
    """Given a client, which stays its owner's. Everything is kept by the server: any number of these can be used at
    once, also in programs that come one after another. A process is not reached from outside."""

    def __init__(
        self, client: AsyncOpenSandboxClient, options: VendorOptions | None = None, timeout_s: float = TIMEOUT_S_MAX
    ) -> None:
        self._client = client
        self._options = options or VendorOptions()
        self._timeout_s = timeout_s

    # ---- sandboxes ---------------------------------------------------------------------------------------------

    async def create_sandbox(self, request: CreateSandboxRequest) -> CreateSandboxResponse:
        timeout_s = self._timeout_s if request.timeout_s is None else request.timeout_s
        if timeout_s > TIMEOUT_S_MAX:
            raise LimitReached(f"a sandbox lives for at most {TIMEOUT_S_MAX} s here", next_step="ask for less time")
        if request.request_id is None:
            return await self._make(request, timeout_s, {})
        lock = _locks.setdefault((self._client.address, request.request_id), asyncio.Lock())
        async with lock:  # of this program; of several, the first that the server made is taken
            named = {REQUEST_KEY: label_of(request.request_id)}
            if found := first_made(await self._client.list_sandboxes(named)):
                return await self._ready(found[0])
            made = await self._make(request, timeout_s, named)
            first = first_made(await self._client.list_sandboxes(named))
            if first and first[0].sandbox_id != made.sandbox_id:
                await self.destroy_sandbox(made.sandbox_id)
                return await self._ready(first[0])
            return made

    async def _make(
        self, request: CreateSandboxRequest, timeout_s: float, named: dict[str, str]
    ) -> CreateSandboxResponse:
        made = await create_sandbox(
            self._client,
            self._options,
            template=request.template,
            metadata={**request.labels, **named},
            resources=request.resources,
            timeout_s=timeout_s,
        )
        return CreateSandboxResponse(made.sandbox_id, capabilities=await self.capabilities())

    async def _ready(self, found: SandboxResponse) -> CreateSandboxResponse:
        if found.state != "Paused":
            await self._client.wait_ready(found.sandbox_id)
        return CreateSandboxResponse(found.sandbox_id, capabilities=await self.capabilities())

    async def destroy_sandbox(self, sandbox_id: str) -> None:
        with suppress(NotFound):
            await self._client.delete_sandbox(check_sandbox_id(sandbox_id))

    async def pause_sandbox(self, sandbox_id: str) -> None:
        await self._known(sandbox_id)
        with suppress(Conflict):
            await self._client.pause_sandbox(sandbox_id)
        await self._expect(sandbox_id, "Paused")

    async def resume_sandbox(self, sandbox_id: str) -> None:
        if (await self._known(sandbox_id)).state == "Running":
            return
        with suppress(Conflict):
            await self._client.resume_sandbox(sandbox_id)
        await self._expect(sandbox_id, "Running")

    async def _known(self, sandbox_id: str) -> SandboxResponse:
        try:
            found = await self._client.get_sandbox(check_sandbox_id(sandbox_id))
        except NotFound as error:
            raise _gone(sandbox_id) from error
        if found.state == "Terminated":
            raise _gone(sandbox_id)
        if found.state == "Stopping":
            raise SessionDestroying(f"sandbox {sandbox_id} is being destroyed", session_id=sandbox_id)
        if found.state == "Failed":
            raise SessionFailed(f"sandbox {sandbox_id} has failed: {found.message}", session_id=sandbox_id)
        return found

    async def _expect(self, sandbox_id: str, wanted: str) -> None:
        if (state := (await self._known(sandbox_id)).state) != wanted:
            raise InvalidState(f"sandbox {sandbox_id} is {state}, not {wanted}", session_id=sandbox_id)

    # ---- processes ---------------------------------------------------------------------------------------------

    async def launch_process(self, request: LaunchProcessRequest) -> LaunchProcessResponse:
        if request.expose_port is not None:
            raise CapabilityNotSupported(
                "processes of an OpenSandbox server have no address of their own",
                next_step="ask the server for the endpoint of the port",
                capability="expose_port",
            )
        execd = await self._execd(request.sandbox_id)
        own = "p-" + token_hex(8)
        name = request.process_id or own
        place, mark = f"{PLACE}/{name}", token_hex(12)
        told = json.dumps([request.binary, *request.args, request.cwd, dict(sorted(request.envs.items()))])
        what = hashlib.sha256(told.encode(errors="surrogateescape")).hexdigest()
        cwd = request.cwd or "/"
        claim = await self._ask(execd, _CLAIM, place, cwd, request.binary, what, mark)
        if claim.exit_code == _TAKEN:
            raise Conflict(f"process {name} is another program", next_step="choose another id")
        if claim.exit_code in (_NO_DIRECTORY, _NO_PROGRAM):
            missing = f"directory {cwd}" if claim.exit_code == _NO_DIRECTORY else f"program {request.binary}"
            raise StartFailed(f"there is no {missing} in the sandbox", session_id=request.sandbox_id)
        _expect_well(claim, "the process could not be prepared")
        if claim.stdout.strip() != "new":
            return await self._again(execd, request.sandbox_id, name)
        argv = ("/bin/sh", "-c", _RUN, "sh", place, request.binary, *request.args)
        envs = {**request.envs, "SANDLOT_CALL": mark}
        command = await self._client.start_command(execd, argv, cwd=cwd, envs=envs)
        _expect_well(await self._ask(execd, _NOTE, place, command), "the process could not be noted")
        return LaunchProcessResponse(request.process_id or command, status=ProcessState.RUNNING)

    async def _again(self, execd: Endpoint, sandbox_id: str, name: str) -> LaunchProcessResponse:
        """One that came before, which may be on its way still."""
        try:
            async with asyncio.timeout(_ASK_S):
                while True:
                    with suppress(ProcessNotFound):
                        return LaunchProcessResponse(name, status=_state(await self._status(execd, sandbox_id, name)))
                    await asyncio.sleep(_POLL_S)
        except TimeoutError as error:
            raise Unavailable(f"process {name} was begun and is not there", next_step="choose another id") from error

    async def kill_process(self, request: KillProcessRequest) -> None:
        execd = await self._execd(request.sandbox_id)
        if not (await self._status(execd, request.sandbox_id, request.process_id)).running:
            return
        place = f"{PLACE}/{request.process_id}"
        if request.signal is not None:
            told = await self._ask(execd, _SIGNAL, place, str(request.signal))
        else:
            told = await self._ask(execd, _END, place)
        if told.exit_code == _UNKNOWN:
            raise ProcessNotFound(f"there is no process {request.process_id}", session_id=request.sandbox_id)
        if request.signal is None:
            await self._ended(execd, request)

    async def _ended(self, execd: Endpoint, request: KillProcessRequest) -> None:
        try:
            async with asyncio.timeout(_ENDED_S):
                while True:
                    if not (await self._status(execd, request.sandbox_id, request.process_id)).running:
                        return
                    await asyncio.sleep(_POLL_S)
        except TimeoutError as error:
            raise Unavailable(f"process {request.process_id} does not end", next_step="try again") from error

    async def get_process_status(self, request: GetProcessStatusRequest) -> GetProcessStatusResponse:
        found = await self._known(request.sandbox_id)
        execd = await self._client.discover_execd(found.sandbox_id)
        told = await self._status(execd, request.sandbox_id, request.process_id)
        if told.running:
            return GetProcessStatusResponse(ProcessState.RUNNING)
        return GetProcessStatusResponse(
            ProcessState.EXITED, 1 if told.exit_code is None else told.exit_code, told.error
        )

    async def _status(self, execd: Endpoint, sandbox_id: str, process_id: str) -> CommandStatus:
        """By the id of its command, else by the one that it was given, which stands in the sandbox."""
        with suppress(NotFound):
            return await self._client.command_status(execd, process_id)
        try:
            async with self._client.download_file(execd, f"{PLACE}/{process_id}/command") as pieces:
                command = b"".join([piece async for piece in pieces]).decode()
            return await self._client.command_status(execd, command)
        except (FileNotFound, NotFound, UnicodeDecodeError) as error:
            raise ProcessNotFound(f"there is no process {process_id}", session_id=sandbox_id) from error
        except Conflict as error:
            raise SessionPaused(f"sandbox {sandbox_id} is paused", next_step="resume it") from error

    async def _execd(self, sandbox_id: str) -> Endpoint:
        if (await self._known(sandbox_id)).state == "Paused":
            raise SessionPaused(f"sandbox {sandbox_id} is paused", next_step="resume it", session_id=sandbox_id)
        return await self._client.discover_execd(sandbox_id)

    async def _ask(self, execd: Endpoint, script: str, *words: str) -> CommandResult:
        return await self._client.run_command(execd, ("/bin/sh", "-c", script, "sh", *words), timeout_s=_ASK_S)

    # ---- what it can do ----------------------------------------------------------------------------------------

    async def capabilities(self) -> SandboxCapabilities:
        return SandboxCapabilities(
            pause=True,
            pause_keeps_processes=True,
            launch_process=True,
            concurrent_sandboxes=self._options.sessions_max,
            sandbox_duration_s_max=float(TIMEOUT_S_MAX),
        )


_locks: WeakValueDictionary[tuple[str, str], asyncio.Lock] = WeakValueDictionary()


def _gone(sandbox_id: str) -> SessionNotFound:
    return SessionNotFound(f"there is no sandbox {sandbox_id}", session_id=sandbox_id)


def _state(status: CommandStatus) -> ProcessState:
    return ProcessState.RUNNING if status.running else ProcessState.EXITED


def _expect_well(told: CommandResult, what: str) -> None:
    if told.exit_code:
        raise Unavailable(f"{what}: {shlex.quote(told.stderr[-200:])} (exit code {told.exit_code})")
